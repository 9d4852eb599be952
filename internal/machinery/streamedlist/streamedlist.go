// Package streamedlist bounds streamed lists of the API server. A streamed list is a watch
// with sendInitialEvents=true: it first sends all objects, and then a bookmark that marks the
// end of the list. client-go waits for that bookmark for as long as the stream lasts, and
// after a stream that ended without it requests another, without end
// (kubernetes/kubernetes#140890). Meanwhile the cache is as it was. A stream that this package
// ends makes client-go request a plain list instead.
package streamedlist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"
)

// Patience is how long a streamed list may send nothing. An API server that cannot begin the
// list refuses it after 3 s, or queues the request for up to 15 s.
const Patience = 30 * time.Second

// endOfList is in the bookmark that ends a list, in JSON and in protobuf. An object that has
// the text too only ends the bound early.
var endOfList = []byte(metav1.InitialEventsAnnotationKey)

var errNoEnd = errors.New("the streamed list ended without the bookmark " + metav1.InitialEventsAnnotationKey)

// Bound returns a wrapper of a transport, for rest.Config.Wrap. It ends each streamed list
// that sends nothing for patience before its bookmark, its headers included, and calls ended
// with its path and the error. The end of a stream before its bookmark becomes an error.
// Other requests, and streams after the bookmark, are passed on as they are. ended is called
// by any goroutine.
func Bound(patience time.Duration, ended func(path string, err error)) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return &bounded{next: next, patience: patience, ended: ended}
	}
}

type bounded struct {
	next     http.RoundTripper
	patience time.Duration
	ended    func(path string, err error)
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (b *bounded) WrappedRoundTripper() http.RoundTripper { return b.next }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet || r.URL.Query().Get("sendInitialEvents") != "true" {
		return b.next.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	silent := fmt.Errorf("the streamed list sent nothing for %v and no bookmark %s", b.patience, metav1.InitialEventsAnnotationKey)
	timer := time.AfterFunc(b.patience, func() { cancel(silent) })
	response, err := b.next.RoundTrip(r.WithContext(ctx))
	if err == nil && response.StatusCode == http.StatusOK {
		timer.Reset(b.patience)
		response.Body = &list{
			ReadCloser: response.Body, timer: timer, patience: b.patience, silent: silent,
			cause:  func() error { return context.Cause(ctx) },
			cancel: func() { cancel(nil) },
			ended:  func(err error) { b.ended(r.URL.Path, err) },
		}
		return response, nil
	}
	timer.Stop()
	if err == nil {
		response.Body = &refusal{ReadCloser: response.Body, cancel: func() { cancel(nil) }}
		return response, nil
	}
	if errors.Is(context.Cause(ctx), silent) {
		b.ended(r.URL.Path, silent)
		err = silent
	}
	cancel(nil)
	return nil, err
}

// list is the body of a streamed list.
type list struct {
	io.ReadCloser
	timer    *time.Timer
	patience time.Duration
	silent   error
	cause    func() error // why the request was canceled, nil if it was not
	cancel   func()
	ended    func(error)

	// last are the last bytes read, in which the bookmark may begin. passed: the bookmark
	// was read. err is the end of the list without a bookmark. One goroutine reads.
	last   []byte
	passed bool
	err    error
}

// Read implements io.Reader.
func (l *list) Read(p []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.ReadCloser.Read(p)
	if l.passed {
		return n, err
	}
	l.last = append(l.last, p[:n]...)
	switch {
	case bytes.Contains(l.last, endOfList):
		l.passed, l.last = true, nil
		l.timer.Stop()
		return n, err
	case err == nil:
		l.last = append(l.last[:0], l.last[max(0, len(l.last)-len(endOfList)+1):]...)
		l.timer.Reset(l.patience)
		return n, nil
	}
	l.timer.Stop()
	switch cause := l.cause(); {
	case errors.Is(cause, l.silent):
		l.err = l.silent
		l.ended(l.err)
	case cause != nil: // the caller, or Close
		l.err = err
	default:
		// client-go looks for the end of a stream in the error and in its text, and would
		// request a streamed list again.
		l.err = errNoEnd
		l.ended(fmt.Errorf("%w: %w", errNoEnd, err))
	}
	return n, l.err
}

// Close implements io.Closer.
func (l *list) Close() error {
	l.timer.Stop()
	l.cancel()
	return l.ReadCloser.Close()
}

// refusal is the body of an answer without a list.
type refusal struct {
	io.ReadCloser
	cancel func()
}

// Close implements io.Closer.
func (r *refusal) Close() error {
	r.cancel()
	return r.ReadCloser.Close()
}
