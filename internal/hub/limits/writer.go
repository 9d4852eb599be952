package limits

import (
	"net/http"
	"sync"
	"time"
)

// TakeWithin is how long a client may take for a part of an answer, or for an event.
const TakeWithin = 30 * time.Second

// Writer ends an answer whose client takes too long for a part. An answer on which nothing is written goes on. It sets
// the deadline of the connection only then: with HTTP/2, one for each part would be a message to the server.
type Writer struct {
	http.ResponseWriter

	controller *http.ResponseController
	within     time.Duration
	timer      *time.Timer // nil before the first part

	mu    sync.Mutex
	began time.Time // when the part was begun to be written; zero between two
}

// NewWriter returns a writer whose client may take so long for a part.
func NewWriter(w http.ResponseWriter, within time.Duration) *Writer {
	return &Writer{ResponseWriter: w, controller: http.NewResponseController(w), within: within}
}

// Write implements http.ResponseWriter.
func (w *Writer) Write(part []byte) (int, error) {
	defer w.begin()()
	return w.ResponseWriter.Write(part)
}

// FlushError is for http.ResponseController.
func (w *Writer) FlushError() error {
	defer w.begin()()
	return w.controller.Flush()
}

// begin is called before a part is written, and what it returns when the client has taken it.
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

// end ends the answer if its client takes too long. It never runs after the answer, when the writer must not be used.
func (w *Writer) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.began.IsZero() && time.Since(w.began) >= w.within {
		_ = w.controller.SetWriteDeadline(time.Now())
	}
}

// Unwrap is for http.ResponseController.
func (w *Writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
