// Package webhook is what the webhooks have in common: how much of anybody's
// requests they take in. Whoever reaches their port may send some; who the API
// server is, TLS does not tell.
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
	// maxBody bounds a request: twice what etcd takes of an object, encoded.
	maxBody = 7 << 20
	// maxBodies bounds all requests that are read or answered at a time: as many as
	// the largest API server sends, of pods as they are, and an eighth of the
	// memory that the chart gives to atoll-manager.
	maxBodies = 64 << 20
	// readWithin bounds how long a body may take: longer than the API server
	// waits for the answer.
	readWithin = 3 * time.Second
)

// Bounded is a server whose webhooks read bodies that are there in time, and only
// as many as fit into memory. Others are refused, so that the API server goes on
// without us.
type Bounded struct {
	webhook.Server
	taken atomic.Int64 // bytes of bodies that are read or answered
}

// errTooMuch: other requests have the room.
var errTooMuch = errors.New("too many requests are under way")

// Register implements webhook.Server.
func (b *Bounded) Register(path string, hook http.Handler) {
	b.Server.Register(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection := http.NewResponseController(w)
		if err := connection.SetReadDeadline(time.Now().Add(readWithin)); err != nil {
			http.Error(w, "bounding the time for the request: "+err.Error(), http.StatusInternalServerError)
			return
		}
		counted := &counter{Reader: http.MaxBytesReader(w, r.Body, maxBody), all: &b.taken}
		defer counted.release()
		body, err := io.ReadAll(counted)
		var long *http.MaxBytesError
		switch {
		case errors.As(err, &long):
			http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
			return
		case errors.Is(err, errTooMuch):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, "reading the request: "+err.Error(), http.StatusBadRequest)
			return
		}
		_ = connection.SetReadDeadline(time.Time{}) // it was possible before
		r.Body = io.NopCloser(bytes.NewReader(body))
		hook.ServeHTTP(w, r)
	}))
}

// counter counts what has come of a body among that of all.
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
