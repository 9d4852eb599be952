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

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// one is what a client has of the only slice.
func one(addresses string) map[string]string { return map[string]string{"web-1": addresses} }

// TestListsOfServiceProxiesAreFiltered: clients that route traffic get the endpoints of the topology, online and offline,
// and everybody else all. An object that is read alone is as it is.
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

// TestFilteredWatchFollowsNodePoolAndService, while the cloud is there.
func TestFilteredWatchFollowsNodePoolAndService(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			has := r.listed(kubeProxy)
			w := r.follow(fmt.Sprint("resourceVersion=", r.api.version), has)
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
			at := fmt.Sprint(r.api.version)
			r.put(poolsPath, "p", poolWith("a", "c"))
			w.expect("when another node joins,", map[string]string{"web-1": "1,3", "web-2": "4,5"})
			build.Eventually(t, "the client goes on from the last event", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.version == at && strings.HasPrefix(w.log[len(w.log)-1], "BOOKMARK")
			})
			r.put(slicesPath, "web-2", nil)
			w.expect("when a slice is gone,", one("1,3"))
		})
	}
}

// TestTopologyReachIsSharedInAWatch: an endpoint on the node in one slice takes those of the pool out of
// another.
func TestTopologyReachIsSharedInAWatch(t *testing.T) {
	r := newFilterRig(t, wire.Protobuf)
	r.put(servicesPath, "web", serviceWith("kubernetes.io/hostname,openyurt.io/nodepool"))
	r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.2", "c=10.0.0.3"))
	w := r.follow("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", nil)
	w.expect("at first", one("2"))
	r.put(slicesPath, "web-2", sliceWith("web-2", "a=10.0.0.1"))
	w.expect("with one on the node,", map[string]string{"web-1": "", "web-2": "1"})
	r.put(slicesPath, "web-2", nil)
	w.expect("without it,", one("2"))
}

// TestPodAddressesWrittenOfflineAreServed: a watch and a list have the address that the kubelet
// writes, although nobody in the cloud gets it. So after a restart of the hub, and until the cloud knows.
func TestPodAddressesWrittenOfflineAreServed(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			r.get(identity.OfNode(), podPath)
			has := r.listed(kubeProxy)
			first := r.follow(fmt.Sprint("resourceVersion=", r.api.version), has)
			initial := r.follow("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", nil)
			initial.expect("online", one("1,2"))
			r.goOffline()
			if code := r.kubelet("10.0.0.9"); code != http.StatusServiceUnavailable {
				t.Errorf("offline a write is answered %d", code)
			}
			want := one("2,9")
			first.expect("offline", want)
			initial.expect("offline", want)
			if got := r.listed(kubeProxy); !maps.Equal(got, want) {
				t.Errorf("the list has %v", got)
			}
			build.Eventually(t, "the address is kept", func() bool {
				r.keptMu.Lock()
				defer r.keptMu.Unlock()
				return bytes.Contains(r.kept, []byte("10.0.0.9"))
			})
			first.end()
			initial.end()
			r.restart()
			if got := r.listed(kubeProxy); !maps.Equal(got, want) {
				t.Errorf("after a restart of the hub the list has %v", got)
			}
			// A client that goes on where it was may have anything.
			again := r.follow("resourceVersion="+first.version, one("1,2"))
			again.expect("going on after a restart of the hub,", want)
			streamed := r.follow("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", nil)
			streamed.expect("beginning after a restart of the hub,", want)
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

// TestClientNeverGetsAnOlderState: a client that is ahead of what is kept gets nothing of it.
func TestClientNeverGetsAnOlderState(t *testing.T) {
	r := newFilterRig(t, wire.JSON)
	r.put(slicesPath, "web-2", sliceWith("web-2", "a=10.0.0.4"))
	r.listed(kubeProxy) // this is kept, and all that follows is not seen
	r.put(slicesPath, "web-2", nil)
	r.put(slicesPath, "web-1", sliceWith("web-1", "a=10.0.0.5", "c=10.0.0.3"))
	at := r.api.version
	w := r.follow(fmt.Sprint("resourceVersion=", at), one("5"))
	r.put(servicesPath, "web", serviceWith(""))
	w.expect("once the hub has read the collection again,", one("3,5"))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, line := range w.log {
		if strings.Contains(line, "web-2") || strings.Contains(line, "1,2") {
			t.Errorf("the client got %q", w.log)
		}
	}
}

// TestFilteredListInChunksIsFilteredAsOneList is one list: the reach of a Service depends on all of its slices.
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
				chunk, err := (&batch{&wire.List{Header: list.Header, Items: list.Items[at : at+1]}, false}).encode()
				if err != nil {
					t.Error(err)
				}
				return code, contentType, io.NopCloser(bytes.NewReader(chunk))
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

// TestClientGetsStateOnlyWithItsOwnEvents: another client of the same identity is ahead. What it has seen reaches the
// client with its own events only, in their order, and changes nothing before.
func TestClientGetsStateOnlyWithItsOwnEvents(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			r := newFilterRig(t, format)
			r.put(servicesPath, "web", serviceWith("kubernetes.io/hostname,openyurt.io/nodepool"))
			r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.2"))
			r.put(slicesPath, "web-2", sliceWith("web-2", "b=10.0.0.4", "c=10.0.0.7"))
			build.Eventually(t, "the topology is known", func() bool { return r.listed(kubeProxy)["web-2"] == "4" })
			before := r.api.version
			from, to := io.Pipe()
			r.cloud.set(false, func(q *http.Request) (int, string, io.ReadCloser) {
				if q.URL.Path == slicesPath && q.URL.Query().Get("watch") != "" {
					return http.StatusOK, r.api.format.WatchContentType(), from
				}
				return r.api.answer(q)
			})
			w := r.follow(fmt.Sprint("resourceVersion=", before), map[string]string{"web-1": "2", "web-2": "4"})
			t.Cleanup(func() { _ = to.Close() })
			build.Eventually(t, "the client has the forms of what is kept", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.log) > 0 && strings.HasPrefix(w.log[len(w.log)-1], "BOOKMARK")
			})
			r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.5"))
			r.put(slicesPath, "web-1", sliceWith("web-1", "b=10.0.0.6"))
			r.put(slicesPath, "web-3", sliceWith("web-3", "a=10.0.0.9"))
			r.listed(kubeProxy) // another client of the same ServiceAccount
			r.put(poolsPath, "p", poolWith("a", "b", "c"))
			w.expect("when a node joins the pool,", map[string]string{"web-1": "2", "web-2": "4,7"})
			for _, c := range r.history[slicesPath] {
				if c.version <= before {
					continue
				}
				if _, err := to.Write(c.frame); err != nil {
					t.Fatal(err)
				}
			}
			w.expect("after its own events,", map[string]string{"web-1": "", "web-2": "", "web-3": "9"})
			w.mu.Lock()
			defer w.mu.Unlock()
			last := map[string]int{}
			for _, line := range w.log {
				fields := strings.Fields(line)
				version, err := strconv.Atoi(fields[len(fields)-1])
				if err != nil {
					t.Fatal(err)
				}
				if fields[0] != "BOOKMARK" && version < last[fields[1]] {
					t.Errorf("the client goes back: %q", w.log)
				}
				last[fields[1]] = version
			}
		})
	}
}

// TestUnreadableNodePoolLimitsNoEndpoints limits nothing, and the status says what to do.
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
		w := r.follow(fmt.Sprint("resourceVersion=", r.api.version), one("1,2,3"))
		r.api.mu.Lock()
		delete(r.api.refused, poolsPath)
		r.api.mu.Unlock()
		w.expect("when it may be read,", one("1,2"))
	}
}

// TestTablesAndMetadataAreNotFiltered as they are.
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

// TestCloudAddressReplacesTheKubeletsAddress: later the pod in the cloud counts, and without the pod nothing.
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
