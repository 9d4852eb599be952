package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
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
	*Proxy
	*call

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
	// isInitial is true until the initial events are complete. behind is true if events could not be queued for
	// the cache.
	isInitial, behind bool
	isIncomplete      bool            // one of the initial events was not queued for the cache
	snapshot          *cache.Snapshot // the initial events; only the worker of the scope uses it
	// newer is the cached version when an event with an older version came, and newerSince is when that first
	// happened with this version. Only the worker of the scope uses them.
	newer      string
	newerSince time.Time
	// delivered is true if an event has arrived since the last interruption.
	delivered bool

	filtering
	writing sync.Mutex // held while events are written to the client, and while version changes
}

// watch answers a watch request. A watch that is interrupted continues from its last version as soon as the
// cloud is reachable.
func (p *Proxy) watch(w http.ResponseWriter, c *call) {
	s := &stream{Proxy: p, call: c, w: w, controller: http.NewResponseController(w), position: request.PositionOf(c.URL.Query())}
	if v := s.position.ResourceVersion; v != "0" && !s.position.InitialEvents {
		s.version = v
	}
	if seconds, err := strconv.Atoi(c.URL.Query().Get("timeoutSeconds")); err == nil && seconds > 0 {
		s.until = time.Now().Add(time.Duration(seconds) * time.Second)
	}
	defer s.finish()
	defer s.prepare()()
	response, err := p.read(c, c.Request)
	switch {
	case err != nil:
		if p.leaveStrangers(c); p.isStrange(c) && p.isKnown(c) {
			p.busy(w, c)
			return
		}
		if !s.fromCache(err) {
			return
		}
	case p.isStrange(c) && response.StatusCode == http.StatusOK: // no slot for watches is free
		_ = response.Body.Close()
		p.busy(w, c)
		return
	case !s.copy(response):
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
	for pause := againAfter; s.version != ""; pause = min(2*pause, maxAgain) {
		if err := s.Cloud.AwaitOnline(ctx); err != nil {
			return
		}
		if !s.isRecognized() {
			return
		}
		s.delivered = false
		response, err := s.send(s.call, s.rest())
		if err == nil && s.isStrange(s.call) && response.StatusCode == http.StatusOK {
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
	if s.TLS == nil {
		return true // a request of the hub itself
	}
	_, err := s.Recognizer.Recognize(s.Request)
	return err == nil
}

// rest returns the request for the events that the client has not received yet.
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
		s.begin()
		if s.session != nil {
			s.Filter.Await(s.Context())
			s.startRefreshing()
		}
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
			s.drop(s.call)
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

// deliver sends an event to the client, and returns whether the watch may have more events.
func (s *stream) deliver(e wire.Event) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	if e.Type == watch.Error {
		s.write(e.Frame)
		return false
	}
	m, err := s.format.Meta(e.Object)
	passes := true
	if err == nil && s.isGated() {
		e, passes, err = s.throughGate(e, &m)
	}
	if err != nil && s.isGated() {
		s.Log.Error(err, "Ended a watch of pods, because a pod cannot be decoded")
		return false
	}
	frame := e.Frame
	if err == nil {
		frame = s.form(e, &m)
	}
	if passes && !s.write(frame) {
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
			if s.seesAllPods(s.Recognizer.NodeName) {
				s.gate.settle(s.began, m.ResourceVersion)
			}
		}
	}
	if m.ResourceVersion != "" && !s.position.InitialEvents && (s.version != "" || e.Type == watch.Bookmark) {
		s.version = m.ResourceVersion
	}
	if s.isInitial || before != "" {
		s.follow(e, m, before, passes)
	}
	return true
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
	if v := s.position.ResourceVersion; s.version == "" && v != "" && v != "0" && !wire.IsUpTo(v, h.ResourceVersion) {
		s.unavailable(s.w, s.Request, fmt.Errorf("%w: the cached state is older than the requested resourceVersion", reason))
		return false
	}
	if s.version != "" {
		s.answerFromCache()
		s.begin()
		s.startRefreshing()
		return true
	}
	goOn := false
	s.fromCacheInTurn(s.w, s.call, func() { goOn = s.initialFromCache(view, h, list) })
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
func (s *stream) initialFromCache(view *cache.View, h *head, list *wire.Header) bool {
	s.answerFromCache()
	until := time.Now().Add(localWithin)
	formed, err := s.formed(view, list)
	if err != nil {
		s.Log.Error(err, "A watch from the cache was aborted", "path", s.URL.Path)
		panic(http.ErrAbortHandler)
	}
	apiVersion, kind := list.ItemKind()
	for item, err := range formed {
		var object, frame []byte
		if err == nil {
			object, err = s.format.ObjectOf(item, apiVersion, kind)
		}
		if err == nil {
			frame, err = s.format.AppendEvent(nil, watch.Added, object)
		}
		if err != nil {
			s.Log.Error(err, "Sending a cached watch failed", "path", s.URL.Path)
			panic(http.ErrAbortHandler)
		}
		if !s.write(frame) || !s.caller.IsNode && time.Now().After(until) { // other callers wait for this slot
			panic(http.ErrAbortHandler) // the client must see that the initial events are incomplete
		}
	}
	if s.position.InitialEvents && s.position.Bookmarks {
		bookmark, err := s.format.Bookmark(apiVersion, kind, h.ResourceVersion, true)
		if err == nil {
			bookmark, err = s.format.AppendEvent(nil, watch.Bookmark, bookmark)
		}
		if err != nil || !s.write(bookmark) {
			return false
		}
	}
	s.position.InitialEvents, s.version = false, h.ResourceVersion
	s.begin()
	s.startRefreshing()
	return true
}
