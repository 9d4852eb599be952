package proxy

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/inventory"
	"github.com/atoll-k8s/atoll/internal/hub/replay"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// TestReportHasHeartbeatAndChangedPodStatuses: offline the pool gets the kubelet's last heartbeat and the whole
// status of each pod that has changed. Once the kubelet is silent, it gets nothing.
func TestReportHasHeartbeatAndChangedPodStatuses(t *testing.T) {
	for _, format := range []wire.Format{wire.JSON, wire.Protobuf} {
		t.Run(format.String(), func(t *testing.T) {
			e := newEdge(t, format)
			i := inventory.New(e.Writes, func() bool { return false })
			report := func() (*governance.Report, *governance.Statuses) {
				t.Helper()
				if _, err := i.Items(); err != nil {
					t.Fatal(err)
				}
				return i.Report()
			}
			if r, _ := report(); r != nil {
				t.Errorf("a kubelet that was never heard is told as %+v", r)
			}
			web := live[*corev1.Pod](e, ownPodPath)
			failing := web.DeepCopy()
			failing.Status.Conditions[0].Status = corev1.ConditionFalse
			if w := e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, web, failing)); w.Code != http.StatusOK {
				t.Fatalf("the answer is %d %s", w.Code, w.Body)
			}
			if r, _ := report(); r != nil {
				t.Errorf("without a heartbeat the report is %+v", r)
			}
			beat := func(at time.Time) {
				t.Helper()
				if w := e.do(http.MethodPut, leasePath, format.ContentType(), e.body(aLease(at, "7"), gvks["leases"])); w.Code != http.StatusOK {
					t.Fatalf("the answer is %d %s", w.Code, w.Body)
				}
			}
			beat(began)
			r, statuses := report()
			if r == nil || !r.Renewed.Time.Equal(began) || len(statuses.Pods) != 1 || r.Digest != statuses.Digest() || r.Digest == "" {
				t.Fatalf("the report is %+v %+v", r, statuses)
			}
			pod := statuses.Pods[0]
			if pod.Name != "web" || pod.Namespace != "default" || pod.UID != string(web.UID) || pod.Status.PodIP != "10.0.0.1" || pod.Status.Phase != corev1.PodRunning || pod.Status.Conditions[0].Status != corev1.ConditionFalse {
				t.Errorf("the status is %+v", pod)
			}
			beat(began.Add(10 * time.Second))
			if again, _ := report(); again == nil || !again.Renewed.Time.Equal(began.Add(10*time.Second)) || again.Digest != r.Digest {
				t.Errorf("the next report is %+v", again)
			}
			e.Replay.Heard(time.Now().Add(-replay.SilentAfter - time.Second))
			if r, _ := report(); r != nil {
				t.Errorf("a kubelet that is silent is told as %+v", r)
			}
			e.Replay.Heard(time.Now())
			e.comeBack()
			if r, _ := report(); r != nil {
				t.Errorf("with the cloud the report is %+v", r)
			}
		})
	}
}

// TestStatusOfAnEarlierPodIsNotReported: a later pod has the same name.
func TestStatusOfAnEarlierPodIsNotReported(t *testing.T) {
	e := newEdge(t, wire.JSON)
	web := live[*corev1.Pod](e, ownPodPath)
	failing := web.DeepCopy()
	failing.Status.Conditions[0].Status = corev1.ConditionFalse
	if w := e.do(http.MethodPatch, ownPodPath+"/status", strategic, podPatch(t, web, failing)); w.Code != http.StatusOK {
		t.Fatalf("the answer is %d %s", w.Code, w.Body)
	}
	e.do(http.MethodPut, leasePath, e.format.ContentType(), e.body(aLease(began, "7"), gvks["leases"]))
	e.server.lock(func() {
		e.server.offline = false
		again := aPod("web", "a", corev1.PodRunning)
		again.UID = "another"
		e.server.put(ownPodPath, again)
	})
	e.ask(t.Context(), podsOfNode)
	e.Wait()
	e.server.lock(func() { e.server.offline = true })
	i := inventory.New(e.Writes, func() bool { return false })
	if _, err := i.Items(); err != nil {
		t.Fatal(err)
	}
	if r, statuses := i.Report(); r == nil || len(statuses.Pods) != 0 || r.Digest != "" {
		t.Errorf("the report is %+v %+v", r, statuses)
	}
}
