package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxFrame bounds one event, in bytes: the API server's objects have 1.5 MiB at most, and more in
	// JSON than in what it stores.
	maxFrame = 16 << 20
	// writeWithin bounds how long a client may take for an event.
	writeWithin = 30 * time.Second
	// againAfter is the time between two attempts to continue a watch.
	againAfter = time.Second
)

// stream is a watch of one client. It goes on over as many watches of the cloud as it takes.
type stream struct {
	*Proxy
	*call

	w          http.ResponseWriter
	controller *http.ResponseController
	position   request.Position
	// until is when the client wants it to end; zero means never.
	until  time.Time
	format wire.Format
	// begun is true once the client has the beginning of the answer.
	begun bool
	// version is the resource version up to which the client has everything; "" while it has not got
	// all initial events, and the watch cannot be continued.
	version string
	fold    *fold
}

// watch answers a request for the changes of a collection. A watch that breaks off is continued
// from where it was, as soon as the cloud is reachable.
func (p *Proxy) watch(w http.ResponseWriter, c *call) {
	s := &stream{Proxy: p, call: c, w: w, controller: http.NewResponseController(w), position: request.PositionOf(c.URL.Query())}
	if v := s.position.ResourceVersion; v != "0" && !s.position.InitialEvents {
		s.version = v
	}
	if seconds, err := strconv.Atoi(c.URL.Query().Get("timeoutSeconds")); err == nil && seconds > 0 {
		s.until = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	_ = s.controller.SetWriteDeadline(time.Time{})
	defer func() { s.fold.end() }()
	response, err := p.send(c, c.Request)
	if err != nil {
		if !s.fromCache(err) {
			return
		}
	} else if !s.copy(response) {
		return
	}
	s.goOn()
}

// goOn continues the watch until it ends.
func (s *stream) goOn() {
	ctx, cancel := s.Context(), context.CancelFunc(func() {})
	if !s.until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, s.until)
	}
	defer cancel()
	for s.version != "" {
		if err := s.Cloud.AwaitOnline(ctx); err != nil {
			return
		}
		response, err := s.send(s.call, s.rest())
		if err == nil && !s.copy(response) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(againAfter):
		}
	}
	panic(http.ErrAbortHandler) // it broke off among its initial events: the client begins anew
}

// rest is the request for what the client has not got yet.
func (s *stream) rest() *http.Request {
	r := s.Clone(s.Context())
	query := r.URL.Query()
	query.Set("watch", "true")
	query.Set("resourceVersion", s.version)
	query.Del("sendInitialEvents")
	query.Del("resourceVersionMatch")
	if !s.until.IsZero() {
		query.Set("timeoutSeconds", fmt.Sprint(max(1, int(time.Until(s.until).Seconds()))))
	}
	r.URL = &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: query.Encode()}
	return r
}

// copy gives the client what a watch of the cloud sends, and returns whether the watch is to be
// continued: it broke off.
func (s *stream) copy(response *http.Response) bool {
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return s.copyRefusal(response)
	}
	format, err := wire.FormatOf(response.Header.Get("Content-Type"))
	if err != nil || s.begun && format != s.format {
		if !s.begun {
			passOn(s.w, response)
		}
		return false
	}
	if !s.begun {
		s.format, s.begun = format, true
		answerWith(s.w, response)
		s.flush()
		s.fold = s.newFold(response.Header.Get("Content-Type"))
	}
	for events := format.NewEventReader(response.Body, maxFrame); ; {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			return false // the cloud ended it, as it does at its timeout
		}
		if err != nil {
			return true
		}
		if !s.deliver(e) {
			return false
		}
	}
}

// copyRefusal gives the client the cloud's refusal of a watch. In the middle of a watch it becomes
// an event, as it would from the cloud.
func (s *stream) copyRefusal(response *http.Response) (goOn bool) {
	if !s.begun {
		passOn(s.w, response)
		return false
	}
	if response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests {
		return true // for now
	}
	format, err := wire.FormatOf(response.Header.Get("Content-Type"))
	if err != nil {
		return false
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxFrame))
	if err != nil {
		return true
	}
	status, err := format.DecodeStatus(body)
	if err != nil {
		return false
	}
	s.deliverError(status)
	return false
}

func (s *stream) deliverError(status metav1.Status) {
	object, err := s.format.EncodeStatus(status)
	if err != nil {
		return
	}
	if frame, err := s.format.AppendEvent(nil, watch.Error, object); err == nil {
		s.write(frame)
	}
}

// deliver gives the client an event, and returns whether there may be more.
func (s *stream) deliver(e wire.Event) bool {
	if !s.write(e.Frame) {
		return false
	}
	if e.Type == watch.Error {
		return false
	}
	m, err := s.format.Meta(e.Object)
	if err != nil {
		s.fold.end()
		return true
	}
	if e.Type == watch.Bookmark {
		if last, err := s.format.IsEndOfList(e.Object); err == nil && last {
			s.position.InitialEvents = false
		}
	}
	if m.ResourceVersion != "" && !s.position.InitialEvents && (s.version != "" || e.Type == watch.Bookmark) {
		s.version = m.ResourceVersion
	}
	s.fold.event(e, &m)
	return true
}

// write gives the client a frame, and returns whether it took it.
func (s *stream) write(frame []byte) bool {
	_ = s.controller.SetWriteDeadline(time.Now().Add(writeWithin))
	if _, err := s.w.Write(frame); err != nil {
		return false
	}
	s.flush()
	return true
}

func (s *stream) flush() { _ = s.controller.Flush() }

// fromCache begins the watch with what is kept: the initial events if the client wants them, and
// nothing otherwise, because it has that state. It returns false if the client has its answer.
func (s *stream) fromCache(reason error) bool {
	view, h, found := s.Proxy.fromCache(s.w, s.call, reason)
	if !found {
		return false
	}
	defer view.Close()
	var err error
	s.format, err = wire.FormatOf(h.ContentType)
	if err != nil || h.List == nil {
		s.unavailable(s.w, s.Request, reason)
		return false
	}
	list, err := h.list()
	if err != nil {
		s.unavailable(s.w, s.Request, reason)
		return false
	}
	s.begun = true
	s.w.Header().Set("Content-Type", s.format.WatchContentType())
	s.w.WriteHeader(http.StatusOK)
	s.flush()
	if s.version != "" {
		s.fold = s.newFold(h.ContentType)
		return true
	}
	apiVersion, kind := list.ItemKind()
	for item, err := range values(view) {
		var object, frame []byte
		if err == nil {
			object, err = s.format.ObjectOf(item, apiVersion, kind)
		}
		if err == nil {
			frame, err = s.format.AppendEvent(nil, watch.Added, object)
		}
		if err != nil {
			s.Log.Error(err, "A watch from the cache broke off", "path", s.URL.Path)
			panic(http.ErrAbortHandler)
		}
		if !s.write(frame) {
			return false
		}
	}
	if s.position.InitialEvents {
		bookmark, err := s.format.Bookmark(apiVersion, kind, h.ResourceVersion, true)
		if err == nil {
			bookmark, err = s.format.AppendEvent(nil, watch.Bookmark, bookmark)
		}
		if err != nil || !s.write(bookmark) {
			return false
		}
	}
	s.position.InitialEvents, s.version = false, h.ResourceVersion
	s.fold = s.newFold(h.ContentType)
	return true
}

// fold keeps the state of a scope as the events of a watch make it. nil does nothing.
type fold struct {
	*stream

	contentType string
	// snapshot collects the initial events.
	snapshot *cache.Snapshot
	// writer continues the state in the cache, and head is its head.
	writer *cache.Writer
	head   *head
}

// newFold returns what keeps the state of the stream's scope; nil if its events do not follow what
// is kept, so that the state after them is not known.
func (s *stream) newFold(contentType string) *fold {
	f := &fold{stream: s, contentType: strings.ReplaceAll(contentType, ";stream=watch", "")}
	defer s.scopes.lock(s.key)()
	if s.position.InitialEvents {
		snapshot, err := s.Cache.Snapshot(s.key)
		if err != nil {
			return nil
		}
		f.snapshot = snapshot
		return f
	}
	if s.version == "" {
		return nil
	}
	view, err := s.Cache.View(s.key)
	if err != nil {
		return nil
	}
	h, err := decodeHead(view.Head())
	if err := errors.Join(err, view.Close()); err != nil || h.List == nil || !isUpTo(s.version, h.ResourceVersion) {
		return nil
	}
	writer, raw, err := s.Cache.Resume(s.key)
	if err != nil {
		return nil
	}
	if f.head, err = decodeHead(raw); err != nil {
		return nil
	}
	f.writer = writer
	return f
}

// isUpTo reports whether one resource version is not later than another.
func isUpTo(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order <= 0
}

// event adds an event. After an error the state stays as it is.
func (f *fold) event(e wire.Event, m *wire.Meta) {
	if f == nil || f.snapshot == nil && f.writer == nil {
		return
	}
	var err error
	if f.snapshot != nil {
		err = f.initial(e, m)
	} else if !isUpTo(m.ResourceVersion, f.head.ResourceVersion) {
		err = f.change(e, m)
	}
	if err != nil {
		f.Log.V(2).Info("The changes of a collection are not kept", "path", f.URL.Path, "error", err.Error())
		f.end()
	}
}

// initial adds an initial event, and stores the state at the last one.
func (f *fold) initial(e wire.Event, m *wire.Meta) error {
	group, _, _ := strings.Cut(m.APIVersion, "/")
	typed := f.format != wire.Protobuf && strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") // custom resources
	if e.Type == watch.Added {
		item, err := f.format.ItemOf(e.Object, typed)
		if err != nil {
			return err
		}
		return f.snapshot.Add(id(m), item)
	}
	if last, err := f.format.IsEndOfList(e.Object); err != nil || e.Type != watch.Bookmark || !last {
		return fmt.Errorf("an event %s among the initial ones: %w", e.Type, err)
	}
	list := &wire.Header{Format: f.format, APIVersion: m.APIVersion, Kind: m.Kind + "List", ItemsHaveType: typed, ResourceVersion: m.ResourceVersion}
	var err error
	if f.head, err = headOf(list, f.contentType); err != nil {
		return err
	}
	defer f.scopes.lock(f.key)()
	f.writer, err = f.snapshot.Commit(f.head.encode())
	f.snapshot = nil
	return err
}

// change adds a change.
func (f *fold) change(e wire.Event, m *wire.Meta) error {
	f.head.ResourceVersion = m.ResourceVersion
	switch e.Type {
	case watch.Added, watch.Modified:
		item, err := f.format.ItemOf(e.Object, f.head.ItemsHaveType)
		if err != nil {
			return err
		}
		return f.writer.Put(id(m), item, f.head.encode())
	case watch.Deleted:
		return f.writer.Delete(id(m), f.head.encode())
	case watch.Bookmark:
		return f.writer.SetHead(f.head.encode())
	default:
		return nil
	}
}

// end ends the keeping. What is kept stays as it is.
func (f *fold) end() {
	if f == nil {
		return
	}
	if f.snapshot != nil {
		f.snapshot.Abort()
	}
	f.snapshot, f.writer = nil, nil
}
