package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// maxStatus limits the size of the bodies of status writes that observeWrite reads, in bytes.
const maxStatus = 2 << 20

// sessionOf returns the filter for the response to a request; nil if the response is not filtered.
func (p *Proxy) sessionOf(c *call) filter.Session {
	if p.Filter == nil || c.what.Kind != request.List && c.what.Kind != request.Watch {
		return nil
	}
	return p.Filter.Session(c.caller.User(p.Recognizer.NodeName), c.what.Group, c.what.Version, c.what.Resource)
}

// asWhole changes a request for a chunk of a filtered list into a request for the whole list, because the form
// of an object depends on all objects. An API server, too, may return the whole list for such a request. For a
// further chunk of a list that the client has begun elsewhere, it answers that the client must list again, and
// returns false.
func (p *Proxy) asWhole(w http.ResponseWriter, c *call) bool {
	query := c.URL.Query()
	if query.Get("continue") != "" {
		p.refuse(w, c.Request, http.StatusGone, metav1.StatusReasonExpired, "the hub returns this list only as a whole")
		return false
	}
	if query.Has("limit") {
		query.Del("limit")
		c.URL = &url.URL{Path: c.URL.Path, RawPath: c.URL.RawPath, RawQuery: query.Encode()}
	}
	return true
}

// listThroughFilter forwards the cloud's list to the client as filtered. It caches the unfiltered list.
func (p *Proxy) listThroughFilter(w http.ResponseWriter, c *call, response *http.Response, session filter.Session) {
	answer, err := receive(response)
	if errors.Is(err, errTooLarge) {
		p.Log.Info("Forwarded a list without filtering, because it is too large", "path", c.URL.Path)
		p.clients.put(c.key, listed{"", p.Filter.Changed(), session})
		answerWith(w, response)
		if _, err := io.Copy(w, io.MultiReader(bytes.NewReader(answer.sent), response.Body)); err != nil {
			panic(http.ErrAbortHandler)
		}
		return
	}
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	p.Filter.Await(c.Context())
	contentType := response.Header.Get("Content-Type")
	list, err := decodeList(contentType, answer.body)
	if err != nil { // a table is forwarded unfiltered
		answer.pass(w)
		p.keepSized(c, len(answer.body), func(s *state) error { return p.storeCollection(s, c, contentType, answer.body) })
		return
	}
	unfiltered := &wire.List{Header: list.Header, Items: slices.Clone(list.Items)}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(localWithin)) // other callers wait for this slot
	if filtered, changed := p.filtered(c, list, session); changed {
		answer.passChanged(w, filtered)
	} else {
		answer.pass(w)
	}
	p.keepSized(c, len(answer.body), func(s *state) error { return p.storeList(s, c, contentType, unfiltered) })
}

func decodeList(contentType string, body []byte) (*wire.List, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return nil, err
	}
	return format.DecodeList(body)
}

// filtered returns the filtered list, and false if filtering changes nothing.
func (p *Proxy) filtered(c *call, list *wire.List, session filter.Session) (text []byte, changed bool) {
	p.clients.put(c.key, listed{list.ResourceVersion, p.Filter.Changed(), session})
	for i := range list.Items {
		session.Learn(list.Format, &list.Items[i].Meta, list.Items[i].Raw)
	}
	for i := range list.Items {
		item := &list.Items[i]
		form := session.Form(list.Format, &item.Meta, item.Raw)
		changed = changed || !bytes.Equal(form, item.Raw)
		item.Raw = form
	}
	if !changed {
		return nil, false
	}
	text, err := encodeList(list)
	if err != nil {
		p.Log.Error(err, "Encoding a filtered list failed; the list is forwarded unfiltered", "path", c.URL.Path)
		return nil, false
	}
	return text, true
}

// filteredFromCache answers with the cached state of a collection, filtered.
func (p *Proxy) filteredFromCache(w http.ResponseWriter, c *call, view *cache.View, h *head, list *wire.Header, session filter.Session) {
	var size wire.Size
	for i := range view.Len() {
		size.Add(view.Size(i))
	}
	var body bytes.Buffer
	err := list.Encode(&body, size, values(view, nil))
	var whole *wire.List
	if err == nil {
		whole, err = list.Format.DecodeList(body.Bytes())
	}
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	whole.ItemsHaveType = list.ItemsHaveType
	answer := body.Bytes()
	if filtered, changed := p.filtered(c, whole, session); changed {
		answer = filtered
	}
	w.Header().Set("Content-Type", h.ContentType)
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	_, _ = w.Write(answer)
}

// listed is the state of a filtered collection that a client has.
type listed struct {
	// version is the resource version of the state; "" matches any version, for a list that was too large to be
	// filtered.
	version string
	// changed is closed when the forms of objects may differ from the forms that the client has.
	changed <-chan struct{}
	// session has learned the objects that the client has.
	session filter.Session
}

// maxListed limits the number of entries in clients: one for each scope. A client whose entry was removed must
// list again.
const maxListed = 1000

// clients has the state of each client, by the key of the scope, from a list or the end of a watch until the
// next watch.
type clients struct {
	mu sync.Mutex
	of map[string]listed
}

func (l *clients) put(key string, has listed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil || len(l.of) >= maxListed {
		l.of = map[string]listed{}
	}
	l.of[key] = has
}

// take removes and returns the session of a client with this version, for its watch. It returns nil if forms may
// have changed since, or if the state of the client is not known.
func (l *clients) take(key, version string, changed <-chan struct{}) filter.Session {
	l.mu.Lock()
	defer l.mu.Unlock()
	has := l.of[key]
	if has.changed != changed || has.version != version && has.version != "" {
		return nil
	}
	delete(l.of, key)
	return has.session
}

// filtering is the part of a stream for watches of filtered collections. The zero value filters nothing.
type filtering struct {
	session  filter.Session
	outdated <-chan struct{} // see listed.changed
	// expire ends the watch, because the forms that the client has are outdated: the client must list again.
	expire    func()
	isExpired atomic.Bool
}

// prepare prepares the filtering of a watch. It returns nil if it has answered that the client must list. stop
// must be called at the end of the watch.
func (s *stream) prepare() (stop func()) {
	if s.session = s.sessionOf(s.call); s.session == nil {
		return func() {}
	}
	if s.position.InitialEvents { // a form depends on all objects, but initial events arrive one by one
		s.refuse(s.w, s.Request, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents: the hub returns this collection only as a list")
		return nil
	}
	s.Filter.Await(s.Context())
	s.outdated = s.Filter.Changed()
	if s.version != "" {
		if s.session = s.clients.take(s.key, s.version, s.outdated); s.session == nil {
			s.refuse(s.w, s.Request, http.StatusGone, metav1.StatusReasonExpired, otherForms)
			return nil
		}
	}
	ctx, cancel := context.WithCancel(s.Context())
	s.Request, s.expire = s.WithContext(ctx), func() { s.isExpired.Store(true); cancel() }
	var waiting sync.WaitGroup
	waiting.Go(func() {
		select {
		case <-s.outdated:
			s.expire()
		case <-ctx.Done():
		}
	})
	return func() {
		cancel()
		waiting.Wait()
		switch isExpired := s.isExpired.Load(); {
		case !isExpired && s.version != "":
			s.clients.put(s.key, listed{s.version, s.outdated, s.session})
		case isExpired && s.begun:
			s.deliverError(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone, Message: otherForms})
		}
	}
}

const otherForms = "the filter of the hub has changed: list this collection again"

// form returns the frame of an event with the filtered object.
func (s *stream) form(e wire.Event, m *wire.Meta) []byte {
	if s.session == nil {
		return e.Frame
	}
	others := false
	frame := e.Frame
	switch e.Type {
	case watch.Added, watch.Modified:
		others = s.session.Learn(s.format, m, e.Object)
		if form := s.session.Form(s.format, m, e.Object); !bytes.Equal(form, e.Object) {
			if changed, err := s.format.AppendEvent(nil, e.Type, form); err == nil {
				frame = changed
			}
		}
	case watch.Deleted:
		others = s.session.Forget(m)
	default:
	}
	if others {
		s.expire()
	}
	return frame
}

// observeWrite passes a write of a pod's status by the kubelet to Pods.
func (p *Proxy) observeWrite(c *call) {
	isStatus := c.what.Group == "" && c.what.Resource == "pods" && c.what.Subresource == "status"
	if p.Pods == nil || !c.caller.IsNode || !isStatus || c.Method != http.MethodPatch && c.Method != http.MethodPut {
		return
	}
	body, err := io.ReadAll(io.LimitReader(c.Body, maxStatus+1))
	if err == nil && len(body) <= maxStatus {
		p.Pods.Written(c.Method, c.Header.Get("Content-Type"), body)
	}
	c.Body = &joined{io.MultiReader(bytes.NewReader(body), &failing{c.Body, err}), c.Body}
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

// joined is a body whose first part was read already.
type joined struct {
	io.Reader
	io.Closer
}

// failing returns the error of an earlier read, or reads on if there was none.
type failing struct {
	io.Reader

	err error
}

// Read implements io.Reader.
func (f *failing) Read(b []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	return f.Reader.Read(b)
}

// observeRead passes a pod that the kubelet reads by its name to Pods.
func (p *Proxy) observeRead(c *call, contentType string, body []byte) {
	if p.Pods == nil || !c.isGated() || c.what.Kind != request.Get {
		return
	}
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return
	}
	if m, err := format.Meta(body); err == nil {
		p.Pods.Read(format, m.UID, body)
	}
}
