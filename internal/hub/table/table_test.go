package table

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

var now = time.Unix(1e9, 0)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func running(name string, ready bool) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, Ready: ready, Started: ptr.To(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func waiting(name, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
}

func over(name, reason string, code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}}
}

// TestPodsArePrintedAsKubectlShowsThem: the words are those that people know from kubectl get pods.
func TestPodsArePrintedAsKubectlShowsThem(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, tc := range map[string]struct {
		change func(*corev1.Pod)
		want   []any // ready, status, restarts
	}{
		"runs":        {func(*corev1.Pod) {}, []any{"1/1", "Running", "0"}},
		"not ready":   {func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Ready = false }, []any{"0/1", "Running", "0"}},
		"is deleted":  {func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(ago(0)) }, []any{"1/1", "Terminating", "0"}},
		"is lost":     {func(p *corev1.Pod) { p.DeletionTimestamp, p.Status.Reason = ptr.To(ago(0)), "NodeLost" }, []any{"1/1", "Unknown", "0"}},
		"crashes":     {func(p *corev1.Pod) { p.Status.ContainerStatuses[0] = waiting("c", "CrashLoopBackOff") }, []any{"0/1", "CrashLoopBackOff", "0"}},
		"has no node": {func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodPending} }, []any{"0/1", "Pending", "0"}},
		"is gated": {func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "SchedulingGated"}}}
		}, []any{"0/1", "SchedulingGated", "0"}},
		"is evicted": {func(p *corev1.Pod) { p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"} }, []any{"0/1", "Evicted", "0"}},
		"has succeeded": {func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{over("c", "Completed", 0)}}
		}, []any{"0/1", "Completed", "0"}},
		"has failed without a reason": {func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{over("c", "", 3)}}
		}, []any{"0/1", "ExitCode:3", "0"}},
		"was restarted": {func(p *corev1.Pod) {
			s := &p.Status.ContainerStatuses[0]
			s.RestartCount, s.LastTerminationState.Terminated = 2, &corev1.ContainerStateTerminated{FinishedAt: ago(3 * time.Minute)}
		}, []any{"1/1", "Running", "2 (3m ago)"}},
		"one container of two is over": {func(p *corev1.Pod) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "d"})
			p.Status.ContainerStatuses = []corev1.ContainerStatus{over("c", "Completed", 0), running("d", true)}
		}, []any{"1/2", "NotReady", "0"}},
		"the second init container": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "b"}}
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{over("a", "Completed", 0), waiting("b", "PodInitializing")}, ContainerStatuses: []corev1.ContainerStatus{waiting("c", "PodInitializing")}}
		}, []any{"0/1", "Init:1/2", "0"}},
		"an init container fails": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a"}}
			p.Status = corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: []corev1.ContainerStatus{over("a", "Error", 1)}}
		}, []any{"0/1", "Init:Error", "0"}},
		"with a sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "a", RestartPolicy: &always}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{running("a", true)}
		}, []any{"2/2", "Running", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{"app": "web"}, CreationTimestamp: ago(2 * time.Hour)},
				Spec:       corev1.PodSpec{NodeName: "a", Containers: []corev1.Container{{Name: "c"}}},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{running("c", true)}},
			}
			tc.change(pod)
			got, err := Of([]runtime.Object{pod}, "7", "", now)
			if err != nil {
				t.Fatal(err)
			}
			cells := got.Rows[0].Cells
			if len(cells) != len(got.ColumnDefinitions) || got.ResourceVersion != "7" {
				t.Errorf("%d cells in %d columns, of version %q", len(cells), len(got.ColumnDefinitions), got.ResourceVersion)
			}
			want := append(append([]any{"web"}, tc.want...), "120m", none, "a", none, none)
			if diff := cmp.Diff(want, cells); diff != "" {
				t.Error(diff)
			}
			if m, is := got.Rows[0].Object.Object.(*metav1.PartialObjectMetadata); !is || m.Labels["app"] != "web" || m.Namespace != "default" {
				t.Errorf("the row has the object %v", got.Rows[0].Object.Object)
			}
		})
	}
}

// TestOtherKindsHaveANameAndAnAge: an empty list has an empty array of rows, not null.
func TestOtherKindsHaveANameAndAnAge(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	got, err := Of([]runtime.Object{node}, "", metav1.IncludeObject, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{"a", unknown}, got.Rows[0].Cells); diff != "" || got.Rows[0].Object.Object != runtime.Object(node) {
		t.Errorf("%s, and the object is %v", diff, got.Rows[0].Object.Object)
	}
	if got, err = Of(nil, "", "", now); err != nil || got.Rows == nil {
		t.Errorf("of nothing: %v, %v", got, err)
	}
}
