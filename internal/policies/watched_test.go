package policies

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func namesOf(requests []ctrl.Request) (names []string) {
	for _, request := range requests {
		names = append(names, request.Name)
	}
	return names
}

// eachKind runs a test for each kind of policies: requires names one of the kind, and other one of the other kind.
func eachKind(t *testing.T, test func(t *testing.T, kind owners.PolicyKind, requires, other func(name string) build.Option)) {
	t.Helper()
	propagation := func(name string) build.Option { return build.Requires(name, "") }
	override := func(name string) build.Option { return build.Requires("", name) }
	t.Run("PropagationPolicy", func(t *testing.T) { test(t, owners.Propagation, propagation, override) })
	t.Run("OverridePolicy", func(t *testing.T) { test(t, owners.Override, override, propagation) })
}

func TestOwnersEnqueueTheirPolicies(t *testing.T) {
	eachKind(t, func(t *testing.T, kind owners.PolicyKind, requires, other func(string) build.Option) {
		owner := func(options ...build.Option) *ownership.Object {
			return build.Owner(build.Deployment("web", options...))
		}
		p, q := requires("p"), requires("q")
		for name, tc := range map[string]struct {
			old, new *ownership.Object
			want     []string
		}{
			"created without a policy":       {nil, owner(), nil},
			"created with one of other kind": {nil, owner(other("o")), nil},
			"created with a policy":          {nil, owner(p), []string{"p"}},
			"changed, whatever the change":   {owner(p), owner(p), []string{"p", "p"}},
			"requires another policy":        {owner(p), owner(q), []string{"p", "q"}},
			"requires none any more":         {owner(p), owner(), []string{"p"}},
			"deleted":                        {owner(p), nil, []string{"p"}},
		} {
			if diff := cmp.Diff(tc.want, namesOf(Watched{Kind: kind}.OfOwner(tc.old, tc.new))); diff != "" {
				t.Errorf("%s: wrong requests (-want +got):\n%s", name, diff)
			}
		}
	})
}

// TestPodsEnqueueThePolicyOfTheirWorkload has two Deployments with a ReplicaSet each: web requires the
// policy p, and plain requires none.
func TestPodsEnqueueThePolicyOfTheirWorkload(t *testing.T) {
	eachKind(t, func(t *testing.T, kind owners.PolicyKind, requires, _ func(string) build.Option) {
		web, plain := build.Deployment("web", requires("p")), build.Deployment("plain")
		set, plainSet := build.ReplicaSet("web-1", build.OwnedBy(web)), build.ReplicaSet("plain-1", build.OwnedBy(plain))
		w := Watched{Kind: kind, Walker: owners.NewWalker(kubefake.NewClientset())}
		for _, o := range []client.Object{web, plain, set, plainSet} {
			w.Walker.Observe(o)
		}
		pod := func(options ...build.Option) *seats.Pod { return seats.Slim(build.Pod("pod", options...)) }
		mine, others := build.OwnedBy(set), build.OwnedBy(plainSet)
		for name, tc := range map[string]struct {
			old, new *seats.Pod
			want     []string
		}{
			"created":                       {nil, pod(mine), []string{"p"}},
			"created without a policy":      {nil, pod(others), nil},
			"deleted":                       {pod(mine), nil, []string{"p"}},
			"released by its owner":         {pod(mine), pod(), []string{"p"}},
			"adopted by a Deployment's set": {pod(), pod(mine), []string{"p"}},
		} {
			if diff := cmp.Diff(tc.want, namesOf(w.OfPod(tc.old, tc.new))); diff != "" {
				t.Errorf("%s: wrong requests (-want +got):\n%s", name, diff)
			}
		}
		for owner, want := range map[types.UID][]string{"web-1": {"p"}, "unknown": nil} {
			if diff := cmp.Diff(want, namesOf(w.Above(owner))); diff != "" {
				t.Errorf("wrong requests for pods of %s (-want +got):\n%s", owner, diff)
			}
		}
	})
}
