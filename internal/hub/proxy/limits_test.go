package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/limits"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestIdentityCannotTakeSlotsOfOthers: one identity has all its slots, and so has a client with forged tokens.
// Another identity, the node, and a new token of the other identity are answered.
func TestIdentityCannotTakeSlotsOfOthers(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader("{}"))
	})
	const here, forgers = "192.0.2.1:1", "192.0.2.1:2"
	// ask returns 0 if there is no answer within a time. It is short for requests that wait for a place.
	within := time.Minute
	ask := func(caller identity.Caller, from, name string) (code int) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		defer func() { _ = recover() }()
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/namespaces/x/configmaps/"+name, nil)
		r.RemoteAddr = from
		n.answer(w, r, caller)
		return w.Code
	}
	greedy, other := identity.Caller{Name: "subject:greedy", Token: "greedy"}, identity.Caller{Name: "subject:other", Token: "other"}
	for _, caller := range []identity.Caller{greedy, other} {
		if code := ask(caller, here, "first"); code != http.StatusOK {
			t.Fatalf("a first request is answered with %d", code)
		}
	}
	forger := identity.Caller{Name: other.Name, Token: "forged"}
	in, strange := n.limits.answers, n.limits.strangers
	for range maxAnswers {
		if !in.Acquire(t.Context(), greedy.Name) {
			t.Fatal("there is no slot")
		}
	}
	for range maxStrange {
		if !strange.Acquire(t.Context(), forgers) {
			t.Fatal("there is no slot")
		}
	}
	within = 100 * time.Millisecond
	for who, code := range map[string]int{"who has all its places": ask(greedy, here, "now"), "a stranger that claims to be another": ask(forger, forgers, "now")} {
		if code != 0 {
			t.Errorf("%s is answered with %d", who, code)
		}
	}
	within = time.Minute
	renewed := identity.Caller{Name: other.Name, Token: "renewed"}
	for who, caller := range map[string]identity.Caller{"another identity": other, "the node": identity.OfNode(), "a new token": renewed} {
		if code := ask(caller, here, "now"); code != http.StatusOK {
			t.Errorf("%s is answered with %d", who, code)
		}
	}
	in.Release(greedy.Name)
	if code := ask(greedy, here, "now"); code != http.StatusOK {
		t.Errorf("once a place is free, the answer is %d", code)
	}
}

// TestAcceptedWatchReleasesTheStrangerSlot: a watch holds a slot for unknown tokens only until the cloud accepts
// its token.
func TestAcceptedWatchReleasesTheStrangerSlot(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	from, to := io.Pipe()
	n.watchesAre(from)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.askAs(reader, podsOfNode+"&watch=1&resourceVersion=1")
	}()
	build.Eventually(t, "the watch has a slot of streams", func() bool {
		return n.limits.streams.Taken() == 1 && n.limits.strangers.Taken() == 0
	})
	_ = to.Close()
	<-ended
	if n := n.limits.streams.Taken(); n != 0 {
		t.Errorf("once it is over, %d places are taken", n)
	}
}

// distant is a cloud whose answers take their time.
type distant struct{ Cloud }

// RoundTrip implements Cloud.
func (d distant) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	<-time.After(limits.WaitWithin / 3)
	return d.Cloud.RoundTrip(r, asNode)
}

// TestAcceptedTokenReleasesItsWaitingRequests: once one request shows that the token is accepted, the others do
// not need a slot for unknown tokens.
func TestAcceptedTokenReleasesItsWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.answers(1, pod("a", "1", 1, nil))
		n.Proxy.Cloud = distant{n.cloud}
		in := n.limits.strangers
		from := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil).RemoteAddr
		for range maxStrange {
			in.Acquire(t.Context(), from)
		}
		var all sync.WaitGroup
		for range 3 * maxStrange {
			all.Go(func() {
				if w := n.askAs(reader, podsOfNode); w.Code != http.StatusOK {
					t.Errorf("the answer is %d", w.Code)
				}
			})
		}
		synctest.Wait()
		n.Tokens.Accepted(reader.Token, time.Now())
		in.Release(from) // the others stay
		all.Wait()
	})
}

// TestWatchesAreBounded: a watch beyond the limit of an identity, or of all, gets 429 at once, and takes no slot
// for unknown tokens.
func TestWatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.answers(1, pod("a", "1", 1, nil))
		in := n.limits.streams
		for _, who := range []string{reader.Name, "another"} {
			for range maxStreams {
				if !in.Acquire(t.Context(), who) {
					t.Fatal("there is no slot")
				}
			}
			for _, isNew := range []bool{false, true} {
				n.Tokens.Accepted(reader.Token, time.Now())
				if isNew {
					n.Tokens.Refused(reader.Token, time.Now())
					n.Tokens.Refused(reader.Token, time.Now().Add(time.Hour))
				}
				began := time.Now()
				if w := n.askAs(reader, podsOfNode+"&watch=1&resourceVersion=1"); w.Code != http.StatusTooManyRequests || time.Since(began) > 0 {
					t.Errorf("when %s has its places, one more watch, with a new token %t, is answered with %d after %s", who, isNew, w.Code, time.Since(began))
				}
				if n.limits.strangers.Taken() > 0 {
					t.Error("it has the place of a stranger")
				}
			}
		}
		began := time.Now()
		if in.Acquire(t.Context(), "a third") || time.Since(began) > 0 {
			t.Errorf("beyond the places of all there is one, or somebody waited for %s", time.Since(began))
		}
	})
}

// leaving is the writer of a client that has gone.
type leaving struct {
	*httptest.ResponseRecorder
}

// Write implements io.Writer.
func (l leaving) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestInterruptedRequestsReleaseTheirSlots(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	n.askAs(reader, podsOfNode)
	n.Wait()
	breaks := func(target string) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s does not break off", target)
			}
		}()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
		r.Header.Set("Accept", n.format.ContentType())
		n.answer(leaving{httptest.NewRecorder()}, r, reader)
	}
	n.cloud.set(true, nil)
	breaks(podsOfNode)
	breaks(podsOfNode + "&watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
	for name, in := range map[string]*limits.Requests{
		"answers": n.limits.answers, "streams": n.limits.streams, "cached": n.limits.cached, "strangers": n.limits.strangers,
	} {
		if taken := in.Taken(); taken != 0 {
			t.Errorf("%d slots of %s are taken", taken, name)
		}
	}
}

func TestUnreadAnswerEndsAndReleasesItsSlot(t *testing.T) {
	const upgrade = "Connection: Upgrade\r\nUpgrade: x\r\n"
	for path, headers := range map[string]string{
		"/api/v1/namespaces/x/configmaps": "", "/api/v1/namespaces/x/pods/y/log": "", "/api/v1/namespaces/x/services/y/proxy/big": "", "/api/v1/namespaces/x/secrets": upgrade,
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			endsUnread(t, func(server *httptest.Server) {
				server.Start()
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: hub\r\n%s\r\n", path, headers); err != nil {
					t.Fatal(err)
				}
			})
		})
		t.Run("HTTP2"+path, func(t *testing.T) {
			t.Parallel()
			endsUnread(t, func(server *httptest.Server) {
				server.EnableHTTP2 = true
				server.StartTLS()
				response := begin(t, server, path)
				t.Cleanup(func() { _ = response.Body.Close() })
			})
		})
	}
}

// begin asks a server, and returns when its answer has begun.
func begin(t *testing.T, server *httptest.Server, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// endsUnread fails unless an answer ends that a client asks for and does not read.
func endsUnread(t *testing.T, ask func(server *httptest.Server)) {
	t.Helper()
	n := newNode(t, wire.JSON)
	n.slowAfter = 100 * time.Millisecond
	ended := make(chan error, 1)
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		from, to := io.Pipe()
		go func() {
			part := make([]byte, 1<<20)
			for range 1000 {
				if _, err := to.Write(part); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		}()
		return http.StatusOK, "application/json", from
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
	t.Cleanup(server.Close)
	ask(server)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a gigabyte of an answer that nobody reads is taken")
		}
	case <-time.After(time.Minute):
		t.Error("an answer that is not read does not end")
	}
	build.Eventually(t, "its slot is given back", func() bool { return n.limits.answers.Taken() == 0 })
}

// TestIdleAnswerIsNotEnded: such as a log that is followed.
func TestIdleAnswerIsNotEnded(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.slowAfter = 100 * time.Millisecond
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		from, to := io.Pipe()
		go func() {
			_, _ = to.Write([]byte("first "))
			<-time.After(3 * n.slowAfter)
			_, _ = to.Write([]byte("last"))
			_ = to.Close()
		}()
		return http.StatusOK, "text/plain", from
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, reader) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	for _, path := range []string{"/api/v1/namespaces/x/pods/y/log?follow=true", "/api/v1/namespaces/x/configmaps", "/apis/x.y/v1/unknown"} {
		response := begin(t, server, path)
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || string(text) != "first last" {
			t.Errorf("of %s came %q, %v", path, text, err)
		}
	}
}

// TestCallerGetsOneCollectionFromTheCacheAtATime: the node has no such limit.
func TestCallerGetsOneCollectionFromTheCacheAtATime(t *testing.T) {
	n := newNode(t, wire.JSON)
	n.answers(1, pod("a", "1", 1, nil))
	within := time.Minute
	ask := func(caller identity.Caller, query string) (code int, answered bool) {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		w := httptest.NewRecorder()
		defer func() { answered = recover() == nil }()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, podsOfNode+query, nil)
		r.Header.Set("Accept", n.format.ContentType())
		n.answer(w, r, caller)
		return w.Code, true
	}
	for _, caller := range []identity.Caller{reader, identity.OfNode()} {
		if code, _ := ask(caller, ""); code != http.StatusOK {
			t.Fatalf("online the answer is %d", code)
		}
	}
	n.Wait()
	n.cloud.set(true, nil)
	if !n.limits.cached.Acquire(t.Context(), reader.Name) {
		t.Fatal("there is no slot")
	}
	within = 100 * time.Millisecond
	for _, query := range []string{"", "&watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"} {
		if code, answered := ask(reader, query); answered {
			t.Errorf("a second collection is answered with %d: %s", code, query)
		}
	}
	within = time.Minute
	if code, answered := ask(identity.OfNode(), ""); code != http.StatusOK || !answered {
		t.Errorf("the node has to wait: %d", code)
	}
	n.limits.cached.Release(reader.Name)
	if code, answered := ask(reader, ""); code != http.StatusOK || !answered {
		t.Errorf("once the first is over, the answer is %d", code)
	}
}

// plainFilter is a Filter of everything, which changes nothing.
type plainFilter struct{ filter.Filter }

func (plainFilter) Session(string, string, string, string) filter.Session { return plainSession{} }
func (plainFilter) Await(context.Context)                                 {}

type plainSession struct{}

func (plainSession) Learn(wire.Format, *wire.Meta, []byte) bool             { return false }
func (plainSession) Forget(*wire.Meta) bool                                 { return false }
func (plainSession) Form(_ wire.Format, _ *wire.Meta, object []byte) []byte { return object }

// TestFilteredListsInMemoryAreBounded: each is in memory as a whole. A client beyond the limit gets 429 with
// Retry-After.
func TestFilteredListsInMemoryAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, wire.JSON)
		n.Filter = plainFilter{}
		other := identity.Caller{Name: "other", Token: "y"}
		n.answers(1, pod("a", "1", 1, nil))
		for _, caller := range []identity.Caller{reader, other} {
			n.Tokens.Accepted(caller.Token, time.Now())
			n.askAs(caller, podsOfNode)
			n.Wait()
		}
		in := n.limits.filtered
		take := func(who string) {
			t.Helper()
			if !in.Acquire(t.Context(), who) {
				t.Fatalf("there is no slot for %s", who)
			}
		}
		for _, offline := range []bool{false, true} {
			n.cloud.set(offline, nil)
			ask := func(caller identity.Caller, want int) {
				t.Helper()
				w := n.askAs(caller, podsOfNode)
				if refused := w.Code == http.StatusTooManyRequests; w.Code != want || refused != (w.Header().Get("Retry-After") != "") || refused && w.Header().Get(AsOf) != "" {
					t.Errorf("offline %t: the answer to %s is %d %v, want %d", offline, caller.Name, w.Code, w.Header(), want)
				}
			}
			take(reader.Name)
			ask(reader, http.StatusTooManyRequests) // one at a time for each
			ask(other, http.StatusOK)
			time.AfterFunc(limits.WaitWithin/2, func() { in.Release(reader.Name) })
			ask(reader, http.StatusOK)
			for i := range maxAllFiltered {
				take(fmt.Sprint("reader ", i))
			}
			ask(other, http.StatusTooManyRequests)
			if w := n.askAs(identity.OfNode(), podsOfNode); w.Code != http.StatusOK && !offline {
				t.Errorf("the node is answered %d", w.Code)
			}
			for i := range maxAllFiltered {
				in.Release(fmt.Sprint("reader ", i))
			}
		}
	})
}
