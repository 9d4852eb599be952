package owners

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var (
	flows  = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Flow"}
	fleets = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Fleet"} // cluster-scoped
	ghosts = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Ghost"} // not served
)

// lineageFixture is a lineage with an API server that serves Flows and Fleets.
type lineageFixture struct {
	*Lineage
	meta  *metadatafake.FakeMetadataClient
	api   *fake.Clientset
	clock *testingclock.FakeClock
	// watching is true once a watch has started.
	watching atomic.Bool
	mu       sync.Mutex
	reads    []string
}

func newLineage(t *testing.T, cached []build.Object, live ...*metav1.PartialObjectMetadata) *lineageFixture {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, o := range live {
		objects = append(objects, o)
	}
	r := &lineageFixture{meta: metadatafake.NewSimpleMetadataClient(scheme, objects...), clock: testingclock.NewFakeClock(time.Unix(1_000_000, 0))}
	r.meta.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		get := action.(clienttesting.GetAction)
		r.reads = append(r.reads, get.GetResource().Resource+" "+get.GetNamespace()+"/"+get.GetName())
		return false, nil, nil
	})
	// A fake client tells a watch nothing of what happened between its list and its start.
	r.meta.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := r.meta.Tracker().Watch(action.GetResource(), action.GetNamespace())
		r.watching.Store(true)
		return true, w, err
	})
	r.api = fake.NewClientset()
	r.api.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "flows", Kind: "Flow", Namespaced: true}, {Name: "flows/status", Kind: "Flow", Namespaced: true}, {Name: "fleets", Kind: "Fleet"},
	}}}
	walker := newWalker(build.NewAPI(t), cached...)
	walker.clock = r.clock
	r.Lineage = NewLineage(walker, r.meta, r.api.Discovery())
	r.others.clock = r.clock
	return r
}

func (r *lineageFixture) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.reads)
}

// run starts the watches until the test ends.
func (r *lineageFixture) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Start(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// of returns an object of a kind. owner may be nil.
func of(gvk schema.GroupVersionKind, name string, owner *ownership.Reference) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: name, UID: types.UID(name)}}
	if gvk == fleets {
		o.Namespace = ""
	}
	o.SetGroupVersionKind(gvk)
	if owner != nil {
		apiVersion, kind := owner.ToAPIVersionAndKind()
		o.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: owner.Name, UID: owner.UID, Controller: new(true)}}
	}
	return o
}

func ref(gvk schema.GroupVersionKind, name string) *ownership.Reference {
	return &ownership.Reference{GroupVersionKind: gvk, Name: name, UID: types.UID(name)}
}

// podOf is a pod with a controller.
func podOf(controller *ownership.Reference) *ownership.Object {
	pod := build.Owner(build.Pod("pod"))
	pod.Controller = controller
	return pod
}

func TestLineage(t *testing.T) {
	job := build.Job("job")
	job.OwnerReferences = of(flows, "", ref(flows, "flow")).OwnerReferences
	depth := []*metav1.PartialObjectMetadata{}
	for i := range 12 {
		depth = append(depth, of(flows, fmt.Sprint("deep-", i), ref(flows, fmt.Sprint("deep-", i+1))))
	}
	deep := []string{"Pod pod"}
	for i := range ownership.MaxHops {
		deep = append(deep, fmt.Sprint("Flow deep-", i))
	}
	elsewhere := of(flows, "flow", nil)
	elsewhere.Namespace = "elsewhere"
	younger := of(flows, "flow", nil)
	younger.UID = "younger"
	tests := map[string]struct {
		cached []build.Object
		live   []*metav1.PartialObjectMetadata
		from   *ownership.Object
		want   []string
		end    EndReason
	}{
		"through kinds that are not configured":   {[]build.Object{job}, []*metav1.PartialObjectMetadata{of(flows, "flow", ref(fleets, "fleet")), of(fleets, "fleet", nil)}, podOf(ref(build.Owner(job).GroupVersionKind, "job")), []string{"Pod pod", "Job job", "Flow flow", "Fleet fleet"}, ""},
		"a pod alone":                             {nil, nil, podOf(nil), []string{"Pod pod"}, ""},
		"an owner that is gone":                   {[]build.Object{job}, nil, podOf(ref(build.Owner(job).GroupVersionKind, "job")), []string{"Pod pod", "Job job"}, EndGone},
		"another of the same name":                {nil, []*metav1.PartialObjectMetadata{younger}, podOf(ref(flows, "flow")), []string{"Pod pod"}, EndGone},
		"an owner in another namespace":           {nil, []*metav1.PartialObjectMetadata{elsewhere}, podOf(ref(flows, "flow")), []string{"Pod pod"}, EndGone},
		"a direct owner whose kind is not served": {nil, nil, podOf(ref(ghosts, "ghost")), []string{"Pod pod", "Ghost ghost"}, EndUnknown},
		"an owner above whose kind is not served": {nil, []*metav1.PartialObjectMetadata{of(flows, "flow", ref(ghosts, "ghost"))}, podOf(ref(flows, "flow")), []string{"Pod pod", "Flow flow"}, EndUnknown},
		"owners that form a cycle":                {nil, []*metav1.PartialObjectMetadata{of(flows, "a", ref(flows, "b")), of(flows, "b", ref(flows, "a"))}, podOf(ref(flows, "a")), []string{"Pod pod", "Flow a", "Flow b"}, EndCycle},
		"an owner that owns itself":               {nil, []*metav1.PartialObjectMetadata{of(flows, "a", ref(flows, "a"))}, podOf(ref(flows, "a")), []string{"Pod pod", "Flow a"}, EndCycle},
		"more owners than MaxHops":                {nil, depth, podOf(ref(flows, "deep-0")), deep, EndTooDeep},
		"an owner of the core group is not read":  {nil, nil, podOf(ref(schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, "secret")), []string{"Pod pod", "Secret secret"}, EndUnknown},
		"a name that no object can have":          {nil, nil, podOf(ref(flows, "../flow")), []string{"Pod pod"}, EndGone},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newLineage(t, tc.cached, tc.live...)
			chain, end, err := r.Chain(t.Context(), tc.from)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, names(chain)); diff != "" {
				t.Errorf("wrong chain (-want +got):\n%s", diff)
			}
			if tc.end == "" && end != nil || tc.end != "" && (end == nil || end.Reason != tc.end) {
				t.Errorf("the walk ended with %+v, want %q", end, tc.end)
			}
		})
	}
}

// TestAnOwnerIsReadOnce, however many pods it has, and its kind is watched from then on.
func TestAnOwnerIsReadOnce(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.run(t)
	var asking sync.WaitGroup
	for range 50 {
		asking.Go(func() {
			if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil {
				t.Error(err)
			}
		})
	}
	asking.Wait()
	if diff := cmp.Diff([]string{"flows " + build.Namespace + "/flow"}, r.seen()); diff != "" {
		t.Errorf("wrong reads (-want +got):\n%s", diff)
	}
	build.Eventually(t, "the Flow is watched", func() bool { return r.Get("flow") != nil && r.watching.Load() })
	later := of(flows, "later", nil)
	if err := r.meta.Tracker().Create(flows.GroupVersion().WithResource("flows"), later, build.Namespace); err != nil {
		t.Fatal(err)
	}
	build.Eventually(t, "another flow is seen", func() bool { return r.Get("later") != nil })
	if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "later"))); err != nil || len(r.seen()) != 1 {
		t.Errorf("the watched flow was read (%v): %v", err, r.seen())
	}
}

// TestForbiddenOwnerEndsTheChain: an owner that may not be read ends the chain at the owner below.
// A direct owner is in the chain with the fields of its reference. Once RBAC allows it, the owner
// is read.
func TestForbiddenOwnerEndsTheChain(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", ref(fleets, "fleet")), of(fleets, "fleet", nil))
	forbidden := map[string]bool{"fleets": true, "flows": true}
	var mu sync.Mutex
	asked := 0
	r.meta.PrependReactor("get", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		gr := action.GetResource().GroupResource()
		asked++
		if forbidden[gr.Resource] {
			return true, nil, apierrors.NewForbidden(gr, "", errors.New("no"))
		}
		return false, nil, nil
	})
	check := func(want []string, reason EndReason, resource string) {
		t.Helper()
		chain, end, err := r.Chain(t.Context(), podOf(ref(flows, "flow")))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, names(chain)); diff != "" {
			t.Errorf("wrong chain (-want +got):\n%s", diff)
		}
		if reason == "" && end != nil || reason != "" && (end == nil || end.Reason != reason || end.Resource.String() != resource) {
			t.Errorf("the walk ended with %+v, want %s of %s", end, reason, resource)
		}
	}
	check([]string{"Pod pod", "Flow flow"}, EndForbidden, "flows.example.com")
	check([]string{"Pod pod", "Flow flow"}, EndForbidden, "flows.example.com")
	if asked != 1 {
		t.Errorf("%d requests were sent", asked)
	}
	if n := len(r.seen()); n != 0 {
		t.Errorf("%d reads were sent", n)
	}
	allow := func(resource string) {
		mu.Lock()
		delete(forbidden, resource)
		mu.Unlock()
		r.clock.Step(unreadTime)
	}
	allow("flows")
	check([]string{"Pod pod", "Flow flow"}, EndForbidden, "fleets.example.com")
	allow("fleets")
	check([]string{"Pod pod", "Flow flow", "Fleet fleet"}, "", "")
}

// TestKindInANewVersionIsRediscovered: a kind that moves to another version is discovered again,
// and its objects are not treated as deleted.
func TestKindInANewVersionIsRediscovered(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	chain, end, err := r.Chain(t.Context(), podOf(ref(flows, "flow")))
	if err != nil || end != nil || len(chain) != 2 {
		t.Fatalf("the chain is %v, %+v, %v", names(chain), end, err)
	}
	r.clock.Step(keptTime)
	next := schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Flow"}
	r.api.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{{Name: "flows", Kind: "Flow", Namespaced: true}}}}
	r.meta.PrependReactor("get", "flows", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetResource().Version == "v1" {
			return true, nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: "Failure", Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource"}}
		}
		return true, of(next, "flow", nil), nil
	})
	if _, end, err := r.Chain(t.Context(), podOf(ref(next, "flow"))); err == nil && (end == nil || end.Reason == EndGone) {
		t.Errorf("the walk ended with %+v", end)
	}
	chain, end, err = r.Chain(t.Context(), podOf(ref(next, "flow")))
	if err != nil || end != nil || len(chain) != 2 {
		t.Errorf("the chain is %v, %+v, %v", names(chain), end, err)
	}
}

// TestOwnerInAnotherNamespaceIsIgnored: an object of another namespace in the cache is not an
// owner of the pod.
func TestOwnerInAnotherNamespaceIsIgnored(t *testing.T) {
	abroad := build.Job("job", func(o build.Object) { o.SetNamespace("elsewhere") })
	r := newLineage(t, []build.Object{abroad})
	chain, end, err := r.Chain(t.Context(), podOf(ref(build.Owner(abroad).GroupVersionKind, "job")))
	if err != nil || end == nil || end.Reason != EndGone || len(chain) != 1 {
		t.Errorf("the chain is %v, %+v, %v", names(chain), end, err)
	}
}

// TestAnAPIServerThatFails: the walk returns an error, and the next one soon tries again.
func TestAnAPIServerThatFails(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	failing := true
	var mu sync.Mutex
	r.meta.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if failing {
			return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
		}
		return false, nil, nil
	})
	if chain, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err == nil {
		t.Errorf("the chain is %v", names(chain))
	}
	mu.Lock()
	failing = false
	mu.Unlock()
	r.clock.Step(shortUnreadTime)
	if chain, end, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil || end != nil || len(chain) != 2 {
		t.Errorf("the chain is %v, %+v, %v", names(chain), end, err)
	}
}

// TestReadContinuesAfterItsCallerTimesOut: the read goes on after its caller timed out,
// and the next caller gets its result.
func TestReadContinuesAfterItsCallerTimesOut(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	hold := make(chan struct{})
	r.meta.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-hold
		return false, nil, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := r.Chain(ctx, podOf(ref(flows, "flow"))); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	close(hold)
	if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil || len(r.seen()) != 1 {
		t.Errorf("%v after reads %v", err, r.seen())
	}
}

// TestAnAPIGroupThatHangsIsWaitedForOnce: many pods may name different kinds of the group.
func TestAnAPIGroupThatHangsIsWaitedForOnce(t *testing.T) {
	r := newLineage(t, nil)
	r.mapTime = 50 * time.Millisecond
	let := make(chan struct{})
	defer close(let)
	var asked atomic.Int32
	r.api.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		<-let
		return false, nil, nil
	})
	walk := func(kind string) error {
		of := schema.GroupVersionKind{Group: "hangs.example.com", Version: "v1", Kind: kind}
		_, _, err := r.Chain(t.Context(), podOf(ref(of, strings.ToLower(kind))))
		return err
	}
	for i := range 20 {
		if err := walk(fmt.Sprint("Kind", i)); err == nil {
			t.Error("the walk ended without an answer")
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d discovery requests, want 1", n)
	}
	r.clock.Step(r.mapTime + hungTime)
	if err := walk("Later"); err == nil || asked.Load() > 2 {
		t.Errorf("%d discovery requests in all, want 2: %v", asked.Load(), err)
	}
}

// TestAnAPIGroupThatHangsIsWaitedForOnceInAnyVersion: an owner reference can name any
// version.
func TestAnAPIGroupThatHangsIsWaitedForOnceInAnyVersion(t *testing.T) {
	r := newLineage(t, nil)
	r.mapTime = 50 * time.Millisecond
	let := make(chan struct{})
	defer close(let)
	var asked atomic.Int32
	r.api.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		<-let
		return false, nil, nil
	})
	for i := range 20 {
		of := schema.GroupVersionKind{Group: "hangs.example.com", Version: fmt.Sprint("v", i+1), Kind: fmt.Sprint("Kind", i)}
		if _, _, err := r.Chain(t.Context(), podOf(ref(of, "a"))); err == nil {
			t.Error("the walk ended without an answer")
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("%d discovery requests, want 1", n)
	}
}

// TestAnExactVersionIsThatOfTheReference, whichever version of the kind was discovered
// first.
func TestAnExactVersionIsThatOfTheReference(t *testing.T) {
	exact := &ownership.Levels{Rules: []ownership.LevelRule{{Group: "example.com", Version: "v1beta1", ExactVersion: true, Kind: "Flow", Adjust: -1}}}
	beta := schema.GroupVersionKind{Group: "example.com", Version: "v1beta1", Kind: "Flow"}
	for name, before := range map[string][]schema.GroupVersionKind{"it is the first": nil, "another version was met": {flows}} {
		t.Run(name, func(t *testing.T) {
			r := newLineage(t, nil, of(flows, "flow", nil), of(flows, "other", nil))
			r.api.Resources = append(r.api.Resources, &metav1.APIResourceList{GroupVersion: "example.com/v1beta1", APIResources: []metav1.APIResource{{Name: "flows", Kind: "Flow", Namespaced: true}}})
			r.meta.PrependReactor("get", "flows", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return true, of(flows, action.(clienttesting.GetAction).GetName(), nil), nil
			})
			for _, gvk := range before {
				if _, _, err := r.Chain(t.Context(), podOf(ref(gvk, "other"))); err != nil {
					t.Fatal(err)
				}
			}
			for gvk, want := range map[schema.GroupVersionKind]int{beta: 0, flows: -1} {
				chain, _, err := r.Chain(t.Context(), podOf(ref(gvk, "flow")))
				if err != nil {
					t.Fatal(err)
				}
				if got := exact.Select(chain); got.Rule != want {
					t.Errorf("for a reference to %s rule %d counts, want %d", gvk.Version, got.Rule, want)
				}
			}
		})
	}
}

// TestReadsOfAnUnlistableKindAreCached: reads are not repeated before keptTime.
func TestReadsOfAnUnlistableKindAreCached(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.meta.PrependReactor("list", "flows", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", errors.New("get only"))
	})
	r.run(t)
	for range 2 {
		before := len(r.seen())
		for range keptTime / recentTime {
			if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil {
				t.Fatal(err)
			}
			r.clock.Step(recentTime)
		}
		if n := len(r.seen()) - before; n != 1 {
			t.Errorf("%d reads of one owner within %s, want one", n, keptTime)
		}
	}
}

// TestReadOfADeletedOwnerExpires: once the watch has listed the kind, a read from before
// expires after recentTime.
func TestReadOfADeletedOwnerExpires(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.run(t)
	if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil {
		t.Fatal(err)
	}
	build.Eventually(t, "the Flow is watched", func() bool { return r.Get("flow") != nil && r.watching.Load() })
	if err := r.meta.Tracker().Delete(flows.GroupVersion().WithResource("flows"), build.Namespace, "flow"); err != nil {
		t.Fatal(err)
	}
	build.Eventually(t, "the flow is gone", func() bool { return r.Get("flow") == nil })
	r.clock.Step(recentTime)
	if _, end, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil || end == nil || end.Reason != EndGone {
		t.Errorf("the walk ended with %+v: %v", end, err)
	}
}

// TestAKindThatIsForgottenIsWatchedAgain once it is discovered again.
func TestAKindThatIsForgottenIsWatchedAgain(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.run(t)
	for range 2 {
		if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil {
			t.Fatal(err)
		}
		build.Eventually(t, "the Flow is watched", func() bool { return r.Get("flow") != nil })
		r.forget(flows.GroupKind())
		if r.Get("flow") != nil {
			t.Error("a forgotten kind is still there")
		}
		r.clock.Step(keptTime)
	}
}

// TestKindsAreMatchedInAnyCase: owner references may spell a kind in any case.
func TestKindsAreMatchedInAnyCase(t *testing.T) {
	r := newLineage(t, nil, of(flows, "flow", nil))
	r.run(t)
	if _, _, err := r.Chain(t.Context(), podOf(ref(flows, "flow"))); err != nil {
		t.Fatal(err)
	}
	build.Eventually(t, "the Flow is watched", func() bool { return r.Get("flow") != nil })
	watch := r.others.further[flows.GroupKind()]
	lower := schema.GroupVersionKind{Group: flows.Group, Version: flows.Version, Kind: "flow"}
	before := len(r.api.Actions())
	for range 20 {
		if _, end, err := r.Chain(t.Context(), podOf(ref(lower, "flow"))); err != nil || end != nil {
			t.Fatal(end, err)
		}
	}
	if r.others.further[flows.GroupKind()] != watch {
		t.Error("the watch was replaced")
	}
	if n := len(r.api.Actions()) - before; n > 1 {
		t.Errorf("%d discovery requests, want 1 at most", n)
	}
}

// TestIrrelevantOwnerChangesCallNoGangHandler: statuses of ReplicaSets change all the
// time.
func TestIrrelevantOwnerChangesCallNoGangHandler(t *testing.T) {
	r := newLineage(t, nil)
	calls := 0
	r.OnChange(func(_, _ *ownership.Object) { calls++ })
	put := func(o *ownership.Object) { r.walker.Put(o) }
	rs := build.ReplicaSet("web-1", build.Replicas(3))
	put(build.Owner(rs))
	same := rs.DeepCopy()
	same.Status.ReadyReplicas, same.Labels = 3, map[string]string{"x": "y"}
	put(build.Owner(same))
	if calls != 1 {
		t.Errorf("the handler was called %d times, want 1", calls)
	}
	for i, change := range []func(){
		func() { same.Spec.Replicas = new(int32(4)) },
		func() { same.Annotations = map[string]string{"scheduling.volcano.sh/group-min-member": "2"} },
		func() { same.Annotations[revisionAnnotation] = "7" },
	} {
		change()
		put(build.Owner(same.DeepCopy()))
		if calls != i+2 {
			t.Errorf("change %d: the handler was called %d times", i, calls)
		}
	}
}
