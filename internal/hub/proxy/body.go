package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/request"
)

const (
	// bodyWithin bounds how long a client may take for the body of a write.
	bodyWithin = time.Minute
	// failedWithin is how long somebody waits for the read that made a request end.
	failedWithin = 100 * time.Millisecond
)

// slowBody is the body of a request of somebody else than the node. The request ends if it does not come, or is
// none: that is no evidence against the cloud.
type slowBody struct {
	io.ReadCloser

	w       http.ResponseWriter // of the client
	cancel  context.CancelCauseFunc
	isHTTP1 bool

	isRead, isOver atomic.Bool // up to its end; and nobody needs the rest
	once           sync.Once
	failed         chan struct{} // closed when it cannot be read
	isLate         bool          // the time for it is over; not to be read before
}

// bodyKey is that of the body in the context of a request.
type bodyKey struct{}

// bound lets a request have a slowBody, or none if it only reads. Call done when it is answered.
func (p *Proxy) bound(w http.ResponseWriter, c *call, leave func()) (done func()) {
	switch c.what.Kind {
	case request.Get, request.List, request.Watch:
		c.Body, c.ContentLength = http.NoBody, 0
		if c.ProtoMajor == 1 { // else the server reads it before it answers, and once it has
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now())
		}
		return leave
	case request.Write:
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(cmp.Or(p.slowAfter, bodyWithin)))
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

// answered is called with the answer of the cloud. When that is closed, nobody needs what the client still sends: a
// transport waits until it has read all of a body, however long that takes, and so does the server of HTTP/1.1
// before it answers, unless the connection ends.
func (b *slowBody) answered(r *http.Response) {
	if b == nil || r.StatusCode == http.StatusSwitchingProtocols || b.isRead.Load() {
		return
	}
	if b.isHTTP1 {
		b.w.Header().Set("Connection", "close")
	}
	r.Body = &answerBefore{r.Body, b}
}

// answerBefore is an answer that came before the body of its request was read.
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

// hasEnded reports whether a request has ended because its body did not come, and answers it then. If its client
// has gone, it panics with http.ErrAbortHandler.
func (p *Proxy) hasEnded(w http.ResponseWriter, r *http.Request) bool {
	if r.Context().Err() == nil {
		return false
	}
	if body, is := r.Context().Value(bodyKey{}).(*slowBody); is {
		select {
		case <-body.failed:
			if body.isLate {
				p.refuse(w, r, http.StatusRequestTimeout, metav1.StatusReasonTimeout, fmt.Sprintf("the body did not come within %s", bodyWithin))
				return true
			}
		case <-time.After(failedWithin): // the server may end the request before the read returns that is why
		}
	}
	panic(http.ErrAbortHandler)
}
