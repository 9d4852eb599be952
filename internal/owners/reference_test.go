package owners

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestReferencesOfEvents(t *testing.T) {
	job := build.Job("job")
	pod := build.Owner(build.Pod("pod", build.OwnedBy(job)))
	want := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: build.Namespace, Name: "pod", UID: "pod"}
	if diff := cmp.Diff(want, ObjectReference(pod)); diff != "" {
		t.Errorf("wrong reference to a pod (-want +got):\n%s", diff)
	}
	want = &corev1.ObjectReference{APIVersion: "batch/v1", Kind: "Job", Namespace: build.Namespace, Name: "job", UID: "job"}
	if diff := cmp.Diff(want, ControllerReference(pod)); diff != "" {
		t.Errorf("wrong reference to its Job (-want +got):\n%s", diff)
	}
}
