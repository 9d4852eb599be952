package propagationpolicy

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestWhatPodsSayReachesThePlan: what the ledger reads of pods and nodes is what plans and messages
// are made of.
func TestWhatPodsSayReachesThePlan(t *testing.T) {
	each := func(objects []build.Object, change func(*corev1.Pod)) []build.Object {
		for _, o := range objects {
			if node, ok := o.(*corev1.Node); ok {
				node.Labels = map[string]string{corev1.LabelHostname: node.Name, gm.NodeGroupLabel: node.Labels[gm.NodeGroupLabel]}
			}
			if pod, ok := o.(*corev1.Pod); ok {
				change(pod)
			}
		}
		return objects
	}
	namesNode := func(p *corev1.Pod) { p.Annotations = map[string]string{gm.NamesNodeAnnotation: "true"} }
	keepsApart := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}}}}
	}
	chooses := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"only": "bj"} }
	waitsFor := func(gates ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.NodeName = ""
			for _, gate := range gates {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
			}
		}
	}
	for name, tc := range map[string]struct {
		objects []build.Object
		lost    string // a node that is deleted
		evicted []string
		message string
	}{
		"the template names the node": {
			objects: join(base(), each(web("bj", "bj", "bj", "bj", "bj"), namesNode)),
			message: "pods are surplus and stay: the template of some names their node (spec.nodeName)",
		},
		"anti-affinity: the node of hz has a pod of the workload": {
			objects: each(join(base(), web("hz", "bj", "bj")), keepsApart),
			message: `pods are surplus and stay: NodeGroup "hz" can take none: the workload's pod anti-affinity or topology spread excludes its open nodes`,
		},
		"the pods' own node selector allows bj only": {
			objects: join(base(), each(web("bj", "bj", "bj", "bj", "bj"), chooses)),
			message: `pods are surplus and stay: NodeGroup "hz" can take none: no open node matches the pods' node selector and affinity`,
		},
		"the gate of another program": {
			objects: join(base(), each(web("hz"), waitsFor("example.com/other"))),
			message: `pods wait at scheduling gates of other programs, which have to remove them: "example.com/other"`,
		},
		"our own gate": {
			objects: join(base(), each(web("hz"), waitsFor(gm.PolicyGate))),
			message: "pods wait at the scheduling gate of atoll-manager: if this lasts, see the events of their owner",
		},
		"a deleted node": {
			objects: join(base(), web("hz", "hz", "hz", "bj", "bj")), lost: "node-bj", evicted: []string{"web-1-4"},
			message: `pods are on nodes that were deleted, and count in no NodeGroup: Kubernetes deletes them; NodeGroups are left out, because they do not exist or have no node: "bj"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			s.World.Ledger.ForgetNode(tc.lost)
			s.reconcile()
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(`Deployment "web": `+tc.message, s.message()); diff != "" {
				t.Errorf("wrong message (-want +got):\n%s", diff)
			}
		})
	}
}

// TestAPodBehindAnotherRevisionIsLentAtOnce, also if pods never go on loan: the rollout may wait for
// it.
func TestAPodBehindAnotherRevisionIsLentAtOnce(t *testing.T) {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(2))
	old := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(1))
	new := build.ReplicaSet("web-2", build.OwnedBy(deployment), build.Replicas(1))
	s := newFixture(t, append(base(after(0)), deployment, old, new,
		runningPod("web-1-0", "bj", 0, build.OwnedBy(old)), stuck("web-2-0", "bj", time.Second, new))...)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"web-2-0"}, s.Evicted); diff != "" {
		t.Errorf("wrong evictions (-want +got):\n%s", diff)
	}
}

// TestWorkloadsOfOneOwnerAreDividedOnTheirOwn: an owner without replicas of its own may have several
// StatefulSets. They are no revisions of each other.
func TestWorkloadsOfOneOwnerAreDividedOnTheirOwn(t *testing.T) {
	app := build.ReplicaSet("app", build.Bound("p", ""), build.With(func(r *appsv1.ReplicaSet) { r.Spec.Replicas = nil }))
	one := func(name string) []build.Object {
		set := build.StatefulSet(name, build.OwnedBy(app), build.Replicas(1))
		return []build.Object{set, runningPod(name+"-0", "hz", 0, build.OwnedBy(set))}
	}
	s := newFixture(t, slices.Concat(base(), []build.Object{app}, one("web"), one("db"))...)
	s.reconcile()
	s.reconcile() // several cohorts are balanced once they stand still
	if len(s.Evicted) != 0 || s.reason() != gm.ReasonSatisfied {
		t.Errorf("evicted %v: %s", s.Evicted, s.message())
	}
}
