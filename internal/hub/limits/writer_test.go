package limits

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// taking is the writer of a client that takes some time for each part, and what it has got when its answer ended.
type taking struct {
	*httptest.ResponseRecorder

	takes time.Duration
	ended chan struct{}
}

func (w *taking) take() error {
	select {
	case <-time.After(w.takes):
		return nil
	case <-w.ended:
		return os.ErrDeadlineExceeded
	}
}

func (w *taking) Write(part []byte) (int, error) {
	if err := w.take(); err != nil {
		return 0, err
	}
	return w.ResponseRecorder.Write(part)
}

func (w *taking) FlushError() error { return w.take() }

func (w *taking) SetWriteDeadline(time.Time) error { close(w.ended); return nil }

// TestWriterLimitsEachPart: each write has its own time limit. The time between two writes does not count.
func TestWriterLimitsEachPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		below := &taking{ResponseRecorder: httptest.NewRecorder(), takes: 59 * time.Second, ended: make(chan struct{})}
		w := NewWriter(below, time.Minute)
		give := func() error {
			_, err := w.Write([]byte("x"))
			return errors.Join(err, http.NewResponseController(w).Flush())
		}
		for range 3 {
			if err := give(); err != nil {
				t.Errorf("a client that takes 59 seconds for each part: %v", err)
			}
			<-time.After(time.Hour)
		}
		below.takes = time.Hour
		began := time.Now()
		if err := give(); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("a client that takes an hour: %v after %s", err, time.Since(began))
		}
		<-time.After(time.Hour)
		if text := below.Body.String(); text != "xxx" {
			t.Errorf("the client has got %q", text)
		}
	})
}
