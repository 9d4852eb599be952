package overridepolicy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var args = build.OverridePolicy("o", build.Args("hz", "c", "--hz"))

// baseWithArgs is base with a rule that changes what cannot change on a pod that exists.
func baseWithArgs(n int32, options ...build.Option) []build.Object {
	return append(base(n, options...)[:3:3], args, build.Node("node-hz", build.InGroup("hz")), build.Node("node-out"))
}

// current marks a pod that was created as the rules want it in the group; old one that was
// created by other rules.
func current(group string) build.Option {
	rules, _ := override.Compile(args.Spec)
	return build.With(func(p *corev1.Pod) {
		build.Annotation(gm.OverridesAnnotation, rules.FixedHash(group))(p)
		admitted(p)
	})
}

// admitted marks a pod that passed the pod webhook.
var admitted = build.Annotation(gm.AdmittedAnnotation, "true")

var old = build.Annotation(gm.OverridesAnnotation, "0123456789abcdef")

// refused returns the objects of base or baseWithArgs, with a ReplicaSet whose pods the API
// server refuses.
func refused(objects []build.Object) []build.Object {
	objects[1].(*appsv1.ReplicaSet).Status.Conditions = []appsv1.ReplicaSetCondition{
		{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota"},
	}
	return objects
}

// waitsSince returns the i-th pod, which has had no node for the duration age.
func waitsSince(i int, age time.Duration, options ...build.Option) *corev1.Pod {
	return build.Pod(fmt.Sprint("web-1-", i), append([]build.Option{
		build.OwnedBy(build.ReplicaSet("web-1")), build.Container("c", "nginx:1"), build.Created(time.Unix(1_000_000, 0).Add(gm.DefaultStabilization - age)),
	}, options...)...)
}

func TestReplace(t *testing.T) {
	const replacing = "pods are being changed or replaced"
	with := func(objects []build.Object, policy build.Object) []build.Object {
		objects[2] = policy
		return objects
	}
	notReady := build.With(func(p *corev1.Pod) { p.Status.Conditions = nil })
	closed := build.Node("node-hz", build.InGroup("hz"), build.With(func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "site", Effect: corev1.TaintEffectNoSchedule}}
	}))
	job := build.Job("web", build.Bound("p", "o"))
	jobs := append([]build.Object{job}, baseWithArgs(1)[2:]...)
	daemons := append([]build.Object{build.DaemonSet("web", build.Bound("", "o"))}, baseWithArgs(1)[3:]...)
	daemon := func(options ...build.Option) *corev1.Pod {
		return running(0, append([]build.Option{build.OwnedBy(build.DaemonSet("web"))}, options...)...)
	}
	daemonWaits := func(node string, options ...build.Option) *corev1.Pod {
		return build.Pod("agent", append([]build.Option{build.OwnedBy(build.DaemonSet("web")), build.Container("c", "nginx:1"), build.ForNode(node), build.Created(time.Unix(0, 0))}, options...)...)
	}
	tests := map[string]struct {
		objects []build.Object
		evicted []string
		requeue time.Duration
		reason  string
		message string
	}{
		"pods that are as wanted stay": {
			objects: append(baseWithArgs(2), running(0, current("hz")), running(1, current("hz"))), reason: gm.ReasonSatisfied,
		},
		"pods created by other rules are replaced one at a time": {
			objects: append(baseWithArgs(2), running(0, old), running(1, old)), evicted: []string{"web-1-0"}, requeue: retryDisruption,
			reason: gm.ReasonConverging, message: replacing,
		},
		"and so are those created before there was a rule": {
			objects: append(baseWithArgs(1), running(0)), evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
		"and those created by a rule that is gone": {
			objects: append(base(1), running(0, old, build.Annotation(gm.OriginalImagesAnnotation, `{"c":"nginx:1"}`))),
			evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
		"a pod that does no work is first, and costs nothing": {
			objects: append(baseWithArgs(2), running(0, old), running(1, old, notReady)), evicted: []string{"web-1-1"}, requeue: retryDisruption,
			reason: gm.ReasonConverging, message: replacing,
		},
		"a workload with a pod missing is not disturbed further": {
			objects: append(baseWithArgs(2), running(0, old)), requeue: retryDisruption, reason: gm.ReasonConverging, message: replacing,
		},
		"a pod whose successor would find no node stays": {
			objects: append(baseWithArgs(1), running(0, old), closed), requeue: retryDisruption, reason: gm.ReasonConverging,
			message: `pods are to be replaced and stay for now: NodeGroup "hz" can take none: its open nodes have taints that the pods do not tolerate`,
		},
		"one that does no work goes": {
			objects: append(baseWithArgs(1), running(0, old, notReady), closed), evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
		"pods on nodes of no group stay": {
			objects: append(baseWithArgs(1), running(0, old, build.On("node-out"))), reason: gm.ReasonNoPods,
		},
		"a Job's pods are never evicted": {
			objects: append(jobs, running(0, build.OwnedBy(job), old)), reason: gm.ReasonConverging, message: "pods that run until they are done stay as they started",
		},
		"nor are those of what a Job owns": {
			objects: append(jobs[:len(jobs):len(jobs)], build.ReplicaSet("below", build.OwnedBy(job)), running(0, build.OwnedBy(build.ReplicaSet("below")), old)),
			reason:  gm.ReasonConverging, message: "pods that run until they are done stay as they started",
		},
		"a pod without an owner would not come back": {
			objects: append(base(0)[2:], running(0, build.With(func(p *corev1.Pod) { p.OwnerReferences = nil }), build.Bound("p", "o"), old)),
			reason:  gm.ReasonConverging, message: replacing,
		},
		"mode Never replaces no running pod": {
			objects: append(with(baseWithArgs(1), build.PropagationPolicy("p", build.Weight(1, "hz"), mode(gm.ReschedulingNever))), running(0, old)),
			reason:  gm.ReasonConverging, message: "rescheduling.mode of the PropagationPolicy is Never",
		},
		"and replaces those that the webhook did not see: the extender never binds them": {
			objects: append(with(baseWithArgs(2), build.PropagationPolicy("p", build.Weight(1, "hz"), mode(gm.ReschedulingOnRollout))), running(0, current("hz")), waitsSince(1, replacement.MissedTime)),
			evicted: []string{"web-1-1"}, reason: gm.ReasonConverging, message: replacing,
		},
		"nothing is replaced while the API server creates no pods": {
			objects: append(refused(baseWithArgs(2)), running(0, old), running(1, old)), reason: gm.ReasonPodsRefused, message: "the API server creates no pods: exceeded quota",
		},
		"nor is a pod that waits": {
			objects: append(refused(baseWithArgs(2)), running(0, current("hz")), waitsSince(1, time.Hour)), reason: gm.ReasonPodsRefused, message: "exceeded quota",
		},
		"a workload that is not bound is left alone": {
			objects: append(baseWithArgs(1, build.Label(gm.BindingOverridePolicyLabel, "")), running(0, old)), reason: gm.ReasonConverging, message: replacing,
		},
		"why a workload cannot be bound is in the status": {
			objects: append(with(baseWithArgs(1), build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate))), running(0, current("hz"))),
			reason:  gm.ReasonInvalid, message: "spec.assignment of the PropagationPolicy is Late",
		},
		"without a PropagationPolicy that exists, a new pod would have no group either": {
			objects: append(with(baseWithArgs(1, build.Requires("gone", "o"), build.Label(gm.BindingPropagationPolicyLabel, ""),
				build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)), build.NodeGroup("p")), running(0), waitsSince(1, time.Hour)),
			reason: gm.ReasonConverging, message: "pods are to be replaced and stay for now: the workload is not bound to its PropagationPolicy",
		},

		"a pod that no webhook saw is replaced": {
			objects: append(baseWithArgs(1), waitsSince(0, replacement.MissedTime)), evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
		"not at once: the next one may be missed as well": {
			objects: append(baseWithArgs(1), waitsSince(0, replacement.MissedTime-3*time.Second)), requeue: 3 * time.Second, reason: gm.ReasonConverging, message: replacing,
		},
		"not while it is gated: it is replaced from there": {
			objects: append(baseWithArgs(1), waitsSince(0, time.Hour, build.Gated())), reason: gm.ReasonNoPods,
		},
		"not for images, which come before it is bound": {
			objects: append(base(1), waitsSince(0, time.Hour)), reason: gm.ReasonNoPods,
		},
		"a pod that waits for a node in its group is as wanted": {
			objects: append(baseWithArgs(1), waitsSince(0, time.Hour, build.Seated("hz"), current("hz"))), reason: gm.ReasonNoPods,
		},
		"or is not, and is replaced": {
			objects: append(baseWithArgs(1), waitsSince(0, 0, build.Seated("hz"), old)), evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
		"a rule that cannot be applied to a pod at the gate is in the status": {
			objects: append(baseWithArgs(1), waitsSince(0, time.Hour, build.Gated(), build.Annotation(gm.UnassignedAnnotation, "o/1 spec.overrideRules[0]: no such container"))),
			reason:  gm.ReasonInvalid, message: "spec.overrideRules[0]: no such container",
		},
		"one of an older policy is not": {
			objects: append(baseWithArgs(1), waitsSince(0, time.Hour, build.Gated(), build.Annotation(gm.UnassignedAnnotation, "o/0 spec.overrideRules[0]: no such container"))),
			reason:  gm.ReasonNoPods,
		},

		"the pod of a DaemonSet that waits for its node as wanted": {
			objects: append(daemons[:len(daemons):len(daemons)], daemonWaits("node-hz", build.Annotation(gm.SeatAnnotation, "token"), current("hz"))), reason: gm.ReasonNoPods,
		},
		"or not as wanted": {
			objects: append(daemons[:len(daemons):len(daemons)], daemonWaits("node-hz")), evicted: []string{"agent"}, reason: gm.ReasonConverging, message: replacing,
		},
		"or for a node of no group": {
			objects: append(daemons[:len(daemons):len(daemons)], daemonWaits("node-out")), reason: gm.ReasonNoPods,
		},
		"the pods of a DaemonSet are replaced as well": {
			objects: append(daemons[:len(daemons):len(daemons)], daemon(old)), evicted: []string{"web-1-0"}, reason: gm.ReasonConverging, message: replacing,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, tc.objects...)
			result := s.reconcile()
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong pods were replaced (-want +got):\n%s", diff)
			}
			if len(s.patched) != 0 {
				t.Errorf("changed in place: %v", s.patched)
			}
			if result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s", result.RequeueAfter, tc.requeue)
			}
			if got := s.reason(); got != tc.reason {
				t.Errorf("reason is %s, want %s", got, tc.reason)
			}
			if got := s.status().Apps[0].Message; !strings.Contains(got, tc.message) || tc.message == "" && got != "" {
				t.Errorf("the message is %q, want %q", got, tc.message)
			}
			if len(s.events.Events) != len(tc.evicted) {
				t.Errorf("%d events for %d evictions", len(s.events.Events), len(tc.evicted))
			}
		})
	}
}

func TestAnswersToAnEviction(t *testing.T) {
	broken := errors.New("broken")
	tests := map[string]struct {
		answer, want error
		evicted      []string
		requeue      time.Duration
		message      string
		spared       bool
	}{
		"done": {evicted: []string{"web-1-0"}, requeue: retryDisruption},
		"a PodDisruptionBudget refuses: the rest waits too, and the status shows it": {
			answer: build.EvictionRefused(), evicted: []string{"web-1-0"}, requeue: eviction.Retry, spared: true,
			message: "pods are to be replaced and stay for now: a PodDisruptionBudget allows no eviction",
		},
		"the pod is gone: it is missed until that is seen": {
			answer:  apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web-1-0"),
			evicted: []string{"web-1-0"}, requeue: retryDisruption,
		},
		"the API server failed": {answer: broken, want: broken, evicted: []string{"web-1-0", "web-1-1"}, spared: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, append(baseWithArgs(2), running(0, old), running(1, old))...)
			s.Answers = []error{tc.answer}
			result, err := s.pass()
			if !errors.Is(err, tc.want) || result.RequeueAfter != tc.requeue {
				t.Errorf("comes back after %s, want %s; error %v, want %v", result.RequeueAfter, tc.requeue, err, tc.want)
			}
			if diff := cmp.Diff(tc.evicted, s.Evicted); diff != "" {
				t.Errorf("wrong evictions (-want +got):\n%s", diff)
			}
			if got := s.status().Apps[0].Message; !strings.Contains(got, tc.message) {
				t.Errorf("the message is %q, want %q", got, tc.message)
			}
			if got := s.World.Ledger.Disrupt("web-1-0", s.World.Walker.Descendants("web"), 2, 2); got != tc.spared {
				t.Errorf("the pod may be disturbed again: %t, want %t", got, tc.spared)
			}
		})
	}
}

func TestReplacementsKeepThePaceOfAllWorkloads(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(2), running(0, old), waitsSince(1, replacement.MissedTime))...)
	s.Evictor.Pace = eviction.NewPace(rate.Every(time.Hour), 0)
	s.reconcile()
	if diff := cmp.Diff([]string{"web-1-1"}, s.Evicted); diff != "" {
		t.Errorf("only a pod without a node takes no turn (-want +got):\n%s", diff)
	}
	s.World.Ledger.Forget("web-1-1")
	s.World.See(running(2, current("hz")))
	result := s.reconcile()
	if len(s.Evicted) != 0 || result.RequeueAfter != eviction.Retry {
		t.Errorf("evicted %v at a pace of none, comes back after %s", s.Evicted, result.RequeueAfter)
	}
	if got, want := s.status().Apps[0].Message, "pods are to be replaced and stay for now: the limit of evictions per second is reached"; got != want {
		t.Errorf("the message is %q, want %q", got, want)
	}
}

func TestNothingIsReplacedUntilTheGroupHasSettled(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(1), running(0, old))...)
	s.World.Ledger.ObserveNode(seats.SlimNode(build.Node("another", build.InGroup("hz"))))
	if result := s.reconcile(); len(s.Evicted) != 0 || result.RequeueAfter != gm.DefaultStabilization {
		t.Errorf("evicted %v, comes back after %s", s.Evicted, result.RequeueAfter)
	}
}

// TestTheNextPodIsReplacedOnceTheLastOnesSuccessorIsReady plays the ReplicaSet.
func TestTheNextPodIsReplacedOnceTheLastOnesSuccessorIsReady(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(2), running(0, old), running(1, old))...)
	for i := range 2 {
		name := fmt.Sprint("web-1-", i)
		s.reconcile()
		if diff := cmp.Diff([]string{name}, s.Evicted); diff != "" {
			t.Fatalf("wrong pods were replaced (-want +got):\n%s", diff)
		}
		s.World.Ledger.Forget(build.Pod(name).UID)
		next := running(i+2, current("hz"), build.Seated("hz"))
		pending := next.DeepCopy()
		pending.Spec.NodeName, pending.Status = "", corev1.PodStatus{}
		s.World.See(pending)
		if s.reconcile(); len(s.Evicted) != 0 {
			t.Errorf("%v went while the last one's successor is not Ready", s.Evicted)
		}
		s.World.See(next)
	}
	if s.reconcile(); len(s.Evicted) != 0 || s.reason() != gm.ReasonSatisfied {
		t.Errorf("at the end the policy is %s, evicted %v", s.reason(), s.Evicted)
	}
}

// play plays the ReplicaSet for the duration d: it creates the successor that next returns
// for each pod that is replaced. It returns the number of replaced pods.
func (s *fixture) play(t *testing.T, d time.Duration, next func(i int) *corev1.Pod) (replaced int) {
	t.Helper()
	const step = 10 * time.Second
	for range d / step {
		s.World.Clock.Step(step)
		s.reconcile()
		for _, name := range s.Evicted {
			s.World.Ledger.Forget(build.Pod(name).UID)
			s.created++
			s.World.See(next(s.created))
			replaced++
		}
		for len(s.events.Events) > 0 {
			<-s.events.Events
		}
	}
	return replaced
}

// TestPodsAreNotReplacedWhileNewOnesBypassTheWebhook, because the successors would have the
// same fault. One pod is replaced every TryTime, and all of them once a new pod has passed
// the webhook.
func TestPodsAreNotReplacedWhileNewOnesBypassTheWebhook(t *testing.T) {
	tests := map[string]func(s *fixture, i int) *corev1.Pod{
		"running": func(s *fixture, i int) *corev1.Pod {
			return running(i, build.Created(s.World.Clock.Now().Truncate(time.Second)))
		},
		"waiting": func(s *fixture, i int) *corev1.Pod {
			return waitsSince(i, 0, build.Created(s.World.Clock.Now().Truncate(time.Second)))
		},
		"running, and the API server's clock is behind": func(s *fixture, i int) *corev1.Pod {
			return running(i, build.Created(s.World.Clock.Now().Add(-time.Hour).Truncate(time.Second)))
		},
	}
	for name, missed := range tests {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t, baseWithArgs(4)...)
			s.created = 3
			for i := range 4 {
				s.World.See(missed(s, i))
			}
			atFirst := s.play(t, 20*time.Second, func(i int) *corev1.Pod { return missed(s, i) })
			if atFirst == 0 || atFirst > 4 {
				t.Errorf("%d pods of 4 were replaced before a new one was seen", atFirst)
			}
			if n := s.play(t, time.Hour, func(i int) *corev1.Pod { return missed(s, i) }); n < 11 || n > 12 {
				t.Errorf("%d pods of 4 were replaced in an hour without the webhook, want one in 5 minutes", n)
			}
			if got := s.status().Apps[0].Message; s.reason() != gm.ReasonConverging || !strings.Contains(got, replacement.ErrBypassed.Error()) {
				t.Errorf("%s: the message is %q", s.reason(), got)
			}
			passes := func(i int) *corev1.Pod {
				return running(i, current("hz"), build.Seated("hz"), build.Created(s.World.Clock.Now().Truncate(time.Second)))
			}
			if n := s.play(t, replacement.TryTime+2*time.Minute, passes); n != 4 || s.reason() != gm.ReasonSatisfied {
				t.Errorf("%d pods of 4 were replaced after the webhook was back: %s", n, s.reason())
			}
		})
	}
}

// TestPodsFromBeforeTheWebhookAreReplacedAtFullPace: they are no evidence that new pods do
// not pass the webhook.
func TestPodsFromBeforeTheWebhookAreReplacedAtFullPace(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(3), running(0), running(1), running(2))...)
	s.created = 2
	passes := func(i int) *corev1.Pod {
		return running(i, current("hz"), build.Seated("hz"), build.Created(s.World.Clock.Now().Truncate(time.Second)))
	}
	if n := s.play(t, 40*time.Second, passes); n != 3 || s.reason() != gm.ReasonSatisfied {
		t.Errorf("%d pods of 3 were replaced in 4 passes: %s", n, s.reason())
	}
}

// TestAPodThatOnceBypassedTheWebhookIsReplacedAtOnce, if successors before it passed the
// webhook.
func TestAPodThatOnceBypassedTheWebhookIsReplacedAtOnce(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(2), running(0), running(1))...)
	s.created = 1
	now := func() build.Option { return build.Created(s.World.Clock.Now().Truncate(time.Second)) }
	passes := func(i int) *corev1.Pod { return running(i, current("hz"), build.Seated("hz"), now()) }
	s.play(t, 40*time.Second, passes)
	s.World.Ledger.Forget("web-1-3")
	s.World.See(waitsSince(9, 0, now()))
	if n := s.play(t, replacement.MissedTime, passes); n != 1 {
		t.Errorf("%d pods were replaced %s after one came without the webhook", n, replacement.MissedTime)
	}
}

// TestPodsOfHeldNodesAreNotReplaced, and do not keep those of other nodes waiting.
func TestPodsOfHeldNodesAreNotReplaced(t *testing.T) {
	s := newFixture(t, append(baseWithArgs(2), build.Node("edge", build.InGroup("hz"), build.Held()), running(0, old, build.On("edge")), running(1, old))...)
	s.Evictor.Held = s.World.Ledger.IsHeld
	s.reconcile()
	if diff := cmp.Diff([]string{"web-1-1"}, s.Evicted); diff != "" {
		t.Error(diff)
	}
	if got := s.status().Apps[0].Message; !strings.Contains(got, "cut off from the cloud") {
		t.Errorf("the message is %q", got)
	}
}
