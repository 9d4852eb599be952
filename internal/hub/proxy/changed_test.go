package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// csiNodes is a cloud with one CSINode, or none.
type csiNodes struct {
	Cloud

	offline atomic.Bool
	version int // 0: it is not there
}

// RoundTrip implements Cloud.
func (n *csiNodes) RoundTrip(r *http.Request, _ bool) (*http.Response, error) {
	if n.offline.Load() {
		return nil, uplink.ErrOffline
	}
	code := http.StatusOK
	switch r.Method {
	case http.MethodPost:
		code = http.StatusCreated
		n.version++
	case http.MethodPut:
		n.version++
	case http.MethodDelete:
		n.version = 0
	}
	body := fmt.Sprintf(`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"edge-1","resourceVersion":"%d"}}`, n.version)
	if n.version == 0 && r.Method == http.MethodGet {
		code, body = http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// TestCreatedObjectIsReadableOffline: a kubelet reads that its CSINode does not exist, creates it, and reads it
// again only after a restart, maybe offline. After a deletion nothing is answered.
func TestCreatedObjectIsReadableOffline(t *testing.T) {
	const all, one = "/apis/storage.k8s.io/v1/csinodes", "/apis/storage.k8s.io/v1/csinodes/edge-1"
	n := newNode(t, wire.JSON)
	cloud := &csiNodes{Cloud: n.cloud}
	n.Proxy.Cloud = cloud
	do := func(method, path, accept string) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", accept)
		w := httptest.NewRecorder()
		n.answer(w, r, identity.OfNode())
		n.Wait()
		return w.Code, w.Body.String()
	}
	offline := func(when, accept string, want int, version string) {
		t.Helper()
		cloud.offline.Store(true)
		defer cloud.offline.Store(false)
		if code, body := do(http.MethodGet, one, accept); code != want || !strings.Contains(body, version) {
			t.Errorf("%s, without the cloud it is answered %d %s", when, code, body)
		}
	}
	const accept, other = "application/json", "application/json;q=0.9,*/*"
	do(http.MethodGet, one, accept)
	do(http.MethodGet, one, other)
	offline("not there", accept, http.StatusNotFound, "NotFound")
	if code, _ := do(http.MethodPost, all, accept); code != http.StatusCreated {
		t.Fatalf("the creation is answered %d", code)
	}
	offline("created", accept, http.StatusOK, `"resourceVersion":"1"`)
	offline("created, and asked for in another form", other, http.StatusServiceUnavailable, "")
	do(http.MethodPut, one, accept)
	offline("updated", accept, http.StatusOK, `"resourceVersion":"2"`)
	do(http.MethodDelete, one, accept)
	offline("deleted", accept, http.StatusServiceUnavailable, "")
}

// TestSubresourceAndCollectionWritesDropTheKeptObject: an update of a Scale does not give the Deployment, and a
// deleted collection has no objects.
func TestSubresourceAndCollectionWritesDropTheKeptObject(t *testing.T) {
	const deployment, maps = "/apis/apps/v1/namespaces/default/deployments/web", "/api/v1/namespaces/default/configmaps"
	n := newNode(t, wire.JSON)
	somebody := identity.Caller{Name: "subject:https://issuer#somebody", Token: "x"}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Of ` + r.URL.Path + `"}`))
	})
	const pods = "/api/v1/namespaces/default/pods/web" // of others than the node they are as everything else
	for _, path := range []string{deployment, maps + "/c", pods} {
		n.accepting(somebody, "application/json", path)
	}
	for method, target := range map[string]string{http.MethodPut: deployment + "/scale", http.MethodDelete: maps, http.MethodPost: pods + "/eviction"} {
		r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader("{}"))
		r.Header.Set("Accept", "application/json")
		w := httptest.NewRecorder()
		n.answer(w, r, somebody)
		n.Wait()
		if w.Code/100 != 2 {
			t.Fatalf("%s %s is answered %d", method, target, w.Code)
		}
	}
	n.cloud.set(true, nil)
	for _, path := range []string{deployment, maps + "/c", pods} {
		if w := n.accepting(somebody, "application/json", path); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s is answered %d %s", path, w.Code, w.Body)
		}
	}
}

// TestChangedObjectIsNotReadFromAnOlderList: if the client has changed or deleted the object and has read it in a
// list only, it gets 503 offline.
func TestChangedObjectIsNotReadFromAnOlderList(t *testing.T) {
	const services = "/api/v1/namespaces/default/services"
	n := newNode(t, wire.JSON)
	somebody := identity.Caller{Name: "subject:https://issuer#somebody", Token: "x"}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		items := ""
		for i, name := range []string{"changed", "deleted", "other"} {
			if i > 0 {
				items += ","
			}
			items += `{"metadata":{"name":"` + name + `","namespace":"default"}}`
		}
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[` + items + `]}`))
	})
	n.accepting(somebody, "application/json", services)
	for method, name := range map[string]string{http.MethodPatch: "changed", http.MethodDelete: "deleted"} {
		r := httptest.NewRequestWithContext(t.Context(), method, services+"/"+name, strings.NewReader("{}"))
		r.Header.Set("Accept", "application/json")
		n.answer(httptest.NewRecorder(), r, somebody)
		n.Wait()
	}
	n.cloud.set(true, nil)
	for name, want := range map[string]int{"changed": http.StatusServiceUnavailable, "deleted": http.StatusServiceUnavailable, "other": http.StatusOK} {
		w := n.accepting(somebody, "application/json", services+"/"+name)
		if w.Code != want {
			t.Errorf("%s is answered %d %s", name, w.Code, w.Body)
		}
		if w.Header().Get("Retry-After") != "" {
			t.Error("kubectl would ask ten times before it says why")
		}
	}
}

// TestDeletedPodsAreNotReadFromTheCache: what the node read of a pod by its name is removed with the pod, and is
// not used for a new pod of that name.
func TestDeletedPodsAreNotReadFromTheCache(t *testing.T) {
	n := newNode(t, wire.JSON)
	cloud := &answering{Cloud: n.cloud, node: n, at: map[string]runtime.Object{}}
	const path = "/api/v1/namespaces/default/pods/"
	is := func(code int, name, uid string) {
		t.Helper()
		cloud.offline = true
		n.Proxy.Cloud = cloud
		w := n.ask(t.Context(), path+name)
		if w.Code != code || uid != "" && !strings.Contains(w.Body.String(), `"uid":"`+uid+`"`) {
			t.Errorf("the pod %s is answered %d %s", name, w.Code, w.Body)
		}
		cloud.offline = false
	}
	with := func(name, uid string, version int) *corev1.Pod {
		return pod(name, "1", version, nil, func(p *corev1.Pod) { p.UID = types.UID(uid) })
	}
	read := func() {
		n.Proxy.Cloud = cloud
		for _, name := range []string{"stays", "gone", "anew"} {
			cloud.at[path+name] = with(name, name+"-1", 1)
			n.ask(t.Context(), path+name)
			n.Wait()
			is(http.StatusOK, name, name+"-1")
		}
	}
	read()
	cloud.at["/api/v1/pods"] = &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: []corev1.Pod{*with("stays", "stays-1", 1), *with("anew", "anew-2", 2)}}
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	is(http.StatusOK, "stays", "stays-1")
	for _, name := range []string{"gone", "anew"} {
		if w := n.askOffline(path + name); strings.Contains(w, name+"-1") {
			t.Errorf("after the list, %s reads as %s", name, w)
		}
	}
	read()
	n.Proxy.Cloud = n.cloud
	n.watched(podsOfNode+"&watch=1&resourceVersion=2", event{watch.Deleted, with("gone", "gone-1", 3)}, event{watch.Added, with("anew", "anew-2", 4)}, event{watch.Added, with("stays", "stays-1", 5)})
	n.Wait()
	is(http.StatusOK, "stays", "stays-1")
	for _, name := range []string{"gone", "anew"} {
		if w := n.askOffline(path + name); strings.Contains(w, name+"-1") {
			t.Errorf("after the watch, %s reads as %s", name, w)
		}
	}
}

// askOffline asks without the cloud.
func (n *node) askOffline(path string) string {
	n.Proxy.Cloud = n.cloud
	n.cloud.set(true, nil)
	return n.ask(n.Context(), path).Body.String()
}
