package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/request"
)

const (
	// bodyWithin is how long a client may take to send the body of a write.
	bodyWithin = time.Minute
	// failedWithin is how long to wait for the error of the read that ended a request.
	failedWithin = 100 * time.Millisecond
)

// slowBody is the body of a non-node request. If it does not arrive in time or reading it fails, the request
// ends; read errors do not count as an outage.
type slowBody struct {
	io.ReadCloser

	w       http.ResponseWriter // of the client
	cancel  context.CancelCauseFunc
	isHTTP1 bool

	isRead, isOver atomic.Bool // it was read to its end; the rest is not needed
	once           sync.Once
	failed         chan struct{} // closed when reading fails
	isLate         bool          // it timed out; valid once failed is closed
}

// bodyKey is the key of the body in the context of a request.
type bodyKey struct{}

// boundBody gives a request a slowBody, or no body if it is a read. Call done when the request is answered.
func (l *limiters) boundBody(w http.ResponseWriter, c *call, leave func()) (done func()) {
	switch c.what.Kind {
	case request.Get, request.List, request.Watch:
		c.Body, c.ContentLength = http.NoBody, 0
		if c.ProtoMajor == 1 { // otherwise the server reads the body before and after it answers
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		return leave
	case request.Write:
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cmp.Or(l.slowAfter, bodyWithin)))
	case request.Stream:
	}
	ctx, cancel := context.WithCancelCause(c.Context())
	c.body = &slowBody{ReadCloser: c.Body, w: w, cancel: cancel, isHTTP1: c.ProtoMajor == 1, failed: make(chan struct{})}
	c.Request = c.WithContext(context.WithValue(ctx, bodyKey{}, c.body))
	c.Body = c.body
	return func() { cancel(nil); leave() }
}

// Read implements io.Reader.
func (b *slowBody) Read(part []byte) (int, error) {
	n, err := b.ReadCloser.Read(part)
	switch {
	case errors.Is(err, io.EOF):
		b.isRead.Store(true)
	case err != nil && !b.isOver.Load():
		b.once.Do(func() {
			b.isLate = errors.Is(err, os.ErrDeadlineExceeded)
			close(b.failed)
		})
		b.cancel(err)
	}
	return n, err
}

// answered is called with the response of the cloud. When that is closed, the rest of the body is not needed.
// Otherwise the transport would read the whole body, however long that takes, and the HTTP/1.1 server would
// read it before it answers, unless the connection is closed.
func (b *slowBody) answered(r *http.Response) {
	if b == nil || r.StatusCode == http.StatusSwitchingProtocols || b.isRead.Load() {
		return
	}
	if b.isHTTP1 {
		b.w.Header().Set("Connection", "close")
	}
	r.Body = &answerBefore{r.Body, b}
}

// answerBefore is a response that came before the body of its request was read completely.
type answerBefore struct {
	io.ReadCloser

	body *slowBody
}

// Close implements io.Closer.
func (a *answerBefore) Close() error {
	a.body.isOver.Store(true)
	if !a.body.isRead.Load() {
		_ = http.NewResponseController(a.body.w).SetReadDeadline(time.Now())
	}
	return a.ReadCloser.Close()
}
