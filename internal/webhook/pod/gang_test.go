package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/gangs"
)

// TestNoPodGroupNameBeforeTheRulesAreRead: a pod with the name of a PodGroup that is never
// created would wait forever.
func TestNoPodGroupNameBeforeTheRulesAreRead(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "volcano"}}
	for name, w := range map[string]*Webhook{
		"PodGroups are off":      {},
		"the rules are not read": {Gangs: &Gangs{Resolver: &gangs.Resolver{Schedulers: []string{"volcano"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			w.nameGroup(t.Context(), pod, "ns")
			if got := pod.Annotations[scheduling.GroupNameAnnotation]; got != "" {
				t.Errorf("the pod names %s", got)
			}
		})
	}
}

// TestPodWithFullAnnotationsGetsNoPodGroupName: the API server would refuse it because of the size of its annotations.
func TestPodWithFullAnnotationsGetsNoPodGroupName(t *testing.T) {
	full := func(n int) map[string]string { return map[string]string{"k": strings.Repeat("x", n)} }
	const limit = 256 << 10
	if !fits(full(limit-1-4), "ab", "cd") || fits(full(limit-1-3), "ab", "cd") || !fits(nil, "ab", "cd") {
		t.Error("the bound is not that of the API server")
	}
}
