package propagationpolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// fixture is a reconciler and the objects that it observes.
type fixture struct {
	*Reconciler
	*world.World
	t      *testing.T
	events *events.FakeRecorder
}

func newFixture(t *testing.T, objects ...build.Object) *fixture {
	t.Helper()
	s := &fixture{World: world.New(t, objects...), t: t, events: events.NewFakeRecorder(100)}
	s.Reconciler = &Reconciler{
		Surveyor: &survey.Surveyor{Pods: s.World.Pods, Walker: s.World.Walker, Ledger: s.World.Ledger, Policies: s.World.Policies, Clock: s.World.Clock},
		Client:   s.World.Client, Recorder: s.events, Evictor: &eviction.Evictor{Client: s.World.Pods, Pace: eviction.NewPace(rate.Inf, 0)},
		Jobs: &jobs.Restarter{Client: s.World.Pods, Annotation: gm.JobRestartAnnotation},
	}
	return s
}

// pass runs one pass of policy p.
func (s *fixture) pass() (ctrl.Result, error) {
	s.Evicted = nil
	return s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: build.Namespace, Name: "p"}})
}

// reconcile runs one pass that must not fail, after the stabilization time.
func (s *fixture) reconcile() ctrl.Result {
	s.t.Helper()
	s.Settle(s.t)
	result, err := s.pass()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, a := range s.World.Pods.Actions() {
		if strings.HasPrefix(a.GetVerb(), "delete") {
			s.t.Errorf("%s %s/%s: pods leave by eviction only", a.GetVerb(), a.GetResource().Resource, a.GetSubresource())
		}
	}
	return result
}

func (s *fixture) policy() *gm.PropagationPolicy {
	s.t.Helper()
	policy := &gm.PropagationPolicy{}
	if err := s.World.Client.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: "p"}, policy); err != nil {
		s.t.Fatal(err)
	}
	return policy
}

func (s *fixture) reason() string {
	s.t.Helper()
	c := meta.FindStatusCondition(s.policy().Status.Conditions, gm.ConditionReady)
	if c == nil {
		return ""
	}
	return c.Reason
}

// web returns a Deployment and one running pod in each of the groups, in this order.
func web(groups ...string) []build.Object {
	deployment := build.Deployment("web", build.Bound("p", ""), build.Replicas(int32(len(groups))))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment), build.Replicas(int32(len(groups))))
	objects := []build.Object{deployment, replicaSet}
	for i, group := range groups {
		objects = append(objects, runningPod(fmt.Sprint("web-1-", i), group, i, build.OwnedBy(replicaSet)))
	}
	return objects
}

func runningPod(name, group string, age int, options ...build.Option) *corev1.Pod {
	options = append([]build.Option{build.On("node-" + group), build.Running(0), build.Created(time.Unix(int64(age), 0))}, options...)
	return build.Pod(name, options...)
}

// base returns two groups of one node each, a node of no group, and policy p.
func base(options ...build.Option) []build.Object {
	options = append([]build.Option{build.Weight(3, "hz"), build.Weight(2, "bj")}, options...)
	return []build.Object{
		build.Node("node-hz", build.InGroup("hz")), build.Node("node-bj", build.InGroup("bj")), build.Node("node-"),
		build.PropagationPolicy("p", options...),
	}
}

func maxUnavailable(n int32) build.Option {
	return build.With(func(p *gm.PropagationPolicy) { p.Spec.Rescheduling.MaxUnavailable = n })
}

func join(a, b []build.Object) []build.Object { return append(a, b...) }

func TestReconcileEvictsWhatIsSurplus(t *testing.T) {
	job := build.Job("batch", build.Bound("p", ""), build.Replicas(2))
	daemons := build.DaemonSet("agent", build.Bound("p", ""))
	tests := map[string]struct {
		objects []build.Object
		evicted []string
		reason  string
	}{
		"the pods are where they are wanted": {
			objects: join(base(), web("hz", "hz", "hz", "bj", "bj")), reason: gm.ReasonSatisfied,
		},
		"one is not": {
			objects: join(base(), web("hz", "hz", "bj", "bj", "bj")), evicted: []string{"web-1-4"}, reason: gm.ReasonConverging,
		},
		"one at a time": {
			objects: join(base(), web("bj", "bj", "bj", "bj", "bj")), evicted: []string{"web-1-4"}, reason: gm.ReasonConverging,
		},
		"as many at a time as the policy allows": {
			objects: join(base(maxUnavailable(2)), web("bj", "bj", "bj", "bj", "bj")), evicted: []string{"web-1-4", "web-1-3"}, reason: gm.ReasonConverging,
		},
		"no workload requires the policy": {
			objects: base(), reason: gm.ReasonNotUsed,
		},
		"the pods of a Job would lose their work": {
			objects: join(base(), []build.Object{job, runningPod("batch-0", "bj", 0, build.OwnedBy(job)), runningPod("batch-1", "bj", 1, build.OwnedBy(job))}),
			reason:  gm.ReasonConverging,
		},
		"a Job that is done wants no pod any more": {
			objects: join(base(), []build.Object{job, runningPod("batch-0", "bj", 0, build.OwnedBy(job), build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))}),
			reason:  gm.ReasonNoPods,
		},
		"the pods of a DaemonSet come back where they were": {
			objects: join(base(), []build.Object{daemons, runningPod("agent-0", "", 0, build.OwnedBy(daemons)), runningPod("agent-1", "bj", 1, build.OwnedBy(daemons))}),
			reason:  gm.ReasonSatisfied,
		},
		"a pod without an owner does not come back": {
			objects: join(base(), []build.Object{runningPod("bare", "", 0, build.Bound("p", ""))}),
			reason:  gm.ReasonConverging,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			s.reconcile()
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if got := s.reason(); got != tc.reason {
				t.Errorf("reason is %s, want %s", got, tc.reason)
			}
			if len(s.events.Events) != len(tc.evicted) {
				t.Errorf("%d events for %d evictions", len(s.events.Events), len(tc.evicted))
			}
		})
	}
}

// TestManyEvictionsAreRequestedAtTheSameTime and share few events. Where the namespace
// has a PodDisruptionBudget they are requested one after the other.
func TestManyEvictionsAreRequestedAtTheSameTime(t *testing.T) {
	groups := make([]string, 50)
	for i := range groups {
		groups[i] = "bj"
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: "budget"}}
	for name, tc := range map[string]struct {
		budgets []runtime.Object
		events  int
	}{
		"1, 2, 4, 8 and the last 15 of 30": {events: 5},
		"one by one":                       {budgets: []runtime.Object{budget}, events: 30},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, join(base(maxUnavailable(50)), web(groups...))...)
			for _, o := range tc.budgets {
				if err := s.World.Pods.Tracker().Add(o); err != nil {
					t.Fatal(err)
				}
			}
			s.reconcile()
			if len(s.Evicted) != 30 || len(s.events.Events) != tc.events {
				t.Errorf("%d pods were evicted with %d events, want 30 and %d", len(s.Evicted), len(s.events.Events), tc.events)
			}
		})
	}
}

func TestNothingIsEvictedBeforeTheGroupsHaveSettled(t *testing.T) {
	s := newFixture(t, join(base(), web("hz", "hz", "bj", "bj", "bj"))...)
	result, err := s.pass()
	if err != nil || result.RequeueAfter != gm.DefaultStabilization || len(s.Evicted) != 0 {
		t.Errorf("evicted %v, comes back after %s (error %v); want nothing, and back after %s", s.Evicted, result.RequeueAfter, err, gm.DefaultStabilization)
	}
}

func TestAnswersToAnEviction(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	tests := map[string]struct {
		answer error
		// evicted are the evictions that one pass requests. maxUnavailable allows two.
		evicted []string
		reason  string
		requeue time.Duration
		// spared: the pod counts as not disturbed.
		spared bool
	}{
		"done": {
			evicted: []string{"web-1-4", "web-1-3"}, reason: gm.ReasonConverging,
		},
		"a PodDisruptionBudget refuses: the rest waits too": {
			answer:  build.EvictionRefused(),
			evicted: []string{"web-1-4"}, reason: gm.ReasonBlockedByPDB, requeue: eviction.Retry, spared: true,
		},
		"the API server does not answer in time: the rest waits too": {
			answer:  fmt.Errorf("asking: %w", context.DeadlineExceeded),
			evicted: []string{"web-1-4"}, reason: gm.ReasonConverging, requeue: eviction.Retry, spared: true,
		},
		"the pod is gone: it is missed, and one more may go": {
			answer:  apierrors.NewNotFound(pods, "web-1-4"),
			evicted: []string{"web-1-4", "web-1-3"}, reason: gm.ReasonConverging,
		},
		"another client wrote the pod in between: retried at once": {
			answer:  apierrors.NewConflict(pods, "web-1-4", errors.New("version")),
			evicted: []string{"web-1-4"}, reason: gm.ReasonConverging, requeue: 50 * time.Millisecond, spared: true,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, join(base(maxUnavailable(2)), web("bj", "bj", "bj", "bj", "bj"))...)
			s.Answers = []error{tc.answer}
			result := s.reconcile()
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if got := s.reason(); got != tc.reason {
				t.Errorf("reason is %s, want %s", got, tc.reason)
			}
			if result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s", result.RequeueAfter, tc.requeue)
			}
			if got := s.World.Ledger.Disrupt("web-1-4", s.World.Walker.Descendants("web"), 5, 5); got != tc.spared {
				t.Errorf("the pod may be disturbed: %t, want %t", got, tc.spared)
			}
		})
	}
	t.Run("the API server fails: the error is returned, and the pod spared", func(t *testing.T) {
		s := newFixture(t, join(base(), web("bj", "bj", "bj", "bj", "bj"))...)
		s.Settle(s.t)
		broken := errors.New("broken")
		s.Answers = []error{broken}
		if _, err := s.pass(); !errors.Is(err, broken) {
			t.Errorf("error is %v", err)
		}
		if !s.World.Ledger.Disrupt("web-1-4", s.World.Walker.Descendants("web"), 5, 1) {
			t.Error("the pod counts as disturbed")
		}
		if got := s.reason(); got != gm.ReasonConverging {
			t.Errorf("reason is %s: a failed phase hides the report", got)
		}
	})
}

func TestThePaceBoundsAllWorkloadsTogether(t *testing.T) {
	other := build.Deployment("other", build.Bound("p", ""), build.Replicas(1))
	otherSet := build.ReplicaSet("other-1", build.OwnedBy(other))
	s := newFixture(t, append(join(base(), web("bj", "bj", "bj", "bj", "bj")), other, otherSet, runningPod("other-1-0", "", 9, build.OwnedBy(otherSet)))...)
	s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 1)
	result := s.reconcile()
	if len(s.Evicted) != 1 {
		t.Errorf("evicted %v at a pace of one", s.Evicted)
	}
	if result.RequeueAfter != eviction.Retry {
		t.Errorf("comes back after %s, want %s", result.RequeueAfter, eviction.Retry)
	}
	left, owner := "web-1-4", "web"
	if s.Evicted[0] == "web-1-4" {
		left, owner = "other-1-0", "other"
	}
	if !s.World.Ledger.Disrupt(build.Pod(left).UID, s.World.Walker.Descendants(build.Pod(owner).UID), 1, 5) {
		t.Errorf("%s waits for the pace and counts as disturbed", left)
	}
}

// TestFailedObservationKeepsTheRestOfTheStatus: if a pass cannot observe, the condition is
// Unknown with the cause, and the rest of the status stays.
func TestFailedObservationKeepsTheRestOfTheStatus(t *testing.T) {
	s := newFixture(t, join(base(), web("hz", "hz", "hz", "bj", "bj"))...)
	s.reconcile()
	policy := s.policy()
	before := policy.DeepCopy()
	policy.Generation = 2
	setStatus(&scope{policy: policy, unseen: errors.New("the cache is gone")})
	c := meta.FindStatusCondition(policy.Status.Conditions, gm.ConditionReady)
	if c == nil || c.Status != metav1.ConditionUnknown || c.Reason != gm.ReasonObservationFailed || c.Message != "the cache is gone" {
		t.Errorf("Ready is %+v", c)
	}
	before.Status.Conditions, policy.Status.Conditions = nil, nil
	if diff := cmp.Diff(before.Status, policy.Status); diff != "" {
		t.Errorf("what was seen last is gone (-before +after):\n%s", diff)
	}
}

// TestAPolicyWithoutPodsIsNotSatisfied: without pods nothing was observed.
func TestAPolicyWithoutPodsIsNotSatisfied(t *testing.T) {
	s := newFixture(t, join(base(), []build.Object{build.Deployment("web", build.Bound("p", ""), build.Replicas(0))})...)
	s.reconcile()
	c := meta.FindStatusCondition(s.policy().Status.Conditions, gm.ConditionReady)
	if c == nil || c.Status != metav1.ConditionUnknown || c.Reason != gm.ReasonNoPods {
		t.Errorf("Ready is %+v", c)
	}
}

func TestStatus(t *testing.T) {
	t.Run("a spec that cannot be used is a condition, and nothing else happens", func(t *testing.T) {
		s := newFixture(t, join([]build.Object{build.PropagationPolicy("p"), build.Node("node-bj", build.InGroup("bj"))}, web("bj"))...)
		s.reconcile()
		c := meta.FindStatusCondition(s.policy().Status.Conditions, gm.ConditionReady)
		if c == nil || c.Reason != gm.ReasonInvalid || c.Status != metav1.ConditionFalse || c.ObservedGeneration != 1 || len(s.Evicted) != 0 {
			t.Errorf("condition %+v, evicted %v", c, s.Evicted)
		}
	})
	t.Run("a spec that becomes unusable clears the workloads", func(t *testing.T) {
		s := newFixture(t, join(base(), web("hz"))...)
		s.reconcile()
		policy := s.policy()
		policy.Spec.StaticWeight, policy.Generation = nil, 2
		if err := s.World.Client.Update(t.Context(), policy); err != nil {
			t.Fatal(err)
		}
		s.reconcile()
		if got := s.policy().Status; s.reason() != gm.ReasonInvalid || len(got.Apps) != 0 || got.Workloads != 0 {
			t.Errorf("the policy is %s, and shows %v of %d workloads", s.reason(), got.Apps, got.Workloads)
		}
	})
	t.Run("workloads are sorted, the worst first, and at most so many shown", func(t *testing.T) {
		objects := base()
		for i := range maxShown + 5 {
			name := fmt.Sprintf("web-%02d", i)
			deployment := build.Deployment(name, build.Bound("p", ""))
			replicaSet := build.ReplicaSet(name+"-1", build.OwnedBy(deployment))
			group := "hz"
			if i == maxShown+1 {
				group = "" // on no group's node: surplus
			}
			objects = append(objects, deployment, replicaSet, runningPod(name+"-1-0", group, 0, build.OwnedBy(replicaSet)))
		}
		s := newFixture(t, objects...)
		s.reconcile()
		status := s.policy().Status
		if len(status.Apps) != maxShown || status.Workloads != maxShown+5 {
			t.Errorf("%d of %d workloads shown, want %d of %d", len(status.Apps), status.Workloads, maxShown, maxShown+5)
		}
		if status.Apps[0].Ref.Name != "web-51" {
			t.Errorf("%s comes first, and web-51 is what is wrong", status.Apps[0].Ref.Name)
		}
		for i := 2; i < len(status.Apps); i++ {
			if status.Apps[i-1].Ref.Name > status.Apps[i].Ref.Name {
				t.Errorf("%s stands before %s", status.Apps[i-1].Ref.Name, status.Apps[i].Ref.Name)
			}
		}
	})
	t.Run("at rest nothing is written", func(t *testing.T) {
		s := newFixture(t, join(base(), web("hz", "hz", "hz", "bj", "bj"))...)
		s.reconcile()
		before := s.policy().ResourceVersion
		s.reconcile()
		if after := s.policy().ResourceVersion; after != before {
			t.Errorf("the status was written at rest: version %s became %s", before, after)
		}
		if len(s.Evicted) != 0 {
			t.Errorf("evicted %v at rest", s.Evicted)
		}
	})
	t.Run("a policy that is gone or on its way out is left alone", func(t *testing.T) {
		for name, s := range map[string]*fixture{
			"gone":    newFixture(t, web("bj", "bj")...),
			"leaving": newFixture(t, join(base(build.Deleting("example.com/f")), web("bj", "bj", "bj", "bj", "bj"))...),
		} {
			s.reconcile()
			if len(s.Evicted) != 0 {
				t.Errorf("%s: evicted %v", name, s.Evicted)
			}
		}
	})
}

// TestReconcilingEndsAtTheDivision plays the ReplicaSet and kube-scheduler: the successor
// of each evicted pod runs in the group that the ledger reserves.
func TestReconcilingEndsAtTheDivision(t *testing.T) {
	s := newFixture(t, join(base(), web("bj", "bj", "bj", "bj", ""))...)
	replicaSet := build.ReplicaSet("web-1")
	spread, err := s.World.Policies.Spread(s.policy(), "web")
	if err != nil {
		t.Fatal(err)
	}
	for pass := 0; s.reason() != gm.ReasonSatisfied; pass++ {
		if pass > 10 {
			t.Fatalf("after %d passes the policy is %s", pass, s.reason())
		}
		s.reconcile()
		for _, name := range s.Evicted {
			s.World.Ledger.Forget(build.Pod(name).UID)
			next := build.Pod(fmt.Sprintf("web-1-next-%d", pass), build.OwnedBy(replicaSet))
			group, why := s.World.Ledger.Reserve(seats.Request{
				Pod: next.UID, Cohort: seats.Cohort{Owner: "web-1"}, Total: 5, Spread: spread, Nodes: []string{"node-hz", "node-bj", "node-"},
			})
			if why != seats.Seated {
				t.Fatalf("no seat: %s", why)
			}
			s.World.Ledger.Observe(seats.Slim(runningPod(next.Name, group, 100+pass, build.OwnedBy(replicaSet))))
		}
	}
	var got []string
	for _, g := range s.policy().Status.Apps[0].Groups {
		got = append(got, fmt.Sprintf("%s %d of %d", g.Name, g.Current, g.Desired))
	}
	if diff := cmp.Diff([]string{"bj 2 of 2", "hz 3 of 3"}, got); diff != "" {
		t.Errorf("ended elsewhere (-want +got):\n%s", diff)
	}
}

func TestDeletionCosts(t *testing.T) {
	costs := func(s *fixture) map[string]string {
		out := map[string]string{}
		for _, a := range s.World.Pods.Actions() {
			patch, ok := a.(clienttesting.PatchAction)
			if !ok {
				continue
			}
			var p metav1.PartialObjectMetadata
			if err := json.Unmarshal(patch.GetPatch(), &p); err != nil {
				t.Fatal(err)
			}
			if string(p.UID) != patch.GetName() || p.Annotations[corev1.PodDeletionCost] != p.Annotations[gm.DeletionCostAnnotation] {
				t.Errorf("patch of %s is %s: it must carry the UID, and mark who wrote the cost", patch.GetName(), patch.GetPatch())
			}
			out[patch.GetName()] = p.Annotations[corev1.PodDeletionCost]
		}
		return out
	}
	owned := func(cost string) build.Option {
		return func(o build.Object) {
			build.Annotation(corev1.PodDeletionCost, cost)(o)
			build.Annotation(gm.DeletionCostAnnotation, cost)(o)
		}
	}
	t.Run("every bound pod of a ReplicaSet gets one of its own, once", func(t *testing.T) {
		s := newFixture(t, join(base(), web("hz", "hz", "hz", "bj", "bj"))...)
		s.reconcile()
		got, distinct := costs(s), map[string]bool{}
		for _, cost := range got {
			distinct[cost] = true
		}
		if len(got) != 5 || len(distinct) != 5 {
			t.Errorf("costs are %v, want five that differ", got)
		}
		for name, cost := range got { // the API server's answer is seen
			pod := runningPod(name, s.World.Ledger.NodeGroup(s.World.Ledger.Pod(build.Pod(name).UID).Node), 0, build.OwnedBy(build.ReplicaSet("web-1")), owned(cost))
			s.World.Ledger.Observe(seats.Slim(pod))
		}
		s.World.Pods.ClearActions()
		s.reconcile()
		if again := costs(s); len(again) != 0 {
			t.Errorf("written again: %v", again)
		}
	})
	t.Run("one that a user wrote stays", func(t *testing.T) {
		objects := join(base(), web("hz"))
		build.Annotation(corev1.PodDeletionCost, "7")(objects[len(objects)-1])
		s := newFixture(t, objects...)
		s.reconcile()
		if got := costs(s); len(got) != 0 {
			t.Errorf("written over a user's: %v", got)
		}
	})
	t.Run("none is written while a pod is on its way", func(t *testing.T) {
		coming := func(options ...build.Option) *corev1.Pod {
			return build.Pod("coming", append(options, build.OwnedBy(build.ReplicaSet("web-1")))...)
		}
		s := newFixture(t, append(join(base(), web("hz", "hz", "bj")), coming())...)
		s.reconcile()
		if got := costs(s); len(got) != 0 {
			t.Errorf("written while pods move: %v", got)
		}
		s.World.Ledger.Observe(seats.Slim(coming(build.Unschedulable())))
		s.reconcile()
		if got := costs(s); len(got) != 3 {
			t.Errorf("costs are %v: an unschedulable pod must not delay the others", got)
		}
	})
	t.Run("only pods of ReplicaSets get one", func(t *testing.T) {
		set := build.StatefulSet("db", build.Bound("p", ""))
		s := newFixture(t, append(base(), set, runningPod("db-0", "hz", 0, build.OwnedBy(set)))...)
		s.reconcile()
		if got := costs(s); len(got) != 0 {
			t.Errorf("written for pods of a StatefulSet: %v", got)
		}
	})
}

func TestAnswersToAPatchOfAPod(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct{ answer, want error }{
		"the pod is gone": {apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web-1-0"), nil},
		"another pod of that name": {
			apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "web-1-0", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "", "")}), nil,
		},
		"the API server failed": {broken, broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, join(base(), web("hz"))...)
			s.World.Pods.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, tc.answer
			})
			if _, err := s.pass(); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
		})
	}
}

// TestStatusFromAStaleCacheIsCorrected: if the cache misses the
// status that the last pass wrote, the next pass may find nothing to write although the
// stored status is wrong. The event of the write triggers one more pass.
func TestStatusFromAStaleCacheIsCorrected(t *testing.T) {
	s := newFixture(t, build.PropagationPolicy("p", build.Weight(1, "hz")))
	s.reconcile()
	seen := s.policy()
	written := s.policy()
	written.Status.Workloads = 7 // written by the last pass, and not in the cache
	if err := s.World.Client.Status().Update(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	stage := world.NewStage(s.World.Client)
	s.Reconciler.Synced = func() bool { return true }
	if err := s.Reconciler.SetupWithManager(stage); err != nil {
		t.Fatal(err)
	}
	stage.Run(t)
	build.Eventually(t, "the status is put right when it is seen", func() bool {
		stage.Update(t, seen, s.policy())
		return s.policy().Status.Workloads == 0
	})
}
