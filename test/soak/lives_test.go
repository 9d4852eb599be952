package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// buildPod returns a pod whose container was started so many seconds after noon; -1 is not at all.
func buildPod(name string, seconds int, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "soak", UID: "uid-" + "1"}, Spec: corev1.PodSpec{NodeName: "edge-0"}}
	pod.Status.Phase = corev1.PodPending
	if seconds >= 0 {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(noon.Add(time.Duration(seconds) * time.Second))},
		}}}
	}
	for _, m := range modify {
		m(pod)
	}
	return pod
}

func TestLives(t *testing.T) {
	deleting := func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: noon} }
	failed := func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }
	for name, test := range map[string]struct {
		pods     []*corev1.Pod
		restarts []int // of its kubelet, in seconds after noon
		others   []int // of another kubelet
		deleted  bool
		gone     bool
		want     string // a part of the only line
	}{
		"it starts and runs on":                  {pods: []*corev1.Pod{buildPod("a", -1), buildPod("a", 1), buildPod("a", 1)}},
		"its container is started again":         {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 9)}, want: "was started at 12:00:01, and again at 12:00:09"},
		"with its kubelet":                       {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 9)}, restarts: []int{8}},
		"with its kubelet, in the same second":   {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 8)}, restarts: []int{8}},
		"in the same second, and again":          {pods: []*corev1.Pod{buildPod("a", 8), buildPod("a", 9)}, restarts: []int{8}},
		"with another kubelet":                   {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 9)}, others: []int{8}, want: "again"},
		"once more than its kubelet":             {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 9), buildPod("a", 12)}, restarts: []int{8}, want: "again at 12:00:12"},
		"with each of two kubelets":              {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 9), buildPod("a", 12)}, restarts: []int{8, 11}},
		"one start of two is not seen":           {pods: []*corev1.Pod{buildPod("a", 1), buildPod("a", 12)}, restarts: []int{8, 11}},
		"it is being deleted":                    {pods: []*corev1.Pod{buildPod("a", 1, deleting)}, want: "deleted by somebody"},
		"it is being deleted, as the soak wants": {pods: []*corev1.Pod{buildPod("a", 1, deleting)}, deleted: true},
		"it fails":                               {pods: []*corev1.Pod{buildPod("a", 1, failed)}, want: "has ended: Failed"},
		"it is gone":                             {pods: []*corev1.Pod{buildPod("a", 1)}, gone: true, want: "pod a is gone"},
		"it is gone, as the soak wants":          {pods: []*corev1.Pod{buildPod("a", 1)}, deleted: true, gone: true},
	} {
		l := newLives()
		for _, s := range test.restarts {
			l.restart("edge-0", noon.Add(time.Duration(s)*time.Second+300*time.Millisecond))
		}
		for _, s := range test.others {
			l.restart("edge-1", noon.Add(time.Duration(s)*time.Second))
		}
		if test.deleted {
			l.delete("soak/a")
		}
		var lines []string
		for _, pod := range test.pods {
			lines = append(lines, l.see(pod)...)
		}
		if test.gone {
			lines = append(lines, l.gone(test.pods[0])...)
		}
		if got := strings.Join(lines, "\n"); (test.want == "") != (got == "") || len(lines) > 1 || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	l := newLives()
	l.see(buildPod("a", -1))
	if n := l.running(); n != 0 {
		t.Errorf("%d pods run that have not started", n)
	}
	l.see(buildPod("a", 3))
	if n := l.running(); n != 1 {
		t.Errorf("%d pods run, want 1", n)
	}
}
