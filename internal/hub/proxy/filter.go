package proxy

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// refreshAfter gathers changes of what a filter depends on, before forms are compared.
	refreshAfter = 100 * time.Millisecond
	// refreshAgain is the time between two attempts to compare forms with a cache that is behind the
	// client, and doubles up to maxRefreshAgain.
	refreshAgain, maxRefreshAgain = 250 * time.Millisecond, 5 * time.Second
	// maxStatus bounds the write of a pod's status that is looked at, in bytes.
	maxStatus = 2 << 20
)

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

// filtering is what a watch whose objects pass a filter needs besides. The zero value filters nothing.
type filtering struct {
	session filter.Session
	// sent has a sum of the form of each object that the client has from this watch, by its id. isWhole is
	// true once the client has no others.
	sent    map[string]uint64
	isWhole bool
	seed    maphash.Seed
	again   chan struct{} // gets something when forms are to be compared
	// refreshing is the goroutine that compares them, until cancel is called.
	refreshing sync.WaitGroup
	cancel     context.CancelFunc
	started    bool
}

// form returns the frame of an event as the client gets it.
func (s *stream) form(e wire.Event, m *wire.Meta) []byte {
	if s.session == nil {
		return e.Frame
	}
	frame, others := e.Frame, false
	switch e.Type {
	case watch.Added, watch.Modified:
		others = s.session.Learn(s.format, m, e.Object)
		form := s.session.Form(s.format, m, e.Object)
		if !bytes.Equal(form, e.Object) {
			changed, err := s.format.AppendEvent(nil, e.Type, form)
			if err != nil {
				form, changed = e.Object, e.Frame
			}
			frame = changed
		}
		if item, err := s.format.ItemOf(form, false); err == nil {
			s.sent[id(m)] = maphash.Bytes(s.seed, item)
		}
	case watch.Deleted:
		others = s.session.Forget(m)
		delete(s.sent, id(m))
	default:
	}
	if others {
		select {
		case s.again <- struct{}{}:
		default: // they will be compared
		}
	}
	return frame
}

// formed yields the items of a view as the client gets them.
func (s *stream) formed(view *cache.View, list *wire.Header) (iter.Seq2[[]byte, error], error) {
	if s.session == nil {
		return values(view, s.shownItems(s.call, view, list)), nil
	}
	s.Filter.Await(s.Context())
	metas, err := learn(s.session, view, list, nil)
	s.isWhole = true
	return func(yield func([]byte, error) bool) {
		i := 0
		for value, err := range values(view, nil) {
			if err == nil {
				value = s.session.Form(s.format, &metas[i], value)
				s.sent[id(&metas[i])] = maphash.Bytes(s.seed, value)
				i++
			}
			if !yield(value, err) {
				return
			}
		}
	}, err
}

// prepare prepares the filtering of a watch. stop must be called at its end.
func (s *stream) prepare() (stop func()) {
	if s.session = s.sessionOf(s.call); s.session == nil {
		return func() {}
	}
	s.sent, s.seed, s.again = map[string]uint64{}, maphash.MakeSeed(), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(s.Context())
	s.Request, s.cancel = s.WithContext(ctx), cancel
	return func() { cancel(); s.refreshing.Wait() }
}

// startRefreshing lets the client have objects whose forms change. From then on s.writing guards what
// is written. The client must have the beginning of the answer.
func (s *stream) startRefreshing() {
	if s.session == nil || s.started {
		return
	}
	s.started = true
	s.refreshing.Go(func() {
		defer s.cancel() // if the client takes nothing any more
		_ = s.Panics.Do("comparing the forms of objects", func() error { s.refresh(s.Context()); return nil })
	})
}

// refresh compares forms when what they depend on changes, and at first: the client may have the
// forms of an earlier time.
func (s *stream) refresh(ctx context.Context) {
	pause := refreshAgain
	for {
		changed := s.Filter.Changed()
		done, gone := s.compare()
		if gone {
			return
		}
		var retry <-chan time.Time
		if done {
			pause = refreshAgain
		} else {
			retry, pause = time.After(pause), min(2*pause, maxRefreshAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-retry:
			continue
		case <-changed:
		case <-s.again:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(refreshAfter):
		}
	}
}

// compare gives the client each object whose form is another one than it has, from what is kept. done
// is false if that is not the state that the client has, or a later one. Objects that are later than the
// client are left out: it would go back to the events up to them. It gets them with these events.
func (s *stream) compare() (done, gone bool) {
	s.queues.settle(s.key)
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.version == "" {
		return false, false // among the initial events
	}
	view, err := s.Cache.View(s.key)
	if err != nil {
		return false, false
	}
	defer view.Close()
	h, err := decodeHead(view.Head())
	if err != nil || h.List == nil || !wire.IsUpTo(s.version, h.ResourceVersion) {
		return false, false
	}
	list, err := h.list()
	if err != nil || list.Format != s.format {
		return false, false
	}
	apiVersion, kind := list.ItemKind()
	session := s.sessionOf(s.call)
	skipped := false
	isLater := func(m *wire.Meta) bool {
		later := m.ResourceVersion != "" && !wire.IsUpTo(m.ResourceVersion, s.version)
		skipped = skipped || later
		return later
	}
	metas, err := learn(session, view, list, func(m *wire.Meta) bool {
		_, has := s.sent[id(m)]
		return isLater(m) && s.isWhole && !has // else it is the best that is known of the version that the client has
	})
	if err != nil {
		s.Log.V(2).Info("The forms of objects are not compared", "path", s.URL.Path, "error", err.Error())
		return false, false
	}
	sent := make(map[string]uint64, len(metas))
	i, wrote := 0, false
	for value, err := range values(view, nil) {
		if err != nil {
			return false, false
		}
		m := &metas[i]
		i++
		if isLater(m) {
			if was, is := s.sent[id(m)]; is {
				sent[id(m)] = was
			}
			continue
		}
		form := session.Form(s.format, m, value)
		sum := maphash.Bytes(s.seed, form)
		if was, is := s.sent[id(m)]; !is || was != sum {
			object, err := s.format.ObjectOf(form, apiVersion, kind)
			var frame []byte
			if err == nil {
				frame, err = s.format.AppendEvent(nil, watch.Modified, object)
			}
			if err != nil {
				s.Log.V(2).Info("The form of an object is not told", "path", s.URL.Path, "error", err.Error())
				return false, false
			}
			if !s.write(frame) {
				return false, true
			}
			wrote = true
		}
		sent[id(m)] = sum
	}
	s.session, s.sent, s.isWhole = session, sent, s.isWhole || !skipped
	if !wrote || !s.position.Bookmarks {
		return true, false
	}
	// The objects have their own versions. The client goes on from where it was.
	bookmark, err := s.format.Bookmark(apiVersion, kind, s.version, false)
	if err == nil {
		bookmark, err = s.format.AppendEvent(nil, watch.Bookmark, bookmark)
	}
	return true, err == nil && !s.write(bookmark)
}

// learn lets a session learn the objects of a view, except those that are unknown to the client, and returns
// the metadata of all.
func learn(session filter.Session, view *cache.View, list *wire.Header, unknown func(*wire.Meta) bool) ([]wire.Meta, error) {
	apiVersion, kind := list.ItemKind()
	metas := make([]wire.Meta, 0, view.Len())
	for value, err := range values(view, nil) {
		if err != nil {
			return nil, err
		}
		m, err := list.Format.Meta(value)
		if err != nil {
			return nil, err
		}
		m.APIVersion, m.Kind = apiVersion, kind
		if unknown == nil || !unknown(&m) {
			session.Learn(list.Format, &m, value)
		}
		metas = append(metas, m)
	}
	return metas, nil
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
