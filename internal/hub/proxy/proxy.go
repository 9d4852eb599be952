// Package proxy answers the requests of the clients on a node. While the cloud is reachable, it forwards the
// cloud's responses and caches them. While offline, it answers a request with the last response to the same
// request of the same caller.
package proxy

import (
	"cmp"
	"context"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/delivery"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/gate"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/kubelet"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/panics"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// AsOf is the header of a response from the cache: the time of the cached state.
const AsOf = "Atoll-As-Of"

const (
	// maxAnswer limits how much of one response is cached, in bytes. A larger response is forwarded and not
	// cached.
	maxAnswer = 64 << 20
	// localWithin limits how long a client may take to receive a response from the cache.
	localWithin = time.Minute
	// retryAfter is the Retry-After for a client that gets no slot, or whose single request failed while the
	// cloud is online, in seconds. While offline, responses do not have this header: kubectl would retry ten
	// times before it prints the reason.
	retryAfter = 5
)

// Options are the parts that a Proxy uses. Trust, Filter and Pods may be set until the first request.
type Options struct {
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

	// slowAfter replaces limits.TakeWithin, bodyWithin and questionWithin if it is not 0. Only tests set it.
	slowAfter time.Duration
}

// parts are what answers to requests are made of. Each part has its own state.
type parts struct {
	*Options
	// Record stores what the cloud answers, Gate holds pods back from the node, and Writes journals writes of the
	// node.
	Record *record.Recorder
	Gate   *gate.Gate
	Writes *ownwrites.Writes

	sender  *sender
	limits  *limiters
	errors  *errorAnswers
	metrics *metrics
	// refusals has the refused reads of the node. changed has the times when callers changed objects through the
	// hub: states that were cached before are not used for other forms.
	refusals, changed *refusals
}

// Proxy is the handler of the hub's port.
type Proxy struct {
	*parts

	reads  reads
	writes writes
}

// New returns a Proxy.
func New(o Options) *Proxy {
	p := &parts{Options: &o, Record: record.New(o.Cache, o.MaxBytes, o.Panics, o.Log), metrics: newMetrics(), refusals: newRefusals(), changed: newRefusals()}
	p.errors = &errorAnswers{p.metrics, o.Log}
	p.limits = newLimiters(p.Options, p.errors)
	p.sender = &sender{p.Options, p.limits, p.metrics, p.refusals, p.errors}
	p.Gate = gate.New(gate.Options{
		NodeName: o.Recognizer.NodeName, Panics: o.Panics, Log: o.Log, Go: p.Record.Go,
		Send:  func(r *http.Request) (*http.Response, error) { return p.Cloud.RoundTrip(r, true) },
		Count: func(v delivery.Verdict) { p.metrics.held.WithLabelValues(string(v)).Inc() },
	})
	p.Writes = &ownwrites.Writes{NodeName: o.Recognizer.NodeName, Journal: o.Journal, Record: p.Record, IsSilent: o.Replay.IsSilent}
	return &Proxy{p, reads{p}, writes{p}}
}

// Wait waits until all responses sent so far are stored, and until the requests that the hub itself sent because
// of them have ended.
func (p *Proxy) Wait() { p.Record.Wait() }

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
		p.errors.refuse(w, r, http.StatusUnauthorized, metav1.StatusReasonUnauthorized, err.Error())
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
		p.errors.refuse(w, r, http.StatusForbidden, metav1.StatusReasonForbidden,
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
	c.key = record.KeyOf(caller, &c.what)
	if c.isGated() && c.wantsTable() {
		p.reads.podsAsTable(w, c)
		return
	}
	if isOwnLog(p.Kubelet, c) {
		ownLog(p.parts, w, c)
		return
	}
	if why := c.wouldPassTheGate(); why != "" {
		p.errors.refuse(w, r, http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable, "the hub cannot check which of these pods may reach the node: "+why)
		return
	}
	if !caller.IsNode {
		admitted, release := p.limits.admit(w, c)
		if release == nil {
			return
		}
		defer release()
		w = admitted
	}
	switch {
	case c.what.Kind == request.Stream, c.what.Kind == request.Get && c.key == "":
		p.sender.pass(w, c)
	case c.what.Kind == request.Watch:
		watchFor(p.parts, w, c)
	case c.what.Kind == request.Write:
		p.writes.answer(w, c)
	default:
		p.reads.answer(w, c)
	}
}

// LearnKept passes the journaled writes of pods' statuses to Pods. The hub may have been killed before the
// information from them was on disk. Call it before the first request.
func (p *Proxy) LearnKept() {
	if p.Pods == nil || p.Journal == nil {
		return
	}
	p.Journal.Each(func(e *journal.Entry) {
		if e.Kind == journal.Status && path.Base(path.Dir(e.Object)) == "pods" {
			p.Pods.Written(e.Method, e.ContentType, e.Body)
		}
	})
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
