package nodegroup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/survey"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// site is a reconciler with a fake client.
type site struct {
	*Reconciler
	t *testing.T
	// writes are the names of the objects that were patched since the test cleared them.
	writes []string
	// refuse is the name of an object whose patches fail with answer.
	refuse string
	answer error
	clock  *testingclock.FakeClock
}

func newSite(t *testing.T, objects ...client.Object) *site {
	s := &site{t: t, clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0))}
	s.Reconciler = &Reconciler{Client: build.ClientBuilder(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if o.GetName() == s.refuse {
				return s.answer
			}
			s.writes = append(s.writes, o.GetName())
			return c.Patch(ctx, o, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			s.writes = append(s.writes, o.GetName()+"/"+name)
			return c.SubResource(name).Patch(ctx, o, patch, opts...)
		},
	}, objects...).WithIndex(&corev1.Node{}, survey.NodeLabels, survey.LabelsOf).Build(), Clock: s.clock}
	return s
}

func request(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// pass runs one pass for a group.
func (s *site) pass(group string) (ctrl.Result, error) {
	s.groups.Invalidate()
	return s.Reconcile(s.t.Context(), request(group))
}

// label runs one pass for each node.
func (s *site) label() error {
	s.t.Helper()
	s.groups.Invalidate()
	var list corev1.NodeList
	if err := s.Client.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	var errs []error
	for i := range list.Items {
		_, err := s.reconcileNode(s.t.Context(), request(list.Items[i].Name))
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// reconcile runs a pass for each group, for each node, and for each group again, as their changes
// enqueue them.
func (s *site) reconcile(groups ...string) {
	s.t.Helper()
	for _, group := range groups {
		if result, err := s.pass(group); err != nil || result.RequeueAfter > members.Unseen {
			s.t.Fatalf("group %s comes back after %s, error %v", group, result.RequeueAfter, err)
		}
	}
	if err := s.label(); err != nil {
		s.t.Fatal(err)
	}
	for _, group := range groups {
		if result, err := s.pass(group); err != nil || result.RequeueAfter != 0 {
			s.t.Fatalf("group %s comes back after %s, error %v", group, result.RequeueAfter, err)
		}
	}
}

func (s *site) node(name string) *corev1.Node {
	s.t.Helper()
	node := &corev1.Node{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		s.t.Fatal(err)
	}
	return node
}

// labels returns the group in the label of each node, by name of the node.
func (s *site) labels() map[string]string {
	s.t.Helper()
	var list corev1.NodeList
	if err := s.Client.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	out := map[string]string{}
	for i := range list.Items {
		if group, ok := list.Items[i].Labels[gm.NodeGroupLabel]; ok {
			out[list.Items[i].Name] = group
		}
	}
	return out
}

func (s *site) group(name string) *gm.NodeGroup {
	s.t.Helper()
	group := &gm.NodeGroup{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: name}, group); err != nil {
		s.t.Fatal(err)
	}
	return group
}

func (s *site) ready(name string) metav1.Condition {
	s.t.Helper()
	c := meta.FindStatusCondition(s.group(name).Status.Conditions, gm.ConditionReady)
	if c == nil {
		s.t.Fatalf("group %s has no condition", name)
	}
	return *c
}

func created(second int64) build.Option { return build.Created(time.Unix(second, 0)) }

func selects(labels map[string]string) build.Option {
	return build.With(func(g *gm.NodeGroup) { g.Spec.MatchLabels = labels })
}

func TestReconcileLabelsMembersOnly(t *testing.T) {
	zone := build.Label("topology.kubernetes.io/zone", "z1")
	tests := map[string]struct {
		objects []client.Object
		groups  []string
		want    map[string]string
		reason  map[string]string
	}{
		"nodes by name and by label": {
			objects: []client.Object{
				build.NodeGroup("g", build.Selects("by-name"), selects(map[string]string{"site": "x"})),
				build.Node("by-name"), build.Node("by-label", build.Label("site", "x")), build.Node("neither"),
			},
			groups: []string{"g"},
			want:   map[string]string{"by-name": "g", "by-label": "g"},
			reason: map[string]string{"g": gm.ReasonMembersReady},
		},
		"of two groups that select a free node the older gets it, in any order of passes": {
			objects: []client.Object{build.NodeGroup("young", created(2), build.Selects("n")), build.NodeGroup("old", created(1), build.Selects("n")), build.Node("n")},
			groups:  []string{"young", "old"},
			want:    map[string]string{"n": "old"},
			reason:  map[string]string{"old": gm.ReasonMembersReady, "young": gm.ReasonNodesNotSelected},
		},
		"a group keeps the node that it has": {
			objects: []client.Object{build.NodeGroup("young", created(2), build.Selects("n")), build.NodeGroup("old", created(1), build.Selects("n")), build.Node("n", build.InGroup("young"))},
			groups:  []string{"old", "young"},
			want:    map[string]string{"n": "young"},
			reason:  map[string]string{"old": gm.ReasonNodesNotSelected, "young": gm.ReasonMembersReady},
		},
		"a node that is no longer selected loses its label, or moves to a group that selects it": {
			objects: []client.Object{build.NodeGroup("g"), build.NodeGroup("h", build.Selects("b")), build.Node("a", build.InGroup("g")), build.Node("b", build.InGroup("g"))},
			groups:  []string{"g", "h"},
			want:    map[string]string{"b": "h"},
			reason:  map[string]string{"g": gm.ReasonNoMembers, "h": gm.ReasonMembersReady},
		},
		"a label that was changed by hand is put back": {
			objects: []client.Object{build.NodeGroup("g", build.Selects("n")), build.Node("n", build.InGroup("nobody"))},
			groups:  []string{"g"},
			want:    map[string]string{"n": "g"},
			reason:  map[string]string{"g": gm.ReasonMembersReady},
		},
		"a selector that cannot be used empties no group": {
			objects: []client.Object{build.NodeGroup("g", selects(map[string]string{"not a key": "x"})), build.Node("n", build.InGroup("g"))},
			groups:  []string{"g"},
			want:    map[string]string{"n": "g"},
			reason:  map[string]string{"g": gm.ReasonInvalidSelector},
		},
		"a node that does not exist is missed": {
			objects: []client.Object{build.NodeGroup("g", build.Selects("missing", "n")), build.Node("n")},
			groups:  []string{"g"},
			want:    map[string]string{"n": "g"},
			reason:  map[string]string{"g": gm.ReasonNodesNotSelected},
		},
		"a member that is not Ready stays a member": {
			objects: []client.Object{build.NodeGroup("g", build.Selects("n")), build.Node("n", build.With(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }))},
			groups:  []string{"g"},
			want:    map[string]string{"n": "g"},
			reason:  map[string]string{"g": gm.ReasonMembersNotReady},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, o := range tc.objects {
				if _, isNode := o.(*corev1.Node); isNode {
					zone(o)
				}
			}
			s := newSite(t, tc.objects...)
			s.reconcile(tc.groups...)
			if diff := cmp.Diff(tc.want, s.labels()); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			for group, reason := range tc.reason {
				c := s.ready(group)
				if c.Reason != reason || (c.Status == metav1.ConditionTrue) != (reason == gm.ReasonMembersReady) || c.ObservedGeneration != 1 {
					t.Errorf("group %s is %s, %s: %s; want %s", group, c.Status, c.Reason, c.Message, reason)
				}
				var members []string
				for node, g := range s.labels() {
					if g == group {
						members = append(members, node)
					}
				}
				slices.Sort(members)
				if got := s.group(group).Status; !slices.Equal(members, got.ContainedNodes) || int(got.Total) != len(members) {
					t.Errorf("the status of group %s has nodes %v, total %d; its label is on %v", group, got.ContainedNodes, got.Total, members)
				}
			}
			for _, o := range tc.objects {
				if _, isNode := o.(*corev1.Node); isNode && s.node(o.GetName()).Labels["topology.kubernetes.io/zone"] != "z1" {
					t.Errorf("the zone of %s changed", o.GetName())
				}
			}
			s.writes = nil
			if s.reconcile(tc.groups...); len(s.writes) != 0 {
				t.Errorf("a pass without changes wrote %v", s.writes)
			}
		})
	}
}

func TestFinalizerStaysUntilEveryNodeIsUnlabelled(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", build.Selects("a", "b")), build.NodeGroup("heir", build.Selects("b"), created(9)), build.Node("a"), build.Node("b"))
	s.reconcile("g", "heir")
	if !slices.Contains(s.group("g").Finalizers, gm.NodeGroupFinalizer) {
		t.Fatal("the group has no finalizer")
	}
	if err := s.Client.Delete(t.Context(), s.group("g")); err != nil {
		t.Fatal(err)
	}
	s.refuse, s.answer = "a", errors.New("no")
	if err := s.label(); err == nil {
		t.Error("a failed patch returned no error")
	}
	if diff := cmp.Diff(map[string]string{"a": "g", "b": "heir"}, s.labels()); diff != "" {
		t.Errorf("one bad node stops the others (-want +got):\n%s", diff)
	}
	if _, err := s.pass("g"); err != nil {
		t.Error(err)
	}
	s.group("g") // is still there: a carries its label
	s.refuse = ""
	if err := s.label(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]string{"b": "heir"}, s.labels()); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
	for range 2 { // a deleted group is not an error
		if result, err := s.pass("g"); err != nil || result.RequeueAfter != 0 {
			t.Errorf("the group comes back after %s, error %v", result.RequeueAfter, err)
		}
		if err := s.Client.Get(t.Context(), client.ObjectKey{Name: "g"}, &gm.NodeGroup{}); !apierrors.IsNotFound(err) {
			t.Errorf("the group is still there: %v", err)
		}
	}
}

func TestFinalizerIsAddedBeforeNodesAreLabelled(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", build.Selects("a")), build.Node("a"))
	s.refuse, s.answer = "g", apierrors.NewConflict(schema.GroupResource{Resource: "nodegroups"}, "g", errors.New("changed"))
	if result, err := s.pass("g"); err != nil || result.RequeueAfter == 0 {
		t.Errorf("a conflict is tried again quietly; comes back after %s, error %v", result.RequeueAfter, err)
	}
	if err := s.label(); err != nil {
		t.Error(err)
	}
	if got := s.labels(); len(got) != 0 {
		t.Errorf("labelled %v for a group that may go without a word", got)
	}
	s.refuse = ""
	s.reconcile("g")
	if diff := cmp.Diff(map[string]string{"a": "g"}, s.labels()); diff != "" || !slices.Contains(s.group("g").Finalizers, gm.NodeGroupFinalizer) {
		t.Errorf("finalizers are %v, wrong labels (-want +got):\n%s", s.group("g").Finalizers, diff)
	}
}

// TestLabelsThatNameNoGroupAreRemoved, also if there is no group at all: a person wrote the label,
// or removed a group's finalizer.
func TestLabelsThatNameNoGroupAreRemoved(t *testing.T) {
	labelled := func(name, group string) *corev1.Node { return build.Node(name, build.InGroup(group)) }
	s := newSite(t, labelled("a", "gone"), labelled("b", "gone"), build.Node("c"))
	s.reconcile()
	if got := s.labels(); len(got) != 0 {
		t.Errorf("nodes carry %v, and there is no NodeGroup", got)
	}
	s = newSite(t, build.NodeGroup("heir", build.Selects("b"), created(9)), labelled("a", "gone"), labelled("b", "gone"))
	s.reconcile("heir")
	if diff := cmp.Diff(map[string]string{"b": "heir"}, s.labels()); diff != "" {
		t.Errorf("after group gone was deleted by force (-want +got):\n%s", diff)
	}
}

func TestFinalizersOfOthersStay(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", build.Deleting("example.com/f"), build.With(func(g *gm.NodeGroup) {
		g.Finalizers = append(g.Finalizers, gm.NodeGroupFinalizer)
	})))
	s.reconcile("g")
	if diff := cmp.Diff([]string{"example.com/f"}, s.group("g").Finalizers); diff != "" {
		t.Errorf("wrong finalizers (-want +got):\n%s", diff)
	}
	if got := s.group("g").Status.Conditions; len(got) != 0 {
		t.Errorf("a group on its way out reports %v", got)
	}
}

func TestANodeThatVanishesMeanwhileIsNoError(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", build.Selects("a")), build.Node("a"))
	s.refuse, s.answer = "a", apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "a")
	_, _ = s.pass("g")
	if err := s.label(); err != nil {
		t.Error(err)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	var missing []string
	for i := range 1000 {
		missing = append(missing, fmt.Sprint("missing-", i))
	}
	s := newSite(t, build.NodeGroup("g", build.Selects(missing...)))
	s.reconcile("g")
	if c := s.ready("g"); len(c.Message) > 200 {
		t.Errorf("the message takes %d characters: %s", len(c.Message), c.Message)
	}
}

// TestTheWarningNamesTheLabelsThatAKubeletMaySet: they decide which node receives the
// group's pods.
func TestTheWarningNamesTheLabelsThatAKubeletMaySet(t *testing.T) {
	const guarded = "shop.node-restriction.kubernetes.io/site"
	only := func(op metav1.LabelSelectorOperator, key string) build.Option {
		return build.With(func(g *gm.NodeGroup) {
			g.Spec.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: key, Operator: op}}
		})
	}
	tests := map[string]struct {
		spec    build.Option
		is      metav1.ConditionStatus
		reason  string
		message string
	}{
		"names":             {build.Selects("n"), metav1.ConditionTrue, gm.ReasonNodesCannotJoin, "no kubelet"},
		"a guarded label":   {selects(map[string]string{guarded: "x"}), metav1.ConditionTrue, gm.ReasonNodesCannotJoin, "no kubelet"},
		"free labels":       {selects(map[string]string{"site": "x", "kubernetes.io/os": "linux"}), metav1.ConditionFalse, gm.ReasonNodesCanJoin, `: "kubernetes.io/os", "site": select by`},
		"the chart's guard": {selects(map[string]string{"atoll.dev/site": "x"}), metav1.ConditionUnknown, gm.ReasonLabelGuardUnknown, `: "atoll.dev/site": check that`},
		"beside a guard":    {selects(map[string]string{guarded: "x", "role": "vault"}), metav1.ConditionFalse, gm.ReasonNodesCanJoin, `has the other labels can join by itself, because its kubelet may set these labels: "role"`},
		"no label needed":   {only(metav1.LabelSelectorOpDoesNotExist, guarded), metav1.ConditionFalse, gm.ReasonNodesCanJoin, "without labels"},
		"invalid selector":  {selects(map[string]string{"not a key": "x"}), metav1.ConditionUnknown, gm.ReasonInvalidSelector, "cannot be used"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.NodeGroup("g", tc.spec))
			s.reconcile("g")
			c := meta.FindStatusCondition(s.group("g").Status.Conditions, gm.ConditionMembershipProtected)
			if c == nil || c.Status != tc.is || c.Reason != tc.reason || !strings.Contains(c.Message, tc.message) || c.ObservedGeneration != 1 {
				t.Errorf("the condition is %+v, want %s, %s with %q", c, tc.is, tc.reason, tc.message)
			}
		})
	}
}

// TestStatusIsWrittenAtAPace: a node whose readiness flaps must not cause a write each time.
func TestStatusIsWrittenAtAPace(t *testing.T) {
	n := build.Node("n", build.Label("zone", "a"))
	s := newSite(t, build.NodeGroup("g", selects(map[string]string{"zone": "a"})), n)
	s.reconcile("g")
	s.writes = nil
	var wait time.Duration
	statuses := func() (count int) {
		for _, write := range s.writes {
			if write == "g/status" {
				count++
			}
		}
		return count
	}
	turn := func(i int) {
		node := s.node("n")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}[i%2]}}
		if err := s.Client.Status().Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		result, err := s.pass("g")
		if err != nil {
			t.Fatal(err)
		}
		wait = result.RequeueAfter
	}
	for i := range 51 {
		turn(i)
	}
	if got := statuses(); got > pace.StatusBurst {
		t.Errorf("%d writes without delay, want at most %d", got, pace.StatusBurst)
	}
	if wait <= 0 || wait > pace.StatusEvery {
		t.Errorf("comes back after %s", wait)
	}
	before := statuses()
	s.clock.Step(wait)
	turn(0)
	if got := statuses() - before; got != 1 {
		t.Errorf("%d writes once the time has come, want 1", got)
	}
	if got := s.group("g").Status.Ready; got != 0 {
		t.Errorf("status has %d Ready nodes", got)
	}
}

// TestANodeThatChangedMeanwhileIsNotLabelled: the next pass decides about its new version.
func TestANodeThatChangedMeanwhileIsNotLabelled(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", selects(map[string]string{"zone": "a"})), build.Node("n", build.Label("zone", "a")))
	stale, live := s.node("n"), s.Client
	changed := s.node("n")
	changed.Labels["zone"] = "b"
	if err := s.Client.Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	_, _ = s.pass("g")
	s.Reconciler.Client = interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if node, ok := o.(*corev1.Node); ok { // as a cache that is behind
				*node = *stale
				return nil
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	result, err := s.reconcileNode(t.Context(), request("n"))
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("comes back after %s, error %v", result.RequeueAfter, err)
	}
	s.Reconciler.Client = live
	if got := s.node("n").Labels[gm.NodeGroupLabel]; got != "" {
		t.Errorf("a node that the group does not select any more is labelled with %q", got)
	}
}

// TestStatusWaitsForTheLabels, but not for one that cannot be written: the status names the node.
func TestStatusWaitsForTheLabels(t *testing.T) {
	s := newSite(t, build.NodeGroup("g", build.Selects("a", "b")), build.Node("a"), build.Node("b"))
	result, err := s.pass("g")
	if err != nil || result.RequeueAfter != members.Unseen || len(s.group("g").Status.Conditions) != 0 {
		t.Errorf("comes back after %s, error %v, and the status is %+v", result.RequeueAfter, err, s.group("g").Status)
	}
	s.refuse, s.answer = "b", errors.New("no")
	if err := s.label(); err == nil {
		t.Error("a failed patch returned no error")
	}
	says := func(total int32, reason, message string) {
		t.Helper()
		if result, err := s.pass("g"); err != nil || result.RequeueAfter != 0 {
			t.Errorf("comes back after %s, error %v", result.RequeueAfter, err)
		}
		if c := s.ready("g"); c.Reason != reason || !strings.Contains(c.Message, message) || s.group("g").Status.Total != total {
			t.Errorf("%d members, and the condition is %+v", s.group("g").Status.Total, c)
		}
	}
	says(1, gm.ReasonNodesNotSelected, `nodes that cannot be written: "b": no`)
	s.refuse = ""
	s.reconcile("g")
	says(2, gm.ReasonMembersReady, "")

	// A node that cannot leave is in the group as long as it carries the label.
	g := s.group("g")
	g.Spec.Nodes, g.Generation = []string{"a"}, g.Generation+1
	if err := s.Client.Update(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	s.refuse = "b"
	if err := s.label(); err == nil {
		t.Error("a failed patch returned no error")
	}
	says(2, gm.ReasonNodesNotSelected, `nodes that cannot be written: "b": no`)
	s.refuse = ""
	s.reconcile("g")
	says(1, gm.ReasonMembersReady, "")
}
