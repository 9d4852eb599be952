package pod

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestForgedReviewsTakeFewSeatsForSeconds: anybody who reaches the port can post reviews of
// pods that nobody creates. However many, they take as many seats as the workload has
// replicas and 20 more, and a list of the pods frees all of them when ten seconds are over.
func TestForgedReviewsTakeFewSeatsForSeconds(t *testing.T) {
	w, _ := newWebhook(t, ground(build.Bound("p", ""), toHz)...)
	for range 200 {
		admit(t, w, webPod(), false)
	}
	const most = 20 + 1 // the Deployment has one replica
	if n := reserved(w); n == 0 || n > most {
		t.Errorf("200 forged reviews take %d seats, want at most %d", n, most)
	}
	ledger := w.Assigner.(*assign.Assigner).Ledger
	w.Clock.(*testingclock.FakeClock).Step(10 * time.Second)
	for _, overdue := range ledger.Overdue() {
		ledger.RecordLookup(overdue, func(types.UID) bool { return false }) // the list has none of them
	}
	if n := reserved(w); n != 0 {
		t.Errorf("%d seats are not free after ten seconds", n)
	}
	if got := admit(t, w, webPod(), false); got.Labels[gm.NodeGroupLabel] != "hz" || len(got.Spec.SchedulingGates) > 0 {
		t.Errorf("a pod that is created then is in group %q with the gates %v", got.Labels[gm.NodeGroupLabel], got.Spec.SchedulingGates)
	}
}

// TestForgedReviewsRevealNoUnknownOwner: the answer to a review has the group
// and the overrides of the pod's workload. To get them, a client must know the namespace of
// the workload, and the UID of the pod's owner, which is random.
func TestForgedReviewsRevealNoUnknownOwner(t *testing.T) {
	secret := build.OverridePolicy("o", build.Args("hz", "c", "--secret"))
	owned := func(change func(*corev1.Pod)) *corev1.Pod {
		pod := webPod()
		pod.Namespace, pod.UID = "", ""
		change(pod)
		return pod
	}
	for name, tc := range map[string]struct {
		namespace string
		pod       *corev1.Pod
		learns    bool
	}{
		"the owner in its namespace":      {build.Namespace, owned(func(*corev1.Pod) {}), true},
		"the owner, in another namespace": {"another", owned(func(*corev1.Pod) {}), false},
		"the name of the owner":           {build.Namespace, owned(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "guessed" }), false},
		"the policies, in another namespace": {"another", owned(func(p *corev1.Pod) {
			p.OwnerReferences = nil
			p.Labels = map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o"}
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, secret)...)
			before := tc.pod.DeepCopy()
			w.Admit(t.Context(), tc.namespace, false, tc.pod)
			if learns := cmp.Diff(before.Spec.Containers, tc.pod.Spec.Containers) != "" || strings.Contains(tc.pod.String(), "hz"); learns != tc.learns {
				t.Errorf("the answer has the group or the overrides: %v\n%s", learns, cmp.Diff(before, tc.pod))
			}
			if n := reserved(w); (n > 0) != tc.learns {
				t.Errorf("%d seats are reserved", n)
			}
		})
	}
}
