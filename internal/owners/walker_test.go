package owners

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// newWalker returns a walker whose caches hold the objects.
func newWalker(api *build.API, cached ...build.Object) *Walker {
	w := NewWalker(api.Client())
	for _, o := range cached {
		w.Put(build.Owner(o))
	}
	return w
}

// unknownKind returns a reference to a controller of a kind that is not watched.
func unknownKind(name string) *ownership.Reference {
	return &ownership.Reference{
		GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"},
		Name:             name, UID: types.UID(name),
	}
}

func names(objects []*ownership.Object) []string {
	var out []string
	for _, o := range objects {
		out = append(out, o.Kind+" "+o.Name)
	}
	return out
}

func TestChain(t *testing.T) {
	deployment := build.Deployment("web", build.Requires("p", ""), build.Replicas(3))
	replicaSet := build.ReplicaSet("web-1", build.OwnedBy(deployment))
	pod := build.Owner(build.Pod("web-1-a", build.OwnedBy(replicaSet)))
	ofWidget := build.Owner(build.Pod("owned", build.Requires("p", "")))
	ofWidget.Controller = unknownKind("widget")
	otherName := *pod
	otherName.Controller = &ownership.Reference{GroupVersionKind: pod.Controller.GroupVersionKind, Name: "renamed", UID: "web-1"}

	tests := map[string]struct {
		cached, live []build.Object
		from         *ownership.Object
		failure      int

		want      []string
		wantErr   error
		wantReads int
	}{
		"owners in the cache are not read": {
			cached: []build.Object{deployment, replicaSet},
			from:   pod,
			want:   []string{"Pod web-1-a", "ReplicaSet web-1", "Deployment web"},
		},
		"an owner that the cache does not hold yet is read live, once": {
			cached: []build.Object{deployment}, live: []build.Object{deployment, replicaSet},
			from:      pod,
			want:      []string{"Pod web-1-a", "ReplicaSet web-1", "Deployment web"},
			wantReads: 1,
		},
		"owners are found by UID, whatever the name in the reference says": {
			cached: []build.Object{deployment, replicaSet},
			from:   &otherName,
			want:   []string{"Pod web-1-a", "ReplicaSet web-1", "Deployment web"},
		},
		"a pod without a controller is its own top": {
			from: build.Owner(build.Pod("bare")),
			want: []string{"Pod bare"},
		},
		"a controller of an unknown kind ends the chain without being read": {
			from: ofWidget,
			want: []string{"Pod owned", "Widget widget"},
		},
		"an owner that does not exist is gone": {
			from:      pod,
			wantErr:   ErrOwnerGone,
			wantReads: 1,
		},
		"another owner of the same name is not the owner": {
			live:      []build.Object{build.ReplicaSet("web-1", build.UID("younger"))},
			from:      pod,
			wantErr:   ErrOwnerGone,
			wantReads: 1,
		},
		"an owner in another namespace is not the owner": {
			cached:    []build.Object{build.ReplicaSet("web-1", func(o build.Object) { o.SetNamespace("elsewhere") })},
			from:      pod,
			wantErr:   ErrOwnerGone,
			wantReads: 1,
		},
		"an owner higher up that does not exist is gone": {
			cached:    []build.Object{replicaSet},
			from:      pod,
			wantErr:   ErrOwnerGone,
			wantReads: 1,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := build.NewAPI(t, tc.live...)
			chain, err := newWalker(api, tc.cached...).Chain(t.Context(), tc.from)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error is %v, want %v", err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, names(chain)); diff != "" {
				t.Errorf("wrong chain (-want +got):\n%s", diff)
			}
			if got := api.Reads(); got != tc.wantReads {
				t.Errorf("%d live reads, want %d", got, tc.wantReads)
			}
		})
	}
}

func TestChainReturnsATransientErrorAndConcludesNothing(t *testing.T) {
	pod := build.Owner(build.Pod("web-1-a", build.OwnedBy(build.ReplicaSet("web-1"))))
	for _, status := range []int{http.StatusForbidden, http.StatusInternalServerError} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			api := build.NewAPI(t)
			api.Fail(status)
			app, chain, err := newWalker(api).PolicyOwners(t.Context(), pod)
			if err == nil || errors.Is(err, ErrOwnerGone) || errors.Is(err, ErrOwnerCycle) {
				t.Errorf("error is %v, want that of the API server", err)
			}
			if app.Managed() || chain != nil {
				t.Errorf("workload %v of chain %v, want none", app, chain)
			}
		})
	}
}

func TestAnUnknownControllerLeavesThePodsLabelsUnused(t *testing.T) {
	pod := build.Owner(build.Pod("owned", build.Requires("p", "o")))
	pod.Controller = unknownKind("widget")
	app, _, err := newWalker(build.NewAPI(t)).PolicyOwners(t.Context(), pod)
	if err != nil || app.Managed() {
		t.Errorf("a pod with an owner of an unknown kind belongs to %+v (error %v)", app, err)
	}
}

// ownersAbove returns ReplicaSets each of which controls the one before it; the first
// is returned too.
func ownersAbove(height int) []build.Object {
	objects := make([]build.Object, height)
	for i := height - 1; i >= 0; i-- {
		objects[i] = build.ReplicaSet(fmt.Sprint("level-", i))
		if i+1 < height {
			build.OwnedBy(objects[i+1])(objects[i])
		}
	}
	return objects
}

func TestChainIsBounded(t *testing.T) {
	self := build.ReplicaSet("self")
	build.OwnedBy(self)(self)
	left, right := build.ReplicaSet("left"), build.ReplicaSet("right")
	build.OwnedBy(left)(right)
	build.OwnedBy(right)(left)
	tests := map[string]struct {
		owners  []build.Object
		wantErr error
		want    int
	}{
		"ten owners are walked":        {owners: ownersAbove(ownership.MaxHops), want: ownership.MaxHops + 1},
		"eleven owners are too many":   {owners: ownersAbove(ownership.MaxHops + 1), wantErr: ErrOwnerCycle},
		"an owner of itself":           {owners: []build.Object{self}, wantErr: ErrOwnerCycle},
		"two that own each other":      {owners: []build.Object{left, right}, wantErr: ErrOwnerCycle},
		"a hundred owners end as well": {owners: ownersAbove(100), wantErr: ErrOwnerCycle},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWalker(build.NewAPI(t), tc.owners...)
			chain, err := w.Chain(t.Context(), build.Owner(build.Pod("p", build.OwnedBy(tc.owners[0]))))
			if !errors.Is(err, tc.wantErr) || len(chain) != tc.want {
				t.Errorf("chain of %d, error %v; want %d, %v", len(chain), err, tc.want, tc.wantErr)
			}
			// None of these may run for ever.
			w.PolicyOwnersOf(tc.owners[0].GetUID())
			w.Requiring(Propagation, build.Namespace, "p")
			if got := len(w.Descendants(tc.owners[len(tc.owners)-1].GetUID())); got != len(tc.owners) {
				t.Errorf("the topmost owner has %d descendants with itself, want %d", got, len(tc.owners))
			}
		})
	}
}

func TestACycleRequiringAPolicyEnds(t *testing.T) {
	left, right := build.ReplicaSet("left", build.Requires("p", "")), build.ReplicaSet("right", build.Requires("p", ""))
	build.OwnedBy(left)(right)
	build.OwnedBy(right)(left)
	w := newWalker(build.NewAPI(t), left, right)
	if got := w.Requiring(Propagation, build.Namespace, "p"); len(got) != 0 {
		t.Errorf("each is below the other, but %v are returned", names(got))
	}
	if app := w.PolicyOwnersOf("left"); app.Propagation == nil {
		t.Error("a pod below the cycle has no workload, but both owners require a policy")
	}
}

func TestPodsOfAnUncachedOwnerHaveNoWorkload(t *testing.T) {
	orphan := build.ReplicaSet("orphan", build.OwnedBy(build.Deployment("unseen")))
	w := newWalker(build.NewAPI(t), orphan)
	for _, uid := range []types.UID{"nobody", "", "orphan"} {
		if app := w.PolicyOwnersOf(uid); app.Managed() {
			t.Errorf("pods of %q belong to %+v", uid, app)
		}
	}
}

func TestRequiring(t *testing.T) {
	top := build.Deployment("top", build.Requires("p", ""))
	below := build.ReplicaSet("below", build.OwnedBy(top), build.Requires("p", "o"))
	tests := map[string]struct {
		change   func(w *Walker)
		kind     PolicyKind
		policy   string
		expected []string
	}{
		"the topmost object that requires the policy stands for those below": {
			kind: Propagation, policy: "p", expected: []string{"Deployment top"},
		},
		"the two kinds of policies have each their own top": {
			kind: Override, policy: "o", expected: []string{"ReplicaSet below"},
		},
		"another policy is not required": {kind: Propagation, policy: "q"},
		"an object moves with its label": {
			change: func(w *Walker) { w.Put(build.Owner(build.Deployment("top", build.Requires("q", "")))) },
			kind:   Propagation, policy: "q", expected: []string{"Deployment top"},
		},
		"an object below one that requires another policy of the kind is left out": {
			change: func(w *Walker) { w.Put(build.Owner(build.Deployment("top", build.Requires("q", "")))) },
			kind:   Propagation, policy: "p",
		},
		"the next below takes over when the label above goes": {
			change: func(w *Walker) { w.Put(build.Owner(build.Deployment("top"))) },
			kind:   Propagation, policy: "p", expected: []string{"ReplicaSet below"},
		},
		"the next below takes over when the object above goes": {
			change: func(w *Walker) { w.Drop("top") },
			kind:   Propagation, policy: "p", expected: []string{"ReplicaSet below"},
		},
		"a deleted object requires nothing": {
			change: func(w *Walker) { w.Drop("below"); w.Drop("top") },
			kind:   Propagation, policy: "p",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWalker(build.NewAPI(t), top, below)
			if tc.change != nil {
				tc.change(w)
			}
			if diff := cmp.Diff(tc.expected, names(w.Requiring(tc.kind, build.Namespace, tc.policy))); diff != "" {
				t.Errorf("wrong objects (-want +got):\n%s", diff)
			}
			if got := w.Requiring(tc.kind, "elsewhere", tc.policy); len(got) != 0 {
				t.Errorf("a policy of another namespace is required by %v", names(got))
			}
		})
	}
}

func TestHandlersGetEveryOwnerChange(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	var calls []string
	w.OnChange(func(old, new *ownership.Object) {
		calls = append(calls, fmt.Sprintf("%t %t", old != nil, new != nil))
	})
	o := build.Owner(build.Deployment("d"))
	w.Put(o)
	w.Put(o)
	w.Drop(o.UID)
	w.Drop(o.UID) // gone already: nothing changes
	if diff := cmp.Diff([]string{"false true", "true true", "true false"}, calls); diff != "" {
		t.Errorf("wrong changes, old and new (-want +got):\n%s", diff)
	}
}

func TestLabelledFindsStrayBindingsToo(t *testing.T) {
	stray := build.Owner(build.Deployment("stray"))
	stray.Policies.BindingPropagation = "p"
	w := newWalker(build.NewAPI(t), build.Deployment("plain"), build.Deployment("wants", build.Requires("p", "")))
	w.Put(stray)
	got := names(w.Labelled())
	slices.Sort(got)
	if diff := cmp.Diff([]string{"Deployment stray", "Deployment wants"}, got); diff != "" {
		t.Errorf("wrong objects (-want +got):\n%s", diff)
	}
}

// TestIndexIsAFunctionOfTheObjects puts and drops objects at random, and compares the
// walker with one that got the remaining objects only.
func TestIndexIsAFunctionOfTheObjects(t *testing.T) {
	client := build.NewAPI(t).Client()
	rapid.Check(t, func(t *rapid.T) {
		w, alive := NewWalker(client), map[types.UID]*ownership.Object{}
		uid := rapid.Custom(func(t *rapid.T) types.UID { return types.UID(fmt.Sprint("o", rapid.IntRange(0, 7).Draw(t, "uid"))) })
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			at := uid.Draw(t, "object")
			if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
				w.Drop(at)
				delete(alive, at)
				continue
			}
			o := &ownership.Object{Namespace: build.Namespace, Name: string(at), UID: at}
			o.Policies.RequiredPropagation = rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "policy")
			if rapid.Bool().Draw(t, "owned") {
				o.Controller = &ownership.Reference{UID: uid.Draw(t, "owner")}
			}
			w.Put(o)
			alive[at] = o
		}
		fresh := NewWalker(client)
		for _, o := range alive {
			fresh.Put(o)
		}
		for _, policy := range []string{"p", "q"} {
			got, want := names(w.Requiring(Propagation, build.Namespace, policy)), names(fresh.Requiring(Propagation, build.Namespace, policy))
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("wrong objects require %q (-want +got):\n%s", policy, diff)
			}
		}
		for i := range 8 {
			at := types.UID(fmt.Sprint("o", i))
			got, want := w.Descendants(at), fresh.Descendants(at)
			slices.Sort(got)
			slices.Sort(want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("wrong descendants of %s (-want +got):\n%s", at, diff)
			}
			if got, want := w.PolicyOwnersOf(at), fresh.PolicyOwnersOf(at); got != want {
				t.Fatalf("the workload of pods of %s is %v, want %v", at, got, want)
			}
		}
		for range len(alive) {
			for at := range alive {
				w.Drop(at)
			}
		}
		if left := len(w.objects) + len(w.children) + len(w.requiring); left != 0 {
			t.Fatalf("%d entries of deleted objects are left", left)
		}
	})
}

func TestManyReadersAndWritersAtOnce(t *testing.T) {
	w := NewWalker(build.NewAPI(t).Client())
	w.OnChange(func(_, new *ownership.Object) {
		if new != nil {
			w.PolicyOwnersOf(new.UID) // handlers may ask
		}
	})
	var wg sync.WaitGroup
	for i := range 8 {
		deployment := build.Deployment(fmt.Sprint("d", i), build.Requires("p", ""))
		replicaSet := build.ReplicaSet(fmt.Sprint("rs", i), build.OwnedBy(deployment))
		pod := build.Owner(build.Pod("pod", build.OwnedBy(replicaSet)))
		wg.Go(func() {
			for range 50 {
				w.Put(build.Owner(deployment))
				w.Put(build.Owner(replicaSet))
				if _, _, err := w.PolicyOwners(context.Background(), pod); err != nil {
					t.Error(err)
				}
				w.Drop(replicaSet.UID)
			}
		})
		wg.Go(func() {
			for range 50 {
				w.Requiring(Propagation, build.Namespace, "p")
				w.Descendants(deployment.UID)
				w.Labelled()
			}
		})
	}
	wg.Wait()
	if got := len(w.Requiring(Propagation, build.Namespace, "p")); got != 8 {
		t.Errorf("%d objects require the policy, want 8", got)
	}
}
