package workload

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var (
	node = build.Node("node-hz", build.InGroup("hz"))
	args = build.OverridePolicy("o", build.Args("hz", "c", "--hz"))
)

// gated returns a pod that has waited at the gate for some time.
func gated(name string, age time.Duration, options ...build.Option) *corev1.Pod {
	return waiting(name, append([]build.Option{build.Gated(), build.Created(time.Unix(1_000_000, 0).Add(-age))}, options...)...)
}

func TestGatedPods(t *testing.T) {
	both := build.Bound("p", "o")
	refused := func(version string) build.Option {
		return build.Annotation(gm.UnassignedAnnotation, version+" spec.overrideRules[0]: no such container")
	}
	full := build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(0))}}
	}))
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		evicted []string
		woken   []string
		requeue time.Duration
	}{
		"a pod that must be recreated is evicted": {
			objects: append(web(both), policy, args, node), pod: gated("a", gateTime), evicted: []string{"a"},
		},
		"it is not evicted before gateTime": {
			objects: append(web(both), policy, args, node), pod: gated("a", time.Second/2), requeue: gateTime - time.Second/2,
		},
		"it is not evicted while no seat is open": {
			objects: append(web(both), full, args, node), pod: gated("a", time.Hour), requeue: retrySeat,
		},
		"it is not evicted while a rule cannot be applied to it": {
			objects: append(web(both), policy, args, node), pod: gated("a", time.Hour, refused("o/1")),
		},
		"it is evicted if the policy was edited since": {
			objects: append(web(both), policy, args, node), pod: gated("a", time.Hour, refused("o/0")), evicted: []string{"a"},
		},
		"it is evicted if the policy was recreated since": {
			objects: append(web(both), policy, args, node), pod: gated("a", time.Hour, refused("older/1")), evicted: []string{"a"},
		},
		"a refusal of generation 10 does not count for generation 1": {
			objects: append(web(both), policy, args, node), pod: gated("a", time.Hour, refused("o/10")), evicted: []string{"a"},
		},
		"a pod that has the changes leaves the gate": {
			objects: append(web(both), policy, args, node), pod: gated("a", 0, build.Seated("hz")), woken: []string{"a"},
		},
		"images can change later: the pod leaves the gate": {
			objects: append(web(both), policy, override, node), pod: gated("a", 0), woken: []string{"a"},
		},
		"a pod that could have got its images early leaves the gate": {
			objects: append(web(both), build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentEarly)), override, node),
			pod:     gated("a", 0), woken: []string{"a"},
		},
		"a missing PropagationPolicy is ignored: its successor would be the same": {
			objects: append(web(build.Requires("gone", "o"), ignore), args, node), pod: gated("a", time.Hour), woken: []string{"a"},
			requeue: missingAfter,
		},
		"an OverridePolicy that another owner was bound to is gone": {
			objects: []build.Object{build.Deployment("web", build.Bound("p", ""), build.Replicas(1)), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.Bound("", "o")), policy, node},
			pod:     gated("a", time.Hour, build.OwnedBy(build.ReplicaSet("web-1"))), requeue: retrySeat,
		},
		"the pod of a DaemonSet needs no seat": {
			objects: []build.Object{build.DaemonSet("web", build.Bound("", "o")), args, node},
			pod:     build.Pod("a", build.OwnedBy(build.DaemonSet("web")), build.Gated(), build.Created(time.Unix(0, 0))), evicted: []string{"a"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.objects...)
			s.World.Add(t, tc.pod)
			result, err := s.Reconcile(t.Context(), request{"web"})
			if err != nil || result.RequeueAfter != tc.requeue {
				t.Errorf("runs again after %s, want %s (error %v)", result.RequeueAfter, tc.requeue, err)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.woken, s.woken); diff != "" {
				t.Errorf("wrong pods were released (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRulesThatAreEditedWhileAPodWaits: a pod that has its group leaves the gate with the images that
// the rules want now.
func TestRulesThatAreEditedWhileAPodWaits(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "o")), policy, override, node)...)
	s.World.Add(t, gated("a", 0, build.Seated("hz"), build.Container("c", "old.io/nginx:1"), build.Annotation(gm.OriginalImagesAnnotation, `{"c":"nginx:1"}`)))
	s.reconcile("web")
	if pod := s.pod("a"); pod.Spec.Containers[0].Image != "hz.io/nginx:1" || len(pod.Spec.SchedulingGates) != 0 {
		t.Errorf("the pod has image %s and gates %v", pod.Spec.Containers[0].Image, pod.Spec.SchedulingGates)
	}
}

func TestAnswersToAnEvictionOfAGatedPod(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		answer, want error
		requeue      time.Duration
	}{
		"done":                          {},
		"the pod is gone":               {answer: apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "a")},
		"a PodDisruptionBudget says no": {answer: build.EvictionRefused(), requeue: eviction.Retry},
		"the API server failed":         {answer: broken, want: broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "o")), policy, args, node)...)
			s.World.Add(t, gated("a", time.Hour))
			s.Answers = []error{tc.answer}
			result, err := s.Reconcile(t.Context(), request{"web"})
			if !errors.Is(err, tc.want) || result.RequeueAfter != tc.requeue {
				t.Errorf("runs again after %s, want %s; error %v, want %v", result.RequeueAfter, tc.requeue, err, tc.want)
			}
			if len(s.woken) != 0 {
				t.Errorf("the gate of %v was removed", s.woken)
			}
		})
	}
}

// goneAndBack deletes the evicted pods and creates their successors.
func (s *site) goneAndBack(successor func() *corev1.Pod) (gone int) {
	s.t.Helper()
	for _, name := range s.Evicted {
		s.World.Ledger.Forget(build.Pod(name).UID)
		s.World.See(successor())
	}
	gone, s.Evicted = len(s.Evicted), nil
	return gone
}

// TestRecreationOfGatedPodsBacksOff: its successors wait at the gate as well, because
// the replica that serves the webhook cannot reach the leader.
func TestRecreationOfGatedPodsBacksOff(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "o"), build.Replicas(2)), policy, args, node)...)
	s.World.Add(t, gated("g", gateTime))
	made, serial := 0, 0
	successor := func(options ...build.Option) func() *corev1.Pod {
		return func() *corev1.Pod {
			serial++
			return waiting(fmt.Sprint("g", serial), append(options, build.Created(s.World.Clock.Now()))...)
		}
	}
	for second := range 3600 {
		result, err := s.Reconcile(t.Context(), request{"web"})
		if err != nil {
			t.Fatal(err)
		}
		if second == 0 && len(s.Evicted) != 1 {
			t.Fatalf("the first pod is not evicted at once: runs again after %s", result.RequeueAfter)
		}
		made += s.goneAndBack(successor(build.Gated()))
		s.World.Clock.Step(time.Second)
	}
	if made < 10 || made > 25 {
		t.Errorf("one pod was evicted %d times in an hour, want longer and longer pauses up to five minutes", made)
	}
	s.World.See(successor(build.Seated("hz"))()) // the leader answers again
	last := successor(build.Gated())()
	s.World.See(last)
	s.World.Clock.Step(gateTime)
	if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil || !slices.Contains(s.Evicted, last.Name) {
		t.Errorf("a pod got its seat, and the next one is not evicted at once: %v (error %v)", s.Evicted, err)
	}
}

// TestRecreatedPodsNeverExceedOpenSeats: 50 pods wait for few seats. The successors of
// evicted pods have not arrived yet, and count.
func TestRecreatedPodsNeverExceedOpenSeats(t *testing.T) {
	for _, open := range []int{1, 7, 50, 60} {
		t.Run(fmt.Sprint(open), func(t *testing.T) {
			p := build.PropagationPolicy("p", build.With(func(p *gm.PropagationPolicy) {
				p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(open))}}
			}))
			s := newSite(t, append(web(build.Bound("p", "o"), build.Replicas(50)), p, args, node)...)
			for i := range 50 {
				s.World.Add(t, gated(fmt.Sprint("g", i), time.Hour))
			}
			pass := func(want int) {
				t.Helper()
				s.woken = nil
				if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil || len(s.Evicted) != want || len(s.woken) != 0 {
					t.Fatalf("%d pods are evicted, want %d; %d are released (error %v)", len(s.Evicted), want, len(s.woken), err)
				}
			}
			s.Answers = []error{build.EvictionRefused()} // takes no seat
			pass(min(open+1, 50))
			s.Evicted = s.Evicted[1:]
			for _, name := range s.Evicted {
				s.World.Ledger.Forget(build.Pod(name).UID)
			}
			if s.Evicted = nil; open < 50 {
				pass(0) // their successors have not arrived yet
			}
			for i := range min(open, 49) {
				s.World.See(waiting(fmt.Sprint("next", i), build.Seated("hz"), build.Created(s.World.Clock.Now())))
			}
			s.World.Clock.Step(time.Minute)
			pass(map[bool]int{true: 1}[open >= 50]) // the one that was refused, if it has a seat
			if open < 50 {
				s.World.Ledger.Forget(build.Pod("next0").UID)
				pass(1) // its seat is open
			}
		})
	}
}

// TestManyGatedPodsAreRecreatedAtOnce: weights limit no pods.
func TestManyGatedPodsAreRecreatedAtOnce(t *testing.T) {
	for name, options := range map[string]build.Option{"as many as it wants": build.Replicas(50), "fewer than there are": build.Replicas(10)} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "o"), options), policy, args, node)...)
			for i := range 50 {
				s.World.Add(t, gated(fmt.Sprint("g", i), gateTime))
			}
			s.World.Pods.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				eviction := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction)
				s.Evicted = append(s.Evicted, eviction.Name)
				s.World.Ledger.Forget(build.Pod(eviction.Name).UID) // is seen before the next is evicted
				return true, nil, nil
			})
			if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil || len(s.Evicted) != 50 {
				t.Errorf("%d of 50 pods are evicted in the first pass (error %v)", len(s.Evicted), err)
			}
		})
	}
}

// TestNoMorePodsThanSeatsLeaveTheGate: pods that kube-scheduler has already take seats first.
// If nothing limits the pods, all of them leave.
func TestNoMorePodsThanSeatsLeaveTheGate(t *testing.T) {
	upTo := func(n int) build.Object {
		return build.PropagationPolicy("p", build.Assigns(gm.AssignmentLate), build.With(func(p *gm.PropagationPolicy) {
			p.Spec.NumRange = []gm.NodeGroupNumRange{{NodeGroupNames: []string{"hz"}, Max: new(intstr.FromInt(n))}}
		}))
	}
	tests := map[string]struct {
		policy build.Object
		want   []string
	}{
		"full":                             {upTo(1), nil},
		"one seat is the refused pod's":    {upTo(2), []string{"refused"}},
		"the next is of one on its way":    {upTo(3), []string{"refused"}},
		"then they go as they came":        {upTo(4), []string{"refused", "gated-1"}},
		"all of them":                      {upTo(9), []string{"refused", "gated-1", "gated-2"}},
		"weights keep nobody at the gate":  {build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate)), []string{"refused", "gated-1", "gated-2"}},
		"nor does a policy without a node": {build.PropagationPolicy("p", build.Weight(1, "bj"), build.Assigns(gm.AssignmentLate)), []string{"refused", "gated-1", "gated-2"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", ""), build.Replicas(5)), tc.policy, node)...)
			for i, pod := range []*corev1.Pod{
				waiting("running", build.On("node-hz"), build.Running(0)), waiting("refused", build.Unschedulable()), waiting("fresh"),
				waiting("gated-1", build.Gated()), waiting("gated-2", build.Gated()),
			} {
				pod.CreationTimestamp = metav1.Unix(int64(i), 0)
				s.World.Add(t, pod)
			}
			result, err := s.Reconcile(t.Context(), request{"web"})
			if stay := bounded(tc.policy) && len(tc.want) < 3; err != nil || (result.RequeueAfter != 0) != stay {
				t.Errorf("runs again after %s, some pods stay: %t; error %v", result.RequeueAfter, stay, err)
			}
			if diff := cmp.Diff(tc.want, s.woken); diff != "" {
				t.Errorf("wrong pods were woken (-want +got):\n%s", diff)
			}
		})
	}
}

func bounded(policy build.Object) bool {
	p, ok := policy.(*gm.PropagationPolicy)
	return ok && p.Spec.NumRange != nil
}

// TestPodsStayGatedWhileNoGroupHasANode: otherwise kube-scheduler
// would call the extender for each of them whenever any pod changes.
func TestPodsStayGatedWhileNoGroupHasANode(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "")), policy)...)
	s.World.Add(t, gated("new", time.Hour))
	refused := waiting("old", build.Unschedulable(), build.With(func(p *corev1.Pod) { p.Status.Conditions[0].Message = seats.TextOutsideGroups }))
	s.World.Add(t, refused)
	s.World.Ledger.Forget(refused.UID) // evicted
	result, err := s.Reconcile(t.Context(), request{"web"})
	if len(s.woken) != 0 || result.RequeueAfter != retrySeat || err != nil {
		t.Errorf("woken %v, runs again after %s (error %v)", s.woken, result.RequeueAfter, err)
	}
	s.World.Add(t, node)
	if s.reconcile("web"); len(s.woken) != 1 {
		t.Errorf("with a node in the group, woken are %v", s.woken)
	}
}

// TestPendingPodsAreNudgedOnceAGroupIsAway: only the clock changes.
func TestPendingPodsAreNudgedOnceAGroupIsAway(t *testing.T) {
	silent := build.Node("node-bj", build.InGroup("bj"), build.With(func(n *corev1.Node) {
		n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionUnknown, metav1.Unix(1_000_000, 0)
	}))
	fails := build.PropagationPolicy("p", build.Weight(1, "hz", "bj"), build.With(func(p *gm.PropagationPolicy) {
		p.Spec.Failover = &gm.Failover{AfterSeconds: 60}
	}))
	s := newSite(t, append(web(build.Bound("p", ""), build.Replicas(2)), fails, node, silent)...)
	s.World.Add(t, waiting("runs", build.On("node-hz"), build.Running(0)))
	s.World.Add(t, waiting("refused", build.Unschedulable()))
	result, err := s.Reconcile(t.Context(), request{"web"})
	if len(s.woken) != 1 || result.RequeueAfter != time.Minute || err != nil {
		t.Errorf("woken %v, runs again after %s (error %v)", s.woken, result.RequeueAfter, err)
	}
	s.World.See(s.pod("refused"))
	s.World.Clock.Step(time.Minute)
	if s.reconcile("web"); len(s.woken) != 1 {
		t.Errorf("the other groups have its share, and woken are %v", s.woken)
	}
}
