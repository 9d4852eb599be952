package workload

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// newPinnedSite is a site without a scheduler that calls the extender.
func newPinnedSite(t *testing.T, objects ...build.Object) *site {
	t.Helper()
	s := newSite(t, objects...)
	s.Reconciler.Policies = policies.NewResolver(s.World.Client, s.World.Walker, s.World.Ledger, s.World.Clock, false)
	return s
}

// TestADaemonSetsPodForAnotherNodeWaitsAtTheGate: its successor would wait there too.
func TestADaemonSetsPodForAnotherNodeWaitsAtTheGate(t *testing.T) {
	daemons := build.DaemonSet("web", build.Bound("p", "o"))
	s := newPinnedSite(t, append(halves(), daemons, build.OverridePolicy("o", build.Args("hz", "c", "--hz")), build.Node("node-out"))...)
	s.World.Add(t, build.Pod("out", build.OwnedBy(daemons), build.Gated(), build.Container("c", "nginx:1"), build.ForNode("node-out"), build.Created(s.World.Clock.Now())))
	for range 100 {
		s.World.Clock.Step(5 * time.Second)
		if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Evicted)+len(s.woken) != 0 {
		t.Errorf("evicted %v, released %v", s.Evicted, s.woken)
	}
}

// TestPodsThatNameANodeGoToItsGroup, unless a DaemonSet created them.
func TestPodsThatNameANodeGoToItsGroup(t *testing.T) {
	s := newPinnedSite(t, append(web(build.Bound("p", ""), build.Replicas(4)), halves()...)...)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		s.World.Add(t, waiting(name, build.Gated(), build.ForNode("node-bj")))
	}
	s.reconcile("web")
	for _, name := range names {
		if got := s.pod(name).Labels[gm.NodeGroupLabel]; got != "bj" {
			t.Errorf("%s, which demands node-bj, is pinned to %q", name, got)
		}
	}
}

// TestIgnoredUnusablePolicyDelaysNoPod: the workload ignores a policy that
// is missing or invalid.
func TestIgnoredUnusablePolicyDelaysNoPod(t *testing.T) {
	invalid := build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) { p.Spec = gm.PropagationSpec{} }))
	for name, objects := range map[string][]build.Object{"invalid": {invalid, node}, "missing": {node}} {
		t.Run(name, func(t *testing.T) {
			s := newPinnedSite(t, append(web(build.Requires("p", ""), build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)), objects...)...)
			s.World.Add(t, waiting("a", build.Gated()))
			s.reconcile("web")
			if len(s.woken) != 1 {
				t.Errorf("released: %v", s.woken)
			}
		})
	}
}

// TestJobPodWithoutOverridesIsPinnedToItsGroup: the Job has started, so the pod cannot be
// recreated with its arguments.
func TestJobPodWithoutOverridesIsPinnedToItsGroup(t *testing.T) {
	s := newPinnedSite(t, batch(), policy, args, node, build.Node("node-out"))
	if err := s.World.Pods.Tracker().Add(batch()); err != nil {
		t.Fatal(err)
	}
	s.World.Add(t, jobPod("a"))
	s.World.Add(t, jobPod("b", build.On("node-hz")))
	s.World.Clock.Step(gateTime)
	if _, err := s.Reconcile(t.Context(), request{"batch"}); err != nil {
		t.Fatal(err)
	}
	got := s.pod("a")
	if len(got.Spec.SchedulingGates) != 0 || !placement.Pinned(&got.Spec, gm.NodeGroupLabel, "hz") {
		t.Errorf("gates %v, affinity %v", got.Spec.SchedulingGates, got.Spec.Affinity)
	}
	if len(s.Evicted) != 0 {
		t.Errorf("evicted: %v", s.Evicted)
	}
}

// TestPodsWithoutASeatCostNoReads: a pod with volumes is read only once a seat is open.
func TestPodsWithoutASeatCostNoReads(t *testing.T) {
	full := build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt32(0))}}
	}))
	s := newPinnedSite(t, append(web(build.Bound("p", "")), full, node)...)
	s.World.Add(t, waiting("a", build.Gated(), build.With(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
	})))
	s.World.Pods.ClearActions()
	for range 3 {
		if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range s.World.Pods.Actions() {
		if a.GetVerb() == "get" {
			t.Errorf("a pod without a seat is read: %v", a)
		}
	}
}

// TestSettlePatchNamesUIDAndResourceVersion: the patch fails for another pod of the name, and for a pod
// that has changed since.
func TestSettlePatchNamesUIDAndResourceVersion(t *testing.T) {
	s := newPinnedSite(t, append(web(build.Bound("p", "")), halves()...)...)
	s.World.Add(t, waiting("a", build.Gated(), build.With(func(p *corev1.Pod) { p.ResourceVersion = "7" })))
	s.World.Pods.ClearActions()
	s.reconcile("web")
	patches := 0
	for _, a := range s.World.Pods.Actions() {
		if patch, ok := a.(clienttesting.PatchAction); ok {
			patches++
			var is struct {
				Metadata struct{ UID, ResourceVersion string }
			}
			if err := json.Unmarshal(patch.GetPatch(), &is); err != nil || is.Metadata.UID != "a" || is.Metadata.ResourceVersion != "7" {
				t.Errorf("the patch is of %+v (%v)", is.Metadata, err)
			}
		}
	}
	if patches != 1 {
		t.Errorf("%d patches", patches)
	}
}

// TestPolicyBoundInThisPassIsNotMissing: the caches do not hold the binding label
// yet. The pod must not leave the gate without its group because of that.
func TestPolicyBoundInThisPassIsNotMissing(t *testing.T) {
	ignoring := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	s := newPinnedSite(t, append(web(build.Requires("p", ""), ignoring), halves()...)...)
	s.World.Add(t, waiting("a", build.Gated()))
	if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
		t.Fatal(err)
	}
	if got := s.pod("a"); len(got.Spec.SchedulingGates) == 0 && got.Spec.Affinity == nil {
		t.Errorf("it left the gate without a group (released: %v)", s.woken)
	}
}
