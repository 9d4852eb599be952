package gangs

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func slim(t *testing.T, pod *corev1.Pod) *Pod {
	t.Helper()
	out, err := slimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	return out.(*Pod)
}

func TestPodsThatAreToNameAPodGroup(t *testing.T) {
	tests := map[string]struct {
		option build.Option
		want   bool
	}{
		"a pod that names none":       {func(build.Object) {}, true},
		"a pod that names one":        {build.Annotation(scheduling.GroupNameAnnotation, "a"), false},
		"with the key of Volcano":     {build.Annotation(scheduling.VolcanoGroupNameAnnotation, "a"), false},
		"a mirror pod":                {build.Annotation(corev1.MirrorPodAnnotationKey, "a"), false},
		"a pod that is being deleted": {build.Deleting("x"), false},
		"a pod that has ended":        {build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), false},
		"a pod in phase Unknown":      {build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := slim(t, build.Pod("a", tc.option)).Unnamed(); got != tc.want {
				t.Errorf("Unnamed is %t, want %t", got, tc.want)
			}
		})
	}
}

// TestPodChangesThatMatterToPodGroups: most status updates of a pod do not matter to PodGroups.
func TestPodChangesThatMatterToPodGroups(t *testing.T) {
	pod := build.Pod("a")
	tests := map[string]struct {
		change func(*corev1.Pod)
		same   bool
	}{
		"its address":        {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, true},
		"another annotation": {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		"its node":           {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, false},
		"its end":            {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, false},
		"its PodGroup":       {func(p *corev1.Pod) { p.Annotations = map[string]string{scheduling.GroupNameAnnotation: "b"} }, false},
		"its queue":          {func(p *corev1.Pod) { p.Annotations = map[string]string{scheduling.QueueNameAnnotation: "b"} }, false},
		"its owner":          {func(p *corev1.Pod) { build.OwnedBy(build.Job("j"))(p) }, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			changed := pod.DeepCopy()
			tc.change(changed)
			if got := samePod(slim(t, pod), slim(t, changed)); got != tc.same {
				t.Errorf("same is %t, want %t", got, tc.same)
			}
		})
	}
}

// TestClampedRuleLevelsAreCounted: a metric counts how often a rule chooses a level beyond an end
// of the owner chain.
func TestClampedRuleLevelsAreCounted(t *testing.T) {
	clamped := func() float64 {
		t.Helper()
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == "atoll_podgroup_levels_clamped_total" {
				return family.GetMetric()[0].GetCounter().GetValue()
			}
		}
		t.Fatal("there is no such metric")
		return 0
	}
	walker, client := owners.NewWalker(build.NewAPI(t).Client()), fake.NewClientset()
	set := build.ReplicaSet("web-1")
	walker.Put(build.Owner(set))
	r := &Resolver{Lineage: owners.NewLineage(walker, metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()), client.Discovery())}
	for adjust, want := range map[int]float64{0: 0, -1: 0, -2: 1, 1: 1} {
		before := clamped()
		r.SetLevels(ownership.Levels{Rules: []ownership.LevelRule{{AnyGroup: true, Kind: "ReplicaSet", Adjust: adjust}}}, time.Now())
		if _, err := r.Choose(t.Context(), build.Owner(build.Pod("a", build.OwnedBy(set)))); err != nil {
			t.Fatal(err)
		}
		if got := clamped() - before; got != want {
			t.Errorf("adjust-level %d counts %v times, want %v", adjust, got, want)
		}
	}
}

// TestPodGroupsAreServedOrNot: Forbidden counts as not served. Other errors change nothing.
func TestPodGroupsAreServedOrNot(t *testing.T) {
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{Resource: "PodGroupList"})
	s, err := NewStore(fake.NewClientset(), objects, nil)
	if err != nil {
		t.Fatal(err)
	}
	var answer error
	for _, verb := range []string{"list", "watch"} {
		objects.PrependReactor(verb, "podgroups", func(clienttesting.Action) (bool, runtime.Object, error) { return answer != nil, nil, answer })
	}
	objects.PrependWatchReactor("podgroups", func(clienttesting.Action) (bool, watch.Interface, error) { return true, watch.NewFake(), answer })
	again := 0
	s.OnServed(func() { again++ })
	source := s.listWatch(objects).(cache.ListerWatcherWithContext)
	groups := Resource.GroupResource()
	for i, step := range []struct {
		answer   error
		unserved bool
		again    int
	}{
		{apierrors.NewInternalError(errors.New("busy")), false, 0},
		{apierrors.NewForbidden(groups, "", errors.New("no")), true, 0},
		{apierrors.NewInternalError(errors.New("busy")), true, 0},
		{nil, false, 1},
		{nil, false, 1},
		{apierrors.NewNotFound(groups, ""), true, 1},
		{nil, false, 2},
	} {
		answer = step.answer
		if i%2 == 0 {
			_, _ = source.ListWithContext(t.Context(), metav1.ListOptions{})
		} else {
			_, _ = source.WatchWithContext(t.Context(), metav1.ListOptions{})
		}
		if got := s.unserved.Load(); got != step.unserved || again != step.again {
			t.Errorf("step %d: unserved: %t, served again %d times", i, got, again)
		}
	}
}

func TestGeneratedPodGroupsAreRecognized(t *testing.T) {
	group := func(name, owner string, labels map[string]string) *Group {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": int64(2), "minResources": map[string]any{"pods": "1"}}, "status": map[string]any{"phase": "Running"}}}
		u.SetName(name)
		u.SetLabels(labels)
		if owner != "" {
			u.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "a", UID: types.UID(owner), Controller: new(true)}})
		}
		return Slim(u)
	}
	ours := map[string]string{scheduling.ManagedByLabel: scheduling.ManagedByAtoll}
	madeFor := func(g *Group, owner types.UID) *Group {
		g.Last = &gang.Applied{Owner: owner}
		return g
	}
	for name, tc := range map[string]struct {
		group *Group
		want  bool
	}{
		"ours":                       {group("podgroup-x", "x", ours), true},
		"ours, orphaned":             {madeFor(group("podgroup-x", "", ours), "x"), true},
		"a person's copy of ours":    {madeFor(group("podgroup-team", "", ours), "x"), false},
		"labelled by a person":       {group("podgroup-x", "", ours), false},
		"Volcano's":                  {group("podgroup-x", "x", nil), true},
		"a person's with the prefix": {group("podgroup-x", "", nil), false},
		"a person's, owned by a pod": {group("podgroup-x", "y", nil), false},
		"a person's":                 {group("mine", "", ours), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.group.Generated(); got != tc.want {
				t.Errorf("generated is %t, want %t", got, tc.want)
			}
		})
	}
	g := group("podgroup-x", "x", nil)
	if g.OfPod() != "a" || g.Phase != "Running" || g.Now.Spec["minMember"] != float64(2) || g.Last != nil {
		t.Errorf("the PodGroup is %+v", g)
	}
}

// TestLargeContentIsLeftOut: whatever its author writes into a PodGroup, little of it is kept,
// and each change is noticed.
func TestLargeContentIsLeftOut(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	group := func(change func(*unstructured.Unstructured)) *Group {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"minMember": int64(2)}}}
		u.SetName("podgroup-x")
		u.SetLabels(map[string]string{scheduling.ManagedByLabel: scheduling.ManagedByAtoll})
		change(u)
		slim, err := slimGroup(u)
		if err != nil {
			t.Fatal(err)
		}
		return slim.(*Group)
	}
	small := group(func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{"a": "b"}) })
	if small.Omitted != 0 || small.Now.Annotations["a"] != "b" {
		t.Errorf("a small PodGroup is not kept: %+v", small)
	}
	for name, write := range map[string]func(u *unstructured.Unstructured, text string){
		"annotations": func(u *unstructured.Unstructured, text string) { u.SetAnnotations(map[string]string{"a": text}) },
		"spec":        func(u *unstructured.Unstructured, text string) { u.Object["spec"] = map[string]any{"queue": text} },
		"many small values": func(u *unstructured.Unstructured, text string) {
			u.SetAnnotations(map[string]string{scheduling.AppliedAnnotation: `{"spec":{"a":[` + strings.Repeat("{},", 5_000) + `"` + text[:10] + text[100_000:] + `"]}}`})
		},
		"an owner": func(u *unstructured.Unstructured, text string) {
			u.SetAnnotations(map[string]string{scheduling.AppliedAnnotation: `{"owner":"` + text + `"}`})
		},
		"what was written last": func(u *unstructured.Unstructured, text string) {
			u.SetAnnotations(map[string]string{scheduling.AppliedAnnotation: `{"owner":"x","labels":{"a":"` + text + `"}}`})
		},
	} {
		t.Run(name, func(t *testing.T) {
			one := group(func(u *unstructured.Unstructured) { write(u, long) })
			if size := budget.SizeOf(one); size > 2000 {
				t.Errorf("%d bytes are kept", size)
			}
			if !sameGroup(one, group(func(u *unstructured.Unstructured) { write(u, long) })) {
				t.Error("the same content counts as a change")
			}
			if sameGroup(one, group(func(u *unstructured.Unstructured) { write(u, long+"x") })) {
				t.Error("a change is not noticed")
			}
		})
	}
	forged := group(func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{scheduling.AppliedAnnotation: `{"owner":"x","labels":{"a":"` + long + `"}}`})
	})
	if !forged.Generated() {
		t.Error("the owner for which the PodGroup was written is forgotten")
	}
}
