// Package webhook bounds the requests that all webhooks read. The webhooks cannot
// authenticate the API server, so everybody who reaches their port may send requests.
package webhook

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const (
	// maxBody bounds the body of one request, in bytes. It is twice the largest object
	// that etcd accepts, in its JSON encoding.
	maxBody = 7 << 20
	// maxBodies bounds the bodies of all requests in progress together, in bytes. It is
	// enough for pods of usual size at the rate of the largest API servers, and an
	// eighth of the memory that the chart gives to atoll-manager.
	maxBodies = 64 << 20
	// readTimeout bounds the time in which a body must arrive. It is longer than the API
	// server waits for the answer.
	readTimeout = 3 * time.Second
)

// Bounded is a webhook server that bounds the size of bodies, their sum, and the time in
// which they must arrive. It refuses all other requests, so that the API server
// continues without the webhook.
type Bounded struct {
	webhook.Server
	held atomic.Int64 // bytes of the bodies of all requests in progress
}

// errTooMuch is returned if the bodies of all requests in progress exceed maxBodies.
var errTooMuch = errors.New("too many requests are in progress")

// Register implements webhook.Server.
func (b *Bounded) Register(path string, hook http.Handler) {
	b.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection := http.NewResponseController(w)
		if err := connection.SetReadDeadline(time.Now().Add(readTimeout)); err != nil {
			http.Error(w, "setting the deadline of the request: "+err.Error(), http.StatusInternalServerError)
			return
		}
		counted := &counter{Reader: http.MaxBytesReader(w, r.Body, maxBody), all: &b.held}
		defer counted.release()
		body, err := io.ReadAll(counted)
		var tooLong *http.MaxBytesError
		switch {
		case errors.As(err, &tooLong):
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		case errors.Is(err, errTooMuch):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
			return
		}
		_ = connection.SetReadDeadline(time.Time{}) // setting the deadline above succeeded, so this does
		r.Body = io.NopCloser(bytes.NewReader(body))
		hook.ServeHTTP(w, r)
	}))
}

// counter adds the bytes that it reads to those of all requests in progress, until
// release.
type counter struct {
	io.Reader
	all *atomic.Int64
	n   int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	if c.all.Add(int64(n)) > maxBodies {
		return n, errTooMuch
	}
	return n, err
}

func (c *counter) release() { c.all.Add(-c.n) }
