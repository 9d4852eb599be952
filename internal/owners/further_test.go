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

var widgets = Kind{
	GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"},
	Resource:         "widgets", ReplicasPath: []string{"spec", "size"},
}

// gadgets have no ReplicasPath: only their metadata is read.
var gadgets = Kind{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Gadget"}, Resource: "gadgets"}

// custom returns an object of a further kind.
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

func size(n any) build.Option {
	return build.With(func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"size": n} })
}

// fixture is a walker with API servers that serve custom kinds.
type fixture struct {
	*Walker
	t        *testing.T
	dynamic  *dynamicfake.FakeDynamicClient
	metadata *metadatafake.FakeMetadataClient
	// problems counts the calls of OnProblem handlers, revisions those of OnRevisions.
	problems, revisions atomic.Int32
}

func newFixture(t *testing.T, objects ...apiruntime.Object) *fixture {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var whole, meta []apiruntime.Object
	for _, o := range objects {
		u := o.(*unstructured.Unstructured)
		if u.GetKind() == "Widget" {
			whole = append(whole, u)
			continue
		}
		m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), Labels: u.GetLabels(), OwnerReferences: u.GetOwnerReferences(),
		}}
		m.SetGroupVersionKind(u.GroupVersionKind())
		meta = append(meta, m)
	}
	h := &fixture{Walker: NewWalker(build.NewAPI(t).Client()), t: t}
	h.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(apiruntime.NewScheme(), map[schema.GroupVersionResource]string{
		widgets.GroupVersion().WithResource("widgets"):                               "WidgetList",
		widgets.GroupKind().WithVersion("v2").GroupVersion().WithResource("widgets"): "WidgetList",
	}, whole...)
	h.metadata = metadatafake.NewSimpleMetadataClient(scheme, meta...)
	h.Extend(h.dynamic, h.metadata)
	h.OnProblem(func() { h.problems.Add(1) })
	h.OnRevisions(func() { h.revisions.Add(1) })
	return h
}

func (h *fixture) isCached(uid types.UID) func() bool {
	return func() bool { return h.Get(uid) != nil }
}

// watches returns the number of goroutines that run an informer of a walker.
func watches() int {
	stacks := make([]byte, 4<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "owners.(*informer).run(")
}

func TestTheWalkerIsNotSyncedBeforeSetKinds(t *testing.T) {
	h := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- h.Start(ctx) }()
	build.Eventually(t, "the built-in kinds are listed", func() bool { return informersSynced(h.Walker) })
	if h.HasSynced() {
		t.Error("synced before SetKinds")
	}
	h.SetKinds(nil)
	if !h.HasSynced() {
		t.Error("not synced without further kinds")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	h.SetKinds([]Kind{widgets}) // after the end: nothing may start any more
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

func TestKindsAreWatchedWhileTheyAreConfigured(t *testing.T) {
	h := newFixture(t,
		custom(widgets, "main", size(int64(5)), build.Requires("p", "")), custom(widgets, "second"),
		custom(gadgets, "left", build.Bound("p", "")))
	var dropped atomic.Int32
	h.OnChange(func(_, new *ownership.Object) {
		if new == nil {
			dropped.Add(1)
		}
	})
	h.SetKinds([]Kind{widgets}) // before anything runs
	start(t, h.Walker)
	base := watches() - 1
	want := &ownership.Object{
		GroupVersionKind: widgets.GroupVersionKind, Namespace: build.Namespace, Name: "main", UID: "main",
		Policies: ownership.Policies{RequiredPropagation: "p"}, Replicas: new(int32(5)),
	}
	if diff := cmp.Diff(want, h.Get("main")); diff != "" {
		t.Errorf("a Widget is cached wrongly (-want +got):\n%s", diff)
	}
	if o := h.Get("second"); o == nil || o.Replicas != nil {
		t.Errorf("a Widget without replicas is cached as %+v", o)
	}
	pod := build.Owner(build.Pod("pod", build.UID("")))
	pod.Controller = &ownership.Reference{GroupVersionKind: widgets.GroupVersionKind, Name: "main", UID: "main"}
	if app, _, err := h.PolicyOwners(t.Context(), pod); err != nil || app.Propagation == nil {
		t.Errorf("a pod of the Widget belongs to %+v, error %v", app, err)
	}

	h.SetKinds([]Kind{widgets, gadgets})
	build.Eventually(t, "the Gadget is cached", h.isCached("left"))
	if o := h.Get("left"); o.Policies.BindingPropagation != "p" || o.Replicas != nil || o.Kind != "Gadget" {
		t.Errorf("a Gadget is cached as %+v", o)
	}
	for range 20 {
		h.SetKinds([]Kind{widgets})
		if h.Get("left") != nil || h.Get("main") == nil || watches() != base+1 {
			t.Fatalf("without Gadgets: Gadget %v, Widget %v, %d watches", h.Get("left"), h.Get("main"), watches()-base)
		}
		h.SetKinds([]Kind{gadgets, widgets})
		build.Eventually(t, "the Gadget is cached again", h.isCached("left"))
	}
	if n := dropped.Load(); n != 20 {
		t.Errorf("handlers were called for %d deleted objects, want 20", n)
	}
	h.SetKinds(nil)
	if h.Get("main") != nil || watches() != base {
		t.Errorf("without further kinds %d watches run", watches()-base)
	}
	if len(h.Requiring(Propagation, build.Namespace, "p")) != 0 {
		t.Error("an object of a removed kind requires a policy")
	}
	if app, _, err := h.PolicyOwners(t.Context(), pod); err != nil || app.Managed() {
		t.Errorf("a pod of the Widget belongs to %+v, error %v", app, err)
	}
	if n := h.problems.Load(); n != 0 || len(h.Problems()) != 0 {
		t.Errorf("problems: %v", h.Problems())
	}
}

func TestAChangedKindKeepsItsObjectsUntilTheyAreListed(t *testing.T) {
	h := newFixture(t, custom(widgets, "main", size(int64(5)), build.Requires("p", "")))
	h.SetKinds([]Kind{widgets})
	var missing atomic.Bool
	h.OnChange(func(_, new *ownership.Object) {
		if new == nil {
			missing.Store(true)
		}
	})
	start(t, h.Walker)
	build.Eventually(t, "the Widget is cached", func() bool { return h.Get("main") != nil })
	other := widgets
	other.ReplicasPath = []string{"spec", "count"}
	h.SetKinds([]Kind{other})
	build.Eventually(t, "the Widget has no replicas under the new path", func() bool { o := h.Get("main"); return o != nil && o.Replicas == nil })
	if missing.Load() {
		t.Error("the Widget was dropped")
	}
}

func TestOwnersOfFurtherKindsAreReadLiveOnce(t *testing.T) {
	h := newFixture(t, custom(widgets, "main", size(int64(5)), build.Requires("p", "")), custom(gadgets, "left", build.Requires("p", "")))
	h.SetKinds([]Kind{widgets, gadgets}) // nothing runs: nothing is cached
	for _, ref := range []ownership.Reference{
		{GroupVersionKind: widgets.GroupVersionKind, Name: "main", UID: "main"},
		{GroupVersionKind: gadgets.GroupVersionKind, Name: "left", UID: "left"},
	} {
		pod := build.Owner(build.Pod("pod"))
		pod.Controller = &ref
		if app, _, err := h.PolicyOwners(t.Context(), pod); err != nil || app.Propagation == nil || app.Propagation.Name != ref.Name {
			t.Errorf("a pod of %s belongs to %+v, error %v", ref.Name, app, err)
		}
	}
}

func TestRevisionUsesTheLabelOfTheOwnersKind(t *testing.T) {
	h := newFixture(t)
	labelled := gadgets
	labelled.RevisionLabel = "example.com/cut"
	labels := map[string]string{"pod-template-hash": "hash", "controller-revision-hash": "revision", "example.com/cut": "cut"}
	ref := func(k Kind) *ownership.Reference { return &ownership.Reference{GroupVersionKind: k.GroupVersionKind} }
	expect := func(when string, controller *ownership.Reference, want string) {
		t.Helper()
		if got := h.Revision(controller, labels); got != want {
			t.Errorf("%s the revision is %q, want %q", when, got, want)
		}
	}
	expect("before SetKinds", ref(gadgets), "hash")
	h.SetKinds([]Kind{widgets, labelled})
	expect("with a label", ref(labelled), "cut")
	expect("of a kind without a label", ref(widgets), "hash")
	expect("of a pod without an owner", nil, "hash")
	if got := h.Revision(ref(labelled), map[string]string{"pod-template-hash": "hash"}); got != "" {
		t.Errorf("without its label the revision is %q", got)
	}
	h.SetKinds([]Kind{labelled, widgets})
	if n := h.revisions.Load(); n != 1 {
		t.Errorf("%d calls for changed revisions, want 1", n)
	}
	h.SetKinds([]Kind{gadgets})
	expect("after the label is removed", ref(gadgets), "hash")
	if n := h.revisions.Load(); n != 2 {
		t.Errorf("%d calls for changed revisions, want 2", n)
	}
}

func TestAMissingPermissionIsAProblemAndDelaysNoOtherKind(t *testing.T) {
	h := newFixture(t, custom(widgets, "main"), custom(gadgets, "left"))
	var allowed atomic.Bool
	h.dynamic.PrependReactor("list", "widgets", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(widgets.GroupVersion().WithResource("widgets").GroupResource(), "", nil)
	})
	h.SetKinds([]Kind{widgets, gadgets})
	start(t, h.Walker)
	build.Eventually(t, "the Gadget is cached", h.isCached("left"))
	problems := h.Problems()
	if len(problems) != 1 || problems[0].Verb != "list" || problems[0].Kind.Kind != "Widget" || !apierrors.IsForbidden(problems[0].Err) {
		t.Fatalf("problems are %+v", problems)
	}
	if h.problems.Load() != 1 {
		t.Errorf("%d calls for problems, want 1", h.problems.Load())
	}
	allowed.Store(true)
	build.Eventually(t, "the Widget is cached once it may be listed", h.isCached("main"))
	build.Eventually(t, "the problem is gone", func() bool { return len(h.Problems()) == 0 && h.problems.Load() == 2 })
}

func TestAnObjectWithInvalidReplicasIsAProblem(t *testing.T) {
	h := newFixture(t, custom(widgets, "main", size("5")), custom(widgets, "second", size(int64(3))))
	h.SetKinds([]Kind{widgets})
	start(t, h.Walker)
	build.Eventually(t, "the Widget is cached", h.isCached("main")) // HasSynced does not wait for further kinds
	if o := h.Get("main"); o.Replicas != nil {
		t.Errorf("the Widget is cached as %+v", o)
	}
	build.Eventually(t, "the problem is reported", func() bool { return len(h.Problems()) == 1 })
	problems := h.Problems()
	if len(problems) != 1 || problems[0].Verb != "" || !strings.Contains(problems[0].Err.Error(), "reading Widget ns/main: .spec.size is no number of replicas") {
		t.Errorf("problems are %+v", problems)
	}
}

func TestReplicasAt(t *testing.T) {
	at := func(value any) map[string]any { return map[string]any{"spec": map[string]any{"size": value}} }
	tests := map[string]struct {
		object map[string]any
		want   *int32
		bad    bool
	}{
		"a number":                {object: at(int64(3)), want: new(int32(3))},
		"zero":                    {object: at(int64(0)), want: new(int32(0))},
		"a whole number as float": {object: at(3.0), want: new(int32(3))},
		"half a pod":              {object: at(2.5), bad: true},
		"negative":                {object: at(int64(-1)), bad: true},
		"more than an int32":      {object: at(int64(1 << 31)), bad: true},
		"far more":                {object: at(1e300), bad: true},
		"a text":                  {object: at("3"), bad: true},
		"an object":               {object: at(map[string]any{}), bad: true},
		"null":                    {object: at(nil)},
		"no such field":           {object: map[string]any{"spec": map[string]any{}}},
		"no parent field":         {object: map[string]any{}},
		"a text as parent":        {object: map[string]any{"spec": "x"}, bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := replicasAt(tc.object, []string{"spec", "size"})
			if (err != nil) != tc.bad {
				t.Errorf("error is %v", err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong number (-want +got):\n%s", diff)
			}
		})
	}
}

// TestBuiltInKindsAreNotConfigured: the ConfigMap must not name built-in kinds.
func TestBuiltInKindsAreNotConfigured(t *testing.T) {
	for _, k := range builtinKinds(build.NewAPI(t).Client()) {
		entry := "- {group: " + k.Group + ", version: v1, kind: " + k.Kind + "}"
		if entries, errs := workloadkind.Parse(entry); len(entries) != 0 || len(errs) != 1 {
			t.Errorf("%s is accepted", entry)
		}
	}
}
