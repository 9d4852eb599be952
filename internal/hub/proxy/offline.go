package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// fromCache answers a read with the last response to the same request. reason is why the cloud was not asked.
func (p *reads) fromCache(w http.ResponseWriter, c *call, filter objectFilter, reason error) {
	if p.leaseFromJournal(w, c, reason) || p.fromOtherForm(w, c, reason) {
		return
	}
	c.key = keyOfDiscovery(p.Record, c)
	state := openCached(p.parts, w, c, reason)
	if state == nil {
		return
	}
	defer state.Close()
	if c.what.Kind == request.List && !p.isAnswer(w, c, state.Head, reason) {
		return
	}
	if passesCache(filter) || state.Head.Code != http.StatusOK {
		filter = nil
	}
	switch {
	case filter != nil && state.Head.IsList():
		p.inTurn(w, c, filter, func() { p.writeFiltered(w, c, filter, state) })
	case filter != nil && c.isGated():
		p.writeFiltered(w, c, filter, state)
	case state.Head.IsList():
		p.limits.fromCacheInTurn(w, c, func() { p.writeList(w, c, state) })
	default:
		writeDocument(p.parts, w, c, state)
	}
}

// passesCache reports whether a filter would not change cached objects: cached pods have passed the gate, and without
// journaled writes it shows them as they are.
func passesCache(filter objectFilter) bool {
	g, is := filter.(*gateFilter)
	return is && !g.Writes.HasAny()
}

// isAnswer reports whether a cached state answers a list request. If not, it answers the request with the reason.
func (p *reads) isAnswer(w http.ResponseWriter, c *call, head *record.Head, reason error) bool {
	position := request.PositionOf(c.URL.Query())
	switch version := position.ResourceVersion; {
	case position.Continue != "", position.Exact && version != head.ResourceVersion:
		// Only the cloud has the rest of a chunked list, or an older state. The client lists again.
		p.errors.refuse(w, c.Request, http.StatusGone, metav1.StatusReasonExpired, "the hub has only the last state of this list, and the cloud is not reachable")
		return false
	case version != "" && version != "0" && !wire.IsUpTo(version, head.ResourceVersion):
		p.errors.unavailable(w, c.Request, fmt.Errorf("%w: the cached state is older than the requested resourceVersion", reason))
		return false
	}
	return true
}

// openCached opens the cached scope of a request. If the scope is not cached, it answers the request with the reason,
// and returns nil.
func openCached(p *parts, w http.ResponseWriter, c *call, reason error) *record.State {
	switch {
	case p.errors.hasEnded(w, c.Request):
		return nil
	case !p.limits.isKnown(c):
		p.errors.refuse(w, c.Request, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
			fmt.Sprintf("the hub cannot ask the cloud (%v), and the cloud has not accepted this token before", reason))
		return nil
	case !isAway(reason):
		p.errors.unavailable(w, c.Request, reason)
		return nil
	}
	state, err := p.Record.Open(c.key)
	if err != nil {
		if !errors.Is(err, cache.ErrNotFound) {
			p.Log.Error(err, "Reading a cached response failed", "path", c.URL.Path)
		}
		p.errors.unavailable(w, c.Request, reason)
		return nil
	}
	p.metrics.request(c.what.Kind, fromCache)
	if c.what.Kind != request.Watch {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(localWithin))
	}
	dated(w, c, state.Written())
	return state
}

// dated sets the headers with the time of a cached state.
func dated(w http.ResponseWriter, c *call, at time.Time) {
	text := at.UTC().Format(time.RFC3339)
	w.Header().Set(AsOf, text)
	if !c.caller.IsNode || c.wantsTable() { // kubectl prints it; the programs of the node would log it each time
		w.Header().Set("Warning", fmt.Sprintf(`299 atoll-hub "The cloud is not reachable. This response has the state of %s."`, text))
	}
}

// documentFromCache answers with the last response to the same request.
func documentFromCache(p *parts, w http.ResponseWriter, c *call, reason error) {
	if state := openCached(p, w, c, reason); state != nil {
		defer state.Close()
		writeDocument(p, w, c, state)
	}
}

// writeDocument answers with a cached document. A large document waits for a slot, because all of it is then in
// memory.
func writeDocument(p *parts, w http.ResponseWriter, c *call, state *record.State) {
	write := func() {
		body, err := state.Document()
		if err != nil {
			p.errors.unavailable(w, c.Request, err)
			return
		}
		observeRead(p, c, state.Head, body)
		w.Header().Set("Content-Type", state.Head.ContentType)
		w.WriteHeader(state.Head.Code)
		_, _ = w.Write(body)
	}
	if state.Len() > 0 && state.Size(0) > maxSmall {
		p.limits.fromCacheInTurn(w, c, write)
		return
	}
	write()
}

// writeFiltered answers with cached objects, filtered.
func (p *reads) writeFiltered(w http.ResponseWriter, c *call, filter objectFilter, state *record.State) {
	if !state.Head.IsList() {
		if unfiltered, err := state.Document(); err == nil {
			observeRead(p.parts, c, state.Head, unfiltered)
		}
	}
	b, err := cachedBatch(c, state)
	var body []byte
	if err == nil {
		filter.cached(b.List)
		body, err = b.encode()
	}
	if err != nil {
		p.errors.unavailable(w, c.Request, err)
		return
	}
	w.Header().Set("Content-Type", state.Head.ContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// writeList answers with a cached list.
func (p *reads) writeList(w http.ResponseWriter, c *call, state *record.State) {
	list, err := state.Head.Header()
	if err != nil {
		p.errors.unavailable(w, c.Request, err)
		return
	}
	var size wire.Size
	for i := range state.Len() {
		size.Add(state.Size(i))
	}
	w.Header().Set("Content-Length", strconv.FormatInt(list.Length(size), 10))
	w.Header().Set("Content-Type", state.Head.ContentType)
	buffered := bufio.NewWriterSize(w, 32<<10) // few writes to the client are faster
	err = list.Write(buffered, size, state.Values())
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		p.Log.V(2).Info("Sending a cached response failed", "path", c.URL.Path, "error", err.Error())
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
}

// leaseFromJournal answers with the node's Lease as the node last wrote it, if the hub has it.
func (p *reads) leaseFromJournal(w http.ResponseWriter, c *call, reason error) bool {
	if !c.caller.IsNode || !isAway(reason) || c.Context().Err() != nil {
		return false
	}
	contentType, body, found := p.Writes.Lease(c.Request, &c.what)
	if !found {
		return false
	}
	p.metrics.request(c.what.Kind, fromJournal)
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
	return true
}

// observeRead passes a pod that the kubelet reads by its name to Pods.
func observeRead(p *parts, c *call, head *record.Head, body []byte) {
	if p.Pods == nil || !c.isGated() || c.what.Kind != request.Get {
		return
	}
	format, err := wire.FormatOf(head.ContentType)
	if err != nil {
		return
	}
	if m, err := format.Meta(body); err == nil {
		p.Pods.Read(format, m.UID, body)
	}
}
