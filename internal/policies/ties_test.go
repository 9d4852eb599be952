package policies

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestOwnerlessPodBreaksTiesByItsToken: a pod without an owner is a workload of its own,
// and has no UID yet when it gets its group. Ties then go by its token.
func TestOwnerlessPodBreaksTiesByItsToken(t *testing.T) {
	for name, tc := range map[string]struct {
		pod  *corev1.Pod
		want types.UID
	}{
		"a pod that got its seat at its creation": {build.Pod("p", build.Annotation(gm.SeatAnnotation, "token")), "token"},
		"one that did not":                        {build.Pod("p"), "p"},
	} {
		if got := seats.Slim(tc.pod).Object().Ties(); got != tc.want {
			t.Errorf("%s: ties go by %q, want %q", name, got, tc.want)
		}
	}
	o := build.Owner(build.Deployment("web", build.Annotation(gm.SeatAnnotation, "token")))
	if got := o.Ties(); got != "web" {
		t.Errorf("a Deployment's go by %q", got)
	}
}
