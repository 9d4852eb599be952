package build

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// API is a fake API server over HTTP, for clients and reflectors. It serves get, list and
// watch of a few objects.
type API struct {
	t      testing.TB
	server *httptest.Server

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]json.RawMessage // by resource, then namespace/name
	watchers map[string]map[chan event]struct{}    // by resource
	reads    int
	lists    int
	failure  int // HTTP status, 0 for none
}

type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// NewAPI starts a server with the objects. It stops when the test ends.
func NewAPI(t testing.TB, objects ...Object) *API {
	t.Helper()
	a := &API{t: t, objects: map[string]map[string]json.RawMessage{}, watchers: map[string]map[chan event]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /apis/{group}/v1/{resource}", a.watch)
	mux.HandleFunc("GET /api/v1/{resource}", a.watch)
	mux.HandleFunc("GET /api/v1/namespaces/{namespace}/{resource}", a.list)
	mux.HandleFunc("GET /apis/{group}/v1/namespaces/{namespace}/{resource}/{name}", a.read)
	a.server = httptest.NewServer(mux)
	t.Cleanup(func() {
		a.server.CloseClientConnections()
		a.server.Close()
	})
	for _, o := range objects {
		a.Put(o)
	}
	return a
}

// Client returns a client of the server without a rate limit.
func (a *API) Client() kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: a.server.URL, QPS: -1, Timeout: time.Minute})
	utilruntime.Must(err)
	return client
}

// Put creates or updates an object.
func (a *API) Put(o Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource, key := resourceOf(o), o.GetNamespace()+"/"+o.GetName()
	kind := "MODIFIED"
	if _, exists := a.objects[resource][key]; !exists {
		kind = "ADDED"
	}
	if a.objects[resource] == nil {
		a.objects[resource] = map[string]json.RawMessage{}
	}
	a.objects[resource][key] = a.encodeLocked(o)
	a.notifyLocked(resource, event{kind, a.objects[resource][key]})
}

// Delete removes an object.
func (a *API) Delete(o Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := resourceOf(o)
	delete(a.objects[resource], o.GetNamespace()+"/"+o.GetName())
	a.notifyLocked(resource, event{"DELETED", a.encodeLocked(o)})
}

// Fail makes every get, and every list of a namespace, fail with an HTTP status, until it is
// called with 0.
func (a *API) Fail(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure = status
}

// Reads returns the number of gets so far.
func (a *API) Reads() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reads
}

// Lists returns the number of lists and watches that were started so far.
func (a *API) Lists() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lists
}

func resourceOf(o Object) string {
	plural, _ := meta.UnsafeGuessKindToResource(kindOf(o))
	return plural.Resource
}

func (a *API) encodeLocked(o Object) json.RawMessage {
	a.version++
	o = o.DeepCopyObject().(Object)
	o.SetResourceVersion(strconv.Itoa(a.version))
	o.GetObjectKind().SetGroupVersionKind(kindOf(o))
	raw, err := json.Marshal(o)
	utilruntime.Must(err)
	return raw
}

func (a *API) notifyLocked(resource string, e event) {
	for w := range a.watchers[resource] {
		w <- e // the buffer is large enough for the few changes of a test
	}
}

func (a *API) read(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads++
	raw, found := a.objects[r.PathValue("resource")][r.PathValue("namespace")+"/"+r.PathValue("name")]
	switch {
	case a.failure != 0:
		fail(w, a.failure, metav1.StatusReasonInternalError)
	case !found:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	default:
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		_, _ = w.Write(raw)
	}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Reason: reason, Code: int32(code),
	})
}

// list serves lists of one namespace.
func (a *API) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	if a.failure != 0 {
		fail(w, a.failure, metav1.StatusReasonInternalError)
		return
	}
	resource := r.PathValue("resource")
	items := []json.RawMessage{}
	for key, raw := range a.objects[resource] {
		if strings.HasPrefix(key, r.PathValue("namespace")+"/") {
			items = append(items, raw)
		}
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "v1", "kind": listKinds[resource] + "List", "metadata": map[string]string{"resourceVersion": strconv.Itoa(a.version)}, "items": items,
	})
}

// watch serves watches with sendInitialEvents, which reflectors use in place of a list.
func (a *API) watch(w http.ResponseWriter, r *http.Request) {
	group, resource := r.PathValue("group"), r.PathValue("resource")
	if r.FormValue("sendInitialEvents") != "true" {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	events := make(chan event, 100)
	a.mu.Lock()
	a.lists++
	for _, raw := range a.objects[resource] {
		events <- event{"ADDED", raw}
	}
	events <- event{"BOOKMARK", a.bookmarkLocked(group, resource)}
	if a.watchers[resource] == nil {
		a.watchers[resource] = map[chan event]struct{}{}
	}
	a.watchers[resource][events] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.watchers[resource], events)
	}()
	for {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case e := <-events:
			if json.NewEncoder(w).Encode(e) != nil {
				return
			}
		}
	}
}

// listKinds has the kind of each resource that the server lists.
var listKinds = map[string]string{
	"deployments": "Deployment", "replicasets": "ReplicaSet", "statefulsets": "StatefulSet",
	"daemonsets": "DaemonSet", "jobs": "Job", "cronjobs": "CronJob", "pods": "Pod",
}

func (a *API) bookmarkLocked(group, resource string) json.RawMessage {
	raw, err := json.Marshal(map[string]any{
		"apiVersion": strings.TrimPrefix(group+"/v1", "/"), "kind": listKinds[resource],
		"metadata": map[string]any{
			"resourceVersion": strconv.Itoa(a.version),
			"annotations":     map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		},
	})
	utilruntime.Must(err)
	return raw
}

// Eventually waits until holds returns true, for at most two minutes. what describes the
// condition in the failure message.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("gave up waiting: %s", what)
		case <-tick.C:
		}
	}
}
