package nodepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/survey"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

// site is a reconciler with a fake client.
type site struct {
	*Reconciler
	t        testing.TB
	clock    *clocktesting.FakePassiveClock
	recorder *events.FakeRecorder
	mu       sync.Mutex
	// writes are the patches since the test cleared them.
	writes []string
	// refuse are the errors of patches, by name of the object.
	refuse map[string]error
}

func newSite(t testing.TB, objects ...client.Object) *site {
	s := &site{t: t, refuse: map[string]error{}, recorder: events.NewFakeRecorder(1000), clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	c := build.ClientBuilder(interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := s.refuse[o.GetName()]; err != nil {
				return err
			}
			raw, err := patch.Data(o)
			if err != nil {
				return err
			}
			s.mu.Lock()
			s.writes = append(s.writes, o.GetName()+" "+string(raw))
			s.mu.Unlock()
			return c.Patch(ctx, o, patch, opts...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			s.mu.Lock()
			s.writes = append(s.writes, o.GetName()+"/"+name)
			s.mu.Unlock()
			return c.SubResource(name).Patch(ctx, o, patch, opts...)
		},
	}, objects...).WithIndex(&corev1.Node{}, survey.NodeLabels, survey.LabelsOf).Build()
	s.Reconciler = &Reconciler{Client: c, Live: c, Recorder: s.recorder, Clock: s.clock}
	return s
}

func request(name string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}
}

// nodes runs one pass for each node, none of which may fail.
func (s *site) nodes(names ...string) {
	s.t.Helper()
	s.index.all.Invalidate()
	for _, name := range names {
		if result, err := s.reconcileNode(s.t.Context(), request(name)); err != nil || result.RequeueAfter != 0 {
			s.t.Fatalf("node %s comes back after %s, error %v", name, result.RequeueAfter, err)
		}
	}
}

// pools runs one pass for each pool, none of which may fail.
func (s *site) pools(names ...string) {
	s.t.Helper()
	s.index.all.Invalidate()
	for _, name := range names {
		if result, err := s.Reconcile(s.t.Context(), request(name)); err != nil || result.RequeueAfter != 0 {
			s.t.Fatalf("pool %s comes back after %s, error %v", name, result.RequeueAfter, err)
		}
	}
}

// unseen runs one pass for a pool whose nodes are being written.
func (s *site) unseen(pool string) {
	s.t.Helper()
	s.index.all.Invalidate()
	if result, err := s.Reconcile(s.t.Context(), request(pool)); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > members.Unseen {
		s.t.Fatalf("pool %s comes back after %s, error %v", pool, result.RequeueAfter, err)
	}
}

func (s *site) pool(name string) *apps.NodePool {
	s.t.Helper()
	pool := &apps.NodePool{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: name}, pool); err != nil {
		s.t.Fatal(err)
	}
	return pool
}

func (s *site) node(name string) *corev1.Node {
	s.t.Helper()
	node := &corev1.Node{}
	if err := s.Client.Get(s.t.Context(), client.ObjectKey{Name: name}, node); err != nil {
		s.t.Fatal(err)
	}
	return node
}

// events returns the reasons of the events since the last call.
func (s *site) events() []string {
	var reasons []string
	for {
		select {
		case e := <-s.recorder.Events:
			reasons = append(reasons, strings.Fields(e)[1])
		default:
			return reasons
		}
	}
}

func (s *site) condition(pool, kind string) metav1.Condition {
	s.t.Helper()
	c := meta.FindStatusCondition(s.pool(pool).Status.Conditions, kind)
	if c == nil {
		s.t.Fatalf("pool %s has no condition %s", pool, kind)
	}
	return *c
}

func gives(key string, value apps.LabelValue) build.Option {
	return build.With(func(p *apps.NodePool) { p.Spec.Labels = map[string]apps.LabelValue{key: value} })
}

func selects(key string, value apps.LabelValue) build.Option {
	return build.With(func(p *apps.NodePool) {
		p.Spec.Selector = &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{key: value}}
	})
}

func names(pool string) build.Option { return build.Label(apps.NodePoolLabel, pool) }

func forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, name, errors.New("policy says no"))
}

// TestFinalizerComesFirst: no node joins a pool that could be deleted before the node's own
// attributes are restored.
func TestFinalizerComesFirst(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b"), selects("site", "x")), build.Node("n", build.Label("site", "x")))
	p := s.pool("p")
	p.Finalizers = nil
	if err := s.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.index.all.Invalidate()
	if result, err := s.reconcileNode(t.Context(), request("n")); err != nil || result.RequeueAfter != members.AdoptedWithin { // the pool may go before it has it
		t.Errorf("comes back after %s, error %v", result.RequeueAfter, err)
	}
	if len(s.writes) > 0 {
		t.Errorf("written: %v", s.writes)
	}
	s.unseen("p")
	s.nodes("n")
	if n := s.node("n"); n.Labels["a"] != "b" || n.Labels[apps.NodePoolLabel] != "p" {
		t.Errorf("labels are %v", n.Labels)
	}
	if got := s.pool("p").Finalizers; len(got) != 1 || got[0] != apps.NodePoolFinalizer {
		t.Errorf("finalizers are %v", got)
	}
	if got := s.events(); fmt.Sprint(got) != "["+apps.ReasonJoinedNodePool+"]" {
		t.Errorf("events are %v", got)
	}
}

// TestPatchHoldsOnlyWhatChanges: a patch has only the changes and the resourceVersion.
func TestPatchHoldsOnlyWhatChanges(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b")), build.Node("n", names("p"), build.Label("own", "o"), build.Annotation("own", "o")))
	version := s.node("n").ResourceVersion
	s.nodes("n")
	var patch map[string]any
	if len(s.writes) != 1 {
		t.Fatalf("written: %v", s.writes)
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(s.writes[0], "n ")), &patch); err != nil {
		t.Fatal(err)
	}
	metadata := patch["metadata"].(map[string]any)
	annotations := metadata["annotations"].(map[string]any)
	if len(patch) != 1 || len(metadata) != 3 || metadata["resourceVersion"] != version ||
		fmt.Sprint(metadata["labels"]) != "map[a:b]" || len(annotations) != 1 || annotations[apps.NodePoolAnnotation] == nil {
		t.Errorf("the patch is %v", patch)
	}
	s.nodes("n")
	if len(s.writes) != 1 {
		t.Errorf("a second pass wrote %v", s.writes[1:])
	}
}

// TestConflictIsTriedAgainSilently: the next pass uses the new version of the node.
func TestConflictIsTriedAgainSilently(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b")), build.Node("n", names("p")))
	s.refuse["n"] = apierrors.NewConflict(schema.GroupResource{Resource: "nodes"}, "n", errors.New("changed"))
	result, err := s.reconcileNode(t.Context(), request("n"))
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("it comes back after %s, error %v", result.RequeueAfter, err)
	}
	s.unseen("p")
	s.clock.SetTime(s.clock.Now().Add(members.Unseen))
	s.pools("p")
	if c := s.condition("p", apps.ConditionAttributesSynced); c.Reason != apps.ReasonSyncing || !strings.Contains(c.Message, `"n"`) {
		t.Errorf("the condition is %+v", c)
	}
	delete(s.refuse, "n")
	s.nodes("n")
	s.pools("p")
	if c := s.condition("p", apps.ConditionReady); c.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", c)
	}
}

// TestStatusIsWrittenOnceForAJoin: not for each node of a pool that is being written. It says so
// after a while.
func TestStatusIsWrittenOnceForAJoin(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b"), selects("site", "x")), build.Node("n1", build.Label("site", "x")), build.Node("n2", build.Label("site", "x")))
	statuses := func() (n int) {
		for _, w := range s.writes {
			if w == "p/status" {
				n++
			}
		}
		return n
	}
	s.unseen("p")
	s.nodes("n1")
	s.unseen("p")
	if n := statuses(); n != 0 {
		t.Errorf("the status was written %d times before the last node", n)
	}
	s.nodes("n2")
	s.pools("p")
	if c := s.condition("p", apps.ConditionReady); statuses() != 1 || c.Status != metav1.ConditionTrue {
		t.Errorf("the status was written %d times, the condition is %+v", statuses(), c)
	}
}

// TestPoolMissingFromTheCacheChangesNoNode: while only the cache
// does not have the pool of a node, nothing is removed from the node.
func TestPoolMissingFromTheCacheChangesNoNode(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b"), selects("site", "x")), build.Node("n", build.Label("site", "x")))
	s.nodes("n")
	s.writes = nil
	behind := newSite(t, s.node("n"))
	behind.Live = s.Client
	result, err := behind.reconcileNode(t.Context(), request("n"))
	if err != nil || result.RequeueAfter == 0 || len(behind.writes) > 0 {
		t.Errorf("it comes back after %s, error %v, written: %v", result.RequeueAfter, err, behind.writes)
	}
	behind.Live = behind.Client
	behind.nodes("n")
	if n := behind.node("n"); n.Labels["a"] != "" || n.Labels[apps.NodePoolLabel] != "" || n.Annotations[apps.NodePoolAnnotation] != "" {
		t.Errorf("the node of a deleted pool carries %v, %v", n.Labels, n.Annotations)
	}
}

// TestMissingPoolEmitsOneEvent: the event is emitted again only if the pool existed meanwhile.
func TestMissingPoolEmitsOneEvent(t *testing.T) {
	s := newSite(t, build.Node("n", names("p")))
	s.nodes("n", "n", "n")
	if got := s.events(); fmt.Sprint(got) != "["+apps.ReasonNodePoolMissing+"]" {
		t.Errorf("events are %v", got)
	}
	if err := s.Client.Create(t.Context(), build.NodePool("p")); err != nil {
		t.Fatal(err)
	}
	s.nodes("n")
	if got := s.events(); fmt.Sprint(got) != "["+apps.ReasonJoinedNodePool+"]" {
		t.Errorf("events are %v", got)
	}
	p := s.pool("p")
	p.Finalizers = nil
	if err := errors.Join(s.Client.Update(t.Context(), p), s.Client.Delete(t.Context(), p)); err != nil {
		t.Fatal(err)
	}
	s.nodes("n", "n")
	if got := s.events(); fmt.Sprint(got) != "["+apps.ReasonNodePoolMissing+" "+apps.ReasonLeftNodePool+"]" {
		t.Errorf("events are %v", got)
	}
}

// TestBadNodesAreNamed: the message has the names and the error, and is bounded. The rest of
// the status is right.
func TestBadNodesAreNamed(t *testing.T) {
	objects := []client.Object{build.NodePool("p", gives("a", "b"), selects("site", "x"))}
	for i := range 6 {
		objects = append(objects, build.Node(fmt.Sprintf("n%d", i), build.Label("site", "x")))
	}
	s := newSite(t, objects...)
	for i := range 6 {
		name := fmt.Sprintf("n%d", i)
		if i > 0 {
			s.refuse[name] = forbidden(name)
		}
		if _, err := s.reconcileNode(t.Context(), request(name)); (err != nil) != (i > 0) {
			t.Errorf("node %s: error %v", name, err)
		}
	}
	s.pools("p")
	c := s.condition("p", apps.ConditionAttributesSynced)
	if c.Reason != apps.ReasonSyncFailed || !strings.Contains(c.Message, `"n1", "n2", "n3" and 2 more`) || !strings.Contains(c.Message, "policy says no") {
		t.Errorf("the condition is %+v", c)
	}
	if status := s.pool("p").Status; status.ReadyNode != 6 || len(status.Nodes) != 6 {
		t.Errorf("the status is %+v", status)
	}
	before := len(s.writes)
	if _, err := s.reconcileNode(t.Context(), request("n1")); err == nil {
		t.Error("no error")
	}
	s.pools("p")
	if len(s.writes) != before {
		t.Errorf("the same failure again wrote %v", s.writes[before:])
	}
	clear(s.refuse)
	s.nodes("n1", "n2", "n3", "n4", "n5")
	s.pools("p")
	if c := s.condition("p", apps.ConditionReady); c.Status != metav1.ConditionTrue {
		t.Errorf("the condition is %+v", c)
	}
}

// TestConcurrentPassesEndLikeSequentialOnes: concurrent passes over nodes and pools, while a pool changes again
// and again, have the same result as sequential ones.
func TestConcurrentPassesEndLikeSequentialOnes(t *testing.T) {
	objects := []client.Object{build.NodePool("p", gives("a", "0"), selects("site", "x")), build.NodePool("q", selects("site", "x"))}
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprintf("n%d", i))
		objects = append(objects, build.Node(all[i], build.Label("site", "x")))
	}
	s := newSite(t, objects...)
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 40 {
				if _, err := s.reconcileNode(t.Context(), request(all[(i*7+worker)%len(all)])); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 10 {
			p := &apps.NodePool{}
			p.Name = "p"
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"generation":%[1]d},"spec":{"labels":{"a":"%[1]d"}}}`, i))
			if err := s.Client.Patch(t.Context(), p, patch); err != nil {
				t.Error(err)
			}
			s.index.all.Invalidate()
			for _, pool := range []string{"p", "q"} {
				if _, err := s.Reconcile(t.Context(), request(pool)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	wg.Wait()
	s.nodes(all...)
	for _, name := range all {
		if n := s.node(name); n.Labels["a"] != "9" || n.Labels[apps.NodePoolLabel] != "p" {
			t.Errorf("node %s carries %v", name, n.Labels)
		}
	}
}

// TestPoolStatusDropsADeletedBadNode: the status of its pool no longer names it.
func TestPoolStatusDropsADeletedBadNode(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b")), build.Node("n", names("p")))
	s.refuse["n"] = forbidden("n")
	if _, err := s.reconcileNode(t.Context(), request("n")); err == nil {
		t.Error("no error")
	}
	if err := s.Client.Delete(t.Context(), s.node("n")); err != nil {
		t.Fatal(err)
	}
	s.nodes("n")
	s.pools("p")
	if c := s.condition("p", apps.ConditionReady); c.Reason != apps.ReasonNoNodes {
		t.Errorf("the condition is %+v", c)
	}
}

// TestPoolFinalizerStaysUntilNodesAreRestored: the finalizer is removed when every node has its own attributes.
func TestPoolFinalizerStaysUntilNodesAreRestored(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b"), selects("site", "x")), build.Node("n", build.Label("site", "x"), build.Label("a", "mine")))
	s.nodes("n")
	if err := s.Client.Delete(t.Context(), s.pool("p")); err != nil {
		t.Fatal(err)
	}
	s.pools("p")
	s.nodes("n")
	if c := s.condition("p", apps.ConditionReady); c.Reason != apps.ReasonNodesLeft || s.node("n").Labels["a"] != "b" {
		t.Errorf("the condition is %+v, the node carries %v", c, s.node("n").Labels)
	}
	s.pools("p")
	var said []string
	for len(s.recorder.Events) > 0 {
		if event := <-s.recorder.Events; strings.Contains(event, apps.ReasonNodesLeft) {
			said = append(said, event)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], `"n": kubectl label nodes -l apps.openyurt.io/nodepool=p apps.openyurt.io/nodepool-; and, if it has a selector: kubectl patch nodepool p --type=merge -p '{"spec":{"selector":null}}'`) {
		t.Errorf("the pool's events about its deletion are %q", said)
	}
	n := s.node("n")
	delete(n.Labels, "site")
	if err := s.Client.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	s.refuse["n"] = forbidden("n")
	if _, err := s.reconcileNode(t.Context(), request("n")); err == nil {
		t.Error("no error")
	}
	s.pools("p")
	if c := s.condition("p", apps.ConditionReady); c.Reason != apps.ReasonSyncFailed {
		t.Errorf("the condition is %+v", c)
	}
	clear(s.refuse)
	s.nodes("n")
	if s.node("n").Labels["a"] != "mine" {
		t.Errorf("the node carries %v", s.node("n").Labels)
	}
	s.pools("p")
	if err := s.Client.Get(t.Context(), client.ObjectKey{Name: "p"}, &apps.NodePool{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pool is still there: %v", err)
	}
}

// TestInvalidStoredPoolValuesAreIgnored: invalid values that were stored without the schema are
// ignored, and a condition names them.
func TestInvalidStoredPoolValuesAreIgnored(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("kubernetes.io/hostname", "x")), build.NodePool("q", selects("not a key", "x")), build.Node("n", names("p")))
	s.nodes("n")
	s.pools("p", "q")
	if c := s.condition("p", apps.ConditionReady); c.Reason != apps.ReasonInvalid || !strings.Contains(c.Message, "spec.labels: kubernetes.io/hostname") {
		t.Errorf("the condition is %+v", c)
	}
	if c := s.condition("q", apps.ConditionReady); c.Reason != apps.ReasonInvalid || !strings.Contains(c.Message, "spec.selector.matchLabels[not a key]") {
		t.Errorf("the condition is %+v", c)
	}
}

// TestTheWarningNamesTheLabelsThatAKubeletMaySet: they decide which node receives the
// pods that run in the pool. The label that names a pool is one of them.
func TestTheWarningNamesTheLabelsThatAKubeletMaySet(t *testing.T) {
	const guarded = "shop.node-restriction.kubernetes.io/site"
	tests := map[string]struct {
		spec    build.Option
		is      metav1.ConditionStatus
		reason  string
		message string
	}{
		"no selector":       {gives("a", "b"), metav1.ConditionUnknown, apps.ReasonLabelGuardUnknown, apps.NodePoolLabel},
		"a guarded label":   {selects(guarded, "x"), metav1.ConditionUnknown, apps.ReasonLabelGuardUnknown, apps.NodePoolLabel},
		"the chart's guard": {selects("atoll.dev/site", "x"), metav1.ConditionUnknown, apps.ReasonLabelGuardUnknown, `: "atoll.dev/site": check that`},
		"a free label":      {selects("site", "x"), metav1.ConditionFalse, apps.ReasonNodesCanJoin, `: "site": select by`},
		"invalid selector":  {selects("not a key", "x"), metav1.ConditionUnknown, apps.ReasonInvalid, "cannot be used"},
		"no label needed": {build.With(func(p *apps.NodePool) {
			p.Spec.Selector = &apps.NodeSelector{MatchExpressions: []apps.NodeSelectorRequirement{{Key: guarded, Operator: metav1.LabelSelectorOpDoesNotExist}}}
		}), metav1.ConditionFalse, apps.ReasonNodesCanJoin, "without labels"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, build.NodePool("p", tc.spec))
			s.pools("p")
			if c := s.condition("p", apps.ConditionMembershipProtected); c.Status != tc.is || c.Reason != tc.reason || !strings.Contains(c.Message, tc.message) {
				t.Errorf("the condition is %+v, want %s, %s with %q", c, tc.is, tc.reason, tc.message)
			}
		})
	}
}

// TestNodesWhoseLabelNamesAnotherPoolAreNamed: the selector matches them, so the pool must not say that
// it matches none, or that they are in no other pool.
func TestNodesWhoseLabelNamesAnotherPoolAreNamed(t *testing.T) {
	s := newSite(t, build.NodePool("chosen"), build.NodePool("p", selects("site", "x")),
		build.Node("a", build.Label("site", "x"), build.Label(apps.NodePoolLabel, "chosen")), build.Node("b", build.Label("site", "x"), build.Label(apps.NodePoolLabel, "gone")))
	s.pools("p")
	const want = `nodes that spec.selector matches name another pool in their label apps.openyurt.io/nodepool, which is first: "a", "b"`
	for kind, is := range map[string]metav1.ConditionStatus{apps.ConditionUncontested: metav1.ConditionTrue, apps.ConditionReady: metav1.ConditionFalse} {
		if c := s.condition("p", kind); c.Status != is || c.Message != want {
			t.Errorf("the condition %s is %+v, want %s with %s", kind, c, is, want)
		}
	}
}

// TestStatusIsWrittenAtAPace: some writes without delay, then one every pace.StatusEvery. The
// last status is always written.
func TestStatusIsWrittenAtAPace(t *testing.T) {
	s := newSite(t, build.NodePool("p"), build.Node("n", names("p")))
	s.nodes("n")
	s.writes = nil
	turn := func() ctrl.Result {
		n := s.node("n")
		is := &n.Status.Conditions[0].Status
		*is = map[corev1.ConditionStatus]corev1.ConditionStatus{corev1.ConditionTrue: corev1.ConditionFalse, corev1.ConditionFalse: corev1.ConditionTrue}[*is]
		if err := s.Client.Status().Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		result, err := s.Reconcile(t.Context(), request("p"))
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	const turns = 100
	for range turns {
		turn()
		s.clock.SetTime(s.clock.Now().Add(time.Minute / turns))
	}
	if most := pace.StatusBurst + int(time.Minute/pace.StatusEvery); len(s.writes) > most {
		t.Errorf("%d turns in a minute made %d writes, want %d at most", turns, len(s.writes), most)
	}
	last := turn()
	for range 4 { // at the same moment, so that one has to wait
		if last.RequeueAfter == 0 {
			last = turn()
		}
	}
	if last.RequeueAfter == 0 || last.RequeueAfter > pace.StatusEvery {
		t.Errorf("the rest is written after %s", last.RequeueAfter)
	}
	s.clock.SetTime(s.clock.Now().Add(last.RequeueAfter))
	s.pools("p")
	if status := s.pool("p").Status; status.ReadyNode+status.NotReadyNode != 1 || (status.ReadyNode == 1) != (members.Readiness(s.node("n")) == corev1.ConditionTrue) {
		t.Errorf("the status is %+v", status)
	}
}

// TestRepairsHaveAPace: a program that changes a node after each repair causes a bounded
// number of writes, and does not delay changes of the pool.
func TestRepairsHaveAPace(t *testing.T) {
	s := newSite(t, build.NodePool("p", gives("a", "b")), build.Node("n", names("p")))
	s.nodes("n")
	s.writes = nil
	var last ctrl.Result
	for range 100 {
		n := s.node("n")
		n.Labels["a"] = "theirs"
		if err := s.Client.Update(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		var err error
		if last, err = s.reconcileNode(t.Context(), request("n")); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.writes) != repairBurst || last.RequeueAfter == 0 || last.RequeueAfter > repairEvery {
		t.Errorf("100 repairs at once made %d writes, want %d; the rest comes back after %s", len(s.writes), repairBurst, last.RequeueAfter)
	}
	p := s.pool("p")
	p.Spec.Labels["a"], p.Generation = "c", p.Generation+1
	if err := s.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.nodes("n")
	if got := s.node("n").Labels["a"]; got != "c" {
		t.Errorf("the label is %q", got)
	}
}

// cached is a client that has nodes as the manager's cache has them: it finds them by the index, and
// returns them without a copy. It counts what it returns.
type cached struct {
	client.Client
	nodes toolscache.Indexer
	read  int
}

func (c *cached) node(name string) *corev1.Node {
	found, _, _ := c.nodes.GetByKey(name)
	node, _ := found.(*corev1.Node)
	return node
}

func (c *cached) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	nodes, ok := list.(*corev1.NodeList)
	if !ok {
		return c.Client.List(ctx, list, opts...)
	}
	var found []any
	if fields, is := opts[0].(client.MatchingFields); is {
		found, _ = c.nodes.ByIndex(survey.NodeLabels, fields[survey.NodeLabels])
	} else {
		found = c.nodes.List()
	}
	for _, o := range found {
		nodes.Items = append(nodes.Items, *o.(*corev1.Node))
	}
	c.read += len(found)
	return nil
}

// newSites returns a site with n pools of five nodes each.
func newSites(t testing.TB, n int) (*site, *cached) {
	t.Helper()
	var pools []client.Object
	nodes := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{survey.NodeLabels: func(o any) ([]string, error) {
		return survey.LabelsOf(o.(client.Object)), nil
	}})
	for i := range n {
		value := apps.LabelValue(fmt.Sprintf("s%d", i))
		pools = append(pools, build.NodePool(fmt.Sprintf("p%d", i), selects("site", value), gives("a", "b")))
		for j := range 5 {
			node := build.Node(fmt.Sprintf("n%d-%d", i, j), build.Label("site", string(value)), build.Label(corev1.LabelHostname, fmt.Sprintf("n%d-%d", i, j)))
			node.ResourceVersion = "1"
			if err := nodes.Add(node); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := newSite(t, pools...)
	c := &cached{Client: s.Client, nodes: nodes}
	s.Client = c
	return s, c
}

// TestAPassReadsTheNodesOfItsPool: no other nodes are read, however many exist; neither is one read
// again because of another pool.
func TestAPassReadsTheNodesOfItsPool(t *testing.T) {
	s, c := newSites(t, 40)
	has := func(pool string, want ...string) {
		t.Helper()
		c.read = 0
		scope := &scope{pool: s.pool(pool)}
		if err := s.observe(t.Context(), scope); err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, node := range scope.nodes {
			got = append(got, node.name)
		}
		if !slices.Equal(got, want) || c.read != len(want) {
			t.Errorf("pool %s has %v, want %v; %d nodes were read", pool, got, want, c.read)
		}
	}
	has("p3", "n3-0", "n3-1", "n3-2", "n3-3", "n3-4")
	has("p4", "n4-0", "n4-1", "n4-2", "n4-3", "n4-4")

	to := c.node("n3-1").DeepCopy()
	to.ResourceVersion, to.Labels["site"] = "2", "s4"
	if err := c.nodes.Update(to); err != nil {
		t.Fatal(err)
	}
	has("p3", "n3-0", "n3-2", "n3-3", "n3-4")
	has("p4", "n3-1", "n4-0", "n4-1", "n4-2", "n4-3", "n4-4")
	if err := c.nodes.Delete(c.node("n4-0")); err != nil {
		t.Fatal(err)
	}
	has("p4", "n3-1", "n4-1", "n4-2", "n4-3", "n4-4")

	before, after := s.pool("p3"), s.pool("p3")
	after.Generation++
	after.Spec.Labels = map[string]apps.LabelValue{"a": "b"}
	if err := s.Client.Update(t.Context(), after); err != nil {
		t.Fatal(err)
	}
	c.read = 0
	q := &watched.Queue{}
	s.members().OfGroups().Update(t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
	if got := q.Take(); got != "n3-0 n3-2 n3-3 n3-4" || c.read != 4 {
		t.Errorf("a change of one pool of 4 nodes enqueued %s, and read %d nodes", got, c.read)
	}
	has("p3", "n3-0", "n3-2", "n3-3", "n3-4")
}

// BenchmarkNodeEvent: the cost of a node's change in both controllers must not grow with the
// number of pools or nodes.
//
//	go test ./internal/controller/nodepool -run '^$' -bench NodeEvent -benchmem
func BenchmarkNodeEvent(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("pools=%d", n), func(b *testing.B) {
			s, c := newSites(b, n)
			before := c.node("n5-0")
			pool := s.pool("p5")
			q, events := &watched.Queue{}, s.members().OfNodes()
			for version := 2; b.Loop(); version++ {
				after := before.DeepCopy()
				after.ResourceVersion, after.Labels["own"] = fmt.Sprint(version), fmt.Sprint(version)
				if err := c.nodes.Update(after); err != nil {
					b.Fatal(err)
				}
				events.Update(b.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, q)
				before = after
				pools, err := s.index.pools(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				if err := s.decide(b.Context(), &visit{node: after, pools: pools, read: s.index.read(after)}); err != nil {
					b.Fatal(err)
				}
				if err := s.observe(b.Context(), &scope{pool: pool}); err != nil {
					b.Fatal(err)
				}
				q.Take()
			}
		})
	}
}
