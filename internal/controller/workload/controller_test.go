package workload

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// site is a reconciler and the objects that it observes.
type site struct {
	*Reconciler
	*world.World
	t *testing.T
	// labelled holds the patches of workloads, woken the names of patched pods.
	labelled, woken []string
	events          *events.FakeRecorder
}

func newSite(t *testing.T, objects ...build.Object) *site {
	t.Helper()
	s := &site{World: world.New(t, objects...), t: t}
	recording := interceptor.NewClient(s.World.Client, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			raw, err := patch.Data(o)
			if err != nil {
				return err
			}
			s.labelled = append(s.labelled, string(raw))
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	s.events = events.NewFakeRecorder(10)
	s.Reconciler = &Reconciler{
		Client: recording, Pods: s.World.Pods, Walker: s.World.Walker, Ledger: s.World.Ledger, Policies: s.World.Policies, Recorder: s.events,
		Evictor: &eviction.Evictor{Client: s.World.Pods, Pace: eviction.NewPace(rate.Inf, 0)}, Clock: s.World.Clock,
		Jobs: &jobs.Restarter{Client: s.World.Pods, Annotation: gm.JobRestartAnnotation},
	}
	s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		if patch.GetPatchType() != types.StrategicMergePatchType {
			t.Errorf("pod %s is patched by %s: gates of other controllers would be removed too", patch.GetName(), patch.GetPatchType())
		}
		s.woken = append(s.woken, patch.GetName())
		return false, nil, nil
	})
	return s
}

// reconcile runs one pass for a workload, which must not fail. It may run again only to report a
// missing policy.
func (s *site) reconcile(uid types.UID) {
	s.t.Helper()
	s.labelled, s.woken = nil, nil
	if result, err := s.Reconcile(s.t.Context(), request{uid}); err != nil || result.RequeueAfter != 0 && result.RequeueAfter != missingAfter {
		s.t.Fatalf("runs again after %s, error %v", result.RequeueAfter, err)
	}
}

// deployment reads a Deployment from the API server.
func (s *site) deployment(name string) *appsv1.Deployment {
	s.t.Helper()
	d := &appsv1.Deployment{}
	if err := s.World.Client.Get(s.t.Context(), client.ObjectKey{Namespace: build.Namespace, Name: name}, d); err != nil {
		s.t.Fatal(err)
	}
	return d
}

// see puts the current state of a Deployment into the walker.
func (s *site) see(name string) {
	s.t.Helper()
	d := s.deployment(name)
	s.World.Walker.Put(build.Owner(d))
}

func named(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: build.Namespace, Name: name}
}

func (s *site) pod(name string) *corev1.Pod {
	s.t.Helper()
	o, err := s.World.Pods.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), build.Namespace, name)
	if err != nil {
		s.t.Fatal(err)
	}
	return o.(*corev1.Pod)
}

var (
	policy = build.PropagationPolicy("p", build.Weight(1, "hz"))
	// late leaves seats to the extender. settle_test.go covers how other pods leave the gate.
	late     = build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate))
	override = build.OverridePolicy("o", build.Registry("hz", "hz.io"))
	ignore   = build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
)

func bindingLabels(propagation, override string) build.Option {
	return func(o build.Object) {
		if propagation != "" {
			build.Label(gm.BindingPropagationPolicyLabel, propagation)(o)
		}
		if override != "" {
			build.Label(gm.BindingOverridePolicyLabel, override)(o)
		}
	}
}

func TestBind(t *testing.T) {
	tests := map[string]struct {
		workload build.Object
		policies []build.Object
		want     ownership.Policies
		writes   int
	}{
		"both policies exist: both are bound, in one write": {
			workload: build.Deployment("web", build.Requires("p", "o")), policies: []build.Object{policy, override},
			want:   ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p", RequiredOverride: "o", BindingOverride: "o"},
			writes: 1,
		},
		"bound policies are not written again": {
			workload: build.Deployment("web", build.Bound("p", "o")), policies: []build.Object{policy, override},
			want: ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p", RequiredOverride: "o", BindingOverride: "o"},
		},
		"a policy that does not exist is not bound": {
			workload: build.Deployment("web", build.Requires("p", "o")), policies: []build.Object{override},
			want:   ownership.Policies{RequiredPropagation: "p", RequiredOverride: "o", BindingOverride: "o"},
			writes: 1,
		},
		"a policy of another namespace is not bound": {
			workload: build.Deployment("web", build.Requires("p", "")),
			policies: []build.Object{build.PropagationPolicy("p", build.Weight(1, "hz"), func(o build.Object) { o.SetNamespace("elsewhere") })},
			want:     ownership.Policies{RequiredPropagation: "p"},
		},
		"an invalid policy is not bound": {
			workload: build.Deployment("web", build.Requires("p", "o")),
			policies: []build.Object{build.PropagationPolicy("p"), build.OverridePolicy("o", build.Registry("hz", "no registry"))},
			want:     ownership.Policies{RequiredPropagation: "p", RequiredOverride: "o"},
		},
		"an OverridePolicy that changes immutable fields is bound with a PropagationPolicy": {
			workload: build.Deployment("web", build.Requires("p", "o")), policies: []build.Object{policy, args},
			want:   ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p", RequiredOverride: "o", BindingOverride: "o"},
			writes: 1,
		},
		"an OverridePolicy that changes immutable fields is not bound without one": {
			workload: build.Deployment("web", build.Requires("", "o")), policies: []build.Object{args},
			want: ownership.Policies{RequiredOverride: "o"},
		},
		"an OverridePolicy that changes immutable fields is not bound when assignment is Late": {
			workload: build.Deployment("web", build.Requires("p", "o")),
			policies: []build.Object{build.PropagationPolicy("p", build.Weight(1, "hz"), build.Assigns(gm.AssignmentLate)), args},
			want:     ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p", RequiredOverride: "o"}, writes: 1,
		},
		"a policy that was deleted is unbound": {
			workload: build.Deployment("web", build.Bound("p", "o")),
			want:     ownership.Policies{RequiredPropagation: "p", RequiredOverride: "o"}, writes: 1,
		},
		"a binding label without a required label is removed": {
			workload: build.Deployment("web", bindingLabels("p", "o")), policies: []build.Object{policy, override}, writes: 1,
		},
		"a binding to another policy is corrected": {
			workload: build.Deployment("web", build.Requires("p", ""), bindingLabels("q", "")), policies: []build.Object{policy},
			want: ownership.Policies{RequiredPropagation: "p", BindingPropagation: "p"}, writes: 1,
		},
		"a workload that is being deleted is left alone": {
			workload: build.Deployment("web", build.Requires("p", ""), build.Deleting("foregroundDeletion")), policies: []build.Object{policy},
			want: ownership.Policies{RequiredPropagation: "p"},
		},
		"a workload that requires nothing is left alone": {
			workload: build.Deployment("web"), policies: []build.Object{policy},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			build.Label("app", "web")(tc.workload)
			s := newSite(t, append(tc.policies, tc.workload)...)
			s.reconcile("web")
			got := s.deployment("web").Labels
			if diff := cmp.Diff(tc.want, ownership.PoliciesOf(got)); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			if got["app"] != "web" {
				t.Error("a label of another client is removed")
			}
			if len(s.labelled) != tc.writes {
				t.Errorf("%d writes, want %d: %s", len(s.labelled), tc.writes, s.labelled)
			}
			for _, patch := range s.labelled {
				if !strings.Contains(patch, `"uid":"web"`) {
					t.Errorf("patch %s would change another workload of that name", patch)
				}
			}
			s.see("web")
			if s.reconcile("web"); len(s.labelled) != 0 {
				t.Errorf("written again without a change: %s", s.labelled)
			}
		})
	}
}

func TestAnErrorOfTheCacheUnbindsNothing(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Bound("p", "")))
	broken := errors.New("broken")
	s.Reconciler.Policies = policies.NewResolver(build.Client(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return broken
		},
	}), s.World.Walker, s.World.Ledger, s.World.Clock, true)
	if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
	if len(s.labelled) != 0 {
		t.Errorf("written: %s", s.labelled)
	}
}

// TestAPolicyThatWasNotReadUnbindsNothing: a workload that is bound to a policy for which the
// cache has no room stays bound, one that is not bound is not bound, and both are looked at
// again when the policy is read.
func TestAPolicyThatWasNotReadUnbindsNothing(t *testing.T) {
	left := func(o, without client.Object) client.Object {
		out, err := budget.Transform(budget.New(0, 0), func(client.Object) int64 { return 1 }, func(client.Object) client.Object { return without })(o)
		if err != nil {
			t.Fatal(err)
		}
		return out.(client.Object)
	}
	propagation, override := build.PropagationPolicy("p", build.Weight(1, "hz")), build.OverridePolicy("o")
	unread := []client.Object{left(propagation.DeepCopy(), &gm.PropagationPolicy{}), left(override.DeepCopy(), &gm.OverridePolicy{})}
	for name, tc := range map[string]struct {
		labels build.Option
		want   string
	}{"bound": {build.Bound("p", "o"), "p o"}, "not bound": {build.Requires("p", "o"), " "}, "bound to others": {build.With(func(d *appsv1.Deployment) {
		build.Requires("p", "o")(d)
		d.Labels[gm.BindingPropagationPolicyLabel] = "other"
	}), " "}} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.Deployment("web", tc.labels))
			s.Reconciler.Policies = policies.NewResolver(build.Client(interceptor.Funcs{}, unread...), s.World.Walker, s.World.Ledger, s.World.Clock, true)
			if _, err := s.Reconcile(t.Context(), request{"web"}); err != nil {
				t.Fatal(err)
			}
			labels := s.deployment("web").Labels
			if got := labels[gm.BindingPropagationPolicyLabel] + " " + labels[gm.BindingOverridePolicyLabel]; got != tc.want {
				t.Errorf("the bindings are %q, want %q", got, tc.want)
			}
		})
	}
	for _, change := range []event.UpdateEvent{{ObjectOld: unread[0], ObjectNew: propagation}, {ObjectOld: propagation, ObjectNew: unread[0]}} {
		if !budget.ReadAgain.Update(change) {
			t.Error("nothing is looked at again")
		}
	}
	if budget.ReadAgain.Update(event.UpdateEvent{ObjectOld: propagation, ObjectNew: propagation}) {
		t.Error("every write of the status is a reason to look again")
	}
}

// waiting returns a pod of the Deployment web.
func waiting(name string, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{build.OwnedBy(build.ReplicaSet("web-1"))}, options...)...)
}

// web returns a Deployment and its ReplicaSet.
func web(options ...build.Option) []build.Object {
	deployment := build.Deployment("web", options...)
	return []build.Object{deployment, build.ReplicaSet("web-1", build.OwnedBy(deployment))}
}

func TestRelease(t *testing.T) {
	foreign := build.With(func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/gate"})
	})
	tests := map[string]struct {
		objects []build.Object
		pods    []*corev1.Pod
		want    []string
	}{
		"a gated pod leaves the gate when the policies are bound": {
			objects: append(web(build.Requires("p", "o")), late, override), pods: []*corev1.Pod{waiting("a", build.Gated())}, want: []string{"a"},
		},
		"a gated pod stays while one of two policies is missing": {
			objects: append(web(build.Requires("p", "o")), late), pods: []*corev1.Pod{waiting("a", build.Gated())},
		},
		"a gated pod leaves the gate when missing policies are ignored": {
			objects: web(build.Requires("p", ""), ignore), pods: []*corev1.Pod{waiting("a", build.Gated())}, want: []string{"a"},
		},
		"a gated pod leaves the gate when no policy is required any more": {
			objects: web(bindingLabels("p", "")), pods: []*corev1.Pod{waiting("a", build.Gated())}, want: []string{"a"},
		},
		"an unschedulable pod is nudged": {
			objects: append(web(build.Bound("p", "")), late), pods: []*corev1.Pod{waiting("a", build.Unschedulable())}, want: []string{"a"},
		},
		"pods that kube-scheduler has not tried, running pods and finished ones are left alone": {
			objects: append(web(build.Bound("p", "")), late),
			pods: []*corev1.Pod{
				waiting("new"), waiting("running", build.On("node-hz"), build.Running(0)), waiting("leaving", build.Gated(), build.Deleting("example.com/f")),
			},
		},
		"a pod stays that waits for a policy of another owner": {
			objects: []build.Object{
				late, build.Deployment("web", build.Bound("p", "")),
				build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web")), build.Requires("", "missing")),
			},
			pods: []*corev1.Pod{waiting("a", build.Gated())},
		},
		"a gate of another controller stays": {
			objects: append(web(build.Bound("p", "")), late), pods: []*corev1.Pod{waiting("a", foreign, build.Gated())}, want: []string{"a"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, tc.objects...)
			for _, pod := range tc.pods {
				s.World.Add(t, pod)
			}
			s.reconcile("web")
			if diff := cmp.Diff(tc.want, s.woken); diff != "" {
				t.Errorf("wrong pods were woken (-want +got):\n%s", diff)
			}
			for _, name := range s.woken {
				before, after := seats.Slim(tc.pods[0]), s.pod(name)
				for _, gate := range after.Spec.SchedulingGates {
					if gate.Name == gm.PolicyGate {
						t.Errorf("%s is still gated", name)
					}
				}
				if want := len(tc.pods[0].Spec.SchedulingGates); before.Gated && len(after.Spec.SchedulingGates) != want-1 {
					t.Errorf("want %d gates, have %v", want, after.Spec.SchedulingGates)
				}
				if !before.Gated && seats.Slim(after).Nudge == "" {
					t.Errorf("%s was not changed, so kube-scheduler does not try it again", name)
				}
			}
		})
	}
}

func TestAReleasedPodCarriesTheLabelsOfItsWorkload(t *testing.T) {
	s := newSite(t, append(web(build.Requires("p", "")), late)...)
	s.World.Add(t, waiting("a", build.Gated(), build.Requires("p", "old"), bindingLabels("older", "old"), build.Label("app", "web")))
	s.reconcile("web")
	want := map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", "app": "web"}
	if diff := cmp.Diff(want, s.pod("a").Labels); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
}

// TestThePatchThatTakesOurGateOffIsAStrategicOne applies the patch as the API server does,
// which merges gates by name.
func TestThePatchThatTakesOurGateOffIsAStrategicOne(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "")), late)...)
	pod := waiting("a", build.Gated())
	s.World.Add(t, pod)
	s.reconcile("web")
	for _, a := range s.World.Pods.Actions() {
		patch, ok := a.(clienttesting.PatchAction)
		if !ok {
			continue
		}
		before, err := json.Marshal(waiting("a", build.With(func(p *corev1.Pod) {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "one"}, {Name: gm.PolicyGate}, {Name: "two"}}
		})))
		if err != nil {
			t.Fatal(err)
		}
		raw, err := strategicpatch.StrategicMergePatch(before, patch.GetPatch(), corev1.Pod{})
		if err != nil {
			t.Fatal(err)
		}
		var after corev1.Pod
		if err := json.Unmarshal(raw, &after); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]corev1.PodSchedulingGate{{Name: "one"}, {Name: "two"}}, after.Spec.SchedulingGates); diff != "" || after.UID != "a" {
			t.Errorf("wrong gates, UID %q (-want +got):\n%s", after.UID, diff)
		}
		return
	}
	t.Error("no pod was patched")
}

func TestAPodIsNudgedOncePerSpread(t *testing.T) {
	s := newSite(t, append(web(build.Bound("p", "")), policy, build.Node("node-hz", build.InGroup("hz")))...)
	s.World.Add(t, waiting("a", build.Unschedulable()))
	expect := func(when string, want int) {
		t.Helper()
		s.reconcile("web")
		if len(s.woken) != want {
			t.Errorf("%s: woken %v, want %d", when, s.woken, want)
		}
		s.World.See(s.pod("a"))
	}
	expect("at first", 1)
	expect("and again", 0)
	s.World.Ledger.ForgetNode("node-hz")
	expect("a group lost its last node", 1)
	expect("and again", 0)
	stored := &gm.PropagationPolicy{}
	if err := s.World.Client.Get(t.Context(), client.ObjectKeyFromObject(policy), stored); err != nil {
		t.Fatal(err)
	}
	stored.Generation++
	if err := s.World.Client.Update(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	expect("the policy was edited", 1)
	expect("and again", 0)
	s.World.Add(t, override)
	s.World.Walker.Put(build.Owner(build.Deployment("web", build.Bound("p", "o"))))
	expect("overrides are required and bound", 1)
	expect("and again", 0)
}

// replaced is the error of a patch of an object that was replaced by another of its name.
func replaced(kind, name string) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: kind}, name, field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "", "")})
}

func TestAnswersToAPatchOfAWorkload(t *testing.T) {
	workloads := schema.GroupResource{Group: "apps", Resource: "deployments"}
	broken := errors.New("broken")
	tests := map[string]struct{ answer, want error }{
		"the workload is gone":          {apierrors.NewNotFound(workloads, "web"), nil},
		"another workload of that name": {replaced("Deployment", "web"), nil},
		"the API server failed":         {broken, broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Requires("p", "")), policy)...)
			s.Reconciler.Client = interceptor.NewClient(s.World.Client, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return tc.answer
				},
			})
			if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
		})
	}
}

func TestAnswersToAPatchOfAPod(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	broken := errors.New("broken")
	tests := map[string]struct{ answer, want error }{
		"the pod is gone":          {apierrors.NewNotFound(pods, "a"), nil},
		"the pod changed":          {apierrors.NewConflict(pods, "a", broken), nil},
		"another pod of that name": {replaced("Pod", "a"), nil},
		"the API server failed":    {broken, broken},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Bound("p", "")), late)...)
			s.World.Add(t, waiting("a", build.Gated()))
			s.World.Add(t, waiting("b", build.Gated()))
			s.World.Pods.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.(clienttesting.PatchAction).GetName() == "a", nil, tc.answer
			})
			result, err := s.Reconcile(t.Context(), request{"web"})
			if !errors.Is(err, tc.want) {
				t.Errorf("error is %v, want %v", err, tc.want)
			}
			if again := result.RequeueAfter > 0; again != apierrors.IsConflict(tc.answer) {
				t.Errorf("runs again after %s", result.RequeueAfter)
			}
			if diff := cmp.Diff([]string{"b"}, s.woken); diff != "" {
				t.Errorf("the error of one pod keeps the next at the gate (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsStayAtTheGateUntilTheBindingIsWritten: a policy must not place pods of a workload
// that is not bound to it.
func TestPodsStayAtTheGateUntilTheBindingIsWritten(t *testing.T) {
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	for name, refusal := range map[string]error{
		"a failure of the API server": errors.New("broken"),
		"a missing permission":        apierrors.NewForbidden(deployments, "web", errors.New("no")),
		"a conflict":                  apierrors.NewConflict(deployments, "web", errors.New("changed")),
		"a workload that is gone":     apierrors.NewNotFound(deployments, "web"),
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(build.Requires("p", "")), late)...)
			s.World.Add(t, waiting("a", build.Gated()))
			written := s.Reconciler.Client
			s.Reconciler.Client = interceptor.NewClient(s.World.Client, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return refusal
				},
			})
			_, _ = s.Reconcile(t.Context(), request{"web"})
			if len(s.woken) != 0 {
				t.Fatalf("released although the workload is not bound: %s", s.woken)
			}
			s.Reconciler.Client = written
			s.reconcile("web")
			if diff := cmp.Diff([]string{"a"}, s.woken); diff != "" {
				t.Errorf("after the binding is written (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsStayAtTheGateUntilTheUnbindingIsWritten: the workload is still bound, but its
// policy is deleted or refused.
func TestPodsStayAtTheGateUntilTheUnbindingIsWritten(t *testing.T) {
	refused := build.OverridePolicy("o", addVolume("hz", "data"))
	for name, tc := range map[string]struct {
		labels   build.Option
		policies []build.Object
	}{
		"the PropagationPolicy is gone":     {build.Bound("p", ""), nil},
		"the OverridePolicy is gone":        {build.Bound("p", "o"), []build.Object{policy}},
		"the OverridePolicy cannot be used": {build.Bound("p", "o"), []build.Object{policy, build.OverridePolicy("o", build.Registry("hz", "no registry"))}},
		"the API server refuses the pods":   {build.Bound("p", "o"), []build.Object{policy, refused}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, append(web(tc.labels, withTemplate(hasVolumes("data"))), append(tc.policies, node)...)...)
			newJudge(s)
			s.World.Add(t, gated("a", time.Hour))
			broken := errors.New("broken")
			written := s.Reconciler.Client
			s.Reconciler.Client = interceptor.NewClient(s.World.Client, interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return broken
				},
			})
			if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, broken) {
				t.Fatalf("error is %v: the workload is not unbound", err)
			}
			if len(s.woken)+len(s.Evicted) != 0 {
				t.Errorf("before it is unbound: released %s, evicted %s", s.woken, s.Evicted)
			}
			s.Reconciler.Client = written
			if s.tried("web"); len(s.woken)+len(s.Evicted) != 0 {
				t.Errorf("after it is unbound: released %s, evicted %s", s.woken, s.Evicted)
			}
		})
	}
}

// TestPodsStayGatedWhenAdmissionRevertsTheBinding: an admission webhook changes the labels.
func TestPodsStayGatedWhenAdmissionRevertsTheBinding(t *testing.T) {
	s := newSite(t, append(web(build.Requires("p", "")), policy)...)
	s.World.Add(t, waiting("a", build.Gated()))
	s.Reconciler.Client = interceptor.NewClient(s.World.Client, interceptor.Funcs{
		Patch: func(_ context.Context, _ client.WithWatch, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
			o.SetLabels(map[string]string{gm.RequiredPropagationPolicyLabel: "p"})
			return nil
		},
	})
	if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, errNotKept) {
		t.Errorf("error is %v", err)
	}
	if len(s.woken) != 0 {
		t.Errorf("released: %s", s.woken)
	}
}
