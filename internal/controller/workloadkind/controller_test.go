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
	sail = "- {group: example.com, version: v1, kind: Sail, replicasPath: .spec.crew}\n"
	oar  = "- {group: example.com, version: v1, kind: Oar}\n"
	buoy = "- {group: example.com, version: v1, kind: Buoy}\n"
)

// site is a reconciler, and an API server that serves a few kinds.
type site struct {
	*Reconciler
	t        *testing.T
	recorder *events.FakeRecorder
	api      *fake.Clientset
	// denied are the verbs that the manager may not use, by resource.
	denied map[string]string
	// broken is what the API server answers about kinds and permissions, if not nil.
	broken error
	leads  bool
}

func newSite(t *testing.T, objects ...client.Object) *site {
	t.Helper()
	s := &site{t: t, recorder: events.NewFakeRecorder(100), api: fake.NewClientset(), denied: map[string]string{}, leads: true}
	s.serve("sails", "Sail", true, verbs...)
	s.serve("sails/status", "Sail", true, verbs...)
	s.serve("oars", "Oar", true, verbs...)
	s.serve("seas", "Sea", false, verbs...)
	s.serve("winds", "Wind", true, "create")
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

// reconcile runs one pass, and returns when the next is wanted.
func (s *site) reconcile() time.Duration {
	s.t.Helper()
	result, err := s.Reconcile(s.t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: build.Namespace, Name: ConfigMapName}})
	if err != nil {
		s.t.Fatal(err)
	}
	return result.RequeueAfter
}

// said are the events since the last call.
func (s *site) said() []string {
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
	got := s.said()
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
	if s.settled || s.reconcile() != 0 || !s.settled {
		t.Error("without a ConfigMap nobody says that there are no kinds")
	}
	s.expect("without a ConfigMap", "none")
	if err := s.Client.Create(t.Context(), config("# none yet")); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	s.expect("of an empty list", "none")
	s.write(sail)
	s.reconcile()
	s.expect("when one is named", "Sail.example.com", "Normal WorkloadsInForce Workloads beside the built-in kinds: Sail.example.com")
	want := owners.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sail"},
		Resource:         "sails", ReplicasPath: []string{"spec", "crew"},
	}
	if diff := cmp.Diff([]owners.Kind{want}, s.inForce); diff != "" {
		t.Errorf("wrong kinds (-want +got):\n%s", diff)
	}
	s.reconcile()
	s.expect("looked at again", "Sail.example.com")
	s.write(oar + sail)
	s.reconcile()
	s.expect("when two are named", "Oar.example.com, Sail.example.com", "Normal WorkloadsInForce Workloads beside the built-in kinds: Oar.example.com, Sail.example.com")
	s.write("")
	s.reconcile()
	s.expect("when none is named any more", "none", "Normal WorkloadsInForce Workloads beside the built-in kinds: none")
	s.write(sail)
	s.reconcile()
	s.said()
	if err := s.Client.Delete(t.Context(), config("")); err != nil {
		t.Fatal(err)
	}
	s.reconcile()
	s.expect("without the ConfigMap", "none")
}

func TestABadTextKeepsWhatIsInForce(t *testing.T) {
	tests := map[string]struct {
		text, want string
		again      bool
	}{
		"no YAML":              {sail + "- {", "workloads.yaml: the text is no YAML: ", false},
		"an unknown field":     {sail + "- {group: example.com, version: v1, kind: Oar, replicaPath: a}", "workloads.yaml[1] (Oar.example.com): unknown field", false},
		"a bad path":           {"- {group: example.com, version: v1, kind: Sail, replicasPath: 'a[0]'}", `workloads.yaml[0] (Sail.example.com): replicasPath "a[0]" leads into a list`, false},
		"a built-in kind":      {sail + "- {group: apps, version: v1, kind: Deployment}", "workloads.yaml[1] (Deployment.apps): the kind is always on", false},
		"a kind of no group":   {oar + buoy, "workloads.yaml (Buoy.example.com): the API server does not serve example.com/v1, kind Buoy: install its CustomResourceDefinition", true},
		"a version of nobody":  {"- {group: example.com, version: v2, kind: Sail}", "workloads.yaml (Sail.example.com): the API server does not serve example.com/v2, kind Sail", true},
		"a cluster-scoped one": {oar + "- {group: example.com, version: v1, kind: Sea}", "workloads.yaml (Sea.example.com): the kind is cluster-scoped", false},
		"one without watches":  {"- {group: example.com, version: v1, kind: Wind}", "workloads.yaml (Wind.example.com): the API server serves the kind without the verb get", false},
		"another plural":       {"- {group: example.com, version: v1, kind: Sail, resource: sailes}", `workloads.yaml (Sail.example.com): resource is "sailes" and the API server serves the kind as "sails"`, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, config(sail))
			s.reconcile()
			s.said()
			s.write(tc.text)
			if again := s.reconcile(); (again > 0) != tc.again {
				t.Errorf("comes back after %s, want to: %t", again, tc.again)
			}
			s.expect("now", "Sail.example.com", "Warning WorkloadsRejected "+tc.want)
			s.reconcile()
			s.expect("looked at again", "Sail.example.com")
			if got := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; got != sail {
				t.Errorf("remembered is %q", got)
			}
			s.write(sail)
			s.reconcile()
			s.expect("mended", "Sail.example.com", "Normal WorkloadsInForce ")
		})
	}
}

func TestTheEventNamesWhatStaysInForceAndIsBounded(t *testing.T) {
	s := newSite(t, config(sail))
	s.reconcile()
	s.said()
	s.write(strings.Repeat("- {version: v1}\n", 7))
	s.reconcile()
	said := s.said()
	if len(said) != 1 || !strings.HasSuffix(said[0], "workloads.yaml[2]: kind is missing; and 4 more. In force: Sail.example.com") {
		t.Errorf("events are %q", said)
	}
	s.write(strings.Repeat("- {group: example.com, version: v1, kind: Oar, "+strings.Repeat("x", 500)+": y}\n", 7) + "- {" + strings.Repeat("é", 3000))
	s.reconcile()
	if said := s.said(); len(said) != 1 || len(said[0]) > 1024 {
		t.Errorf("events are %q", said)
	}
}

func TestAKindThatIsServedLaterIsPickedUp(t *testing.T) {
	s := newSite(t, config(buoy+sail))
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
	s.expect("at first", "Sail.example.com", "Warning WorkloadsRejected workloads.yaml (Buoy.example.com): the API server does not serve")
	s.serve("buoys", "Buoy", true, verbs...)
	if again := s.reconcile(); again != 0 {
		t.Errorf("comes back after %s", again)
	}
	s.expect("served", "Buoy.example.com, Sail.example.com", "Normal WorkloadsInForce ")
}

func TestAMissingPermissionIsNamedAndPickedUp(t *testing.T) {
	s := newSite(t, config(sail))
	s.reconcile()
	s.said()
	s.denied["oars"] = "watch patch"
	s.write(sail + oar)
	if s.reconcile() == 0 {
		t.Error("does not come back")
	}
	s.expect("denied", "Sail.example.com", "Warning WorkloadsRejected workloads.yaml (Oar.example.com): atoll-manager may not watch, patch oars.example.com in every namespace: list the kind in the chart's value workloads, with resource: oars, or grant")
	delete(s.denied, "oars")
	if again := s.reconcile(); again != 0 {
		t.Errorf("comes back after %s", again)
	}
	s.expect("granted", "Oar.example.com, Sail.example.com", "Normal WorkloadsInForce ")
}

// TestAReplicaThatStartsWithABadText: there is nothing yet that could stay in
// force, but what another replica remembered.
func TestAReplicaThatStartsWithABadText(t *testing.T) {
	bad := sail + "- {version: v1}"
	s := newSite(t, config(bad, build.Annotation(gm.LastGoodWorkloadsAnnotation, sail+oar)))
	s.reconcile()
	s.expect("from what was right last", "Oar.example.com, Sail.example.com", "Warning WorkloadsRejected ")
	s.write("[]")
	s.reconcile()
	s.expect("then emptied", "none", "Normal WorkloadsInForce Workloads beside the built-in kinds: none")
	s = newSite(t, config(bad))
	s.reconcile()
	s.expect("from the entries that are right", "Sail.example.com", "Warning WorkloadsRejected ")
	if _, ok := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; ok {
		t.Error("a text that is not right is remembered")
	}
	s.write(oar)
	s.reconcile()
	s.expect("then mended", "Oar.example.com", "Normal WorkloadsInForce ")
}

// TestAnAPIServerThatFailsHoldsUpTheKindsInQuestionOnly: a replica that has just
// started is ready, and pods of the kinds wait.
func TestAnAPIServerThatFailsHoldsUpTheKindsInQuestionOnly(t *testing.T) {
	s := newSite(t, config(sail))
	s.broken = apierrors.NewInternalError(errors.New("later"))
	if s.reconcile() == 0 || !s.settled {
		t.Error("it waits for an answer, and all pods with it")
	}
	s.expect("without an answer", "Sail.example.com", "Warning WorkloadsRejected workloads.yaml (Sail.example.com): asking for the kinds of example.com/v1: ")
	pod := build.Owner(build.Pod("pod"))
	pod.Controller = &ownership.Reference{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Sail"}, Name: "main", UID: "main"}
	if _, _, err := s.Walker.Application(t.Context(), pod); !errors.Is(err, owners.ErrOwnerUnread) {
		t.Errorf("a pod of the kind in question: error %v, want that it waits", err)
	}
	s.broken = nil
	s.reconcile()
	s.expect("with one", "Sail.example.com", "Normal WorkloadsInForce ")
	s.broken = apierrors.NewInternalError(errors.New("later"))
	s.write(oar)
	s.reconcile()
	s.expect("without one again", "Sail.example.com", "Warning WorkloadsRejected ")
}

func TestOnlyTheReplicaThatLeadsWritesAndTells(t *testing.T) {
	s := newSite(t, config(sail+"- 5"))
	s.leads = false
	s.reconcile()
	s.expect("following", "Sail.example.com")
	s.leads = true
	s.reconcile()
	s.expect("leading", "Sail.example.com", "Warning WorkloadsRejected ")
	s.leads = false
	s.write(oar)
	s.reconcile()
	s.expect("following again", "Oar.example.com")
	if _, ok := s.stored().Annotations[gm.LastGoodWorkloadsAnnotation]; ok {
		t.Error("a replica that does not lead writes")
	}
}

func TestProblemsOfKindsInForceAreTold(t *testing.T) {
	s := newSite(t, config(oar+sail))
	ctx, cancel := context.WithCancel(t.Context())
	walker := s.Walker
	meta := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "example.com", Version: "v1", Resource: "sails"}: "SailList",
	})
	meta.PrependReactor("list", "oars", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "example.com", Resource: "oars"}, "", errors.New("no"))
	})
	objects.PrependReactor("list", "sails", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewGenericServerResponse(http.StatusNotFound, "list", schema.GroupResource{}, "", "", 0, true)
	})
	walker.Extend(objects, meta)
	s.reconcile()
	s.said()
	ended := make(chan error)
	go func() { ended <- walker.Start(ctx) }()
	build.Eventually(t, "both problems are there", func() bool { return len(walker.Problems()) == 2 })
	s.reconcile()
	s.expect("now", "Oar.example.com, Sail.example.com",
		"Warning WorkloadProblem Oar.example.com: atoll-manager may not list oars.example.com in every namespace: list the kind in the chart's value workloads, with resource: oars, or grant it a ClusterRole; "+
			"Sail.example.com: the API server does not serve example.com/v1 any more: install its CustomResourceDefinition, or take the entry out")
	s.reconcile()
	s.expect("looked at again", "Oar.example.com, Sail.example.com")
	s.denied["oars"] = "list" // the entry is refused for the same now: once is enough
	s.reconcile()
	if said := s.said(); len(said) != 2 || strings.Contains(said[1], "Oar.example.com: ") {
		t.Errorf("events are %q", said)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAConflictWhileRememberingIsNoFailure(t *testing.T) {
	s := newSite(t)
	s.Client = build.Client(interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, ConfigMapName, errors.New("changed"))
		},
	}, config(sail))
	if again := s.reconcile(); again == 0 {
		t.Error("does not come back")
	}
	s.expect("all the same", "Sail.example.com", "Normal WorkloadsInForce ")
}
