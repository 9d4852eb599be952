package workload

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// halves gives two groups the same weight. hz selects its nodes by a label.
func halves() []build.Object {
	return []build.Object{
		build.PropagationPolicy("p", build.Weight(1, "hz", "bj")),
		&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "hz"}, Spec: gm.NodeGroupSpec{MatchLabels: map[string]string{"zone": "hangzhou"}}},
		&gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "bj"}, Spec: gm.NodeGroupSpec{Nodes: []string{"node-bj"}}},
		build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")),
	}
}

func aged(age time.Duration) build.Option {
	return func(o build.Object) { build.Created(time.Unix(1_000_000, 0).Add(-age))(o) }
}

func requiresNode(key, value string) build.Option {
	return build.With(func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in(key, value)}}},
		}}}
	})
}

func in(key, value string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
}

// TestGatedPodsAreAssignedOldestFirst: gated pods are assigned in the order of their age. Each
// gets its group, with the images of the group.
func TestGatedPodsAreAssignedOldestFirst(t *testing.T) {
	s := newSite(t, slices.Concat(web(build.Bound("p", "o"), build.Replicas(3)), halves(), []build.Object{override})...)
	for i, name := range []string{"c", "a", "b"} {
		s.World.Add(t, waiting(name, build.Gated(), build.Container("c", "nginx:1"), aged(time.Duration(3-i)*time.Minute)))
	}
	s.reconcile("web")
	if diff := cmp.Diff([]string{"c", "a", "b"}, s.woken); diff != "" {
		t.Errorf("wrong order (-want +got):\n%s", diff)
	}
	count := map[string]int{}
	for _, name := range s.woken {
		pod := s.pod(name)
		seen := seats.Slim(pod)
		count[seen.GroupStamp]++
		image := map[string]string{"hz": "hz.io/nginx:1", "bj": "nginx:1"}[seen.GroupStamp]
		if seen.Gated || !seen.Pinned() || !seen.OwnCost || pod.Spec.Containers[0].Image != image || pod.Labels[gm.BindingPropagationPolicyLabel] != "p" {
			t.Errorf("%s is %+v with image %s, want it pinned, with %s", name, seen, pod.Spec.Containers[0].Image, image)
		}
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in(gm.NodeGroupLabel, seen.GroupStamp)}}}
		if seen.GroupStamp == "hz" { // defined by a label: a node with it may come up and not be labelled yet
			want = slices.Insert(want, 0, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
				in("zone", "hangzhou"), {Key: gm.NodeGroupLabel, Operator: corev1.NodeSelectorOpDoesNotExist},
			}})
		}
		if diff := cmp.Diff(want, pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s demands (-want +got):\n%s", name, diff)
		}
	}
	if count["hz"]+count["bj"] != 3 || count["hz"] == 3 || count["bj"] == 3 {
		t.Errorf("they are divided as %v", count)
	}
	if len(s.Evicted) > 0 {
		t.Errorf("evicted: %s", s.Evicted)
	}
}

// TestGatedPodsWithoutExtenderGetTheirGroup: a pod at the gate that was admitted in another form of the
// installation gets its group and its images there, because kube-scheduler will not ask for it.
func TestGatedPodsWithoutExtenderGetTheirGroup(t *testing.T) {
	late := build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate))
	const mark = "example.com/managed"
	marked := build.With(func(p *corev1.Pod) { // and another webhook has put a container before it
		sidecar := corev1.Container{Name: "sidecar", Image: "proxy:1"}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{mark: resource.MustParse("0")}
		p.Spec.InitContainers = append(p.Spec.InitContainers, sidecar)
	})
	isolated := build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = "second" })
	tests := map[string]struct {
		scheduler, mark string
		option          build.Option
		want            bool
	}{
		"another scheduler calls the extender": {scheduler: "second", option: build.With(func(*corev1.Pod) {}), want: true},
		"the pod names it":                     {scheduler: "second", option: isolated},
		"without the mark":                     {mark: mark, option: build.With(func(*corev1.Pod) {}), want: true},
		"with another one":                     {mark: "example.com/other", option: marked, want: true},
		"with the mark":                        {mark: mark, option: marked},
		"every pod is seen":                    {option: build.With(func(*corev1.Pod) {})},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "o")), late, override, node)...)
			s.SchedulerName, s.Mark = tc.scheduler, corev1.ResourceName(tc.mark)
			s.World.Add(t, gated("a", 0, build.Container("c", "nginx:1"), tc.option))
			s.reconcile("web")
			pod := s.pod("a")
			seen := seats.Slim(pod)
			if want := map[bool]string{true: "hz.io/nginx:1", false: "nginx:1"}[tc.want]; seen.Gated || seen.Pinned() != tc.want || pod.Spec.Containers[0].Image != want {
				t.Errorf("the pod is %+v, want it pinned: %t, with %s", seen, tc.want, want)
			}
		})
	}
}

// TestGatedDaemonSetPodsFollowTheirNodesGroup: DaemonSet pods for which the extender is not called
// stay at the gate if their node is in no group of the policy. If it is in one, they start with
// the images of that group.
func TestGatedDaemonSetPodsFollowTheirNodesGroup(t *testing.T) {
	of := func(name string) build.Option {
		return build.With(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", name)}}},
			}}}
		})
	}
	daemons := build.DaemonSet("web", build.Bound("p", "o"))
	s := newSite(t, daemons, policy, override, node, build.Node("other"))
	s.SchedulerName = "second"
	for name, at := range map[string]string{"a": "node-hz", "b": "other"} {
		s.World.Add(t, build.Pod(name, build.OwnedBy(daemons), build.Gated(), build.Container("c", "nginx:1"), of(at)))
	}
	if result, err := s.Reconcile(t.Context(), request{"web"}); err != nil || result.RequeueAfter != retrySeat {
		t.Errorf("runs again after %s, error %v", result.RequeueAfter, err)
	}
	if pod := s.pod("a"); len(pod.Spec.SchedulingGates) != 0 || pod.Spec.Containers[0].Image != "hz.io/nginx:1" {
		t.Errorf("the pod in the group has gates %v and image %s", pod.Spec.SchedulingGates, pod.Spec.Containers[0].Image)
	}
	if diff := cmp.Diff([]string{"a"}, s.woken); diff != "" {
		t.Errorf("wrong pods were released (-want +got):\n%s", diff)
	}
}

// TestGatedPodKeepsItsOwnNodeAffinity: no node selector term may be added there.
func TestGatedPodKeepsItsOwnNodeAffinity(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "")), halves()...)...)
	s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("node-hz", build.InGroup("hz"), build.Label("disk", "ssd"))))
	s.World.Add(t, waiting("a", build.Gated(), requiresNode("disk", "ssd")))
	s.World.Add(t, waiting("b", build.Gated(), requiresNode("disk", "ssd")))
	s.reconcile("web")
	for _, name := range []string{"a", "b"} { // none fits a node of bj: the second is on loan
		want := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{in("disk", "ssd"), in(gm.NodeGroupLabel, "hz")}}}
		if diff := cmp.Diff(want, s.pod(name).Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms); diff != "" {
			t.Errorf("%s demands (-want +got):\n%s", name, diff)
		}
	}
}

// TestPodsWithoutASeatStayAtTheGate, and the request is repeated.
func TestPodsWithoutASeatStayAtTheGate(t *testing.T) {
	full := build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(0))}}
	}))
	for name, objects := range map[string][]build.Object{
		"the policy gives no group another pod": {full, node},
		"no group has a node":                   {build.PropagationPolicy("p", build.Weight(1, "hz"))},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "")), objects...)...)
			s.World.Add(t, waiting("a", build.Gated()))
			result, err := s.Reconcile(t.Context(), request{"web"})
			if err != nil || result.RequeueAfter != retrySeat || len(s.woken) > 0 {
				t.Errorf("runs again after %s (error %v), and pods were released: %s", result.RequeueAfter, err, s.woken)
			}
		})
	}
}

// TestConflictingPodKeepsItsReservedGroup: if the patch of a pod fails with a conflict, the retry
// assigns the pod to the group whose seat was reserved for it.
func TestConflictingPodKeepsItsReservedGroup(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", ""), build.Replicas(2)), halves()...)...)
	s.World.Add(t, waiting("a", build.Gated()))
	answer := error(apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "a", errors.New("it changed")))
	s.World.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return answer != nil, nil, answer
	})
	if result, err := s.Reconcile(t.Context(), request{"web"}); err != nil || result.RequeueAfter != retryConflict {
		t.Errorf("runs again after %s, error %v", result.RequeueAfter, err)
	}
	first := held(s)
	answer = nil
	s.reconcile("web")
	if got := s.pod("a").Labels[gm.NodeGroupLabel]; got != first {
		t.Errorf("it is settled in %q, but %q was reserved for it", got, first)
	}
}

// held returns the group of the one reserved seat.
func held(s *site) string {
	s.t.Helper()
	for _, c := range s.World.Ledger.View([]types.UID{"web-1"}) {
		for _, pod := range c.Pods {
			if pod.Seated {
				return pod.Group
			}
		}
	}
	s.t.Fatal("no seat is reserved")
	return ""
}

// TestPinnedPodsOfADaemonSet leave the gate for nodes in the groups of their policy. Those
// for other nodes stay there.
func TestPinnedPodsOfADaemonSet(t *testing.T) {
	daemons := build.DaemonSet("web", build.Bound("p", "o"))
	s := newSite(t, append(halves(), daemons, override, build.Node("node-out"))...)
	s.Reconciler.Policies = policies.NewResolver(s.World.Client, s.World.Walker, s.World.Ledger, s.World.Clock, false)
	for _, at := range []string{"node-hz", "node-out"} {
		s.World.Add(t, build.Pod(at, build.OwnedBy(daemons), build.Gated(), build.Container("c", "nginx:1"), build.With(func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{in(metav1.ObjectNameField, at)}}},
			}}}
		})))
	}
	result, err := s.Reconcile(t.Context(), request{"web"})
	if err != nil || result.RequeueAfter != retrySeat {
		t.Errorf("runs again after %s, error %v", result.RequeueAfter, err)
	}
	if diff := cmp.Diff([]string{"node-hz"}, s.woken); diff != "" {
		t.Errorf("wrong pods were released (-want +got):\n%s", diff)
	}
	if got := s.pod("node-hz").Spec.Containers[0].Image; got != "hz.io/nginx:1" {
		t.Errorf("its image is %s", got)
	}
}

// TestRefusedGateRemovalIsReported: an admission policy that forbids the change of pods keeps them
// at the gate. The workload gets an event, and the policy's status shows the error.
func TestRefusedGateRemovalIsReported(t *testing.T) {
	for name, refusal := range map[string]error{
		"an admission policy": apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil),
		"another webhook":     apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "a", errors.New("no")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "")), halves()...)...)
			s.World.Add(t, waiting("a", build.Gated()))
			answer := refusal
			s.World.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return answer != nil, nil, answer })
			var told []types.UID
			s.World.Policies.OnHeld(func(uid types.UID) { told = append(told, uid) })
			for range 2 {
				if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, refusal) {
					t.Fatalf("error is %v, want %v", err, refusal)
				}
			}
			if why := s.World.Policies.Held([]types.UID{"other", "web"}); !strings.Contains(why, refusal.Error()) || len(told) != 1 {
				t.Errorf("reported %d times: %q", len(told), why)
			}
			if event := <-s.events.Events; !strings.HasPrefix(event, "Warning PodsHeld ") || !strings.Contains(event, refusal.Error()) {
				t.Errorf("event is %q", event)
			}
			answer = nil
			s.reconcile("web")
			if why := s.World.Policies.Held([]types.UID{"web"}); why != "" || len(told) != 2 {
				t.Errorf("still reported: %q", why)
			}
		})
	}
}
