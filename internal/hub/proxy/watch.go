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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

const (
	// maxFrame bounds one event, in bytes: the API server's objects have 1.5 MiB at most, and more in
	// JSON than in what it stores.
	maxFrame = 16 << 20
	// againAfter is the time between two attempts to continue a watch, and doubles up to maxAgain while
	// they fail. As much is added by chance.
	againAfter, maxAgain = 500 * time.Millisecond, 15 * time.Second
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
	// isInitial is true until the initial events are over, and behind if what is kept does not follow.
	isInitial, behind bool
	isIncomplete      bool            // one of the initial events is not kept
	snapshot          *cache.Snapshot // of the initial events; only for the worker of the scope
	// newer is the version of what was kept when an event came that was older, and newerSince when that was first
	// so; only for the worker of the scope.
	newer      string
	newerSince time.Time
	// delivered is true once an event has come since the last break.
	delivered bool

	filtering
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
	stop := s.prepare()
	if stop == nil {
		return
	}
	defer s.finish()
	defer stop()
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
	case p.isStrange(c) && response.StatusCode == http.StatusOK: // there is no place for it among those that last
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
			return // there is no place for it any more
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
	panic(http.ErrAbortHandler) // it broke off among its initial events: the client begins anew
}

// isRecognized reports whether the client would be recognized now. A certificate that has expired counts
// while the cloud is away only.
func (s *stream) isRecognized() bool {
	if s.TLS == nil {
		return true // the hub itself
	}
	_, err := s.Recognizer.Recognize(s.Request)
	return err == nil
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
		s.begin()
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
		if response.StatusCode == http.StatusForbidden || response.StatusCode == http.StatusNotFound {
			s.drop(s.call)
		}
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
		s.Log.Error(err, "A watch of pods ends, because one of them cannot be read")
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

// write gives the client a frame, and returns whether it took it.
func (s *stream) write(frame []byte) bool {
	_ = s.controller.SetWriteDeadline(time.Now().Add(cmp.Or(s.slowAfter, limits.TakeWithin)))
	if _, err := s.w.Write(frame); err != nil {
		return false
	}
	s.flush()
	_ = s.controller.SetWriteDeadline(time.Time{}) // else it would end a stream that is silent
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
	if v := s.position.ResourceVersion; s.version == "" && v != "" && v != "0" && !wire.IsUpTo(v, h.ResourceVersion) {
		s.unavailable(s.w, s.Request, fmt.Errorf("%w: the last state here is older than the one that is asked for", reason))
		return false
	}
	if s.version != "" {
		s.answerFromCache()
		s.begin()
		return true
	}
	goOn := false
	s.fromCacheInTurn(s.w, s.call, func() { goOn = s.initialFromCache(view, h, list) })
	return goOn
}

// answerFromCache begins the answer to a watch.
func (s *stream) answerFromCache() {
	s.begun = true
	s.w.Header().Set("Content-Type", s.format.WatchContentType())
	s.w.WriteHeader(http.StatusOK)
	s.flush()
}

// initialFromCache begins the watch with what is kept, and returns false if the client does not take it.
func (s *stream) initialFromCache(view *cache.View, h *head, list *wire.Header) bool {
	s.answerFromCache()
	until := time.Now().Add(localWithin)
	apiVersion, kind := list.ItemKind()
	for item, err := range values(view, s.shownItems(s.call, view, list)) {
		var object, frame []byte
		if err == nil {
			object, err = s.format.ObjectOf(item, apiVersion, kind)
		}
		if err == nil {
			frame, err = s.format.AppendEvent(nil, watch.Added, object)
		}
		if err == nil && s.session != nil {
			m := wire.Meta{}
			if m, err = s.format.Meta(object); err == nil {
				frame = s.form(wire.Event{Type: watch.Added, Object: object, Frame: frame}, &m)
			}
		}
		if err != nil {
			s.Log.Error(err, "A watch from the cache broke off", "path", s.URL.Path)
			panic(http.ErrAbortHandler)
		}
		if !s.write(frame) || !s.caller.IsNode && time.Now().After(until) { // others wait for their turn
			panic(http.ErrAbortHandler) // the client must see that it has not got all of them
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
	return true
}
