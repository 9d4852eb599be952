package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
)

// ownedBy returns metadata with an owner.
func ownedBy(name, kind, owner string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "shop", Name: name, UID: types.UID(name),
		OwnerReferences: []metav1.OwnerReference{{Kind: kind, Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}},
	}
}

// TestPicture: pods are in the row of the workload that owns them, through a ReplicaSet, and in the column of
// their group or, without a label, of their node's. Each state is shown; finished pods and those of workloads
// without a policy are not.
func TestPicture(t *testing.T) {
	cutOff := connectivity.Record{State: connectivity.Delegated, Reason: connectivity.ReasonDelegated, Since: time.Unix(1_800_000_000, 0)}
	o := &Observed{
		Groups: gm.NodeGroupList{Items: []gm.NodeGroup{{ObjectMeta: metav1.ObjectMeta{Name: "left"}, Status: gm.NodeGroupStatus{Total: 2, Ready: 1}}}},
		Nodes: corev1.NodeList{Items: []corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{gm.NodeGroupLabel: "left"}}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "far", Labels: map[string]string{gm.NodeGroupLabel: "left"}, Annotations: map[string]string{connectivity.Annotation: cutOff.String()}}},
		}},
		Propagations: gm.PropagationPolicyList{Items: []gm.PropagationPolicy{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "spread"},
			Status: gm.PropagationStatus{Apps: []gm.WorkloadSpread{{
				Ref: gm.WorkloadReference{Kind: "Deployment", Name: "web"}, Message: "pods wait", Groups: []gm.GroupSpread{{Name: "left", Desired: 4, OnLoan: 1}},
			}}},
		}}},
		Between: []metav1.PartialObjectMetadata{{ObjectMeta: ownedBy("web-1", "Deployment", "web")}, {ObjectMeta: ownedBy("free-1", "Deployment", "free")}},
	}
	add := func(name, owner string, change func(*corev1.Pod)) {
		p := corev1.Pod{ObjectMeta: ownedBy(name, "ReplicaSet", owner)}
		change(&p)
		o.Pods.Items = append(o.Pods.Items, p)
	}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	add("ready", "web-1", func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Conditions = "n", ready
		p.Labels = map[string]string{gm.NodeGroupLabel: "left", gm.CapacityClassLabel: "spot"}
	})
	add("unready", "web-1", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	add("cut-off", "web-1", func(p *corev1.Pod) { p.Spec.NodeName, p.Status.Conditions = "far", ready })
	add("leaving", "web-1", func(p *corev1.Pod) { p.Spec.NodeName, p.DeletionTimestamp = "n", &metav1.Time{} })
	add("waiting", "web-1", func(*corev1.Pod) {})
	add("done", "web-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	add("without", "free-1", func(p *corev1.Pod) { p.Spec.NodeName = "n" })
	add("held", "new-1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: gm.PolicyGate}} })
	picture, err := Of(o)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]any{}
	for key, part := range picture {
		var value any
		if err := json.Unmarshal(part, &value); err != nil {
			t.Fatal(err)
		}
		got[key] = value
	}
	pods := func(all ...any) any { return all }
	of := func(name, state, node, class string) any {
		p := map[string]any{"name": name, "state": state}
		if node != "" {
			p["node"] = node
		}
		if class != "" {
			p["class"] = class
		}
		return p
	}
	want := map[string]any{
		"unread": nil, "away": "", "reading": false,
		"group/left": map[string]any{"name": "left", "nodes": 2.0, "ready": 1.0},
		"node/n":     map[string]any{"name": "n", "group": "left", "state": "Ready"},
		"node/far": map[string]any{
			"name": "far", "group": "left", "state": "Delegated", "why": "since 2027-01-15 08:00:00 UTC: " + connectivity.Message(connectivity.ReasonDelegated),
		},
		"workload/shop/Deployment/web": map[string]any{
			"namespace": "shop", "kind": "Deployment", "name": "web", "policy": "spread", "message": "pods wait",
			"cells": map[string]any{
				"left": map[string]any{"wanted": 4.0, "onLoan": 1.0, "pods": pods(of("cut-off", "cut-off", "far", ""), of("leaving", "leaving", "n", ""), of("ready", "ready", "n", "spot"), of("unready", "unready", "n", ""))},
				"":     map[string]any{"wanted": 0.0, "pods": pods(of("waiting", "waiting", "", ""))},
			},
		},
		"workload/shop/ReplicaSet/new-1": map[string]any{
			"namespace": "shop", "kind": "ReplicaSet", "name": "new-1", "cells": map[string]any{"": map[string]any{"wanted": 0.0, "pods": pods(of("held", "held", "", ""))}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// served serves a picture, and returns the addresses.
func served(t *testing.T, s *Server) Addresses {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at, ended := make(chan Addresses, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- s.Serve(ctx, listener, func(a Addresses) { at <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return <-at
}

// send sends a request, and returns the answer's code and text.
func send(t *testing.T, method, address, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// TestWhoGetsThePage: who has the address with the token, and nobody else: no other path, no other name of the
// machine. The address that the browser is started with works one time.
func TestWhoGetsThePage(t *testing.T) {
	s := &Server{
		Feed: NewFeed(),
		Explain: func(_ context.Context, kind, namespace, name string) (string, error) {
			return kind + " " + namespace + "/" + name, nil
		},
		Plan: func(_ context.Context, objects []byte) (string, error) {
			if string(objects) == "bad" {
				return "", errors.New("it is bad")
			}
			return "planned " + string(objects), nil
		},
	}
	at := served(t, s)
	page, err := url.Parse(at.Page)
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + page.Host
	for name, c := range map[string]struct {
		address string
		change  func(*http.Request)
	}{
		"without a token":               {base + "/", nil},
		"with another token":            {base + "/OTHER/", nil},
		"a file without a token":        {base + "/page.js", nil},
		"the events without a token":    {base + "/events", nil},
		"the token later in the path":   {base + "/x" + page.Path + "page.js", nil},
		"around the token":              {base + "/x/.." + page.Path, nil},
		"the page by another name":      {at.Page, func(r *http.Request) { r.Host = "evil.example:" + page.Port() }},
		"the one time, by another name": {at.Open, func(r *http.Request) { r.Host = "evil.example:" + page.Port() }},
	} {
		if code, text := send(t, http.MethodGet, c.address, "", c.change); code != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	for _, address := range []string{at.Page, at.Open} {
		if code, text := send(t, http.MethodGet, address, "", nil); code != http.StatusOK || !strings.Contains(text, "page.js") {
			t.Errorf("the page: %d %s", code, text)
		}
	}
	if code, _ := send(t, http.MethodGet, at.Open, "", nil); code != http.StatusForbidden {
		t.Errorf("the address for one time opens a second time: %d", code)
	}
	for _, c := range []struct {
		method, path, body, want string
		code                     int
	}{
		{http.MethodGet, "page.js", "", "EventSource", http.StatusOK},
		{http.MethodGet, "LICENSES.txt", "", "Apache License", http.StatusOK},
		{http.MethodGet, "explain?kind=Pod&namespace=shop&name=web-1", "", "Pod shop/web-1", http.StatusOK},
		{http.MethodPost, "plan", "it", "planned it", http.StatusOK},
		{http.MethodPost, "plan", "bad", "error: it is bad", http.StatusUnprocessableEntity},
		{http.MethodPost, "plan", strings.Repeat("x", maxObjects+1), "too large", http.StatusRequestEntityTooLarge},
		{http.MethodDelete, "plan", "", "Method Not Allowed", http.StatusMethodNotAllowed},
	} {
		if code, text := send(t, c.method, at.Page+c.path, c.body, nil); code != c.code || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %.200s", c.method, c.path, code, text)
		}
	}
}

// TestEvents: first the whole picture, then what changes; a page that has missed nothing gets nothing twice, and
// one that has gets the whole.
func TestEvents(t *testing.T) {
	s := &Server{Feed: NewFeed()}
	at := served(t, s)
	stream := func(last string) (next func() (id, event, data string), end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.Page+"events", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Last-Event-ID", last)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(response.Body)
		return func() (id, event, data string) {
				for lines.Scan() && lines.Text() != "" {
					key, value, _ := strings.Cut(lines.Text(), ": ")
					switch key {
					case "id":
						id = value
					case "event":
						event = value
					case "data":
						data = value
					}
				}
				return id, event, data
			}, func() {
				cancel()
				_ = response.Body.Close()
			}
	}
	expect := func(next func() (string, string, string), event, data string) (id string) {
		t.Helper()
		id, gotEvent, gotData := next()
		if gotEvent != event || gotData != data {
			t.Fatalf("%s %s, want %s %s", gotEvent, gotData, event, data)
		}
		return id
	}
	picture := func(parts ...string) Picture {
		p := Picture{}
		for i := 0; i < len(parts); i += 2 {
			p[parts[i]] = []byte(parts[i+1])
		}
		return p
	}
	next, end := stream("")
	s.Feed.Set(picture("a", "1", "b", "1"))
	expect(next, "all", `{"a":1,"b":1}`)
	s.Feed.Set(picture("a", "1", "b", "1")) // no change, no event
	s.Feed.Set(picture("a", "2", "c", "1"))
	id := expect(next, "change", `{"a":2,"b":null,"c":1}`)
	end()
	next, end = stream(id)
	s.Feed.Set(picture("a", "3", "c", "1"))
	missed := expect(next, "change", `{"a":3}`)
	end()
	s.Feed.Set(picture("a", "4"))
	next, end = stream(missed)
	expect(next, "all", `{"a":4}`)
	end()
}
