package proxy

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestWriteThatCannotBeStoredIsRefused: a success always means that the write is stored.
func TestWriteThatCannotBeStoredIsRefused(t *testing.T) {
	e := newEdge(t, wire.JSON)
	read := live[*corev1.Pod](e, ownPodPath)
	pod, patch, event := e.body(read, gvks["pods"]), []byte(`{"status":{"phase":"Failed"}}`), e.body(anEvent("x", 1), gvks["events"])
	foreign := aLease(began, "")
	foreign.Name = "b"
	for name, test := range map[string]struct {
		method, target, contentType string
		body                        []byte
		code                        int
	}{
		"a pod itself":                   {http.MethodPatch, ownPodPath, strategic, patch, 503},
		"a new pod":                      {http.MethodPost, path.Dir(ownPodPath), "application/json", pod, 503},
		"the deletion of a pod":          {http.MethodDelete, ownPodPath, "application/json", nil, 503},
		"an eviction":                    {http.MethodPost, ownPodPath + "/eviction", "application/json", nil, 503},
		"a pod of another node":          {http.MethodPatch, path.Dir(ownPodPath) + "/other/status", strategic, patch, 503},
		"a pod that is not in the cache": {http.MethodPatch, path.Dir(ownPodPath) + "/nobody/status", strategic, patch, 503},
		"an unusual path":                {http.MethodPatch, "/api/v1/watch/namespaces/default/pods/web/status", strategic, patch, 503},
		"another pod of that name":       {http.MethodPatch, ownPodPath + "/status", strategic, []byte(`{"metadata":{"uid":"x"},"status":{"phase":"Failed"}}`), 409},
		"another pod as a whole":         {http.MethodPut, ownPodPath + "/status", "application/json", e.body(aPodWith(read, "x", ""), gvks["pods"]), 409},
		"an older version":               {http.MethodPut, ownPodPath + "/status", "application/json", e.body(aPodWith(read, "", "1"), gvks["pods"]), 409},
		"an older version in a patch":    {http.MethodPatch, ownPodPath + "/status", strategic, []byte(`{"metadata":{"resourceVersion":"1"},"status":{}}`), 409},
		"another name in the body":       {http.MethodPut, ownPodPath + "/status", "application/json", e.body(aPod("x", "a", ""), gvks["pods"]), 503},
		"a JSON patch":                   {http.MethodPatch, ownPodPath + "/status", string(types.JSONPatchType), []byte(`[]`), 503},
		"an apply":                       {http.MethodPatch, ownPodPath + "/status", string(types.ApplyYAMLPatchType), []byte(`{}`), 503},
		"a dry run":                      {http.MethodPatch, ownPodPath + "/status?dryRun=All", strategic, patch, 503},
		"a patch that is none":           {http.MethodPatch, ownPodPath + "/status", strategic, []byte(`[`), 503},
		"a patch of what a pod has not":  {http.MethodPatch, ownPodPath + "/status", strategic, []byte(`{"status":{"phase":{"a":[1]}}}`), 503},
		"another Node":                   {http.MethodPatch, "/api/v1/nodes/b/status", strategic, patch, 503},
		"the spec of the Node":           {http.MethodPatch, nodePath, strategic, []byte(`{"spec":{"unschedulable":true}}`), 503},
		"the Lease of another node":      {http.MethodPut, path.Dir(leasePath) + "/b", "application/json", e.body(foreign, gvks["leases"]), 503},
		"its creation":                   {http.MethodPost, path.Dir(leasePath), "application/json", e.body(foreign, gvks["leases"]), 503},
		"a Lease in another namespace":   {http.MethodPut, strings.ReplaceAll(leasePath, "kube-node-lease", "default"), "application/json", e.body(aLease(began, ""), gvks["leases"]), 503},
		"a patch of an unknown Lease":    {http.MethodPatch, leasePath, strategic, []byte(`{"spec":{}}`), 503},
		"a Lease without a time":         {http.MethodPut, leasePath, "application/json", []byte(`{"metadata":{"name":"a"}}`), 503},
		"a patch of an unknown event":    {http.MethodPatch, eventsPath + "/x", strategic, []byte(`{"count":2}`), 503},
		"an event without a name":        {http.MethodPost, eventsPath, "application/json", e.body(anEvent("", 1), gvks["events"]), 503},
		"an event of another path":       {http.MethodPost, "/api/v1/namespaces/other/events", "application/json", event, 503},
		"an event that is a pod":         {http.MethodPost, eventsPath, "application/json", pod, 503},
		"an invalid object":              {http.MethodPost, eventsPath, "application/json", []byte("x"), 503},
		"an unknown form":                {http.MethodPost, eventsPath, "text/plain", event, 503},
		"a write that is too large":      {http.MethodPost, eventsPath, "application/json", append(event[:len(event)-1], []byte(strings.Repeat(" ", ownwrites.MaxBody)+"}")...), 503},
		"all events":                     {http.MethodDelete, eventsPath, "application/json", nil, 503},
		"a ConfigMap":                    {http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", []byte(`{"metadata":{"name":"x"}}`), 503},
	} {
		if w := e.do(test.method, test.target, test.contentType, test.body); w.Code != test.code || !strings.Contains(w.Body.String(), `"kind":"Status"`) {
			t.Errorf("%s is answered %d %s, want %d", name, w.Code, w.Body, test.code)
		}
	}
	caller := identity.Caller{Name: "token:x", Token: "x"}
	if w := e.as(caller, http.MethodPost, eventsPath, "application/json", event); w.Code != http.StatusServiceUnavailable {
		t.Errorf("an event of somebody else is answered %d", w.Code)
	}
	r := httptest.NewRequest(http.MethodPost, eventsPath, strings.NewReader(string(event)))
	r.TLS = &tls.ConnectionState{}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	w := httptest.NewRecorder()
	if e.answer(w, r, identity.Caller{Name: "node", IsNode: true}); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a write whose answer is to be a table is answered %d", w.Code)
	}
	if kept := e.Journal.Entries(); len(kept) != 0 {
		t.Errorf("kept are %+v", kept)
	}
	if err := e.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	if w := e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("x", 1), gvks["events"])); w.Code != http.StatusServiceUnavailable {
		t.Errorf("an event that cannot be written to the disk is answered %d", w.Code)
	}
	e.open()
}

// aPodWith returns a pod with another UID and version.
func aPodWith(pod *corev1.Pod, uid types.UID, version string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.UID, pod.ResourceVersion = uid, version
	return pod
}

// TestTransientStatusIsNotReplayed: a kubelet computes each patch from what it reads, which stays the same
// offline. A condition that has gone again is not in the cloud afterwards.
func TestTransientStatusIsNotReplayed(t *testing.T) {
	for _, format := range formats {
		e := newEdge(t, format)
		read := live[*corev1.Node](e, nodePath).DeepCopy()
		var want *corev1.Node
		for i, ready := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionFalse, corev1.ConditionTrue} {
			want = withStatus(read, aNode(ready, 10*(i+1)))
			got := answered[*corev1.Node](e, e.do(http.MethodPatch, nodePath+"/status", strategic, difference(t, read, want, "")), http.StatusOK, gvks["nodes"])
			if diff := cmp.Diff(want.Status, got.Status); diff != "" {
				t.Errorf("the answer (-want +got):\n%s", diff)
			}
		}
		// Another program of the node adds a condition of its own, and the kubelet does not know of it.
		if w := e.do(http.MethodPatch, nodePath+"/status", strategic, []byte(`{"status":{"conditions":[{"type":"Disk","status":"True"}]}}`)); w.Code != http.StatusOK {
			t.Fatalf("the answer is %d %s", w.Code, w.Body)
		}
		want = withStatus(read, aNode(corev1.ConditionTrue, 40))
		e.do(http.MethodPatch, nodePath+"/status", strategic, difference(t, read, want, ""))
		e.comeBack()
		conditions := live[*corev1.Node](e, nodePath).Status.Conditions
		i := slices.IndexFunc(conditions, func(c corev1.NodeCondition) bool { return c.Type == "Disk" })
		if i < 0 {
			t.Fatalf("the cloud has %+v", conditions)
		}
		if diff := cmp.Diff(want.Status.Conditions, slices.Delete(slices.Clone(conditions), i, i+1)); diff != "" {
			t.Errorf("the cloud (-want +got):\n%s", diff)
		}
	}
}

// TestPatchFromAnEarlierReadIsReplayed: the kubelet computes its patch from a GET, and the watch has brought a
// newer version since.
func TestPatchFromAnEarlierReadIsReplayed(t *testing.T) {
	for _, format := range formats {
		e := newEdge(t, format)
		read := live[*corev1.Pod](e, ownPodPath).DeepCopy()
		e.server.lock(func() {
			newer := read.DeepCopy()
			newer.Status.Phase, newer.Status.Conditions[0].Status, newer.Status.Message = corev1.PodFailed, corev1.ConditionFalse, "in between"
			e.server.put(ownPodPath, newer)
			e.server.offline = false
		})
		e.ask(t.Context(), podsOfNode)
		e.Wait()
		e.server.lock(func() { e.server.offline = true })
		want := read.DeepCopy()
		want.Status.Conditions[0].LastTransitionTime = metav1.NewTime(began)
		got := answered[*corev1.Pod](e, e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, read, want)), http.StatusOK, gvks["pods"])
		if diff := cmp.Diff(want.Status, got.Status); diff != "" {
			t.Errorf("the answer (-want +got):\n%s", diff)
		}
		e.comeBack()
		if diff := cmp.Diff(want.Status, live[*corev1.Pod](e, ownPodPath).Status); diff != "" {
			t.Errorf("the cloud (-want +got):\n%s", diff)
		}
	}
}

// TestRefusedWritesDoNotBlockTheReplay: a refused write is dropped, a write that fails is sent later, and other
// writes wait for neither.
func TestRefusedWritesDoNotBlockTheReplay(t *testing.T) {
	e := newEdge(t, wire.JSON)
	pod := live[*corev1.Pod](e, ownPodPath)
	want := pod.DeepCopy()
	want.Status.Phase = corev1.PodFailed
	e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, pod, want))
	for i := range 6 {
		if w := e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent(fmt.Sprint("e-", i), 1), gvks["events"])); w.Code != http.StatusCreated {
			t.Fatalf("the answer is %d %s", w.Code, w.Body)
		}
	}
	e.server.lock(func() {
		// The pod is another one by now.
		delete(e.server.objects, ownPodPath)
		e.server.put(ownPodPath, aPod("web", "a", corev1.PodPending))
		e.server.refuse = map[string]int{"/e-1": 422, "/e-2": 500, "/e-3": 409, "/e-4": 410}
	})
	e.comeBack(eventsPath + "/e-2")
	if got := live[*corev1.Pod](e, ownPodPath); got.Status.Phase != corev1.PodPending {
		t.Errorf("another pod has the status of the first: %+v", got.Status)
	}
	live[*corev1.Event](e, eventsPath+"/e-0")
	live[*corev1.Event](e, eventsPath+"/e-5")
	if s := e.Journal.Summary(); s.Outcomes["Refused"] != 4 || s.Outcomes["Replayed"] != 2 {
		t.Errorf("the summary is %+v", s)
	}
	// It is written again: behind what waits.
	if w := e.do(http.MethodPatch, eventsPath+"/e-2", strategic, []byte(`{"count":9}`)); w.Code != http.StatusOK || w.Header().Get(Kept) == "" {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
	e.server.lock(func() { e.server.refuse = nil })
	e.comeBack()
	if got := live[*corev1.Event](e, eventsPath+"/e-2"); got.Count != 9 || got.Message != "it fails" {
		t.Errorf("the cloud has %+v", got)
	}
	// From now on it goes to the cloud.
	if w := e.do(http.MethodPatch, eventsPath+"/e-2", strategic, []byte(`{"count":10}`)); w.Code != http.StatusOK || w.Header().Get(Kept) != "" {
		t.Errorf("the answer is %d %s", w.Code, w.Header())
	}
	// What the cloud has answered is known when it is away again.
	e.server.lock(func() { e.server.offline = true })
	if w := e.do(http.MethodPatch, eventsPath+"/e-2", strategic, []byte(`{"count":11}`)); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "it fails") {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
	e.server.lock(func() { delete(e.server.objects, eventsPath+"/e-2") }) // the cloud keeps events for an hour
	e.comeBack()
	if got := live[*corev1.Event](e, eventsPath+"/e-2"); got.Count != 11 {
		t.Errorf("the cloud has %+v", got)
	}
}

// TestForbiddenWritesAreSentAgain: an API server that has just started may forbid what it will allow. A write
// that stays forbidden is dropped.
func TestForbiddenWritesAreSentAgain(t *testing.T) {
	e := newEdge(t, wire.JSON)
	for _, name := range []string{"e-0", "e-1"} {
		e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent(name, 1), gvks["events"]))
	}
	e.server.lock(func() { e.server.refuse = map[string]int{"/e-0": 403, "/e-1": 403} })
	e.comeBack(eventsPath+"/e-0", eventsPath+"/e-1")
	e.server.lock(func() { e.server.refuse = map[string]int{"/e-1": 403} })
	e.comeBack(eventsPath + "/e-1")
	live[*corev1.Event](e, eventsPath+"/e-0")
	if s := e.Journal.Summary(); s.Outcomes["Replayed"] != 1 || s.Outcomes["Refused"] != 0 || s.Waiting != 1 {
		t.Errorf("the summary is %+v", s)
	}
	e.Replay.SendAll(t.Context(), map[string]replay.Retry{eventsPath + "/e-1": {Forbidden: time.Now().Add(-replay.ForbiddenWithin)}}, false)
	if s := e.Journal.Summary(); s.Outcomes["Refused"] != 1 || s.Waiting != 0 {
		t.Errorf("after %s the summary is %+v", replay.ForbiddenWithin, s)
	}
}

// TestRepeatedReplayIsHarmless: the hub was killed before it noted that the writes were sent.
func TestRepeatedReplayIsHarmless(t *testing.T) {
	e := newEdge(t, wire.JSON)
	pod := live[*corev1.Pod](e, ownPodPath)
	want := pod.DeepCopy()
	want.Status.Phase = corev1.PodFailed
	e.do(http.MethodPut, leasePath, "application/json", e.body(aLease(time.Now(), ""), gvks["leases"]))
	e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, pod, want))
	e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("e", 3), gvks["events"]))
	kept := e.Journal.Entries()
	e.comeBack()
	text := func() string {
		all := map[string]any{}
		e.server.lock(func() {
			for path, o := range e.server.objects {
				o, _ := o.DeepCopyObject().(objects.Typed)
				o.SetResourceVersion("")
				all[path] = o
			}
		})
		raw, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	once := text()
	for _, entry := range kept {
		if err := e.Journal.Keep(t.Context(), entry); err != nil {
			t.Fatal(err)
		}
	}
	e.comeBack()
	if twice := text(); twice != once {
		t.Errorf("the cloud has\n%s\nand had after the first time\n%s", twice, once)
	}
	if s := e.Journal.Summary(); s.Outcomes["Refused"] != 0 || s.Outcomes["Outdated"] != 1 {
		t.Errorf("the summary is %+v", s)
	}
}

// TestReplaySendsOnlyCurrentLeaseRenewals: an expired renewal is not sent, nor one that is older than that in the
// cloud. The time is the one that the kubelet wrote.
func TestReplaySendsOnlyCurrentLeaseRenewals(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		kept, live time.Time // zero: there is none in the cloud
		want       time.Time
	}{
		"renewed a moment ago":      {now.Add(-5 * time.Second), now.Add(-time.Hour), now.Add(-5 * time.Second)},
		"there is none":             {now.Add(-5 * time.Second), time.Time{}, now.Add(-5 * time.Second)},
		"expired":                   {now.Add(-41 * time.Second), now.Add(-time.Hour), now.Add(-time.Hour)},
		"expired and there is none": {now.Add(-41 * time.Second), time.Time{}, time.Time{}},
		"the cloud has a newer one": {now.Add(-5 * time.Second), now.Add(-4 * time.Second), now.Add(-4 * time.Second)},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, wire.Protobuf)
			e.server.lock(func() {
				if !test.live.IsZero() {
					e.server.put(leasePath, aLease(test.live, ""))
				}
			})
			if w := e.do(http.MethodPut, leasePath, e.format.ContentType(), e.body(aLease(test.kept, "7"), gvks["leases"])); w.Code != http.StatusOK {
				t.Fatalf("the answer is %d %s", w.Code, w.Body)
			}
			// A kubelet that starts reads it.
			if got := answered[*coordinationv1.Lease](e, e.ask(t.Context(), leasePath), http.StatusOK, gvks["leases"]); got.ResourceVersion != "7" || got.Spec.RenewTime.Sub(test.kept).Abs() > time.Millisecond {
				t.Errorf("offline the Lease is %+v", got)
			}
			e.comeBack()
			if test.want.IsZero() {
				if e.server.objects[leasePath] != nil {
					t.Errorf("the cloud has a Lease: %v", e.server.objects[leasePath])
				}
				return
			}
			if got := live[*coordinationv1.Lease](e, leasePath).Spec.RenewTime; got.Sub(test.want).Abs() > time.Millisecond {
				t.Errorf("the cloud has %s, want %s", got, test.want)
			}
		})
	}
}

// TestNodeOfASilentKubeletIsNotReportedAlive: neither its Lease nor the heartbeat of its status is sent until the
// kubelet writes again.
func TestNodeOfASilentKubeletIsNotReportedAlive(t *testing.T) {
	e := newEdge(t, wire.JSON)
	read := live[*corev1.Node](e, nodePath)
	e.do(http.MethodPatch, nodePath+"/status", strategic, difference(t, read, withStatus(read, aNode(corev1.ConditionTrue, 5)), ""))
	e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("e", 1), gvks["events"]))
	e.Replay.Heard(time.Now().Add(-replay.SilentAfter - time.Second))
	e.comeBack(nodePath)
	live[*corev1.Event](e, eventsPath+"/e")
	e.do(http.MethodPut, leasePath, "application/json", e.body(aLease(time.Now(), ""), gvks["leases"]))
	e.comeBack()
	if got := live[*corev1.Node](e, nodePath).Status.Conditions[1].LastHeartbeatTime; !got.Time.Equal(began.Add(5 * time.Second)) {
		t.Errorf("the heartbeat is %s", got)
	}
}

// TestLeaseCreatedOfflineIsReplayed: a kubelet that starts offline creates its Lease and then renews it.
func TestLeaseCreatedOfflineIsReplayed(t *testing.T) {
	e := newEdge(t, wire.JSON)
	w := e.do(http.MethodPost, path.Dir(leasePath), "application/json", e.body(aLease(time.Now(), ""), gvks["leases"]))
	lease := answered[*coordinationv1.Lease](e, w, http.StatusCreated, gvks["leases"])
	later := metav1.NewMicroTime(time.Now().Add(time.Second))
	lease.Spec.RenewTime = &later
	w = e.do(http.MethodPut, leasePath, "application/json", e.body(lease, gvks["leases"]))
	lease = answered[*coordinationv1.Lease](e, w, http.StatusOK, gvks["leases"])
	w = e.do(http.MethodPatch, leasePath, string(types.MergePatchType), []byte(`{"spec":{"leaseDurationSeconds":50}}`))
	if got := answered[*coordinationv1.Lease](e, w, http.StatusOK, gvks["leases"]); *got.Spec.LeaseDurationSeconds != 50 {
		t.Errorf("the Lease is %+v", got.Spec)
	}
	e.comeBack()
	if got := live[*coordinationv1.Lease](e, leasePath); got.Spec.RenewTime.Sub(later.Time).Abs() > time.Millisecond || *got.Spec.LeaseDurationSeconds != 50 {
		t.Errorf("the cloud has %+v", got.Spec)
	}
	// The version of the answer is not that of the cloud: the kubelet gets a conflict and reads it anew.
	if w := e.do(http.MethodPut, leasePath, "application/json", e.body(lease, gvks["leases"])); w.Code != http.StatusConflict {
		t.Errorf("the answer is %d %s", w.Code, w.Body)
	}
}

func TestLeaseDoesNotWaitForARefusedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, wire.JSON)
		e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("refused", 1), gvks["events"]))
		e.server.lock(func() { e.server.refuse, e.server.offline = map[string]int{"/refused": 500}, false })
		ctx, cancel := context.WithCancel(e.Context())
		var running sync.WaitGroup
		running.Go(func() { e.Replay.Run(ctx) })
		defer running.Wait()
		defer cancel()
		time.Sleep(65 * time.Second) // no time passes: see testing/synctest
		e.server.lock(func() { e.server.offline = true })
		if w := e.do(http.MethodPut, leasePath, "application/json", e.body(aLease(time.Now(), ""), gvks["leases"])); w.Header().Get(Kept) == "" {
			t.Fatalf("the Lease is not kept: %d %s", w.Code, w.Body)
		}
		e.server.lock(func() { e.server.offline = false })
		time.Sleep(5 * time.Second)
		e.server.lock(func() {
			if e.server.objects[leasePath] == nil {
				t.Error("the Lease has not reached a cloud that is reachable")
			}
		})
	})
}

// toldPods are Pods that note what they are told.
type toldPods struct {
	filter.Pods

	written []string
}

func (p *toldPods) Written(_, _ string, body []byte) { p.written = append(p.written, string(body)) }

// TestAddressesAreLearnedFromKeptWrites: the hub was killed before it saved the addresses, and the kubelet does
// not write them again.
func TestAddressesAreLearnedFromKeptWrites(t *testing.T) {
	e := newEdge(t, wire.JSON)
	pod := live[*corev1.Pod](e, ownPodPath)
	moved := pod.DeepCopy()
	moved.Status.PodIP = "10.0.0.9"
	e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, pod, moved))
	read := live[*corev1.Node](e, nodePath)
	e.do(http.MethodPatch, nodePath+"/status", strategic, difference(t, read, withStatus(read, aNode(corev1.ConditionTrue, 5)), ""))
	if err := e.Journal.Close(); err != nil {
		t.Fatal(err)
	}
	e.open()
	pods := &toldPods{}
	e.Pods = pods
	e.LearnKept()
	if len(pods.written) != 1 || !strings.Contains(pods.written[0], "10.0.0.9") {
		t.Errorf("learned is %q", pods.written)
	}
}

// TestTheLeaseIsSentAtOnce: when the cloud is back. Other writes are sent after a random delay.
func TestTheLeaseIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, wire.JSON)
		e.server.spread = 9 * time.Second
		e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("e", 1), gvks["events"]))
		e.do(http.MethodPut, leasePath, "application/json", e.body(aLease(time.Now(), ""), gvks["leases"]))
		ctx, cancel := context.WithCancel(e.Context())
		var running sync.WaitGroup
		running.Go(func() { e.Replay.Run(ctx) })
		defer running.Wait()
		defer cancel()
		time.Sleep(5 * time.Second)
		e.server.lock(func() { e.server.offline = false })
		has := func(when string, lease, event bool) {
			e.server.lock(func() {
				if got := e.server.objects[leasePath] != nil; got != lease {
					t.Errorf("%s the cloud has the Lease: %t", when, got)
				}
				if got := e.server.objects[eventsPath+"/e"] != nil; got != event {
					t.Errorf("%s the cloud has the event: %t", when, got)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		has("at once", true, false)
		e.Replay.Hurry()
		time.Sleep(8 * time.Second)
		has("later", true, false)
		time.Sleep(2 * time.Second)
		has("at the end", true, true)
	})
}

func TestWritesWithoutACertificateAreKept(t *testing.T) {
	e := newEdge(t, wire.JSON)
	e.Proxy.Cloud = unproven{e.server}
	if w := e.do(http.MethodPut, leasePath, "application/json", e.body(aLease(time.Now(), ""), gvks["leases"])); w.Header().Get(Kept) == "" {
		t.Errorf("the Lease is not kept: %d %s", w.Code, w.Body)
	}
}

// TestOtherErrorRestartsTheForbiddenTime: a write is dropped only if it was forbidden without interruption, for
// example by an outage.
func TestOtherErrorRestartsTheForbiddenTime(t *testing.T) {
	e := newEdge(t, wire.JSON)
	e.do(http.MethodPost, eventsPath, "application/json", e.body(anEvent("e-1", 1), gvks["events"]))
	later := map[string]replay.Retry{}
	for i, code := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		e.server.lock(func() { e.server.refuse = map[string]int{"/e-1": code} })
		e.comeBack(eventsPath + "/e-1")
		e.Replay.SendAll(t.Context(), later, false)
		if r := later[eventsPath+"/e-1"]; r.Forbidden.IsZero() != (i > 0) {
			t.Errorf("after %d it is forbidden since %s", code, r.Forbidden)
		}
		r := later[eventsPath+"/e-1"]
		r.At = time.Time{}
		later[eventsPath+"/e-1"] = r
	}
}
