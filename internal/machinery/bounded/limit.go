package bounded

import (
	"context"
	"errors"
	"io"
	"net/http"
)

// ErrBusy is returned for a request of a caller that has its share of what is bounded.
var ErrBusy = errors.New("too many requests are in progress")

// AtOnce passes requests on while a caller has no more than its share of the given number
// of requests at a time, and refuses others with 429 before anything of them is read.
func AtOnce(port string, requests int64, next http.Handler) http.Handler {
	shares := NewShares(requests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller := CallerOf(r.RemoteAddr)
		if !shares.Take(caller, 1) {
			Refused(port, TooManyRequests)
			http.Error(w, ErrBusy.Error(), http.StatusTooManyRequests)
			return
		}
		defer shares.Give(caller, 1)
		next.ServeHTTP(w, r)
	})
}

// Bodies passes requests on with a body whose bytes count, from when they are read until
// the request is answered, among those of all requests. To read more than the caller's
// share of them returns ErrBusy.
func Bodies(port string, bytes int64, next http.Handler) http.Handler {
	shares := NewShares(bytes)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := &countedBody{ReadCloser: r.Body, port: port, shares: shares, caller: CallerOf(r.RemoteAddr)}
		defer func() { shares.Give(b.caller, b.held) }()
		r.Body = b
		next.ServeHTTP(w, r)
	})
}

type countedBody struct {
	io.ReadCloser
	port   string
	shares *Shares
	caller Caller
	held   int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 && !b.shares.Take(b.caller, int64(n)) {
		Refused(b.port, TooManyRequests)
		return n, ErrBusy
	}
	b.held += int64(n)
	return n, err
}

// InTurn passes requests on in turns. One that waits for too long, or that itself waits for
// something, goes on without a turn: it is for requests that must not be refused because others
// send many, such as probes.
func InTurn(turns *Turns, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), probeTime)
		defer cancel()
		turn, _ := turns.WaitFor(ctx, CallerOf(r.RemoteAddr), false, roomAfter)
		defer turn.End()
		next.ServeHTTP(w, r)
	})
}

// closing closes an HTTP/1.1 connection after each answer that is not a success, once the rest
// of the request has arrived or Port.RequestTime is over. A client could otherwise send requests
// that are refused, one after the other and without a handshake, and so without waiting for a
// turn.
func closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			w = closingWriter{w}
		}
		next.ServeHTTP(w, r)
	})
}

type closingWriter struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w closingWriter) WriteHeader(status int) {
	if status >= http.StatusMultipleChoices {
		w.Header().Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (w closingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
