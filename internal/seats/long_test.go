package seats

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// choosy returns a pod with an affinity to n nodes.
func choosy(namespace, name string, n int) *corev1.Pod {
	pod := build.Pod(name, build.Container("c", "nginx"))
	pod.Namespace = namespace
	var nodes []string
	for i := range n {
		nodes = append(nodes, fmt.Sprintf("node-%s-%d", name, i))
	}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "name", Operator: corev1.NodeSelectorOpIn, Values: nodes}}}},
	}}}
	return pod
}

// TestLongPodsOfOneNamespaceAreBounded: what authors write into pods takes a bounded amount of
// memory for each namespace. Pods beyond it count, and are not moved.
func TestLongPodsOfOneNamespaceAreBounded(t *testing.T) {
	f := NewInformer(NewLedger(testingclock.NewFakePassiveClock(time.Unix(0, 0))), nil, nil)
	f.revision = func(_ *ownership.Reference, _ map[string]string) string { return "" }
	var kept, shortened int
	var memory int64
	for i := range 2000 {
		p := f.slim(choosy("crowd", fmt.Sprint("p-", i), 1000))
		memory += p.size()
		switch {
		case p.Demand.Partial:
			shortened++
			if len(p.Demand.Requests) == 0 || p.Demand.Affinity != nil || len(p.Containers) != 1 || p.NoImages {
				t.Fatalf("a pod keeps the wrong parts: %+v, %v", p.Demand, p.Containers)
			}
		default:
			kept++
		}
	}
	if kept == 0 || shortened == 0 || memory > maxPods+2000*freePod {
		t.Errorf("%d pods are whole and %d are not, and take %d bytes", kept, shortened, memory)
	}
	if p := f.slim(choosy("crowd", "modest", 10)); p.Demand.Partial {
		t.Error("a pod of usual size is shortened")
	}
	if p := f.slim(choosy("other", "o", 1000)); p.Demand.Partial {
		t.Error("a pod of another namespace is shortened")
	}
	if p := f.slim(choosy("third", "o", 100_000)); !p.Demand.Partial {
		t.Error("one pod takes megabytes")
	}
	for i := range 2000 {
		if err := f.Delete(choosy("crowd", fmt.Sprint("p-", i), 0)); err != nil {
			t.Fatal(err)
		}
	}
	if p := f.slim(choosy("crowd", "later", 1000)); p.Demand.Partial {
		t.Error("the memory of pods that were deleted is still counted")
	}
}

// TestImagesThatAreTooLongAreNotKept: they count as unknown, and not as none.
func TestImagesThatAreTooLongAreNotKept(t *testing.T) {
	f := NewInformer(NewLedger(testingclock.NewFakePassiveClock(time.Unix(0, 0))), nil, func(*ownership.Reference, map[string]string) string { return "" })
	p := f.slim(build.Pod("p", build.Container("c", fmt.Sprintf("%0100000d", 1))))
	if !p.NoImages || len(p.Containers) > 0 || !p.Demand.Partial {
		t.Errorf("%d containers are kept, NoImages is %t", len(p.Containers), p.NoImages)
	}
}

// TestDeletedLongPodsReleaseTheirMemoryBudget: also those that a list does not show any more, and those that
// have become shorter.
func TestDeletedLongPodsReleaseTheirMemoryBudget(t *testing.T) {
	f := NewInformer(NewLedger(testingclock.NewFakePassiveClock(time.Unix(0, 0))), nil, func(*ownership.Reference, map[string]string) string { return "" })
	fill := func(prefix string) (shortened bool) {
		for i := range 2000 {
			shortened = f.slim(choosy("crowd", fmt.Sprint(prefix, i), 1000)).Demand.Partial
		}
		return shortened
	}
	if !fill("a") {
		t.Fatal("2000 long pods fit")
	}
	if err := f.Replace(nil, "1"); err != nil {
		t.Fatal(err)
	}
	if f.slim(choosy("crowd", "b", 1000)).Demand.Partial {
		t.Error("pods that a list does not show any more still count")
	}
	fill("c")
	for i := range 2000 {
		f.slim(choosy("crowd", fmt.Sprint("c", i), 1))
	}
	if f.slim(choosy("crowd", "d", 1000)).Demand.Partial {
		t.Error("pods that have become shorter still count")
	}
}

// TestAShortenedPodIsNotMoved: it uses what it requests on its node, and no node is said to take
// it.
func TestAShortenedPodIsNotMoved(t *testing.T) {
	d := fit.DemandOf(choosy("n", "p", 3), choosy("n", "p", 3).Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	node := &fit.Node{Name: "n", Labels: map[string]string{"name": "node-p-0"}, Allocatable: fit.Amounts{{Name: corev1.ResourcePods, Value: 10}}}
	if why := fit.NewCheck(d, nil).Of(node); why != fit.Fits {
		t.Fatalf("the whole pod does not fit: %s", why)
	}
	check := fit.NewCheck(d.Shortened(), nil)
	if why := check.Of(node); why != fit.TooLong {
		t.Errorf("got %q, want %q", why, fit.TooLong)
	}
	if !check.Reaches(node) {
		t.Error("it is said never to run anywhere")
	}
	if d.Equal(d.Shortened()) {
		t.Error("it counts as equal to the whole")
	}
}

// TestTooLongAnnotationValuesAreIgnored: atoll-manager writes short tokens, and users may write
// anything.
func TestTooLongAnnotationValuesAreIgnored(t *testing.T) {
	long := fmt.Sprintf("%0100000d", 1)
	pod := build.Pod("p")
	pod.Annotations = map[string]string{}
	for _, key := range []string{gm.SeatAnnotation, gm.AdmissionAnnotation, gm.OverridesAnnotation, gm.CreatedForAnnotation, gm.UnassignedAnnotation, gm.NudgeAnnotation} {
		pod.Annotations[key] = long
	}
	p := Slim(pod)
	if n := len(p.Seat) + len(p.Admission) + len(p.Overrides) + len(p.CreatedFor) + len(p.Unassigned) + len(p.Nudge); n > 2500 {
		t.Errorf("%d bytes of them are kept", n)
	}
}
