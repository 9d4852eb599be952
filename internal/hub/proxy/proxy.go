// Package proxy answers the requests of the clients on a node. While the cloud is reachable, it forwards the
// cloud's responses and caches them. While offline, it answers a request with the last response to the same
// request of the same caller.
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
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// AsOf is the header of a response from the cache: the time of the cached state.
const AsOf = "Atoll-As-Of"

const (
	// maxAnswer limits how much of one response is cached, in bytes. A larger response is forwarded and not
	// cached.
	maxAnswer = 64 << 20
	// readWithin limits how long a read is retried, and readAgain is the time between two attempts.
	readWithin, readAgain = 15 * time.Second, 300 * time.Millisecond
	// localWithin limits how long a client may take to receive a response from the cache.
	localWithin = time.Minute
	// retryAfter is the Retry-After for a client that gets no slot, or whose single request failed while the
	// cloud is online, in seconds. While offline, responses do not have this header: kubectl would retry ten
	// times before it prints the reason.
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
	// Journal stores writes of the node while offline, and Replay sends them later. If they are nil, no write is
	// journaled.
	Journal *journal.Journal
	Replay  *replay.Replayer
	// Kubelet is the kubelet of the node. If it is nil, requests for logs go to the cloud.
	Kubelet *kubelet.Kubelet
	// Panics recovers from panics outside of requests, and counts all panics. If it is nil, the hub does not
	// recover.
	Panics *panics.Catcher
	Log    logr.Logger

	// Trust, if it is set, is called with the context of each request that comes from the node, or has a token
	// that the cloud has accepted before.
	Trust func(context.Context)
	// Filter filters objects before they are sent to clients. Pods receives the versions of the node's pods.
	// Both may be nil.
	Filter filter.Filter
	Pods   filter.Pods

	// MaxBytes is the size limit of the cache on disk. 0 means that incomplete chunked lists have no size limit.
	MaxBytes int64

	queues queues
	chunks chunks
	// limiters are created by limits.
	limiting sync.Once
	limiters limiters
	gate     gate
	recent   recent
	// refusals has the refused reads of the node.
	refusals refusals
	// changed has the times when callers changed objects through the hub. newestForm ignores states that were
	// cached before that time.
	changed refusals
	// metrics is nil if no metrics are registered.
	metrics *metrics
	// slowAfter replaces limits.TakeWithin, bodyWithin and questionWithin if it is not 0. Only tests set it.
	slowAfter time.Duration
}

// Wait waits until all responses sent so far are stored, and until the requests that the hub itself sent because
// of them have ended.
func (p *Proxy) Wait() { p.queues.tasks.Wait() }

// call is one request of a recognized caller.
type call struct {
	*http.Request

	caller identity.Caller
	what   request.Request
	// key is the key of the scope in the cache; "" if the response must not be cached.
	key string
	// began is when the request arrived.
	began time.Time
	// slot is the slot of the request; nil for requests of the node.
	slot *slot
	// isForTable is true if the response is not sent as it is, but printed as a table.
	isForTable bool
	// body is the body of a request of another caller than the node; nil if there is none.
	body *slowBody
}

// ServeHTTP implements http.Handler. If handling a request panics, its response is aborted.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.Panics.Do("a request", func() error { p.serve(w, r); return nil }) != nil {
		panic(http.ErrAbortHandler)
	}
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	// The server may send the end of a response after this handler has returned, so it needs a deadline.
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

// answer answers a request of a recognized caller.
func (p *Proxy) answer(w http.ResponseWriter, r *http.Request, caller identity.Caller) {
	if impersonates(r.Header) {
		p.refuse(w, r, http.StatusForbidden, metav1.StatusReasonForbidden,
			"the hub does not forward requests with impersonation (kubectl --as): send them to the cloud's API server, or without --as")
		return
	}
	c := &call{Request: r.Clone(r.Context()), caller: caller, began: time.Now()}
	strip(c.Header)
	c.what = request.Of(c.Request)
	if (c.what.Kind == request.Get || c.what.Kind == request.List) && acceptsGzip(r.Header) {
		c.Header.Set("Accept-Encoding", gzipped)
	}
	if r.ContentLength == 0 {
		c.Body = http.NoBody // the transport would send a body of unknown length in its own frame, after the headers
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
		p.refuse(w, r, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "the hub cannot check which of these pods may reach the node: "+why)
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

// impersonates reports whether a request has impersonation headers. Without these headers, the API server would
// perform the request with the rights of the client itself, so the hub must not remove them and forward the
// request.
func impersonates(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "Impersonate-") {
			return true
		}
	}
	return false
}

// strip removes the headers with which a proxy tells an API server the identity of a caller. It also removes the
// encodings that the client accepts, because the connection to the cloud has its own, unless a response is
// forwarded in its encoding. It removes CBOR from the accepted media types, because the hub cannot read CBOR;
// clients that accept CBOR also accept JSON.
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

// tokenProtocol is the prefix of a websocket protocol that contains a token. An API server accepts such a token
// even if the request also has a bearer token that it refuses.
const tokenProtocol = "base64url.bearer.authorization.k8s.io."

// stripProtocols removes the websocket protocols that contain tokens.
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

// send sends the request to the cloud, and records whether the cloud accepted the token.
func (p *Proxy) send(c *call, r *http.Request) (*http.Response, error) {
	r.RequestURI = ""
	if !c.caller.IsNode { // as the hub has read it: see identity.Recognizer
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

// isProof reports whether a response proves that the API server has accepted the token of the request. An API
// server may send a response other than success before it checks the token, and also the response to OPTIONS,
// which browsers send first. A request for another protocol may contain the token of another caller.
func (c *call) isProof(answer *http.Response) bool {
	return answer.StatusCode/100 == 2 && c.Method != http.MethodOptions && c.what.Kind != request.Stream
}

// read sends a request that changes nothing. A broken connection does not prove that the cloud is offline: read
// retries until it gets a response, or until the cloud is known to be offline, for at most readWithin.
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

// isAway reports whether an error means that the hub cannot send requests to the cloud at present: the cloud is
// offline, or, for requests of the node, the hub has no valid certificate.
func isAway(err error) bool {
	return errors.Is(err, uplink.ErrOffline) || errors.Is(err, uplink.ErrNoCertificate)
}

// pass forwards a request and its response. Nothing is cached.
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

// unavailable answers that the request could not be sent to the cloud.
func (p *Proxy) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if p.hasEnded(w, r) {
		return
	}
	if !isAway(err) {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if !errors.Is(err, uplink.ErrOffline) {
		p.Log.V(2).Info("Request to the cloud failed", "path", r.URL.Path, "error", err.Error())
	}
	p.refuse(w, r, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		fmt.Sprintf("the hub cannot ask the cloud (%v), and has no cached response to this request", err))
}

// refuse answers with a Status, in the first accepted encoding that the hub supports.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, code int, reason metav1.StatusReason, message string) {
	p.metrics.request(request.Of(r).Kind, fromHub)
	format := wire.JSON
	for accepted := range strings.SplitSeq(r.Header.Get("Accept"), ",") {
		if f, err := wire.FormatOf(accepted); err == nil {
			format = f
			break
		}
	}
	w.Header().Del(AsOf) // this response is from the hub itself, not from the cache
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

// mayRead reports whether a caller may get responses from the cache: the node, and callers whose token an API
// server has accepted.
func (p *Proxy) mayRead(c *call) bool { return c.caller.IsNode || p.Tokens.Knows(c.caller.Token) }

// dated sets the headers with the time of a cached state.
func dated(w http.ResponseWriter, c *call, at time.Time) {
	text := at.UTC().Format(time.RFC3339)
	w.Header().Set(AsOf, text)
	if !c.caller.IsNode || c.wantsTable() { // kubectl prints it; the programs of the node would log it each time
		w.Header().Set("Warning", fmt.Sprintf(`299 atoll-hub "The cloud is not reachable. This response has the state of %s."`, text))
	}
}

// fromCache opens the cached scope of a request. The caller of fromCache closes it. If the scope is not cached,
// fromCache answers the request with the reason, and returns false.
func (p *Proxy) fromCache(w http.ResponseWriter, c *call, reason error) (*cache.View, *head, bool) {
	if p.hasEnded(w, c.Request) {
		return nil, nil, false
	}
	if !p.mayRead(c) {
		p.refuse(w, c.Request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the hub cannot ask the cloud (%v), and the cloud has not accepted this token before", reason))
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
		p.Log.Error(err, "Reading a cached response failed", "path", c.URL.Path)
	}
	p.unavailable(w, c.Request, reason)
	return nil, nil, false
}
