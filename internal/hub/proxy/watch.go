package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxFrame limits one event, in bytes. Objects of the API server have at most 1.5 MiB; in JSON they are
	// larger than in its storage.
	maxFrame = 16 << 20
	// againAfter is the time between two attempts to continue a watch. It doubles up to maxAgain while they
	// fail. A random time of up to the same length is added.
	againAfter, maxAgain = 500 * time.Millisecond, 15 * time.Second
)

// stream is a watch of one client. It may span several watches of the cloud, one after the other.
type stream struct {
	*parts

	call       *call
	w          http.ResponseWriter
	controller *http.ResponseController
	position   request.Position
	// until is when the watch must end at the request of the client; zero means never.
	until  time.Time
	format wire.Format
	// begun is true once the response has begun.
	begun bool
	// version is the resource version up to which the client has received all events. It is "" until the client
	// has all initial events: until then the watch cannot be continued.
	version string
	// delivered is true if an event has arrived since the last interruption.
	delivered bool

	filter    objectFilter // or nil
	recorded  *record.Events
	comparing comparing
	writing   sync.Mutex // held while events are written to the client, and while version changes
}

// watchFor answers a watch request. A watch that is interrupted continues from its last version as soon as the cloud
// is reachable.
func watchFor(p *parts, w http.ResponseWriter, c *call) {
	s := &stream{parts: p, call: c, w: w, controller: http.NewResponseController(w), position: request.PositionOf(c.URL.Query()), filter: filterFor(p, c)}
	if v := s.position.ResourceVersion; v != "0" && !s.position.InitialEvents {
		s.version = v
	}
	if seconds, err := strconv.Atoi(c.URL.Query().Get("timeoutSeconds")); err == nil && seconds > 0 {
		s.until = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	defer func() { s.recorded.Close() }()
	if t, is := s.filter.(*topology); is {
		ctx, cancel := context.WithCancel(c.Context())
		c.Request, s.comparing = c.WithContext(ctx), comparing{topology: t, cancel: cancel}
		defer s.comparing.stop()
	}
	response, err := p.sender.read(c, c.Request)
	switch {
	case err != nil:
		if p.limits.leaveStrangers(c); p.limits.isStrange(c) && p.limits.isKnown(c) {
			p.errors.busy(w, c)
			return
		}
		if !s.fromCache(err) {
			return
		}
	case p.limits.isStrange(c) && response.StatusCode == http.StatusOK: // no slot for watches is free
		_ = response.Body.Close()
		p.errors.busy(w, c)
		return
	case !s.copy(response):
		return
	}
	s.goOn()
}

// goOn continues the watch until it ends.
func (s *stream) goOn() {
	ctx, cancel := s.call.Context(), context.CancelFunc(func() {})
	if !s.until.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, s.until)
	}
	defer cancel()
	for pause := againAfter; s.version != ""; pause = min(2*pause, maxAgain) {
		if err := s.Cloud.AwaitOnline(ctx); err != nil {
			return
		}
		if !s.isRecognized() {
			return
		}
		s.delivered = false
		response, err := s.sender.send(s.call, s.rest())
		if err == nil && s.limits.isStrange(s.call) && response.StatusCode == http.StatusOK {
			_ = response.Body.Close()
			return // no slot for watches is free any more
		}
		if err == nil && !s.copy(response) {
			return
		}
		if s.delivered {
			pause = againAfter
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause + rand.N(pause)):
		}
	}
	panic(http.ErrAbortHandler) // the initial events are incomplete: the client starts a new watch
}

// isRecognized reports whether the client would be recognized now. An expired certificate is accepted only while
// offline.
func (s *stream) isRecognized() bool {
	if s.call.TLS == nil {
		return true // a request of the hub itself
	}
	_, err := s.Recognizer.Recognize(s.call.Request)
	return err == nil
}

// rest returns the request for the events that the client has not received yet.
func (s *stream) rest() *http.Request {
	r := s.call.Clone(s.call.Context())
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

// copy forwards the events of one watch of the cloud to the client. It returns true if this watch was
// interrupted, so that the stream must continue.
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
		s.record()
		if s.comparing.topology != nil {
			s.Filter.Await(s.call.Context())
		}
		s.comparing.start(s)
	}
	for events := format.NewEventReader(response.Body, maxFrame); ; {
		e, err := events.Next()
		if errors.Is(err, io.EOF) {
			return false // the cloud ended the watch, for example at its timeout
		}
		if err != nil {
			return true
		}
		if !s.deliver(e) {
			return false
		}
	}
}

// copyRefusal forwards the cloud's error response to a watch request. If the response to the client has begun,
// the error becomes an ERROR event, as in a watch of the cloud.
func (s *stream) copyRefusal(response *http.Response) (goOn bool) {
	if !s.begun {
		passOn(s.w, response)
		if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusNotFound {
			drop(s.parts, s.call)
		}
		return false
	}
	if response.StatusCode >= http.StatusInternalServerError || response.StatusCode == http.StatusTooManyRequests {
		return true // a temporary error
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
	s.writing.Lock()
	defer s.writing.Unlock()
	if frame, err := s.format.AppendEvent(nil, watch.Error, object); err == nil {
		s.write(frame)
	}
}

// record begins to record the events of the watch.
func (s *stream) record() {
	s.recorded = s.Record.Events(s.call.key, s.format, s.position.InitialEvents, s.version, func() { relist(s.parts, s.call) })
}

// deliver sends an event to the client, and returns whether the watch may have more events.
func (s *stream) deliver(e wire.Event) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	if e.Type == watch.Error {
		s.write(e.Frame)
		return false
	}
	m, err := s.format.Meta(e.Object)
	frame := e.Frame
	if s.filter != nil && err == nil {
		frame, err = s.filter.event(s.format, &e, &m, s.version == "")
	}
	if err != nil && s.call.isGated() {
		s.Log.Error(err, "Ended a watch of pods, because a pod cannot be decoded")
		return false
	}
	if frame != nil && !s.write(frame) {
		return false
	}
	s.delivered = true
	if err != nil {
		return true
	}
	before := s.version
	if e.Type == watch.Bookmark {
		if last, err := s.format.IsEndOfList(e.Object); err == nil && last {
			s.position.InitialEvents = false
		}
	}
	if m.ResourceVersion != "" && !s.position.InitialEvents && (s.version != "" || e.Type == watch.Bookmark) {
		s.version = m.ResourceVersion
	}
	object := e.Object
	if frame == nil { // the client does not get it
		object = nil
	}
	s.recorded.Add(e.Type, object, m, before, s.version)
	return true
}

// send sends an event with an object, and returns whether that succeeded.
func (s *stream) send(kind watch.EventType, object []byte) bool {
	frame, err := s.format.AppendEvent(nil, kind, object)
	if err != nil {
		s.Log.V(2).Info("Encoding an event of a watch failed", "path", s.call.URL.Path, "error", err.Error())
	}
	return err == nil && s.write(frame)
}

// write sends a frame to the client, and returns whether that succeeded.
func (s *stream) write(frame []byte) bool {
	_ = s.controller.SetWriteDeadline(time.Now().Add(cmp.Or(s.slowAfter, limits.TakeWithin)))
	if _, err := s.w.Write(frame); err != nil {
		return false
	}
	s.flush()
	_ = s.controller.SetWriteDeadline(time.Time{}) // otherwise it would end a watch without events
	return true
}

func (s *stream) flush() { _ = s.controller.Flush() }

// fromCache begins the watch from the cache. It sends the initial events if the client requests them, and
// otherwise nothing, because the client has that state. It returns false if the request is answered and the
// watch must not continue.
func (s *stream) fromCache(reason error) bool {
	state := openCached(s.parts, s.w, s.call, reason)
	if state == nil {
		return false
	}
	defer state.Close()
	var err error
	s.format, err = wire.FormatOf(state.Head.ContentType)
	if err != nil || !state.Head.IsList() {
		s.errors.unavailable(s.w, s.call.Request, reason)
		return false
	}
	if v := s.position.ResourceVersion; s.version == "" && v != "" && v != "0" && !wire.IsUpTo(v, state.Head.ResourceVersion) {
		s.errors.unavailable(s.w, s.call.Request, fmt.Errorf("%w: the cached state is older than the requested resourceVersion", reason))
		return false
	}
	if s.version != "" {
		s.answerFromCache()
		s.record()
		s.comparing.start(s)
		return true
	}
	goOn := false
	s.limits.fromCacheInTurn(s.w, s.call, func() { goOn = s.initialFromCache(state) })
	return goOn
}

// answerFromCache begins the response to a watch.
func (s *stream) answerFromCache() {
	s.begun = true
	s.w.Header().Set("Content-Type", s.format.WatchContentType())
	s.w.WriteHeader(http.StatusOK)
	s.flush()
}

// initialFromCache sends the cached state as initial events. It returns false if the bookmark at their end cannot
// be sent.
func (s *stream) initialFromCache(state *record.State) bool {
	s.answerFromCache()
	until := time.Now().Add(localWithin)
	for object, err := range s.initial(state) {
		if err != nil {
			s.Log.Error(err, "Sending a cached watch failed", "path", s.call.URL.Path)
			panic(http.ErrAbortHandler)
		}
		if !s.send(watch.Added, object) || !s.call.caller.IsNode && time.Now().After(until) { // other callers wait for this slot
			panic(http.ErrAbortHandler) // the client must see that the initial events are incomplete
		}
	}
	if s.position.InitialEvents && s.position.Bookmarks {
		list, err := state.Head.Header()
		if err != nil {
			return false
		}
		apiVersion, kind := list.ItemKind()
		bookmark, err := s.format.Bookmark(apiVersion, kind, state.Head.ResourceVersion, true)
		if err != nil || !s.send(watch.Bookmark, bookmark) {
			return false
		}
	}
	s.position.InitialEvents, s.version = false, state.Head.ResourceVersion
	s.record()
	s.comparing.start(s)
	return true
}

// initial yields the objects of a cached state as the client gets them.
func (s *stream) initial(state *record.State) iter.Seq2[[]byte, error] {
	if s.filter == nil || passesCache(s.filter) {
		return state.Objects()
	}
	if s.comparing.topology != nil {
		s.Filter.Await(s.call.Context())
	}
	b, err := cachedBatch(s.call, state)
	return func(yield func([]byte, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		s.filter.cached(b.List)
		for i := range b.Items {
			item := &b.Items[i]
			if object, err := b.Format.ObjectOf(item.Raw, item.APIVersion, item.Kind); !yield(object, err) {
				return
			}
		}
	}
}
