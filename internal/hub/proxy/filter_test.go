package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// one is what a client has of the only slice.
func one(addresses string) map[string]string { return map[string]string{"web-1": addresses} }

// TestListsOfServiceProxiesAreFiltered: they have the endpoints of the topology, online, offline, and after a
// restart. Other clients get all endpoints, and a single slice is not filtered.
func TestListsOfServiceProxiesAreFiltered(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			check := func(when string) {
				t.Helper()
				for caller, want := range map[identity.Caller]string{kubeProxy: "1,2", person: "1,2,3"} {
					if got := r.listed(caller); !maps.Equal(got, one(want)) {
						t.Errorf("%s %s gets %v", when, caller.Name, got)
					}
					if got := r.addressesOf(r.get(caller, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-1")); got != "1,2,3" {
						t.Errorf("%s %s reads the slice as %s", when, caller.Name, got)
					}
				}
				r.Wait()
			}
			check("at first")
			r.goOffline()
			check("offline")
			r.restart()
			check("after a restart offline,")
		})
	}
}

// TestFilteredWatchFollowsNodePoolAndService: a change of any of them changes the endpoints that the client has.
func TestFilteredWatchFollowsNodePoolAndService(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			w := r.follow("")
			w.expect("at first", one("1,2"))
			r.put(poolsPath, "p", poolWith("a", "b", "c"))
			w.expect("when a node joins the pool,", one("1,2,3"))
			r.put(servicesPath, "web", serviceWith("kubernetes.io/hostname"))
			w.expect("when the topology is another,", one("1"))
			r.put(servicesPath, "web", serviceWith("hostname"))
			w.expect("when the topology is wrong,", one("1,2,3"))
			r.put(servicesPath, "web", serviceWith("openyurt.io/nodepool"))
			r.put(poolsPath, "p", poolWith("a"))
			w.expect("when two nodes leave the pool,", one("1"))
			r.put(nodesPath, "a", nodeIn("q"))
			w.expect("in a pool that does not exist,", one("1,2,3"))
			r.put(nodesPath, "a", nodeIn("p"))
			w.expect("in the pool again,", one("1"))
			r.put(servicesPath, "web", nil)
			w.expect("when the Service is not known,", one("1,2,3"))
			r.put(servicesPath, "web", serviceWith("openyurt.io/nodepool"))
			w.expect("when it is known again,", one("1"))
			// What comes from the cloud passes the filter, and the client goes on from where it was.
			r.put(slicesPath, "web-2", sliceWith("web-2", "a=10.0.0.4", "c=10.0.0.5"))
			w.expect("when a slice is new,", map[string]string{"web-1": "1", "web-2": "4"})
			r.put(poolsPath, "p", poolWith("a", "c"))
			w.expect("when another node joins,", map[string]string{"web-1": "1,3", "web-2": "4,5"})
			lists := w.listed()
			r.put(slicesPath, "web-2", nil)
			w.expect("when a slice is gone,", one("1,3"))
			w.end()
			w = r.follow(w.version)
			r.put(slicesPath, "web-1", sliceWith("web-1", "c=10.0.0.6"))
			for len(w.current()) == 0 {
				time.Sleep(time.Millisecond)
			}
			w.expect("going on where it was,", one("6"))
			if n := w.listed(); n > 0 || lists > 20 {
				t.Errorf("it listed %d times, and %d times when nothing but slices changed", lists, n)
			}
		})
	}
}

// TestTopologyReachIsSharedInAWatch: an endpoint on the node in one slice removes those of the pool from another
// slice.
func TestTopologyReachIsSharedInAWatch(t *testing.T) {
	r := newFilterRig(t, wire.Protobuf)
	r.put(servicesPath, "web", serviceWith("kubernetes.io/hostname,openyurt.io/nodepool"))
	r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.2", "c=10.0.0.3"))
	w := r.follow("")
	w.expect("at first", one("2"))
	r.put(slicesPath, "web-2", sliceWith("web-2", "a=10.0.0.1"))
	w.expect("with one on the node,", map[string]string{"web-1": "", "web-2": "1"})
	r.put(slicesPath, "web-2", nil)
	w.expect("without it,", one("2"))
}

// TestPodAddressesWrittenOfflineAreServed: lists and watches have the address that the kubelet wrote, also after
// a restart of the hub, until the cloud has it.
func TestPodAddressesWrittenOfflineAreServed(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			r.get(identity.OfNode(), podPath)
			first := r.follow("")
			first.expect("online", one("1,2"))
			r.goOffline()
			if code := r.kubelet("10.0.0.9"); code != http.StatusServiceUnavailable {
				t.Errorf("offline a write is answered %d", code)
			}
			want := one("2,9")
			first.expect("offline", want)
			if got := r.listed(kubeProxy); !maps.Equal(got, want) {
				t.Errorf("the list has %v", got)
			}
			build.Eventually(t, "the address is kept", func() bool {
				r.keptMu.Lock()
				defer r.keptMu.Unlock()
				return bytes.Contains(r.kept, []byte("10.0.0.9"))
			})
			first.end()
			r.restart()
			// A client that goes on where it was may have anything.
			again := r.follow(first.version)
			again.expect("going on after a restart of the hub,", want)
			if got := r.listed(kubeProxy); !maps.Equal(got, want) {
				t.Errorf("after a restart of the hub the list has %v", got)
			}
			// The node restarts once more, and the pod gets the address that the kubelet reads: its patch has none.
			r.get(identity.OfNode(), podPath)
			r.request(t.Context(), identity.OfNode(), http.MethodPatch, podPath+"/status", []byte(`{"metadata":{"uid":"uid-web-a"},"status":{"message":"restarted"}}`))
			again.expect("with the first address again", one("1,2"))
			r.kubelet("10.0.0.9")
			again.expect("with the new address again", want)
			// The cloud is back, and gets the address.
			r.cloud.set(false, nil)
			r.put(slicesPath, "web-1", sliceWith("web-1", "a=10.0.0.9", "b=10.0.0.2"))
			again.expect("when the cloud has it,", want)
			r.put(slicesPath, "web-1", sliceWith("web-1", "a=10.0.0.9", "b=10.0.0.4"))
			again.expect("when another endpoint changes,", one("4,9"))
		})
	}
}

// TestClientWithOtherFormsListsAgain: a watch gets 410 if the topology has changed since the client's list, or if
// the hub did not answer that list.
func TestClientWithOtherFormsListsAgain(t *testing.T) {
	r := newFilterRig(t, wire.JSON)
	watch := func(query string) int {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		return r.request(ctx, kubeProxy, http.MethodGet, slicesPath+"?watch=1&"+query, nil).Code
	}
	r.listed(kubeProxy)
	at := fmt.Sprint("resourceVersion=", r.api.version)
	if code := watch("resourceVersion=1"); code != http.StatusGone {
		t.Errorf("from a version of which the hub gave no list: %d", code)
	}
	if code := watch("sendInitialEvents=true&resourceVersionMatch=NotOlderThan"); code != http.StatusUnprocessableEntity {
		t.Errorf("with initial events: %d", code)
	}
	if code := watch(at); code != http.StatusOK {
		t.Errorf("after a list: %d", code)
	}
	if code := watch(at); code != http.StatusOK {
		t.Errorf("after a watch that brought nothing: %d", code)
	}
	changed := r.services.Changed()
	r.put(poolsPath, "p", poolWith("a", "b", "c"))
	<-changed
	if code := watch(at); code != http.StatusGone {
		t.Errorf("after the topology has changed: %d", code)
	}
}

// TestFilteredListInChunksIsFilteredAsOneList: the reach of a Service depends on all of its slices.
func TestFilteredListInChunksIsFilteredAsOneList(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			r.put(servicesPath, "web", serviceWith("kubernetes.io/hostname,openyurt.io/nodepool"))
			r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.2"))
			r.put(slicesPath, "web-2", sliceWith("web-2", "a=10.0.0.4"))
			// An API server that gives one item a chunk.
			var limited atomic.Bool
			r.cloud.set(false, func(q *http.Request) (int, string, io.ReadCloser) {
				code, contentType, body := r.api.answer(q)
				at, err := strconv.Atoi(q.URL.Query().Get("continue"))
				if q.URL.Path != slicesPath || q.URL.Query().Get("limit") == "" && err != nil {
					return code, contentType, body
				}
				limited.Store(true)
				text, err := io.ReadAll(body)
				if err != nil {
					t.Error(err)
				}
				list, err := format.DecodeList(text)
				if err != nil {
					t.Error(err)
				}
				slices.SortFunc(list.Items, func(a, b wire.Item) int { return strings.Compare(a.Name, b.Name) })
				if at+1 < len(list.Items) {
					list.Continue = strconv.Itoa(at + 1)
				}
				var size wire.Size
				size.Add(len(list.Items[at].Raw))
				var chunk bytes.Buffer
				if err := list.Encode(&chunk, size, raws(list.Items[at:at+1])); err != nil {
					t.Error(err)
				}
				return code, contentType, io.NopCloser(&chunk)
			})
			want := map[string]string{"web-1": "", "web-2": "4"}
			build.Eventually(t, "the topology is known", func() bool { return maps.Equal(r.listed(kubeProxy), want) })
			for _, offline := range []bool{false, true} {
				r.cloud.set(offline, nil)
				got := map[string]string{}
				for next := "limit=1"; next != ""; {
					list, err := format.DecodeList(r.get(kubeProxy, slicesPath+"?"+next))
					if err != nil {
						t.Fatal(err)
					}
					for _, item := range list.Items {
						object, err := format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
						if err != nil {
							t.Fatal(err)
						}
						got[item.Name] = r.addressesOf(object)
					}
					if next = ""; list.Continue != "" {
						next = "limit=1&continue=" + list.Continue
					}
				}
				if !maps.Equal(got, want) {
					t.Errorf("offline %t: the chunks have %v, want %v", offline, got, want)
				}
				if w := r.request(t.Context(), kubeProxy, http.MethodGet, slicesPath+"?limit=1&continue=1", nil); w.Code != http.StatusGone {
					t.Errorf("offline %t: a chunk of another list is answered %d", offline, w.Code)
				}
				r.node.Wait()
			}
			if limited.Load() {
				t.Error("the API server was asked for chunks")
			}
			r.cloud.set(false, nil)
		})
	}
}

// TestUnreadableNodePoolLimitsNoEndpoints: the status says what to do.
func TestUnreadableNodePoolLimitsNoEndpoints(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusNotFound} {
		r := newFilterRig(t, wire.JSON)
		r.stop()
		r.api.mu.Lock()
		r.api.refused[poolsPath] = code
		r.api.mu.Unlock()
		r.start()
		if got := r.listed(kubeProxy); !maps.Equal(got, one("1,2,3")) {
			t.Errorf("with the code %d the list has %v", code, got)
		}
		s := r.services.Status()
		last := s.Inputs[len(s.Inputs)-1]
		if s.Pool != "p" || last.Name != "NodePool" || last.Known || !strings.Contains(last.Reason, "system:nodes") {
			t.Errorf("with the code %d the status is %+v", code, s)
		}
		w := r.follow("")
		w.expect("at first", one("1,2,3"))
		r.api.mu.Lock()
		delete(r.api.refused, poolsPath)
		r.api.mu.Unlock()
		w.expect("when it may be read,", one("1,2"))
	}
}

func TestTablesAndMetadataAreNotFiltered(t *testing.T) {
	r := newFilterRig(t, wire.JSON)
	r.listed(kubeProxy)
	for name, body := range map[string]string{
		"a table":  `{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[]}`,
		"metadata": `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"web-1","namespace":"default","labels":{"kubernetes.io/service-name":"web"}}}]}`,
		"nothing":  "",
	} {
		r.cloud.set(false, func(q *http.Request) (int, string, io.ReadCloser) {
			if strings.Contains(q.URL.RawQuery, "labelSelector") {
				return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(body))
			}
			return r.api.answer(q)
		})
		if got := r.get(kubeProxy, slicesPath+"?labelSelector=x"); string(got) != body {
			t.Errorf("%s becomes %s", name, got)
		}
	}
}

// TestCloudAddressReplacesTheKubeletsAddress: once the pod in the cloud has another address, that one is served.
// Without the pod the slice is not changed.
func TestCloudAddressReplacesTheKubeletsAddress(t *testing.T) {
	for _, format := range formats {
		r := newFilterRig(t, format)
		r.kubelet("10.0.0.9")
		check := func(when, want string) {
			t.Helper()
			build.Eventually(t, format.String()+": "+when+" the list is right", func() bool { return maps.Equal(r.listed(kubeProxy), one(want)) })
		}
		check("when the kubelet writes,", "2,9")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		target := fmt.Sprint("/api/v1/pods?watch=1&resourceVersion=", r.api.version)
		go func() {
			defer close(ended)
			r.request(ctx, identity.OfNode(), http.MethodGet, target, nil)
		}()
		r.put("/api/v1/pods", "web-a", podAt("10.0.0.1")) // another change, of before
		r.put("/api/v1/pods", "web-a", podAt("10.0.0.9"))
		r.put("/api/v1/pods", "web-a", podAt("10.0.0.7")) // the hub has not seen that write
		check("when the pod has another address,", "2,7")
		r.put("/api/v1/pods", "web-a", nil)
		check("when the pod is gone,", "1,2")
		cancel()
		<-ended
	}
}
