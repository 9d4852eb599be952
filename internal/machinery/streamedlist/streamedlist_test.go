package streamedlist

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// TestCacheIsFilledDespiteBrokenStreams runs a reflector of client-go against streamed
// lists without their end, and expects the node of the plain list.
func TestCacheIsFilledDespiteBrokenStreams(t *testing.T) {
	for name, stream := range map[string]func(http.ResponseWriter, *http.Request){
		"no headers": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"nothing": func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"an object, and no end": func(w http.ResponseWriter, r *http.Request) {
			event(w, "ADDED", "n", nil)
			<-r.Context().Done()
		},
		"an object, and the end of the stream": func(w http.ResponseWriter, _ *http.Request) { event(w, "ADDED", "n", nil) },
		"the end of the stream":                func(http.ResponseWriter, *http.Request) {},
		"a connection that is cut": func(w http.ResponseWriter, _ *http.Request) {
			event(w, "ADDED", "n", nil)
			panic(http.ErrAbortHandler)
		},
		"another bookmark": func(w http.ResponseWriter, r *http.Request) {
			event(w, "BOOKMARK", "", nil)
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			store, ended := follow(t, 100*time.Millisecond, stream)
			eventually(t, func() bool { return len(store.List()) == 1 })
			if paths := ended(); len(paths) != 1 || !strings.HasPrefix(paths[0], "/api/v1/nodes: the streamed list ") {
				t.Errorf("ended was called with %q", paths)
			}
		})
	}
}

// TestHealthyStreamsAreNotEnded: a stream that sends something in time lasts, also if
// its bookmark arrives in pieces, and may be silent after that. The same silence before the
// bookmark ends it.
func TestHealthyStreamsAreNotEnded(t *testing.T) {
	const patience, almost = time.Minute, time.Minute - time.Second
	bookmark := `{"type":"BOOKMARK","annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}}`
	for name, tc := range map[string]struct {
		pieces []string
		ends   bool // after an hour of silence
	}{
		"a bookmark":             {[]string{`{"type":"ADDED"}`, `{"type":"ADDED"}`, bookmark}, false},
		"a bookmark in pieces":   {strings.SplitAfter(bookmark, "-"), false},
		"a bookmark, and more":   {[]string{bookmark, `{"type":"ADDED"}`}, false},
		"no bookmark":            {[]string{`{"type":"ADDED"}`, `{"type":"ADDED"}`}, true},
		"a part of the bookmark": {[]string{bookmark[:50]}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body, stream := io.Pipe()
				var told atomic.Int64
				next := roundTrip(func(r *http.Request) (*http.Response, error) {
					context.AfterFunc(r.Context(), func() { _ = stream.CloseWithError(r.Context().Err()) })
					return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
				})
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://a/api/v1/nodes?watch=true&sendInitialEvents=true", nil)
				if err != nil {
					t.Fatal(err)
				}
				response, err := Bound(patience, func(string, error) { told.Add(1) })(next).RoundTrip(request)
				if err != nil {
					t.Fatal(err)
				}
				var got strings.Builder
				var ended atomic.Bool
				go func() {
					_, _ = io.Copy(&got, response.Body)
					ended.Store(true)
				}()
				for _, piece := range tc.pieces {
					time.Sleep(almost)
					_, _ = stream.Write([]byte(piece))
				}
				time.Sleep(time.Hour)
				if ended.Load() != tc.ends || (told.Load() > 0) != tc.ends {
					t.Errorf("it has ended: %t, and was told %d times, want %t", ended.Load(), told.Load(), tc.ends)
				}
				_ = response.Body.Close()
				synctest.Wait()
				if want := strings.Join(tc.pieces, ""); got.String() != want {
					t.Errorf("got %q, want %q", got.String(), want)
				}
			})
		})
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestRefusalsArePassedOn: client-go finds out by the status that streamed lists are not
// served.
func TestRefusalsArePassedOn(t *testing.T) {
	store, ended := follow(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
	})
	eventually(t, func() bool { return len(store.List()) == 1 })
	if paths := ended(); len(paths) != 0 {
		t.Errorf("ended was called with %q", paths)
	}
}

// follow runs a reflector against a server that answers streamed lists with stream, plain
// lists with one node, and other watches with nothing. ended returns what Bound has told.
func follow(t *testing.T, patience time.Duration, stream func(http.ResponseWriter, *http.Request)) (cache.Store, func() []string) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch query := r.URL.Query(); {
		case query.Get("sendInitialEvents") == "true":
			stream(w, r)
		case query.Get("watch") == "true":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		default:
			_ = json.NewEncoder(w).Encode(corev1.NodeList{
				TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"},
				Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}},
			})
		}
	}))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var told []string
	config := &rest.Config{Host: server.URL}
	config.Wrap(Bound(patience, func(path string, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, path+": "+err.Error())
	}))
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "nodes", "", fields.Everything())
	go cache.NewReflectorWithOptions(lw, &corev1.Node{}, store, cache.ReflectorOptions{Name: "test"}).RunWithContext(t.Context())
	return store, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return told
	}
}

// event writes an event with a node.
func event(w http.ResponseWriter, kind, name string, annotations map[string]string) {
	raw, _ := json.Marshal(map[string]any{"type": kind, "object": corev1.Node{
		TypeMeta:   metav1.TypeMeta{Kind: "Node", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: annotations},
	}})
	_, _ = w.Write(append(raw, '\n'))
	w.(http.Flusher).Flush()
}

func eventually(t *testing.T, check func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(2 * time.Minute); !check(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the cache was not filled within 30 s")
		}
	}
}
