package limits

import (
	"net/http"
	"sync"
	"time"
)

// TakeWithin is how long a client may take to receive a part of a response, or an event.
const TakeWithin = 30 * time.Second

// Writer ends a response if its client takes too long to receive a part. A response to which nothing is written
// does not end. Writer sets the deadline of the connection only when time is up: with HTTP/2, each deadline
// would be a message to the server.
type Writer struct {
	http.ResponseWriter

	controller *http.ResponseController
	within     time.Duration
	timer      *time.Timer // nil before the first part

	mu    sync.Mutex
	began time.Time // when writing the current part began; zero between two parts
}

// NewWriter returns a writer whose client may take up to within to receive a part.
func NewWriter(w http.ResponseWriter, within time.Duration) *Writer {
	return &Writer{ResponseWriter: w, controller: http.NewResponseController(w), within: within}
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(part []byte) (int, error) {
	defer w.begin()()
	return w.ResponseWriter.Write(part)
}

// FlushError implements the interface that http.ResponseController uses.
func (w *Writer) FlushError() error {
	defer w.begin()()
	return w.controller.Flush()
}

// begin is called before a part is written. The returned function is called when the client has received the
// part.
func (w *Writer) begin() (taken func()) {
	w.set(time.Now())
	if w.timer == nil {
		w.timer = time.AfterFunc(w.within, w.end)
	} else {
		w.timer.Reset(w.within)
	}
	return w.taken
}

func (w *Writer) taken() {
	w.timer.Stop()
	w.set(time.Time{})
}

func (w *Writer) set(began time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.began = began
}

// end ends the response if its client takes too long. It never runs after the response has ended, because the
// writer must not be used then.
func (w *Writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() && time.Since(w.began) >= w.within {
		_ = w.controller.SetWriteDeadline(time.Now())
	}
}

// Unwrap returns the underlying writer for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
