package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/uplink"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
	"github.com/atoll-k8s/atoll/internal/testing/faultydisk"
)

const (
	leasePath   = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a"
	nodePath    = "/api/v1/nodes/a"
	ownNodePath = "/api/v1/nodes?fieldSelector=metadata.name%3Da"
	ownPodPath  = "/api/v1/namespaces/default/pods/web"
	eventsPath  = "/api/v1/namespaces/default/events"
	strategic   = string(types.StrategicMergePatchType)
)

// apiServer is a cloud that keeps objects as an API server does: with versions, UIDs and the
// preconditions of writes.
type apiServer struct {
	mu      sync.Mutex
	offline bool
	version int
	objects map[string]objects.Typed // by path
	// refuse answers requests with a path that ends like this.
	refuse map[string]int
	writes []string // method and path of those that were accepted
	// spread is that of who waits until it is reachable.
	spread time.Duration
}

func (s *apiServer) lock(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *apiServer) AwaitOnline(ctx context.Context) error {
	_, err := s.AwaitReachable(ctx)
	return err
}

func (s *apiServer) AwaitReachable(ctx context.Context) (spread time.Duration, err error) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for waited := false; ; waited = true {
		offline := false
		s.lock(func() { offline = s.offline })
		if !offline && waited {
			return s.spread, nil
		}
		if !offline {
			return 0, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-ticker.C:
		}
	}
}

var gvks = map[string]schema.GroupVersionKind{
	"leases": coordinationv1.SchemeGroupVersion.WithKind("Lease"), "nodes": corev1.SchemeGroupVersion.WithKind("Node"),
	"pods": corev1.SchemeGroupVersion.WithKind("Pod"), "events": corev1.SchemeGroupVersion.WithKind("Event"),
}

// put stores an object with a new version.
func (s *apiServer) put(path string, object objects.Typed) {
	s.version++
	object.SetResourceVersion(fmt.Sprint(s.version))
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprint("uid-", s.version)))
	}
	s.objects[path] = object
}

func (s *apiServer) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offline {
		return nil, uplink.ErrOffline
	}
	format, err := objects.Accepted(r.Header)
	if err != nil {
		return nil, err
	}
	code, object := s.answer(r, asNode)
	var body bytes.Buffer
	if object == nil {
		object = &metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Message: fmt.Sprint("because of ", code)}
	}
	group := corev1.SchemeGroupVersion
	if _, is := object.(*coordinationv1.Lease); is {
		group = coordinationv1.SchemeGroupVersion
	}
	info, _ := runtime.SerializerInfoForMediaType(objects.Codecs.SupportedMediaTypes(), format.ContentType())
	if err := objects.Codecs.EncoderForVersion(info.Serializer, group).Encode(object, &body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {format.ContentType()}}, Body: io.NopCloser(&body), Request: r}, nil
}

// answer carries out a request.
func (s *apiServer) answer(r *http.Request, asNode bool) (int, runtime.Object) {
	for suffix, code := range s.refuse {
		if strings.HasSuffix(r.URL.Path, suffix) && r.Method != http.MethodGet {
			return code, nil
		}
	}
	if !asNode {
		return http.StatusForbidden, nil
	}
	of, isStatus := strings.CutSuffix(r.URL.Path, "/status")
	live := s.objects[of]
	gvk, isCollection := gvks[path.Base(of)]
	if !isCollection {
		gvk = gvks[path.Base(path.Dir(of))]
	}
	if gvk.Kind == "" {
		return http.StatusNotFound, nil
	}
	if r.Method == http.MethodGet {
		switch {
		case isCollection && gvk.Kind == "Node":
			list := &corev1.NodeList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}}
			for _, o := range s.objects {
				if node, is := o.(*corev1.Node); is {
					list.Items = append(list.Items, *node)
				}
			}
			return http.StatusOK, list
		case isCollection && gvk.Kind == "Pod":
			list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}}
			for _, o := range s.objects {
				if pod, is := o.(*corev1.Pod); is {
					list.Items = append(list.Items, *pod)
				}
			}
			return http.StatusOK, list
		case live == nil:
			return http.StatusNotFound, nil
		}
		return http.StatusOK, live
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest, nil
	}
	s.writes = append(s.writes, r.Method+" "+r.URL.Path)
	contentType := r.Header.Get("Content-Type")
	if r.Method == http.MethodPatch {
		if live == nil {
			return http.StatusNotFound, nil
		}
		head, err := objects.HeadOfPatch(body)
		if err != nil {
			return http.StatusBadRequest, nil
		}
		if uid := head.Metadata.UID; uid != "" && uid != string(live.GetUID()) {
			return http.StatusConflict, nil
		}
		after, err := objects.Patched(live, gvk, contentType, body)
		if err != nil {
			return http.StatusBadRequest, nil
		}
		s.put(of, after)
		return http.StatusOK, after
	}
	object, err := objects.Decode(contentType, body, gvk)
	if err != nil {
		return http.StatusBadRequest, nil
	}
	uid := object.GetUID()
	switch version := object.GetResourceVersion(); {
	case r.Method == http.MethodPost:
		of += "/" + object.GetName()
		if s.objects[of] != nil {
			return http.StatusConflict, nil
		}
		object.SetUID("")
		s.put(of, object)
		return http.StatusCreated, object
	case live == nil && gvk.Kind != "Event":
		return http.StatusNotFound, nil
	case live != nil && (version != "" || gvk.Kind == "Lease") && version != live.GetResourceVersion():
		return http.StatusConflict, nil
	case live == nil && uid != "", live != nil && uid != "" && uid != live.GetUID(): // the precondition of a UID
		return http.StatusConflict, nil
	case live != nil:
		object.SetUID(live.GetUID())
	}
	if isStatus {
		objects.KeepSpec(object, live)
	}
	s.put(of, object)
	return http.StatusOK, object
}

// edge is a node, its cloud, and its journal.
type edge struct {
	*node

	server *apiServer
	dir    string
	fail   func(op string) error // of the disk: see cache.Options
}

// newEdge returns a node that has read its Node and its pods, and whose link is cut.
func newEdge(t *testing.T, format wire.Format) *edge {
	t.Helper()
	return newEdgeOn(t, format, nil)
}

// newEdgeOn returns the same on a disk that may fail.
func newEdgeOn(t *testing.T, format wire.Format, fail func(op string) error) *edge {
	t.Helper()
	e := &edge{
		node:   newNodeOn(t, format, cache.Options{Wrap: faultydisk.Of(fail)}),
		server: &apiServer{objects: map[string]objects.Typed{}, refuse: map[string]int{}, version: 10}, dir: t.TempDir(), fail: fail,
	}
	e.Proxy.Cloud = e.server
	e.open()
	t.Cleanup(func() { _ = e.Journal.Close() })
	e.server.put(nodePath, aNode(corev1.ConditionTrue, 0))
	e.server.put(ownPodPath, aPod("web", "a", corev1.PodRunning))
	e.server.put("/api/v1/namespaces/default/pods/other", aPod("other", "b", corev1.PodRunning))
	for _, target := range []string{nodePath, ownNodePath, ownPodPath, podsOfNode, "/api/v1/namespaces/default/pods/other"} {
		if w := e.ask(t.Context(), target); w.Code != http.StatusOK {
			t.Fatalf("%s is answered %d %s", target, w.Code, w.Body)
		}
	}
	e.Wait()
	e.server.lock(func() { e.server.offline = true })
	return e
}

func (e *edge) open() {
	e.Helper()
	var err error
	if e.Journal, err = journal.Open(e.dir, journal.Options{SyncEvery: time.Millisecond, Wrap: faultydisk.Of(e.fail)}); err != nil {
		e.Fatal(err)
	}
	e.Proxy.Replay = &replay.Replayer{Cloud: current{e.node}, Journal: e.Journal, Panics: e.Panics, Log: e.Proxy.Log}
	e.Writes.Journal, e.Writes.IsSilent = e.Journal, e.Proxy.Replay.IsSilent
}

// current is the Cloud that a node has at the moment.
type current struct{ *node }

// RoundTrip implements replay.Cloud.
func (c current) RoundTrip(r *http.Request, asNode bool) (*http.Response, error) {
	return c.Proxy.Cloud.RoundTrip(r, asNode)
}

// AwaitReachable implements replay.Cloud.
func (c current) AwaitReachable(ctx context.Context) (time.Duration, error) {
	return c.Proxy.Cloud.AwaitReachable(ctx)
}

// do sends a write of the node.
func (e *edge) do(method, target, contentType string, body []byte) *httptest.ResponseRecorder {
	return e.as(identity.Caller{Name: "node", IsNode: true}, method, target, contentType, body)
}

func (e *edge) as(caller identity.Caller, method, target, contentType string, body []byte) *httptest.ResponseRecorder {
	e.Helper()
	r := httptest.NewRequestWithContext(e.Context(), method, target, bytes.NewReader(body))
	r.Header.Set("Accept", e.format.ContentType())
	r.Header.Set("Content-Type", contentType)
	r.Header.Set("User-Agent", "kubelet/v1.36.3")
	w := httptest.NewRecorder()
	e.answer(w, r, caller)
	return w
}

// comeBack lets the cloud be reachable, and sends what is kept until nothing is left of it.
func (e *edge) comeBack(except ...string) {
	e.Helper()
	e.server.lock(func() { e.server.offline = false })
	ctx, cancel := context.WithCancel(e.Context())
	var running sync.WaitGroup
	running.Go(func() { e.Replay.Run(ctx) })
	defer running.Wait()
	defer cancel()
	deadline := time.Now().Add(10 * time.Second)
	for {
		var left []string
		for _, entry := range e.Journal.Entries() {
			left = append(left, entry.Object)
		}
		if slices.Equal(left, except) {
			return
		}
		if time.Now().After(deadline) {
			e.Fatalf("of what is kept there is left %q", left)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// live returns an object of the cloud.
func live[T objects.Typed](e *edge, path string) T {
	e.Helper()
	e.server.mu.Lock()
	defer e.server.mu.Unlock()
	object, is := e.server.objects[path].(T)
	if !is {
		e.Fatalf("the cloud has no %s, but %v", path, e.server.objects[path])
	}
	return object
}

// answered returns the object of an answer with a code.
func answered[T objects.Typed](e *edge, w *httptest.ResponseRecorder, code int, gvk schema.GroupVersionKind) T {
	e.Helper()
	var none T
	if w.Code != code {
		e.Fatalf("the answer is %d %s", w.Code, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != e.format.ContentType() {
		e.Fatalf("the answer is in %s", got)
	}
	object, err := objects.Decode(w.Header().Get("Content-Type"), w.Body.Bytes(), gvk)
	if err != nil {
		e.Fatal(err)
	}
	if o, is := object.(T); is {
		return o
	}
	e.Fatalf("the answer is a %T", object)
	return none
}

var began = time.Now().Truncate(time.Second)

func aNode(ready corev1.ConditionStatus, changed int) *corev1.Node {
	at := func(seconds int) metav1.Time { return metav1.NewTime(began.Add(time.Duration(seconds) * time.Second)) }
	reason := "KubeletReady"
	if ready != corev1.ConditionTrue {
		reason = "KubeletNotReady"
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: at(changed)},
			{Type: corev1.NodeReady, Status: ready, Reason: reason, LastHeartbeatTime: at(changed), LastTransitionTime: at(changed)},
		}},
	}
}

func aPod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: phase, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func aLease(renewed time.Time, version string) *coordinationv1.Lease {
	holder, seconds, at := "a", int32(40), metav1.NewMicroTime(renewed)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: "a", ResourceVersion: version},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
}

func anEvent(name string, count int32) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}, Reason: "BackOff", Message: "it fails", Count: count,
	}
}

// body encodes an object in the form of the node's clients.
func (e *edge) body(object objects.Typed, gvk schema.GroupVersionKind) []byte {
	e.Helper()
	raw, err := objects.Encode(e.format, object, gvk)
	if err != nil {
		e.Fatal(err)
	}
	return raw
}

// difference is the patch that a kubelet makes of two versions of an object.
func difference(t *testing.T, from, to objects.Typed, uid types.UID) []byte {
	t.Helper()
	before, errBefore := json.Marshal(from)
	after, errAfter := json.Marshal(to)
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, to)
	if errBefore != nil || errAfter != nil || err != nil {
		t.Fatal(errBefore, errAfter, err)
	}
	if uid != "" {
		patch = append([]byte(fmt.Sprintf(`{"metadata":{"uid":%q},`, uid)), patch[1:]...)
	}
	return patch
}

// podPatch is the patch of a pod's status that a kubelet makes.
func podPatch(t *testing.T, read, want *corev1.Pod) []byte {
	t.Helper()
	return difference(t, &corev1.Pod{Status: read.Status}, &corev1.Pod{Status: want.Status}, read.UID)
}

// TestScenario66OfflineWritesReachTheCloud: the node's own writes are answered offline as by an API server. They
// are in the cloud afterwards, also if the hub was killed meanwhile.
func TestScenario66OfflineWritesReachTheCloud(t *testing.T) {
	for _, format := range formats {
		t.Run(format.String(), func(t *testing.T) {
			e := newEdge(t, format)
			contentType := format.ContentType()
			read := live[*corev1.Node](e, nodePath)
			w := e.do(http.MethodPatch, nodePath+"/status?timeout=10s", strategic, difference(t, read, withStatus(read, aNode(corev1.ConditionFalse, 5)), ""))
			node := answered[*corev1.Node](e, w, http.StatusOK, gvks["nodes"])
			if node.Status.Conditions[1].Reason != "KubeletNotReady" || node.ResourceVersion != read.ResourceVersion || node.UID != read.UID || node.Spec.PodCIDR == "" || w.Header().Get(Kept) == "" {
				t.Errorf("the Node is %+v", node)
			}
			pod := live[*corev1.Pod](e, ownPodPath)
			want := pod.DeepCopy()
			want.Status.Phase, want.Status.Conditions[0].Status = corev1.PodFailed, corev1.ConditionFalse
			if got := answered[*corev1.Pod](e, e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, pod, want)), http.StatusOK, gvks["pods"]); got.Status.Phase != corev1.PodFailed || got.Status.PodIP == "" {
				t.Errorf("the pod is %+v", got.Status)
			}
			if got := answered[*corev1.Event](e, e.do(http.MethodPost, eventsPath, contentType, e.body(anEvent("web.1", 1), gvks["events"])), http.StatusCreated, gvks["events"]); got.Name != "web.1" || got.UID != "" {
				t.Errorf("the event is %+v", got)
			}
			if got := answered[*corev1.Event](e, e.do(http.MethodPatch, eventsPath+"/web.1", strategic, []byte(`{"count":4}`)), http.StatusOK, gvks["events"]); got.Count != 4 || got.Message != "it fails" {
				t.Errorf("the event is %+v", got)
			}
			generated := anEvent("", 1)
			generated.GenerateName, generated.UID = "web.", "of the client"
			named := answered[*corev1.Event](e, e.do(http.MethodPost, eventsPath, contentType, e.body(generated, gvks["events"])), http.StatusCreated, gvks["events"])
			if len(named.Name) != len("web.")+5 || named.UID != "" {
				t.Errorf("the name is %q, and the UID %q", named.Name, named.UID)
			}
			renewal := aLease(time.Now().Truncate(time.Millisecond), "7")
			lease := answered[*coordinationv1.Lease](e, e.do(http.MethodPut, leasePath, contentType, e.body(renewal, gvks["leases"])), http.StatusOK, gvks["leases"])
			if lease.ResourceVersion != "7" || !lease.Spec.RenewTime.Equal(renewal.Spec.RenewTime) {
				t.Errorf("the Lease is %+v", lease)
			}
			if s := e.Journal.Summary(); s.Waiting != 5 {
				t.Errorf("the summary is %+v", s)
			}
			// The hub is started again, and the kubelet renews its Lease, which was in memory only.
			if err := e.Journal.Close(); err != nil {
				t.Fatal(err)
			}
			e.open()
			if s := e.Journal.Summary(); s.Waiting != 4 {
				t.Errorf("after a restart the summary is %+v", s)
			}
			e.do(http.MethodPut, leasePath, contentType, e.body(renewal, gvks["leases"]))
			e.comeBack()
			if got := live[*corev1.Node](e, nodePath).Status.Conditions[1]; got.Status != corev1.ConditionFalse {
				t.Errorf("the cloud has the condition %+v", got)
			}
			if got := live[*corev1.Pod](e, ownPodPath); got.Status.Phase != corev1.PodFailed {
				t.Errorf("the cloud has the pod %+v", got.Status)
			}
			if got := live[*corev1.Event](e, eventsPath+"/web.1"); got.Count != 4 {
				t.Errorf("the cloud has the event %+v", got)
			}
			live[*corev1.Event](e, eventsPath+"/"+named.Name)
			if got := live[*coordinationv1.Lease](e, leasePath); !got.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
				t.Errorf("the cloud has the Lease %+v", got)
			}
			order := []string{"POST " + path.Dir(leasePath), "PATCH " + nodePath + "/status", "PATCH " + ownPodPath + "/status", "PUT " + eventsPath + "/web.1", "PUT " + eventsPath + "/" + named.Name}
			if !slices.Equal(e.server.writes, order) {
				t.Errorf("sent were %q, want %q", e.server.writes, order)
			}
		})
	}
}

// withStatus returns a node with the status of another.
func withStatus(of, status *corev1.Node) *corev1.Node {
	node := of.DeepCopy()
	node.Status = status.Status
	return node
}
