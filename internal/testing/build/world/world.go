// Package world is the environment for tests of adapters. It puts objects where the parts of
// atoll-manager read them: workloads into the Walker, nodes and pods into the ledger, policies
// into the client's cache.
package world

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// World is the state of a cluster as atoll-manager has observed it. Nothing watches the
// cluster: tests add what atoll-manager is to see.
type World struct {
	// Clock stands still until a test steps it.
	Clock *testingclock.FakeClock
	// API is the server for owners that Walker does not have. It has no objects.
	API      *build.API
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Client has policies and workloads.
	Client client.WithWatch
	// Pods has pods. It accepts all dry runs.
	Pods *fake.Clientset
	// Evicted has the names of the pods of all eviction requests, in order. An eviction does
	// not delete its pod. Answers are the results of the requests, in order; further
	// requests succeed.
	Evicted []string
	Answers []error
	// EvictionTakes is the time by which each eviction steps Clock.
	EvictionTakes time.Duration
}

// New makes a World with the objects.
func New(t testing.TB, objects ...build.Object) *World {
	t.Helper()
	var stored []client.Object
	for _, o := range objects {
		if isStored(o) {
			stored = append(stored, o.DeepCopyObject().(client.Object))
		}
	}
	w := &World{
		Clock:  testingclock.NewFakeClock(time.Unix(1_000_000, 0)),
		API:    build.NewAPI(t),
		Client: build.Client(interceptor.Funcs{}, stored...),
		Pods:   fake.NewSimpleClientset(),
	}
	w.Walker, w.Ledger = owners.NewWalker(w.API.Client()), seats.NewLedger(w.Clock)
	w.Policies = policies.NewResolver(w.Client, w.Walker, w.Ledger, w.Clock, true)
	for _, o := range objects {
		w.see(o)
	}
	w.Pods.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if eviction, ok := action.(clienttesting.CreateAction).GetObject().(*policyv1.Eviction); ok {
			return true, nil, w.evict(t, eviction)
		}
		create, ok := action.(clienttesting.CreateActionImpl)
		dryRun := ok && len(create.CreateOptions.DryRun) > 0
		return dryRun, action.(clienttesting.CreateAction).GetObject(), nil
	})
	return w
}

func (w *World) evict(t testing.TB, eviction *policyv1.Eviction) (answer error) {
	t.Helper()
	if p := eviction.DeleteOptions.Preconditions; p == nil || p.UID == nil || string(*p.UID) != eviction.Name {
		t.Errorf("eviction of %s has preconditions %v: it could evict another pod of that name", eviction.Name, p)
	}
	w.Evicted = append(w.Evicted, eviction.Name)
	w.Clock.Step(w.EvictionTakes)
	if len(w.Answers) > 0 {
		answer, w.Answers = w.Answers[0], w.Answers[1:]
	}
	return answer
}

// isStored reports whether Client has the object.
func isStored(o build.Object) bool {
	switch o.(type) {
	case *corev1.Node, *corev1.Pod:
		return false
	}
	return true
}

// Add creates an object and makes it observed.
func (w *World) Add(t testing.TB, o build.Object) {
	t.Helper()
	if isStored(o) {
		if err := w.Client.Create(t.Context(), o.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
	}
	w.see(o)
}

func (w *World) see(o build.Object) {
	switch o := o.(type) {
	case *corev1.Node:
		w.Ledger.ObserveNode(seats.SlimNode(o))
	case *corev1.Pod:
		w.See(o)
	case *gm.PropagationPolicy, *gm.OverridePolicy, *gm.NodeGroup:
	default:
		w.Walker.Put(build.Owner(o))
	}
}

// See creates or updates a pod in Pods, and makes the ledger observe it; if the pod has no
// owner, the Walker too.
func (w *World) See(pod *corev1.Pod) {
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	err := w.Pods.Tracker().Create(pods, pod, pod.Namespace)
	if apierrors.IsAlreadyExists(err) {
		err = w.Pods.Tracker().Update(pods, pod, pod.Namespace)
	}
	utilruntime.Must(err)
	slim := seats.Slim(pod)
	if slim.Controller == nil {
		w.Walker.Put(slim.Object())
	}
	w.Ledger.Observe(slim)
}

// Settle steps Clock until policies and groups have been unchanged for long enough that
// controllers move pods because of them.
func (w *World) Settle(t testing.TB) {
	t.Helper()
	var list gm.PropagationPolicyList
	if err := w.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		w.Policies.SettlesAt(&list.Items[i])
	}
	w.Clock.Step(gm.DefaultStabilization)
}
