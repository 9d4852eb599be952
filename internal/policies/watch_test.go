package policies

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	testingclock "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// indexed returns a cache of policies with the index of the groups that they name.
func indexed(t *testing.T, objects ...client.Object) client.Reader {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := gm.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithIndex(&gm.PropagationPolicy{}, groupsField, groupsOf).WithIndex(&gm.OverridePolicy{}, groupsField, groupsOf).Build()
}

// woken is a ledger, and the queue of the policies that it wakes.
type woken struct {
	*seats.Ledger
	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
}

func newWoken(t *testing.T, list client.ObjectList, objects ...client.Object) *woken {
	t.Helper()
	w := &woken{
		Ledger: seats.NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0))),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]()),
	}
	t.Cleanup(w.queue.ShutDown)
	source := &trigger.Source[ctrl.Request]{}
	w.OnGroups(enqueueOnGroups(indexed(t, objects...), list, source))
	w.ObserveNode(seats.SlimNode(build.Node("early", build.InGroup("hz")))) // before anything runs
	if err := errors.Join(source.Start(t.Context(), w.queue), source.WaitForSync(t.Context())); err != nil {
		t.Fatal(err)
	}
	return w
}

// take empties the queue and returns the sorted names.
func (w *woken) take() []string {
	var out []string
	for w.queue.Len() > 0 {
		r, _ := w.queue.Get()
		w.queue.Done(r)
		out = append(out, r.Name)
	}
	slices.Sort(out)
	return out
}

// TestNodeChangeEnqueuesPoliciesOfItsGroup: of 1,000 policies only those are reconciled
// that name the group of the changed node.
func TestNodeChangeEnqueuesPoliciesOfItsGroup(t *testing.T) {
	var objects []client.Object
	for i := range 997 {
		objects = append(objects, build.PropagationPolicy(fmt.Sprint("other-", i), build.Weight(1, fmt.Sprint("group-", i))))
	}
	objects = append(objects,
		build.PropagationPolicy("weight", build.Weight(1, "sh"), build.Weight(1, "HZ")),
		build.PropagationPolicy("never", build.Weight(0, "hz"), build.Weight(1, "sh")),
		build.PropagationPolicy("sh", build.Weight(1, "sh")))
	w := newWoken(t, &gm.PropagationPolicyList{}, objects...)
	if got := w.take(); len(got) != 0 {
		t.Errorf("woken before anything runs: %v", got)
	}
	node := func(options ...build.Option) { w.ObserveNode(seats.SlimNode(build.Node("n", options...))) }
	notReady := build.With(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse })
	for _, step := range []struct {
		what string
		does func()
		want []string
	}{
		{"a node that is in no group", func() { node() }, nil},
		{"it joins", func() { node(build.InGroup("hz")) }, []string{"never", "weight"}},
		{"nothing changes", func() { node(build.InGroup("hz")) }, nil},
		{"another label changes", func() { node(build.InGroup("hz"), build.Label("zone", "z")) }, nil},
		{"it is not Ready", func() { node(build.InGroup("hz"), notReady) }, []string{"never", "weight"}},
		{"it is Ready again", func() { node(build.InGroup("hz")) }, []string{"never", "weight"}},
		{"it goes to another group", func() { node(build.InGroup("sh")) }, []string{"never", "sh", "weight"}},
		{"it goes to a group of another policy", func() { node(build.InGroup("group-5")) }, []string{"never", "other-5", "sh", "weight"}},
		{"it is deleted, the group's last", func() { w.ForgetNode("n") }, []string{"other-5"}},
		{"it is deleted again", func() { w.ForgetNode("n") }, nil},
	} {
		step.does()
		if diff := cmp.Diff(step.want, w.take()); diff != "" {
			t.Errorf("%s: wrong policies (-want +got):\n%s", step.what, diff)
		}
	}
}

func TestNodeChangeEnqueuesOverridesOfItsGroup(t *testing.T) {
	w := newWoken(t, &gm.OverridePolicyList{},
		build.OverridePolicy("hz", build.Registry("HZ", "hz.io")), build.OverridePolicy("sh", build.Registry("sh", "sh.io")),
		build.OverridePolicy("all", build.With(func(p *gm.OverridePolicy) { p.Spec.OverrideRules = []gm.RuleWithNodeGroup{{}} })))
	w.ObserveNode(seats.SlimNode(build.Node("n", build.InGroup("hz"))))
	if diff := cmp.Diff([]string{"all", "hz"}, w.take()); diff != "" {
		t.Errorf("wrong policies (-want +got):\n%s", diff)
	}
}
