package page

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed files
var files embed.FS

const (
	// maxObjects bounds what is planned at once, in bytes; etcd takes objects of 1.5 MiB.
	maxObjects = 4 << 20
	// keepAlive is how often a stream without events has a comment, so that a page that is gone is noticed.
	keepAlive = 15 * time.Second
	// patience is how long the page waits for an answer.
	patience = 30 * time.Second
)

// Server serves the page. Explain and Plan return text for people.
type Server struct {
	Feed    *Feed
	Explain func(ctx context.Context, kind, namespace, name string) (string, error)
	Plan    func(ctx context.Context, objects []byte) (string, error)

	// The page is at /token/, and nothing is anywhere else. No cookie is needed, so other pages and other
	// servers of this machine have nothing that the browser would send for them.
	token string
	// once opens the page one time: other users of the machine see it among the arguments of the browser.
	once  atomic.Pointer[string]
	epoch string
}

// Addresses are where a Server is reached: Page again and again, Open one time.
type Addresses struct{ Page, Open string }

// Serve serves on a listener, which must be on loopback, until ctx is done. It calls ready with its
// addresses: nobody gets anything without one of them.
func (s *Server) Serve(ctx context.Context, listener net.Listener, ready func(Addresses)) error {
	once := rand.Text()
	s.token, s.epoch = rand.Text(), rand.Text()[:6]
	s.once.Store(&once)
	host := listener.Addr().String()
	server := &http.Server{
		Handler: s.handler(strings.TrimSuffix(host, ":80")), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }, // streams end with it
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	ready(Addresses{Page: "http://" + host + "/" + s.token + "/", Open: "http://" + host + "/" + once + "/"})
	select {
	case err := <-ended:
		return fmt.Errorf("serving the page: %w", err)
	case <-ctx.Done():
		return server.Close()
	}
}

// handler answers requests to one host, below the path with the token.
func (s *Server) handler(host string) http.Handler {
	mux := http.NewServeMux()
	static, err := fs.Sub(files, "files")
	if err != nil {
		panic(err) // it is embedded
	}
	mux.Handle("GET /", http.FileServerFS(static))
	mux.HandleFunc("GET /events", s.events)
	for path, answer := range map[string]http.HandlerFunc{"GET /explain": s.explain, "POST /plan": s.plan} {
		mux.Handle(path, http.TimeoutHandler(answer, patience, fmt.Sprintf("error: the API server has not answered within %v", patience)))
	}
	page := http.StripPrefix("/"+s.token, mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		once := s.once.Load()
		switch {
		case r.Host != host: // a name of somebody else's that leads to this address
			http.Error(w, "the address is http://"+host, http.StatusForbidden)
		case subtle.ConstantTimeCompare([]byte(first), []byte(s.token)) == 1:
			page.ServeHTTP(w, r)
		case once != nil && subtle.ConstantTimeCompare([]byte(first), []byte(*once)) == 1 && s.once.CompareAndSwap(once, nil):
			http.Redirect(w, r, "/"+s.token+"/", http.StatusSeeOther)
		default:
			http.Error(w, "Open the address that kubectl atoll ui has printed: it has a token.", http.StatusForbidden)
		}
	})
}

// events streams the picture: first as a whole, then what changes.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(version int, event string, data any) error {
		text, err := json.Marshal(data)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "id: %s-%d\nevent: %s\ndata: %s\n\n", s.epoch, version, event, text)
		return err
	}
	picture, version, changed := s.Feed.Get()
	var sent Picture
	if r.Header.Get("Last-Event-ID") == fmt.Sprintf("%s-%d", s.epoch, version) {
		sent = picture // the page has missed nothing
	}
	for {
		var err error
		switch {
		case picture == nil: // not yet
		case sent == nil:
			err = send(version, "all", picture)
		default:
			if changes := sent.changes(picture); len(changes) > 0 {
				err = send(version, "change", changes)
			}
		}
		if err != nil || out.Flush() != nil {
			return // the page is gone
		}
		sent = picture
		select {
		case <-changed:
		case <-time.After(keepAlive):
			if _, err := io.WriteString(w, ":\n\n"); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
		picture, version, changed = s.Feed.Get()
	}
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	answer(w, func() (string, error) {
		return s.Explain(r.Context(), q.Get("kind"), q.Get("namespace"), q.Get("name"))
	})
}

func (s *Server) plan(w http.ResponseWriter, r *http.Request) {
	objects, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxObjects))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	answer(w, func() (string, error) { return s.Plan(r.Context(), objects) })
}

// answer writes text; an error is text too.
func answer(w http.ResponseWriter, ask func() (string, error)) {
	text, err := ask()
	if err != nil {
		http.Error(w, "error: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the page may be gone
}
