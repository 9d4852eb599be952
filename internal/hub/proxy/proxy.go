// Package proxy answers the clients of a node: with what the cloud answers while it is reachable,
// and otherwise with what it answered before, to the same request of the same caller. It keeps what
// passes through it.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// AsOf is the header of an answer from the cache: when the cloud gave it.
const AsOf = "Atoll-As-Of"

const (
	// maxAnswer bounds what is kept of one answer, in bytes. A larger one is passed on and not kept.
	maxAnswer = 64 << 20
	// readWithin bounds how long a read is sent again, and readAgain is the time between two attempts.
	readWithin, readAgain = 15 * time.Second, 300 * time.Millisecond
	// localWithin bounds how long a client may take for an answer from the cache.
	localWithin = time.Minute
	// retryAfter is when a client may ask again that finds no place, or that the cloud did not answer this once, in
	// seconds. While the cloud is away nobody is told: kubectl would ask ten times before it says why.
	retryAfter = 5
)

// Cloud is the connection to the API servers: see uplink.Uplink.
type Cloud interface {
	RoundTrip(r *http.Request, asNode bool) (*http.Response, error)
	AwaitOnline(ctx context.Context) error
	AwaitReachable(ctx context.Context) (spread time.Duration, err error)
}

// Proxy is the handler of the hub's port.
type Proxy struct {
	Cloud      Cloud
	Cache      *cache.Store
	Recognizer *identity.Recognizer
	Tokens     *identity.Tokens
	// Journal keeps writes of the node while the cloud is away: see Replay. nil keeps none.
	Journal *journal.Journal
	// Kubelet is that of the node. nil sends requests for logs to the cloud.
	Kubelet *kubelet.Kubelet
	// Panics catches those outside of requests, and counts all. nil catches none.
	Panics *panics.Catcher
	Log    logr.Logger

	// Trust, if it is set, is called with the context of each request of the node, or with a token that
	// the cloud has accepted before.
	Trust func(context.Context)
	// Filter filters objects on their way to clients, and Pods is told of the node's pods. Both may be nil.
	Filter filter.Filter
	Pods   filter.Pods

	// MaxBytes is the most that the cache takes on disk. 0 means that lists left in the middle are not bounded.
	MaxBytes int64

	queues queues
	chunks chunks
	// limiters are made by limits.
	limiting sync.Once
	limiters limiters
	gate     gate
	// clients has what the clients of filtered collections have.
	clients clients
	recent  recent
	replay  replay
	// refusals are those of what the node reads.
	refusals refusals
	// changed is when others than the node changed what they read: a list from before tells nothing of it.
	changed refusals
	// metrics is nil if nobody registered them.
	metrics *metrics
	// slowAfter, if it is not 0, is used instead of limits.TakeWithin, bodyWithin and questionWithin: in tests.
	slowAfter time.Duration
}

// Wait waits until all answers that were given are stored, and the requests of the hub itself that
// they led to have ended.
func (p *Proxy) Wait() { p.queues.tasks.Wait() }

// call is one request of a recognized caller.
type call struct {
	*http.Request

	caller identity.Caller
	what   request.Request
	// key is that of its scope in the cache; "" if nothing is kept.
	key string
	// began is when the request arrived.
	began time.Time
	// slot is that of the request; nil if it is the node's.
	slot *slot
	// isForTable is true if the answer is not sent, but printed.
	isForTable bool
	// body is that of a request of somebody else; nil if there is none.
	body *slowBody
}

// ServeHTTP implements http.Handler. A request whose handling panics is not answered to its end.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Panics.Do("a request", func() error { p.serve(w, r); return nil }) != nil {
		panic(http.ErrAbortHandler)
	}
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	// The server may send the end of an answer when nobody waits for it any more.
	defer func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(cmp.Or(p.slowAfter, limits.TakeWithin)))
	}()
	caller, err := p.Recognizer.Recognize(r)
	if err != nil {
		p.refuse(w, r, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, err.Error())
		return
	}
	if p.Trust != nil && (caller.IsNode || p.Tokens.Knows(caller.Token)) {
		p.Trust(r.Context())
	}
	p.answer(w, r, caller)
}

// answer answers a request of a caller.
func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, caller identity.Caller) {
	if impersonates(r.Header) {
		p.refuse(w, r, http.StatusForbidden, metav1.StatusReasonForbidden,
			"the node's hub passes no request on as somebody else (kubectl --as): send it to the cloud's API server, or as who you are")
		return
	}
	c := &call{Request: r.Clone(r.Context()), caller: caller, began: time.Now()}
	strip(c.Header)
	c.what = request.Of(c.Request)
	if (c.what.Kind == request.Get || c.what.Kind == request.List) && acceptsGzip(r.Header) {
		c.Header.Set("Accept-Encoding", gzipped)
	}
	if r.ContentLength == 0 {
		c.Body = http.NoBody // a body that may have something would be sent as a frame of its own, after the headers
	}
	if c.what.Kind != request.Stream {
		for _, name := range hopHeaders {
			c.Header.Del(name)
		}
	}
	if c.what.Scope != "" {
		c.key = caller.Name + "\n" + c.what.Scope
	}
	if c.isGated() && c.wantsTable() {
		p.podsAsTable(w, c)
		return
	}
	if p.isOwnLog(c) {
		p.log(w, c)
		return
	}
	if why := c.wouldPassTheGate(); why != "" {
		p.refuse(w, r, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "the node's hub cannot tell which of these pods may reach the node: "+why)
		return
	}
	if !caller.IsNode {
		admitted, release := p.admit(w, c)
		if release == nil {
			return
		}
		defer release()
		w = admitted
	}
	switch c.what.Kind {
	case request.Get:
		if c.key == "" {
			p.pass(w, c)
			return
		}
		p.get(w, c)
	case request.List:
		p.list(w, c)
	case request.Watch:
		p.watch(w, c)
	case request.Write:
		p.observeWrite(c)
		if isRepeatable(c.Method, &c.what) {
			p.repeat(w, c)
			return
		}
		if o := p.ownWriteOf(c); o != nil {
			p.write(w, c, o)
			return
		}
		p.change(w, c)
	case request.Stream:
		p.pass(w, c)
	}
}

// impersonates reports whether a client wants to be somebody else for a request. Without these
// headers the request would be carried out with the rights of the client itself.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// strip takes headers away by which a proxy tells an API server who sends a request, and the encodings
// that the client accepts: the connection to the cloud has its own, unless an answer passes in its encoding.
// CBOR, which the hub does not read, it takes out of what the client accepts; clients accept JSON beside it.
func strip(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "X-Remote-") {
			h.Del(name)
		}
	}
	h.Del("Accept-Encoding")
	if accepts := strings.Split(strings.Join(h.Values("Accept"), ","), ","); slices.ContainsFunc(accepts, isCBOR) {
		h.Set("Accept", strings.Join(slices.DeleteFunc(accepts, isCBOR), ","))
	}
	stripProtocols(h)
}

func isCBOR(mediaType string) bool {
	return strings.HasPrefix(strings.ToLower(strings.TrimSpace(mediaType)), runtime.ContentTypeCBOR)
}

// tokenProtocol begins a protocol of websockets that is a token. An API server accepts it also beside
// another token, which it does not accept.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// stripProtocols takes the protocols away that are tokens.
func stripProtocols(h http.Header) {
	const name = "Sec-Websocket-Protocol"
	values := h.Values(name)
	if len(values) == 0 {
		return
	}
	h.Del(name)
	for _, value := range values {
		for protocol := range strings.SplitSeq(value, ",") {
			if protocol = strings.TrimSpace(protocol); !strings.HasPrefix(protocol, tokenProtocol) {
				h.Add(name, protocol)
			}
		}
	}
}

// send sends the request to the cloud, and keeps whether that accepted the token.
func (p *Proxy) send(c *call, r *http.Request) (*http.Response, error) {
	r.RequestURI = ""
	if !c.caller.IsNode { // as it was read: see identity.Recognizer
		r.Header.Set("Authorization", "Bearer "+c.caller.Token)
	}
	response, err := p.Cloud.RoundTrip(r, c.caller.IsNode)
	if err == nil {
		p.metrics.request(c.what.Kind, fromCloud)
		if c.caller.IsNode {
			p.metrics.answer(response.StatusCode)
		}
		if response.StatusCode/100 == 2 {
			p.refusals.end(c.key)
			p.refusals.end(c.ofAnyForm())
		}
	}
	if err != nil || c.caller.IsNode {
		return response, err
	}
	if response.StatusCode == http.StatusUnauthorized {
		p.Tokens.Refused(c.caller.Token, time.Now())
	} else if c.isProof(response) {
		p.Tokens.Accepted(c.caller.Token, time.Now())
	}
	c.body.answered(response)
	if response.StatusCode < http.StatusBadRequest {
		p.leaveStrangers(c)
	}
	return response, nil
}

// isProof reports whether an answer proves that the API server has accepted the token of the request. Those
// that are no success may be given before it looks at the token, and so are those to OPTIONS, which browsers
// send first. A request for another protocol may have told it somebody else's token.
func (c *call) isProof(answer *http.Response) bool {
	return answer.StatusCode/100 == 2 && c.Method != http.MethodOptions && c.what.Kind != request.Stream
}

// read sends a request that changes nothing. A connection that breaks is no evidence that the cloud
// is away: the request is sent again, until there is an answer or the cloud is known to be away.
func (p *Proxy) read(c *call, r *http.Request) (*http.Response, error) {
	for began := time.Now(); ; {
		response, err := p.send(c, r)
		if err == nil || isAway(err) || c.Context().Err() != nil || time.Since(began) > readWithin {
			return response, err
		}
		select {
		case <-c.Context().Done():
			return nil, err
		case <-time.After(readAgain):
		}
	}
}

// isAway reports whether an error means that the cloud cannot be asked at present: it is away, or for
// the node, there is no certificate yet or any more.
func isAway(err error) bool {
	return errors.Is(err, uplink.ErrOffline) || errors.Is(err, uplink.ErrNoCertificate)
}

// pass passes a request on. Nothing of it is kept.
func (p *Proxy) pass(w http.ResponseWriter, c *call) {
	(&httputil.ReverseProxy{
		Rewrite:       func(*httputil.ProxyRequest) {},
		Transport:     roundTripper(func(r *http.Request) (*http.Response, error) { return p.send(c, r) }),
		FlushInterval: -1,
		ErrorHandler:  func(w http.ResponseWriter, r *http.Request, err error) { p.unavailable(w, r, err) },
	}).ServeHTTP(w, c.Request)
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// unavailable answers that the cloud could not be asked.
func (p *Proxy) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if p.hasEnded(w, r) {
		return
	}
	if !isAway(err) {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if !errors.Is(err, uplink.ErrOffline) {
		p.Log.V(2).Info("A request failed", "path", r.URL.Path, "error", err.Error())
	}
	p.refuse(w, r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the node's hub cannot ask the cloud (%v), and has no earlier answer to this request", err))
}

// refuse answers with a Status, in the encoding that the client accepts first.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason, message string) {
	p.metrics.request(request.Of(r).Kind, fromHub)
	format := wire.JSON
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if f, err := wire.FormatOf(accepted); err == nil {
			format = f
			break
		}
	}
	w.Header().Del(AsOf) // the answer is the hub's, whatever of the cache it was about to give
	w.Header().Del("Warning")
	status := metav1.Status{Status: metav1.StatusFailure, Reason: reason, Message: message, Code: int32(code)}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if w.Header().Get("Retry-After") != "" {
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	body, err := format.EncodeStatus(status)
	if err != nil {
		http.Error(w, message, code)
		return
	}
	w.Header().Set("Content-Type", format.ContentType())
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// mayRead reports whether a caller may be answered from the cache: the node, and who has a token
// that an API server accepted.
func (p *Proxy) mayRead(c *call) bool { return c.caller.IsNode || p.Tokens.Knows(c.caller.Token) }

// dated says of an answer when the cloud gave it.
func dated(w http.ResponseWriter, c *call, at time.Time) {
	text := at.UTC().Format(time.RFC3339)
	w.Header().Set(AsOf, text)
	if !c.caller.IsNode || c.wantsTable() { // kubectl shows it; the node's programs would log it each time
		w.Header().Set("Warning", fmt.Sprintf(`299 atoll-hub "The cloud is not reachable. This is what it answered until %s."`, text))
	}
}

// fromCache opens what is kept for a request; the caller closes it. If there is nothing it answers
// with the reason, and returns false.
func (p *Proxy) fromCache(w http.ResponseWriter, c *call, reason error) (*cache.View, *head, bool) {
	if p.hasEnded(w, c.Request) {
		return nil, nil, false
	}
	if !p.mayRead(c) {
		p.refuse(w, c.Request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the node's hub cannot ask the cloud (%v), and the cloud has not accepted this token before", reason))
		return nil, nil, false
	}
	if !isAway(reason) {
		p.unavailable(w, c.Request, reason)
		return nil, nil, false
	}
	p.queues.settle(c.key)
	view, err := p.Cache.View(c.key)
	if err == nil {
		var h *head
		if h, err = decodeHead(view.Head()); err == nil {
			p.metrics.request(c.what.Kind, fromCache)
			if c.what.Kind != request.Watch {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(localWithin))
			}
			dated(w, c, view.Written())
			return view, h, true
		}
		_ = view.Close()
	}
	if !errors.Is(err, cache.ErrNotFound) {
		p.Log.Error(err, "An earlier answer cannot be read", "path", c.URL.Path)
	}
	p.unavailable(w, c.Request, reason)
	return nil, nil, false
}
