package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// refuseWrites makes the API server refuse atoll-manager's writes to a node, until the
// returned function is called.
func (f *fixture) refuseWrites(node string) (allow func()) {
	f.Helper()
	fail := admissionv1.Fail
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse-" + node},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: &fail,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				ResourceNames: []string{node},
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Update},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
				},
			}}},
			Validations: []admissionv1.Validation{{
				Expression: "request.userInfo.username != 'system:serviceaccount:" + atoll.Namespace + ":" + atoll.Manager + "'",
				Message:    "nobody writes here",
			}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	for _, o := range []client.Object{policy, binding} {
		if err := f.client.Create(f.ctx, o); err != nil {
			f.Fatal(err)
		}
	}
	allow = func() {
		for _, o := range []client.Object{binding, policy} {
			if err := client.IgnoreNotFound(f.client.Delete(context.Background(), o)); err != nil {
				f.Error(err)
			}
		}
	}
	f.Cleanup(allow)
	asManager := f.asManager()
	f.eventually(patience, "the refusal is in force", func() error {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"t.io/try":"1"}}}`))
		if err := asManager.Patch(f.ctx, o, patch, client.DryRunAll); err == nil {
			return fmt.Errorf("a write is let pass")
		}
		return nil
	})
	return allow
}

// asManager returns a client with the identity of atoll-manager.
func (f *fixture) asManager() client.Client {
	f.Helper()
	return f.as("system:serviceaccount:"+atoll.Namespace+":"+atoll.Manager, "system:serviceaccounts")
}

// TestOneBadNodeStopsNoOther is scenario 32: a node that cannot be written is named in a
// condition, with the reason; the others get the pool's attributes, the counts are right,
// and the node follows when it can be written. (Defects E6: nodes after it and the status
// were left out; E10: nothing reported it.)
func TestOneBadNodeStopsNoOther(t *testing.T) {
	tier.All(t, "breadth: a node whose writes are refused")
	f := newFixture(t)
	names := []string{"bad-0", "bad-1", "bad-2", "bad-3"}
	f.nodes(map[string]string{"t.io/site": "bad"}, names...)
	allow := f.refuseWrites("bad-1")
	f.pools(poolOf("bad", chosenBy(selects("t.io/site", "bad"), given("x"))))
	in := carrying("x")
	in.labels["t.io/site"] = "bad"
	for _, name := range []string{"bad-0", "bad-2", "bad-3"} {
		f.becomes(name, "bad", in)
	}
	f.eventually(patience, "the condition names it", func() error {
		if err := f.poolCondition("bad", apps.ConditionAttributesSynced, apps.ReasonSyncFailed, `"bad-1"`, "nobody writes here"); err != nil {
			return err
		}
		if err := f.poolCondition("bad", apps.ConditionReady, apps.ReasonSyncFailed, `"bad-1"`); err != nil {
			return err
		}
		return f.has("bad", names...)
	})
	allow()
	f.becomes("bad-1", "bad", in)
	f.eventually(patience, "the condition clears", func() error { return f.poolCondition("bad", apps.ConditionReady, apps.ReasonNodesReady) })

	// A node whose own attributes cannot be restored keeps its pool from being removed,
	// and is named.
	f.editPool("bad", map[string]any{"selector": nil})
	f.eventually(patience, "all leave", func() error { return f.has("bad") })
	f.join("bad-2", "bad")
	f.becomes("bad-2", "bad", in)
	allow = f.refuseWrites("bad-2")
	f.deletePool("bad")
	f.join("bad-2", "")
	f.eventually(patience, "the condition names it", func() error {
		return f.poolCondition("bad", apps.ConditionReady, apps.ReasonSyncFailed, `"bad-2"`, "nobody writes here")
	})
	allow()
	f.poolGoes("bad")
	f.becomes("bad-2", "", carries{labels: map[string]string{"t.io/site": "bad"}})
}

// TestFlappingNodeCausesFewStatusWrites is scenario 39 and fault F10: however often a node
// changes its readiness, few statuses are written, and the last one is right.
func TestFlappingNodeCausesFewStatusWrites(t *testing.T) {
	tier.All(t, "lets a node change for 20 s")
	f := newFixture(t)
	// No kubelet is simulated for it: only this test writes its status.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "flap-0", Labels: map[string]string{apps.NodePoolLabel: "flap"}}}
	f.create(node)
	f.Cleanup(func() { _ = f.client.Delete(context.Background(), node) })
	f.pools(poolOf("flap", given("x")))
	f.becomes("flap-0", "flap", carrying("x"))
	turn := func(to corev1.ConditionStatus) {
		t.Helper()
		now := metav1.Now()
		err := f.client.Status().Patch(f.ctx, node, client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil,
			`{"status":{"conditions":[{"type":"Ready","status":%q,"reason":"Test","lastHeartbeatTime":%q,"lastTransitionTime":%q}]}}`,
			to, now.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))))
		if err != nil {
			t.Fatal(err)
		}
	}
	var writes atomic.Int32
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	w, err := f.client.Watch(ctx, &apps.NodePoolList{}, client.MatchingFields{"metadata.name": "flap"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range w.ResultChan() {
			writes.Add(1)
		}
	}()
	begin, turns := time.Now(), 0
	for turns < 100 || time.Since(begin) < 20*time.Second {
		turn([]corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue}[turns%2])
		turns++
	}
	took := time.Since(begin)
	turn(corev1.ConditionTrue)
	f.eventually(patience, "the count is right", func() error {
		if err := f.poolCondition("flap", apps.ConditionReady, apps.ReasonNodesReady); err != nil {
			return err
		}
		return f.has("flap", "flap-0")
	})
	// The first version is the initial event of the watch; five are written without
	// delay, then one every five seconds.
	if most := int32(1 + 5 + took/(5*time.Second) + 2); writes.Load() > most {
		t.Errorf("%d turns made %d writes, want %d at most", turns, writes.Load(), most)
	}
	t.Logf("%d turns in %s made %d writes", turns, took.Round(time.Second), writes.Load())
}

// TestPoolsAtRestAreNotWritten: a manager that starts in a cluster without deviations
// writes neither a node nor a pool.
func TestPoolsAtRestAreNotWritten(t *testing.T) {
	tier.All(t, "watches for some time that nothing is written: 25 s")
	f := newFixture(t)
	f.nodes(map[string]string{"t.io/site": "rest"}, "rest-0", "rest-1")
	f.pools(poolOf("rest", chosenBy(selects("t.io/site", "rest"), given("x"))), poolOf("rest-other", chosenBy(selects("t.io/site", "rest"), given("y"))))
	settled := func() error {
		if err := f.poolCondition("rest-other", apps.ConditionReady, apps.ReasonNodesContested); err != nil {
			return err
		}
		return f.poolCondition("rest", apps.ConditionReady, apps.ReasonNodesReady)
	}
	f.eventually(patience, "all is settled", settled)
	versions := func() string {
		var pools apps.NodePoolList
		if err := f.client.List(f.ctx, &pools); err != nil {
			t.Fatal(err)
		}
		out := ""
		for i := range pools.Items {
			out += pools.Items[i].Name + "@" + pools.Items[i].ResourceVersion + " "
		}
		for _, name := range []string{"rest-0", "rest-1"} {
			for _, m := range f.node(name).ManagedFields {
				if m.Manager == "atoll-manager" {
					out += name + "@" + m.Time.String() + " "
				}
			}
		}
		return out
	}
	before := versions()
	if !strings.Contains(before, "rest-0@") || !strings.Contains(before, "rest-1@") {
		t.Fatalf("atoll-manager wrote %s", before)
	}
	f.kill(atoll.Manager)
	since := time.Now()
	f.restart(atoll.Manager)
	f.leads(since)
	f.always(5*time.Second, "nothing is written", func() error {
		if after := versions(); after != before {
			return fmt.Errorf("it was %s and is %s", before, after)
		}
		return settled()
	})
}

// leads waits until a manager that was started at a given time leads.
func (f *fixture) leads(since time.Time) {
	f.Helper()
	f.eventually(patience, "the manager leads", func() error {
		lease, err := f.kube.CoordinationV1().Leases(atoll.Namespace).Get(f.ctx, atoll.Manager, metav1.GetOptions{})
		if err == nil && lease.Spec.RenewTime.Time.Before(since) {
			err = fmt.Errorf("the Lease was renewed at %s", lease.Spec.RenewTime)
		}
		return err
	})
}

// TestManagerKilledWhileNodesJoinAndLeave is fault F7: the manager is killed at random moments while
// nodes join, move and leave, and while a pool is deleted. No node ever has a mixture,
// and the end result is the same as without.
func TestManagerKilledWhileNodesJoinAndLeave(t *testing.T) {
	tier.All(t, "kills atoll-manager twelve times, in a cluster of its own: 1.5 min")
	f := newFixtureOfItsOwn(t, atoll.Options{ManagerArgs: []string{"--leader-elect=false"}})
	const n = 150
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("kill-%03d", i)
	}
	f.nodes(map[string]string{"t.io/l": "mine", "t.io/site": "kill"}, names...)
	own := carries{labels: map[string]string{"t.io/l": "mine", "t.io/site": "kill"}}
	in := func(value string) carries {
		c := carrying(value)
		c.labels["t.io/site"] = "kill"
		return c
	}
	all := func(pool string, want carries) {
		f.Helper()
		for _, name := range names {
			f.becomes(name, pool, want)
		}
	}
	// killed restarts the manager again and again, each time a little later, while the
	// nodes change their pool.
	killed := func(begin func()) {
		f.Helper()
		f.kill(atoll.Manager)
		begin()
		for range 4 {
			f.restart(atoll.Manager)
			pause := time.NewTimer(time.Duration(rand.IntN(250)) * time.Millisecond)
			select {
			case <-pause.C:
			case <-f.ctx.Done():
			}
			f.kill(atoll.Manager)
			f.Logf("killed with the nodes carrying %v", f.noMixture(names, "a", "b"))
		}
		f.restart(atoll.Manager)
	}
	selector := selects("t.io/site", "kill")
	killed(func() {
		f.create(poolOf("kill-a", chosenBy(selector, given("a"))), poolOf("kill-b", given("b")))
	})
	all("kill-a", in("a"))
	killed(func() {
		f.editPool("kill-b", map[string]any{"selector": selector})
		f.deletePool("kill-a")
	})
	all("kill-b", in("b"))
	f.poolGoes("kill-a")
	killed(func() {
		f.editPool("kill-b", map[string]any{"selector": nil})
		f.deletePool("kill-b")
	})
	all("", own)
	f.poolGoes("kill-b")
}

// TestAPIServerKilledWhileNodesJoinAndMove is fault F8: the API server is killed while nodes join and
// while they move. Nothing is removed from a node because a list was empty or a watch
// ended, and the end result is the same as without.
func TestAPIServerKilledWhileNodesJoinAndMove(t *testing.T) {
	tier.All(t, "restarts the API server of a cluster of its own: 1.5 min")
	f := newFixtureOfItsOwn(t, atoll.Options{})
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("api-%03d", i))
	}
	f.nodes(map[string]string{"t.io/l": "mine", "t.io/site": "api"}, names...)
	f.create(poolOf("api-a", chosenBy(selects("t.io/site", "api"), given("a"))), poolOf("api-b", given("b")))
	all := func(pool string, want carries) {
		f.Helper()
		want.labels["t.io/site"] = "api"
		for _, name := range names {
			f.becomes(name, pool, want)
		}
	}
	some := func(value string) {
		f.Helper()
		f.eventually(patience, "some nodes carry "+value, func() error {
			if f.noMixture(names, "a", "b")[value+value+value] == 0 {
				return fmt.Errorf("none does")
			}
			return nil
		})
	}
	some("a")
	f.restart(devcluster.APIServer)
	all("api-a", carrying("a"))
	f.editPool("api-b", map[string]any{"selector": selects("t.io/site", "api")})
	f.deletePool("api-a")
	some("b")
	f.restart(devcluster.APIServer)
	all("api-b", carrying("b"))
	f.poolGoes("api-a")
	f.restart(devcluster.APIServer)
	f.always(5*time.Second, "nothing moves", func() error {
		if counts := f.noMixture(names[:20], "a", "b"); counts["bbb"] != 20 {
			return fmt.Errorf("nodes carry %v", counts)
		}
		return nil
	})
	f.eventually(patience, "the status has it", func() error { return f.has("api-b", names...) })
}

// TestManyPools is fault F24 for pools: 200 pools and 400 nodes settle in bounded time,
// and after that a change of one node is handled as fast as with few pools.
func TestManyPools(t *testing.T) {
	tier.All(t, "100 pools in a cluster of its own: a minute")
	f := newFixtureOfItsOwn(t, atoll.Options{})
	const pools, each, moves = 100, 2, 10
	var specs []devcluster.NodeSpec
	for i := range pools * each {
		specs = append(specs, devcluster.NodeSpec{Name: fmt.Sprintf("many-%03d", i), Labels: map[string]string{"t.io/cloud": "x", "t.io/site": fmt.Sprintf("s%d", i/each)}})
	}
	f.nodeSpecs(specs...)
	begin := time.Now()
	for i := range pools {
		selector := &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{"t.io/cloud": "x", "t.io/site": apps.LabelValue(fmt.Sprintf("s%d", i))}}
		f.create(poolOf(fmt.Sprintf("many-%03d", i), chosenBy(selector, given(fmt.Sprint(i)))))
	}
	f.eventually(2*time.Minute, "all pools have their nodes", func() error {
		var list apps.NodePoolList
		if err := f.client.List(f.ctx, &list); err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.Status.ReadyNode != each || !meta.IsStatusConditionTrue(p.Status.Conditions, apps.ConditionReady) {
				return fmt.Errorf("pool %s has %+v", p.Name, p.Status)
			}
		}
		return nil
	})
	t.Logf("%d pools and %d nodes settled in %s", pools, pools*each, time.Since(begin).Round(10*time.Millisecond))
	begin = time.Now()
	for i := range moves {
		name, to := specs[i].Name, fmt.Sprint(pools-1-i)
		f.label(f.node(name), map[string]any{"t.io/site": "s" + to})
		want := carrying(to)
		want.labels["t.io/site"], want.labels["t.io/cloud"] = "s"+to, "x"
		f.becomes(name, fmt.Sprintf("many-%03s", to), want)
	}
	t.Logf("a node moved in %s", (time.Since(begin) / moves).Round(time.Millisecond))
}

// noMixture fails if a node carries attributes of two pools, or a part of one pool's, and
// counts the nodes by the pool whose attributes they carry.
func (f *fixture) noMixture(names []string, values ...string) map[string]int {
	f.Helper()
	counts := map[string]int{}
	whole := map[string]bool{"mine": true}
	for _, value := range values {
		whole[value+value+value] = true
	}
	var nodes corev1.NodeList
	if err := f.client.List(f.ctx, &nodes); err != nil {
		f.Fatal(err)
	}
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		if !slices.Contains(names, name) {
			continue
		}
		c, _, _ := carriedBy(&nodes.Items[i])
		got := c.labels["t.io/l"] + c.annotations["t.io/a"]
		for _, t := range c.taints {
			got += t.Value
		}
		if !whole[got] {
			f.Errorf("node %s carries a mixture: %v", name, c)
		}
		counts[got]++
	}
	return counts
}
