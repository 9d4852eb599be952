package owners

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var sails = Kind{
	GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sail"},
	Resource:         "sails", ReplicasPath: []string{"spec", "crew"},
}

// oars have no number of pods: their metadata is enough.
var oars = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Oar"}, Resource: "oars"}

// custom makes an object of a kind that the programs do not know.
func custom(k Kind, name string, options ...build.Option) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(k.GroupVersionKind)
	u.SetNamespace(build.Namespace)
	u.SetName(name)
	u.SetUID(types.UID(name))
	for _, option := range options {
		option(u)
	}
	return u
}

func crew(n any) build.Option {
	return build.With(func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"crew": n} })
}

// harbour is a walker beside API servers that serve custom kinds.
type harbour struct {
	*Walker
	t        *testing.T
	dynamic  *dynamicfake.FakeDynamicClient
	metadata *metadatafake.FakeMetadataClient
	// problems counts what OnProblem was told, revisions what OnRevisions was.
	problems, revisions atomic.Int32
}

func newHarbour(t *testing.T, objects ...apiruntime.Object) *harbour {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var whole, meta []apiruntime.Object
	for _, o := range objects {
		u := o.(*unstructured.Unstructured)
		if u.GetKind() == "Sail" {
			whole = append(whole, u)
			continue
		}
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), Labels: u.GetLabels(), OwnerReferences: u.GetOwnerReferences(),
		}}
		m.SetGroupVersionKind(u.GroupVersionKind())
		meta = append(meta, m)
	}
	h := &harbour{Walker: NewWalker(build.NewAPI(t).Client()), t: t}
	h.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(apiruntime.NewScheme(), map[schema.GroupVersionResource]string{
		sails.GroupVersion().WithResource("sails"):                               "SailList",
		sails.GroupKind().WithVersion("v2").GroupVersion().WithResource("sails"): "SailList",
	}, whole...)
	h.metadata = metadatafake.NewSimpleMetadataClient(scheme, meta...)
	h.Extend(h.dynamic, h.metadata)
	h.OnProblem(func() { h.problems.Add(1) })
	h.OnRevisions(func() { h.revisions.Add(1) })
	return h
}

func (h *harbour) knows(uid types.UID) func() bool {
	return func() bool { return h.Get(uid) != nil }
}

// watches is the number of goroutines that watch for the walk.
func watches() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "owners.(*informer).run(")
}

func TestNothingIsSyncedBeforeSomebodySaysWhichKindsThereAre(t *testing.T) {
	h := newHarbour(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Start(ctx) }()
	build.Eventually(t, "the built-in kinds are listed", func() bool { return informersSynced(h.Walker) })
	if h.HasSynced() {
		t.Error("synced before anybody said which kinds there are")
	}
	h.SetKinds(nil)
	if !h.HasSynced() {
		t.Error("there are none, and it waits for them")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.SetKinds([]Kind{sails}) // late: nothing may be started any more
	if watches() != 0 {
		t.Errorf("%d watches run after the end", watches())
	}
}

func informersSynced(w *Walker) bool {
	for _, f := range w.informers {
		if !f.synced.Load() {
			return false
		}
	}
	return true
}

func TestKindsAreWatchedWhileTheyAreNamed(t *testing.T) {
	h := newHarbour(t,
		custom(sails, "main", crew(int64(5)), build.Requires("p", "")), custom(sails, "jib"),
		custom(oars, "left", build.Bound("p", "")))
	var dropped atomic.Int32
	h.OnChange(func(_, new *ownership.Object) {
		if new == nil {
			dropped.Add(1)
		}
	})
	h.SetKinds([]Kind{sails}) // before anything runs
	start(t, h.Walker)
	base := watches() - 1
	want := &ownership.Object{
		GroupVersionKind: sails.GroupVersionKind, Namespace: build.Namespace, Name: "main", UID: "main",
		Policies: ownership.Policies{RequiredPropagation: "p"}, Replicas: new(int32(5)),
	}
	if diff := cmp.Diff(want, h.Get("main")); diff != "" {
		t.Errorf("a Sail is cached wrongly (-want +got):\n%s", diff)
	}
	if o := h.Get("jib"); o == nil || o.Replicas != nil {
		t.Errorf("a Sail that does not say how many pods it wants is %+v", o)
	}
	pod := build.Owner(build.Pod("pod", build.UID("")))
	pod.Controller = &ownership.Reference{GroupVersionKind: sails.GroupVersionKind, Name: "main", UID: "main"}
	if app, _, err := h.Application(t.Context(), pod); err != nil || app.Propagation == nil {
		t.Errorf("a pod of the Sail belongs to %+v, error %v", app, err)
	}

	h.SetKinds([]Kind{sails, oars})
	build.Eventually(t, "the Oar is known", h.knows("left"))
	if o := h.Get("left"); o.Policies.BindingPropagation != "p" || o.Replicas != nil || o.Kind != "Oar" {
		t.Errorf("an Oar is %+v", o)
	}
	for range 20 {
		h.SetKinds([]Kind{sails})
		if h.Get("left") != nil || h.Get("main") == nil || watches() != base+1 {
			t.Fatalf("after the Oar went: %v, %v, %d watches", h.Get("left"), h.Get("main"), watches()-base)
		}
		h.SetKinds([]Kind{oars, sails})
		build.Eventually(t, "the Oar is known again", h.knows("left"))
	}
	if n := dropped.Load(); n != 20 {
		t.Errorf("handlers were told of %d objects that went, want 20", n)
	}
	h.SetKinds(nil)
	if h.Get("main") != nil || watches() != base {
		t.Errorf("when none is named %d watches are left", watches()-base)
	}
	if len(h.Requiring(Propagation, build.Namespace, "p")) != 0 {
		t.Error("an object of a kind that is none any more requires a policy")
	}
	if app, _, err := h.Application(t.Context(), pod); err != nil || app.Managed() {
		t.Errorf("a pod of the Sail belongs to %+v, error %v", app, err)
	}
	if n := h.problems.Load(); n != 0 || len(h.Problems()) != 0 {
		t.Errorf("problems: %v", h.Problems())
	}
}

func TestAKindInAnotherFormKeepsItsObjectsUntilTheyAreListed(t *testing.T) {
	h := newHarbour(t, custom(sails, "main", crew(int64(5)), build.Requires("p", "")))
	h.SetKinds([]Kind{sails})
	var missing atomic.Bool
	h.OnChange(func(_, new *ownership.Object) {
		if new == nil {
			missing.Store(true)
		}
	})
	start(t, h.Walker)
	build.Eventually(t, "the Sail is known", func() bool { return h.Get("main") != nil })
	other := sails
	other.ReplicasPath = []string{"spec", "sailors"}
	h.SetKinds([]Kind{other})
	build.Eventually(t, "the Sail has no replicas under the new path", func() bool { o := h.Get("main"); return o != nil && o.Replicas == nil })
	if missing.Load() {
		t.Error("the Sail was gone for a moment")
	}
}

func TestOwnersOfFurtherKindsAreReadLiveOnce(t *testing.T) {
	h := newHarbour(t, custom(sails, "main", crew(int64(5)), build.Requires("p", "")), custom(oars, "left", build.Requires("p", "")))
	h.SetKinds([]Kind{sails, oars}) // nothing runs: nothing is cached
	for _, ref := range []ownership.Reference{
		{GroupVersionKind: sails.GroupVersionKind, Name: "main", UID: "main"},
		{GroupVersionKind: oars.GroupVersionKind, Name: "left", UID: "left"},
	} {
		pod := build.Owner(build.Pod("pod"))
		pod.Controller = &ref
		if app, _, err := h.Application(t.Context(), pod); err != nil || app.Propagation == nil || app.Propagation.Name != ref.Name {
			t.Errorf("a pod of %s belongs to %+v, error %v", ref.Name, app, err)
		}
	}
}

func TestRevisionIsOfTheLabelThatTheOwnersKindNames(t *testing.T) {
	h := newHarbour(t)
	labelled := oars
	labelled.RevisionLabel = "example.com/cut"
	labels := map[string]string{"pod-template-hash": "hash", "controller-revision-hash": "revision", "example.com/cut": "cut"}
	ref := func(k Kind) *ownership.Reference { return &ownership.Reference{GroupVersionKind: k.GroupVersionKind} }
	expect := func(when string, controller *ownership.Reference, want string) {
		t.Helper()
		if got := h.Revision(controller, labels); got != want {
			t.Errorf("%s the revision is %q, want %q", when, got, want)
		}
	}
	expect("before", ref(oars), "hash")
	h.SetKinds([]Kind{sails, labelled})
	expect("named", ref(labelled), "cut")
	expect("of a kind that names none", ref(sails), "hash")
	expect("of a pod without an owner", nil, "hash")
	if got := h.Revision(ref(labelled), map[string]string{"pod-template-hash": "hash"}); got != "" {
		t.Errorf("without its label the revision is %q", got)
	}
	h.SetKinds([]Kind{labelled, sails})
	if n := h.revisions.Load(); n != 1 {
		t.Errorf("told of %d changes of revisions, want 1", n)
	}
	h.SetKinds([]Kind{oars})
	expect("named no more", ref(oars), "hash")
	if n := h.revisions.Load(); n != 2 {
		t.Errorf("told of %d changes of revisions, want 2", n)
	}
}

func TestAMissingPermissionIsAProblemAndHoldsUpNobody(t *testing.T) {
	h := newHarbour(t, custom(sails, "main"), custom(oars, "left"))
	var allowed atomic.Bool
	h.dynamic.PrependReactor("list", "sails", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(sails.GroupVersion().WithResource("sails").GroupResource(), "", nil)
	})
	h.SetKinds([]Kind{sails, oars})
	start(t, h.Walker)
	build.Eventually(t, "the Oar is known", h.knows("left"))
	problems := h.Problems()
	if len(problems) != 1 || problems[0].Verb != "list" || problems[0].Kind.Kind != "Sail" || !apierrors.IsForbidden(problems[0].Err) {
		t.Fatalf("problems are %+v", problems)
	}
	if h.problems.Load() != 1 {
		t.Errorf("told of %d problems, want 1", h.problems.Load())
	}
	allowed.Store(true)
	build.Eventually(t, "the Sail is known once it may be", h.knows("main"))
	build.Eventually(t, "the problem is gone", func() bool { return len(h.Problems()) == 0 && h.problems.Load() == 2 })
}

func TestAnObjectThatDoesNotSayHowManyPodsItWantsIsAProblem(t *testing.T) {
	h := newHarbour(t, custom(sails, "main", crew("5")), custom(sails, "jib", crew(int64(3))))
	h.SetKinds([]Kind{sails})
	start(t, h.Walker)
	build.Eventually(t, "the Sail is known", h.knows("main")) // nobody waits for a further kind
	if o := h.Get("main"); o.Replicas != nil {
		t.Errorf("the Sail is %+v", o)
	}
	build.Eventually(t, "the problem is known", func() bool { return len(h.Problems()) == 1 })
	problems := h.Problems()
	if len(problems) != 1 || problems[0].Verb != "" || !strings.Contains(problems[0].Err.Error(), "reading Sail ns/main: .spec.crew is no number of replicas") {
		t.Errorf("problems are %+v", problems)
	}
}

func TestReplicasAt(t *testing.T) {
	at := func(value any) map[string]any { return map[string]any{"spec": map[string]any{"crew": value}} }
	tests := map[string]struct {
		object map[string]any
		want   *int32
		bad    bool
	}{
		"a number":                 {object: at(int64(3)), want: new(int32(3))},
		"none":                     {object: at(int64(0)), want: new(int32(0))},
		"a whole number as float":  {object: at(3.0), want: new(int32(3))},
		"half a pod":               {object: at(2.5), bad: true},
		"fewer than none":          {object: at(int64(-1)), bad: true},
		"more than can be counted": {object: at(int64(1 << 31)), bad: true},
		"far more":                 {object: at(1e300), bad: true},
		"a text":                   {object: at("3"), bad: true},
		"an object":                {object: at(map[string]any{}), bad: true},
		"null":                     {object: at(nil)},
		"no such field":            {object: map[string]any{"spec": map[string]any{}}},
		"nothing on the way":       {object: map[string]any{}},
		"a text on the way":        {object: map[string]any{"spec": "x"}, bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := replicasAt(tc.object, []string{"spec", "crew"})
			if (err != nil) != tc.bad {
				t.Errorf("error is %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong number (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBuiltInKindsAreNotConfigured: what the walk watches anyway is refused in
// the ConfigMap.
func TestBuiltInKindsAreNotConfigured(t *testing.T) {
	for _, k := range builtinKinds(build.NewAPI(t).Client()) {
		entry := "- {group: " + k.Group + ", version: v1, kind: " + k.Kind + "}"
		if entries, errs := workloadkind.Parse(entry); len(entries) != 0 || len(errs) != 1 {
			t.Errorf("%s is accepted", entry)
		}
	}
}
