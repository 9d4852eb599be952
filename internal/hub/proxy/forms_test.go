package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// ofKubectl is what kubectl get accepts.
const ofKubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"

// accepting sends a read to the proxy.
func (n *node) accepting(caller identity.Caller, accept, target string) *httptest.ResponseRecorder {
	n.Helper()
	r := httptest.NewRequestWithContext(n.Context(), http.MethodGet, target, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	n.answer(w, r, caller)
	n.Wait()
	return w
}

// rows returns the first cells of a table.
func (n *node) rows(w *httptest.ResponseRecorder) (rows []string) {
	n.Helper()
	var t metav1.Table
	if err := json.Unmarshal(w.Body.Bytes(), &t); err != nil || t.Kind != "Table" {
		n.Fatalf("%d is no table: %s", w.Code, w.Body)
	}
	for _, row := range t.Rows {
		rows = append(rows, strings.TrimSpace(fmt.Sprintln(row.Cells...)))
	}
	return rows
}

// TestPeopleSeeTablesOfTheNodesPods: with the kubelet's own certificate, online and offline. Held pods are in
// none of them.
func TestPeopleSeeTablesOfTheNodesPods(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf} {
		t.Run(format.String(), func(t *testing.T) {
			n := newNode(t, format)
			runs := func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
			a, b := pod("a", "1", 1, nil, runs), pod("b", "1", 1, nil, runs, func(p *corev1.Pod) { p.Namespace = "other" })
			held := pod("held", "1", 1, unbound)
			cloud := &answering{Cloud: n.cloud, node: n}
			cloud.at = map[string]runtime.Object{
				"/api/v1/pods":                      &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "3"}, Items: []corev1.Pod{*a, *b, *held}},
				"/api/v1/namespaces/other/pods":     &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "3"}, Items: []corev1.Pod{*b}},
				"/api/v1/namespaces/default/pods/a": a,
			}
			n.Proxy.Cloud = cloud
			n.ask(t.Context(), podsOfNode)
			n.Wait()
			kept := n.pathsOf()
			const selector = "?fieldSelector=spec.nodeName%3Da&limit=500"
			for _, offline := range []bool{false, true} {
				cloud.offline = offline
				for target, want := range map[string][]string{
					"/api/v1/pods" + selector:                  {"a 0/1 Running 0 <unknown> <none> <none> <none> <none>", "b 0/1 Running 0 <unknown> <none> <none> <none> <none>"},
					"/api/v1/namespaces/other/pods" + selector: {"b 0/1 Running 0 <unknown> <none> <none> <none> <none>"},
					"/api/v1/namespaces/default/pods/a":        {"a 0/1 Running 0 <unknown> <none> <none> <none> <none>"},
				} {
					w := n.accepting(identity.OfNode(), ofKubectl, target)
					if diff := cmp.Diff(want, n.rows(w)); diff != "" {
						t.Errorf("offline %t, %s: %s", offline, target, diff)
					}
					if got := w.Header().Get(AsOf) != "" && w.Header().Get("Warning") != ""; got != offline {
						t.Errorf("offline %t, %s: the answer says of when it is: %t", offline, target, got)
					}
				}
				if offline {
					continue
				}
				if now := n.pathsOf(); len(now) > len(kept)+2 {
					t.Errorf("kept are %q, and before the tables %q", now, kept)
				}
			}
			if w := n.accepting(identity.OfNode(), ofKubectl, "/api/v1/namespaces/default/pods/held"); w.Code != http.StatusServiceUnavailable {
				t.Errorf("a held pod is answered %d %s", w.Code, w.Body)
			}
			// As kubectl get -o yaml does.
			w := n.accepting(identity.OfNode(), "application/json", "/api/v1/namespaces/default/pods"+selector)
			var list corev1.PodList
			if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" || list.Kind != "PodList" || list.Items[0].Kind != "Pod" {
				t.Errorf("in JSON the answer is %d %s", w.Code, w.Body)
			}
		})
	}
}

// TestLastTableIsAnsweredOffline: for a kind that the hub cannot print itself. If the cloud has answered no
// table, the rows have names.
func TestLastTableIsAnsweredOffline(t *testing.T) {
	n := newNode(t, wire.JSON)
	somebody := identity.Caller{Name: "subject:https://issuer#somebody", Token: "x"}
	asked := map[string]bool{}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		asked[r.URL.RawQuery] = true
		if strings.Contains(r.Header.Get("Accept"), "as=Table") {
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"rows":[{"cells":["of the cloud"]}]}`))
		}
		return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"s","namespace":"default"}}]}`))
	})
	n.accepting(somebody, "application/json", "/api/v1/services")
	n.accepting(somebody, "application/json", "/api/v1/namespaces/default/endpoints")
	n.accepting(somebody, ofKubectl, "/api/v1/services?limit=500")
	if want := map[string]bool{"": true}; !maps.Equal(asked, want) {
		t.Errorf("the cloud was asked with %v: a table in chunks is not kept", slices.Collect(maps.Keys(asked)))
	}
	n.cloud.set(true, nil)
	for target, want := range map[string]string{
		"/api/v1/services?limit=500":                     "of the cloud",
		"/api/v1/namespaces/default/endpoints?limit=500": "s <unknown>",
	} {
		if got := n.rows(n.accepting(somebody, ofKubectl, target)); !slices.Equal(got, []string{want}) {
			t.Errorf("%s is answered with the rows %q", target, got)
		}
	}
	if w := n.accepting(identity.Caller{Name: somebody.Name, Token: "unknown"}, ofKubectl, "/api/v1/services?limit=500"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a token that the cloud has not accepted gets %d %s", w.Code, w.Body)
	}
	if w := n.accepting(identity.OfNode(), ofKubectl, "/api/v1/services?limit=500"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("another identity gets %d %s", w.Code, w.Body)
	}
	// What is made from another form is for nobody else, either, and is no chunk and no later state.
	const endpoints = "/api/v1/namespaces/default/endpoints"
	for _, accept := range []string{ofKubectl, "application/json, */*"} {
		if w := n.accepting(identity.Caller{Name: somebody.Name, Token: "unknown"}, accept, endpoints); w.Code != http.StatusServiceUnavailable {
			t.Errorf("as %.24s, a token that the cloud has not accepted gets %d %s", accept, w.Code, w.Body)
		}
		for _, position := range []string{"?limit=500&continue=x", "?resourceVersion=7&resourceVersionMatch=Exact", "?resourceVersion=7"} {
			if w := n.accepting(somebody, accept, endpoints+position); w.Code == http.StatusOK {
				t.Errorf("as %.24s, %s is answered %s", accept, position, w.Body)
			}
		}
		if w := n.accepting(somebody, accept, endpoints+"?resourceVersion=1"); w.Code != http.StatusOK {
			t.Errorf("as %.24s, the state that is kept is answered %d %s", accept, w.Code, w.Body)
		}
	}
}

// TestRefusalIsConvertedToTheClientsFormat: the pods are requested in protobuf, as the kubelet does, which
// kubectl does not accept.
func TestRefusalIsConvertedToTheClientsFormat(t *testing.T) {
	n := newNode(t, wire.Protobuf)
	n.answers(1, pod("a", "1", 1, nil))
	n.ask(t.Context(), podsOfNode)
	n.Wait()
	n.cloud.set(false, func(*http.Request) (int, string, io.ReadCloser) {
		body, err := wire.Protobuf.EncodeStatus(metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Message: "not you", Code: http.StatusForbidden})
		if err != nil {
			t.Error(err)
		}
		return http.StatusForbidden, wire.Protobuf.ContentType(), io.NopCloser(bytes.NewReader(body))
	})
	var status metav1.Status
	w := n.accepting(identity.OfNode(), ofKubectl, podsOfNode+"&limit=500")
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || w.Code != http.StatusForbidden || status.Message != "not you" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("it is answered %d %s %q", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
}

// TestDiscoveryIsAnsweredOffline: also if no client requested it before, and for a client that accepts older
// formats too.
func TestDiscoveryIsAnsweredOffline(t *testing.T) {
	n := newNode(t, wire.JSON)
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		return http.StatusOK, v2, io.NopCloser(strings.NewReader(`{"of":"` + r.URL.Path + `"}`))
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.KeepDiscovery(ctx)
	}()
	for deadline := time.Now().Add(10 * time.Second); len(n.Cache.Scopes()) < 2 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	n.Wait()
	n.cloud.set(true, nil)
	for _, path := range []string{"/api", "/apis"} {
		w := n.accepting(identity.OfNode(), v2+",application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json", path+"?timeout=32s")
		if w.Code != http.StatusOK || w.Body.String() != `{"of":"`+path+`"}` || w.Header().Get("Content-Type") != v2 {
			t.Errorf("%s is answered %d %s", path, w.Code, w.Body)
		}
		if w := n.accepting(identity.OfNode(), "application/json", path); w.Code != http.StatusServiceUnavailable {
			t.Errorf("a client that does not accept the form gets %d %s", w.Code, w.Body)
		}
	}
}

// TestForbiddenObjectIsNotReadFromAList: the list can be allowed, and stays.
func TestForbiddenObjectIsNotReadFromAList(t *testing.T) {
	n := newNode(t, wire.JSON)
	somebody := identity.Caller{Name: "subject:https://issuer#somebody", Token: "x"}
	n.cloud.set(false, func(r *http.Request) (int, string, io.ReadCloser) {
		switch r.URL.Path {
		case "/api/v1/namespaces/default/services":
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"s","namespace":"default"}}]}`))
		case "/api/v1/namespaces/default/endpoints":
			return http.StatusOK, "application/json", io.NopCloser(strings.NewReader(`{"kind":"EndpointsList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"s","namespace":"default"}}]}`))
		}
		return http.StatusForbidden, "application/json", io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","code":403}`))
	})
	const services, endpoints = "/api/v1/namespaces/default/services", "/api/v1/namespaces/default/endpoints"
	for _, path := range []string{services, endpoints, services + "/s", endpoints + "/other"} {
		n.accepting(somebody, "application/json", path)
	}
	n.cloud.set(true, nil)
	for target, want := range map[string]int{
		services: http.StatusOK, services + "/s": http.StatusServiceUnavailable, endpoints: http.StatusOK, endpoints + "/s": http.StatusOK,
	} {
		for _, accept := range []string{"application/json", ofKubectl} {
			if w := n.accepting(somebody, accept, target); w.Code != want {
				t.Errorf("%s as %.20s is answered %d %s", target, accept, w.Code, w.Body)
			}
		}
	}
}
