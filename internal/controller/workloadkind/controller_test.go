package workloadkind

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

const (
	widget = "- {group: example.com, version: v1, kind: Widget, replicasPath: .spec.count}\n"
	gadget = "- {group: example.com, version: v1, kind: Gadget}\n"
	gizmo  = "- {group: example.com, version: v1, kind: Gizmo}\n"
)

// site is a reconciler with an API server that serves a few kinds.
type site struct {
	*Reconciler
	t        *testing.T
	recorder *events.FakeRecorder
	api      *fake.Clientset
	// denied are the verbs that the manager may not use, by resource.
	denied map[string]string
	// broken is the error of all requests about kinds and permissions; nil is none.
	broken error
	leads  bool
}

func newSite(t *testing.T, objects ...client.Object) *site {
	t.Helper()
	s := &site{t: t, recorder: events.NewFakeRecorder(100), api: fake.NewClientset(), denied: map[string]string{}, leads: true}
	s.serve("widgets", "Widget", true, verbs...)
	s.serve("widgets/status", "Widget", true, verbs...)
	s.serve("gadgets", "Gadget", true, verbs...)
	s.serve("territories", "Territory", false, verbs...)
	s.serve("reports", "Report", true, "create")
	s.api.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SelfSubjectAccessReview)
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = !strings.Contains(s.denied[a.Resource], a.Verb)
		return true, review, s.broken
	})
	s.api.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return s.broken != nil, nil, s.broken
	})
	walker := owners.NewWalker(build.NewAPI(t).Client())
	walker.Extend(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()))
	s.Reconciler = &Reconciler{
		Client: build.Client(interceptor.Funcs{}, objects...), API: s.api, Walker: walker, Recorder: s.recorder,
		Namespace: build.Namespace, Leads: func() bool { return s.leads },
	}
	return s
}

func (s *site) serve(resource, kind string, namespaced bool, verbs ...string) {
	if len(s.api.Resources) == 0 {
		s.api.Resources = []*metav1.APIResourceList{{GroupVersion: "example.com/v1"}}
	}
	s.api.Resources[0].APIResources = append(s.api.Resources[0].APIResources, metav1.APIResource{Name: resource, Kind: kind, Namespaced: namespaced, Verbs: verbs})
}

// config is the ConfigMap with a text.
func config(text string, options ...build.Option) *corev1.ConfigMap {
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: ConfigMapName, UID: "config"}}
	c.Data = map[string]string{workloadkind.Key: text}
	for _, option := range options {
		option(c)
	}
	return c
}

func (s *site) stored() *corev1.ConfigMap {
	s.t.Helper()
	c := &corev1.ConfigMap{}
	if err := s.Client.Get(s.t.Context(), types.NamespacedName{Namespace: build.Namespace, Name: ConfigMapName}, c); err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *site) write(text string) {
	s.t.Helper()
	c := s.stored()
	c.Data = map[string]string{workloadkind.Key: text}
	if err := s.Client.Update(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
}

// reconcile runs one pass and returns the delay until the next.
func (s *site) reconcile() time.Duration {
	s.t.Helper()
	result, err := s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: build.Namespace, Name: ConfigMapName}})
	if err != nil {
		s.t.Fatal(err)
	}
	return result.RequeueAfter
}

// emitted returns the events since the last call.
func (s *site) emitted() []string {
	var out []string
	for {
		select {
		case e := <-s.recorder.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

func (s *site) expect(when, inForce string, events ...string) {
	s.t.Helper()
	if got := namesOf(s.inForce); got != inForce {
		s.t.Errorf("%s %s are in force, want %s", when, got, inForce)
	}
	got := s.emitted()
	if len(got) != len(events) {
		s.t.Fatalf("%s the events are %q, want %q", when, got, events)
	}
	for i, want := range events {
		if !strings.HasPrefix(got[i], want) {
			s.t.Errorf("%s the event is\n%s, want\n%s", when, got[i], want)
		}
	}
}

func TestKindsFollowTheConfigMap(t *testing.T) {
	s := newSite(t)
	if s.applied || s.reconcile() != 0 || !s.applied {
		t.Error("without a ConfigMap the Walker did not get an empty list")
	}
	s.expect("without a ConfigMap", "none")
	if err := s.Client.Create(t.Context(), config("# none yet")); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	s.expect("of an empty list", "none")
	s.write(widget)
	s.reconcile()
	s.expect("when one is named", "Widget.example.com", "Normal WorkloadsInForce Workloads beside the built-in kinds: Widget.example.com")
	want := owners.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"},
		Resource:         "widgets", ReplicasPath: []string{"spec", "count"},
	}
	if diff := cmp.Diff([]owners.Kind{want}, s.inForce); diff != "" {
		t.Errorf("wrong kinds (-want +got):\n%s", diff)
	}
	s.reconcile()
	s.expect("looked at again", "Widget.example.com")
	s.write(gadget + widget)
	s.reconcile()
	s.expect("when two are named", "Gadget.example.com, Widget.example.com", "Normal WorkloadsInForce Workloads beside the built-in kinds: Gadget.example.com, Widget.example.com")
	s.write("")
	s.reconcile()
	s.expect("when none is named any more", "none", "Normal WorkloadsInForce Workloads beside the built-in kinds: none")
	s.write(widget)
	s.reconcile()
	s.emitted()
	if err := s.Client.Delete(t.Context(), config("")); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	s.expect("without the ConfigMap", "none")
}

func TestInvalidConfigMapKeepsKindsInForce(t *testing.T) {
	tests := map[string]struct {
		text, want string
		again      bool
	}{
		"no YAML":                      {widget + "- {", "workloads.yaml: the text is not valid YAML: ", false},
		"an unknown field":             {widget + "- {group: example.com, version: v1, kind: Gadget, replicaPath: a}", "workloads.yaml[1] (Gadget.example.com): unknown field", false},
		"a bad path":                   {"- {group: example.com, version: v1, kind: Widget, replicasPath: 'a[0]'}", `workloads.yaml[0] (Widget.example.com): replicasPath "a[0]" leads into a list`, false},
		"a built-in kind":              {widget + "- {group: apps, version: v1, kind: Deployment}", "workloads.yaml[1] (Deployment.apps): the kind is built in", false},
		"a kind that is not served":    {gadget + gizmo, "workloads.yaml (Gizmo.example.com): the API server does not serve example.com/v1, kind Gizmo: install its CustomResourceDefinition", true},
		"a version that is not served": {"- {group: example.com, version: v2, kind: Widget}", "workloads.yaml (Widget.example.com): the API server does not serve example.com/v2, kind Widget", true},
		"a cluster-scoped one":         {gadget + "- {group: example.com, version: v1, kind: Territory}", "workloads.yaml (Territory.example.com): the kind is cluster-scoped", false},
		"a kind without watches":       {"- {group: example.com, version: v1, kind: Report}", "workloads.yaml (Report.example.com): the API server serves the kind without the verb get", false},
		"another plural":               {"- {group: example.com, version: v1, kind: Widget, resource: widgetes}", `workloads.yaml (Widget.example.com): resource is "widgetes", but the API server serves the kind as "widgets"`, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, config(widget))
			s.reconcile()
			s.emitted()
			s.write(tc.text)
			if again := s.reconcile(); (again > 0) != tc.again {
				t.Errorf("comes back after %s, want to: %t", again, tc.again)
			}
			s.expect("now", "Widget.example.com", "Warning WorkloadsRejected "+tc.want)
			s.reconcile()
			s.expect("looked at again", "Widget.example.com")
			if got := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; got != widget {
				t.Errorf("remembered is %q", got)
			}
			s.write(widget)
			s.reconcile()
			s.expect("corrected", "Widget.example.com", "Normal WorkloadsInForce ")
		})
	}
}

func TestEventNamesKindsInForceAndIsBounded(t *testing.T) {
	s := newSite(t, config(widget))
	s.reconcile()
	s.emitted()
	s.write(strings.Repeat("- {version: v1}\n", 7))
	s.reconcile()
	emitted := s.emitted()
	if len(emitted) != 1 || !strings.HasSuffix(emitted[0], "workloads.yaml[2]: kind is missing; and 4 more. In force: Widget.example.com") {
		t.Errorf("events are %q", emitted)
	}
	s.write(strings.Repeat("- {group: example.com, version: v1, kind: Gadget, "+strings.Repeat("x", 500)+": y}\n", 7) + "- {" + strings.Repeat("é", 3000))
	s.reconcile()
	if emitted := s.emitted(); len(emitted) != 1 || len(emitted[0]) > 1024 {
		t.Errorf("events are %q", emitted)
	}
}

func TestAKindThatIsServedLaterIsPickedUp(t *testing.T) {
	s := newSite(t, config(gizmo+widget))
	last := time.Duration(0)
	for range 10 {
		again := s.reconcile()
		if again < last || again < minRetry || again > maxRetry {
			t.Errorf("comes back after %s, the time before %s", again, last)
		}
		last = again
	}
	if last != maxRetry {
		t.Errorf("comes back after %s in the end", last)
	}
	s.expect("at first", "Widget.example.com", "Warning WorkloadsRejected workloads.yaml (Gizmo.example.com): the API server does not serve")
	s.serve("gizmos", "Gizmo", true, verbs...)
	if again := s.reconcile(); again != 0 {
		t.Errorf("comes back after %s", again)
	}
	s.expect("served", "Gizmo.example.com, Widget.example.com", "Normal WorkloadsInForce ")
}

func TestAMissingPermissionIsNamedAndPickedUp(t *testing.T) {
	s := newSite(t, config(widget))
	s.reconcile()
	s.emitted()
	s.denied["gadgets"] = "watch patch"
	s.write(widget + gadget)
	if s.reconcile() == 0 {
		t.Error("does not come back")
	}
	s.expect("denied", "Widget.example.com", "Warning WorkloadsRejected workloads.yaml (Gadget.example.com): atoll-manager is not allowed to watch, patch gadgets.example.com in every namespace: list the kind in the chart's value workloads, with resource: gadgets, or grant")
	delete(s.denied, "gadgets")
	if again := s.reconcile(); again != 0 {
		t.Errorf("comes back after %s", again)
	}
	s.expect("granted", "Gadget.example.com, Widget.example.com", "Normal WorkloadsInForce ")
}

// TestStartWithAnInvalidConfigMapUsesLastGood: no kinds are in force yet. The annotation has the
// last list that was right.
func TestStartWithAnInvalidConfigMapUsesLastGood(t *testing.T) {
	bad := widget + "- {version: v1}"
	s := newSite(t, config(bad, build.Annotation(gm.LastGoodWorkloadsAnnotation, widget+gadget)))
	s.reconcile()
	s.expect("from what was right last", "Gadget.example.com, Widget.example.com", "Warning WorkloadsRejected ")
	s.write("[]")
	s.reconcile()
	s.expect("then emptied", "none", "Normal WorkloadsInForce Workloads beside the built-in kinds: none")
	s = newSite(t, config(bad))
	s.reconcile()
	s.expect("from the entries that are right", "Widget.example.com", "Warning WorkloadsRejected ")
	if _, ok := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; ok {
		t.Error("a wrong list was written to the annotation")
	}
	s.write(gadget)
	s.reconcile()
	s.expect("then corrected", "Gadget.example.com", "Normal WorkloadsInForce ")
}

// TestAnAPIServerThatFailsHoldsUpTheKindsInQuestionOnly: a replica that has just
// started gets ready, and only pods of the kinds wait.
func TestAnAPIServerThatFailsHoldsUpTheKindsInQuestionOnly(t *testing.T) {
	s := newSite(t, config(widget))
	s.broken = apierrors.NewInternalError(errors.New("later"))
	if s.reconcile() == 0 || !s.applied {
		t.Error("the Walker got no kinds, so all pods wait")
	}
	s.expect("without an answer", "Widget.example.com", "Warning WorkloadsRejected workloads.yaml (Widget.example.com): reading the resources of example.com/v1: ")
	pod := build.Owner(build.Pod("pod"))
	pod.Controller = &ownership.Reference{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}, Name: "main", UID: "main"}
	if _, _, err := s.Walker.PolicyOwners(t.Context(), pod); !errors.Is(err, owners.ErrOwnerUnread) {
		t.Errorf("a pod of the kind in question: error %v, want that it waits", err)
	}
	s.broken = nil
	s.reconcile()
	s.expect("with one", "Widget.example.com", "Normal WorkloadsInForce ")
	s.broken = apierrors.NewInternalError(errors.New("later"))
	s.write(gadget)
	s.reconcile()
	s.expect("without one again", "Widget.example.com", "Warning WorkloadsRejected ")
}

func TestOnlyTheLeaderWritesAndEmitsEvents(t *testing.T) {
	s := newSite(t, config(widget+"- 5"))
	s.leads = false
	s.reconcile()
	s.expect("following", "Widget.example.com")
	s.leads = true
	s.reconcile()
	s.expect("leading", "Widget.example.com", "Warning WorkloadsRejected ")
	s.leads = false
	s.write(gadget)
	s.reconcile()
	s.expect("following again", "Gadget.example.com")
	if _, ok := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; ok {
		t.Error("a replica that does not lead writes")
	}
}

func TestProblemsOfKindsInForceEmitEvents(t *testing.T) {
	s := newSite(t, config(gadget+widget))
	ctx, cancel := context.WithCancel(t.Context())
	walker := s.Walker
	meta := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "example.com", Version: "v1", Resource: "widgets"}: "WidgetList",
	})
	meta.PrependReactor("list", "gadgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "gadgets"}, "", errors.New("no"))
	})
	objects.PrependReactor("list", "widgets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{}, "", "", 0, true)
	})
	walker.Extend(objects, meta)
	s.reconcile()
	s.emitted()
	ended := make(chan error)
	go func() { ended <- walker.Start(ctx) }()
	build.Eventually(t, "both problems are there", func() bool { return len(walker.Problems()) == 2 })
	s.reconcile()
	s.expect("now", "Gadget.example.com, Widget.example.com",
		"Warning WorkloadProblem Gadget.example.com: atoll-manager is not allowed to list gadgets.example.com in every namespace: list the kind in the chart's value workloads, with resource: gadgets, or grant it a ClusterRole; "+
			"Widget.example.com: the API server does not serve example.com/v1 any more: install its CustomResourceDefinition, or remove the entry")
	s.reconcile()
	s.expect("looked at again", "Gadget.example.com, Widget.example.com")
	s.denied["gadgets"] = "list" // the event about the entry has the same reason; one is enough
	s.reconcile()
	if emitted := s.emitted(); len(emitted) != 2 || strings.Contains(emitted[1], "Gadget.example.com: ") {
		t.Errorf("events are %q", emitted)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestConflictOnSavingLastGoodIsNoFailure(t *testing.T) {
	s := newSite(t)
	s.Client = build.Client(interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, ConfigMapName, errors.New("changed"))
		},
	}, config(widget))
	if again := s.reconcile(); again == 0 {
		t.Error("does not come back")
	}
	s.expect("all the same", "Widget.example.com", "Normal WorkloadsInForce ")
}
