package pod

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/testing/build"
	"github.com/atoll-k8s/atoll/internal/testing/build/world"
)

// newWebhook returns the webhook of a replica that leads. Policies and nodes among the
// objects are in its cache and its ledger; the walker has listed all others.
func newWebhook(t testing.TB, objects ...build.Object) (*Webhook, *build.API) {
	t.Helper()
	var listed, seen []build.Object
	for _, o := range objects {
		switch o.(type) {
		case *gm.PropagationPolicy, *gm.OverridePolicy, *corev1.Node:
			seen = append(seen, o)
		default:
			listed = append(listed, o)
		}
	}
	api, rest := build.NewAPI(t, listed...), world.New(t, seen...)
	w := &Webhook{
		Walker: owners.NewWalker(api.Client()), API: rest.Pods,
		Clock: rest.Clock, Key: func() []byte { return []byte("shared") },
	}
	w.Policies = policies.NewResolver(rest.Client, w.Walker, rest.Ledger, rest.Clock, true)
	w.Assigner = &assign.Assigner{
		Policies: w.Policies, Ledger: rest.Ledger,
		Leading: func() bool { return true }, Leader: leader.Leader{Address: func() string { return "" }},
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = w.Walker.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-stopped
	})
	build.Eventually(t, "owners are listed", w.Walker.HasSynced)
	return w, api
}

// admit returns the pod as the webhook admits it.
func admit(t *testing.T, w *Webhook, pod *corev1.Pod, dryRun bool) *corev1.Pod {
	t.Helper()
	pod = pod.DeepCopy()
	pod.Namespace, pod.UID = "", "" // the API server fills them in later
	w.Admit(t.Context(), build.Namespace, dryRun, pod)
	return pod
}

func gates(pod *corev1.Pod) []string {
	var out []string
	for _, gate := range pod.Spec.SchedulingGates {
		out = append(out, gate.Name)
	}
	return out
}

func gatedBy(names ...string) build.Option {
	return build.With(func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
		}
	})
}

func bindings(propagation, override string) build.Option {
	return func(o build.Object) {
		build.Label(gm.BindingPropagationPolicyLabel, propagation)(o)
		build.Label(gm.BindingOverridePolicyLabel, override)(o)
	}
}

func TestDefault(t *testing.T) {
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web")))
	owned := func(options ...build.Option) *corev1.Pod {
		return build.Pod("", append([]build.Option{build.OwnedBy(replicaSet)}, options...)...)
	}
	deployment := func(options ...build.Option) []build.Object {
		return []build.Object{build.Deployment("web", options...), replicaSet}
	}
	bound := map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p"}
	required := map[string]string{gm.RequiredPropagationPolicyLabel: "p"}
	tests := map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
		labels  map[string]string
		gates   []string
	}{
		"a pod of a workload that requires no policy does not change": {
			objects: deployment(), pod: owned(build.Label("app", "web"), gatedBy("example.com/gate")),
			labels: map[string]string{"app": "web"}, gates: []string{"example.com/gate"},
		},
		"labels are copied from the workload": {
			objects: deployment(build.Bound("p", "")), pod: owned(), labels: bound,
		},
		"a policy that is not bound adds the gate": {
			objects: deployment(build.Requires("p", "")), pod: owned(), labels: required, gates: []string{gm.PolicyGate},
		},
		"another policy that is bound adds the gate": {
			objects: deployment(build.Requires("p", ""), bindings("q", "")), pod: owned(),
			labels: map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "q"}, gates: []string{gm.PolicyGate},
		},
		"an OverridePolicy that is not bound adds the gate": {
			objects: deployment(build.Bound("p", ""), build.Requires("", "o")), pod: owned(),
			labels: map[string]string{gm.RequiredPropagationPolicyLabel: "p", gm.BindingPropagationPolicyLabel: "p", gm.RequiredOverridePolicyLabel: "o"},
			gates:  []string{gm.PolicyGate},
		},
		"a missing policy is ignored if the workload has the annotation": {
			objects: deployment(build.Requires("p", ""), ignore), pod: owned(), labels: required,
		},
		"the annotation about missing policies of an owned pod does not count": {
			objects: deployment(build.Requires("p", "")), pod: owned(ignore), labels: required, gates: []string{gm.PolicyGate},
		},
		"a template that forges a binding is corrected": {
			objects: deployment(build.Requires("p", "")), pod: owned(build.Bound("p", "o")), labels: required, gates: []string{gm.PolicyGate},
		},
		"a template that requires what its workload does not is corrected": {
			objects: deployment(), pod: owned(build.Bound("p", "o"), build.Label("app", "web")), labels: map[string]string{"app": "web"},
		},
		"the gate in a template is removed if the pod does not have to wait": {
			objects: deployment(build.Bound("p", "")), pod: owned(gatedBy("example.com/a", gm.PolicyGate, "example.com/b")),
			labels: bound, gates: []string{"example.com/a", "example.com/b"},
		},
		"the gate in a template is not doubled if the pod has to wait": {
			objects: deployment(build.Requires("p", "")), pod: owned(gatedBy(gm.PolicyGate)), labels: required, gates: []string{gm.PolicyGate},
		},
		"a pod that names its node gets no gate: it could never be removed": {
			objects: deployment(build.Requires("p", "")), pod: owned(build.On("node")), labels: required,
		},
		"a pod without an owner is its own workload": {
			pod: build.Pod("bare", build.Requires("p", "")), labels: required, gates: []string{gm.PolicyGate},
		},
		"a pod without an owner that ignores missing policies": {
			pod: build.Pod("bare", build.Requires("p", ""), ignore), labels: required,
		},
		"a pod of an unknown kind of owner carries no policy": {
			pod: build.Pod("adrift", build.Requires("p", ""), func(o build.Object) {
				yes := true
				o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Custom", Name: "s", UID: "s", Controller: &yes}})
			}),
			labels: map[string]string{},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, tc.objects...)
			got := admit(t, w, tc.pod, false)
			if diff := cmp.Diff(tc.labels, got.Labels, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.gates, gates(got)); diff != "" {
				t.Errorf("wrong gates (-want +got):\n%s", diff)
			}
			again := admit(t, w, got, false)
			if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted again, the pod changes:\n%s", diff)
			}
		})
	}
}

// TestPodCarriesTheIgnoreMissingAnnotation: the hub of a node reads it from the pod, and would
// hold the pod otherwise.
func TestPodCarriesTheIgnoreMissingAnnotation(t *testing.T) {
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web")))
	for name, tc := range map[string]struct {
		workload []build.Option
		want     bool
	}{
		"a missing policy that is ignored":          {[]build.Option{build.Requires("p", ""), ignore}, true},
		"one of two policies is missing":            {[]build.Option{build.Requires("p", "o"), bindings("p", ""), ignore}, true},
		"a missing policy":                          {[]build.Option{build.Requires("p", "")}, false},
		"a policy that may be missing and is bound": {[]build.Option{build.Bound("p", ""), ignore}, false},
		"no policy": {[]build.Option{ignore}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, build.Deployment("web", tc.workload...), replicaSet)
			got := admit(t, w, build.Pod("", build.OwnedBy(replicaSet)), false)
			if is := ownership.IgnoresMissing(got.Annotations); is != tc.want {
				t.Errorf("the pod tells it: %t, want %t", is, tc.want)
			}
		})
	}
}

func TestManagedPodsAreGivenToOurScheduler(t *testing.T) {
	const ours = "atoll-scheduler"
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web")))
	on := func(scheduler string, options ...build.Option) *corev1.Pod {
		return build.Pod("", append([]build.Option{build.OwnedBy(replicaSet), build.With(func(p *corev1.Pod) {
			p.Spec.SchedulerName = scheduler
		})}, options...)...)
	}
	tests := map[string]struct {
		workload []build.Option
		pod      *corev1.Pod
		off      bool
		want     string
	}{
		"a pod that names the default scheduler":                          {[]build.Option{build.Bound("p", "")}, on(corev1.DefaultSchedulerName), false, ours},
		"a pod that names none":                                           {[]build.Option{build.Bound("p", "")}, on(""), false, ours},
		"a pod that waits for its policy":                                 {[]build.Option{build.Requires("p", "")}, on(corev1.DefaultSchedulerName), false, ours},
		"a pod with overrides only: its images are written at binding":    {[]build.Option{build.Bound("", "o")}, on(corev1.DefaultSchedulerName), false, ours},
		"a pod that names another scheduler keeps it":                     {[]build.Option{build.Bound("p", "o")}, on("volcano"), false, "volcano"},
		"a pod of a workload that requires nothing":                       {nil, on(corev1.DefaultSchedulerName), false, corev1.DefaultSchedulerName},
		"a pod that names our scheduler and requires nothing keeps it":    {nil, on(ours), false, ours},
		"a missing policy that is ignored":                                {[]build.Option{build.Requires("p", ""), ignore}, on(corev1.DefaultSchedulerName), false, corev1.DefaultSchedulerName},
		"a policy that may be missing and is bound":                       {[]build.Option{build.Bound("p", ""), ignore}, on(corev1.DefaultSchedulerName), false, ours},
		"one bound policy and one that is missing and ignored":            {[]build.Option{build.Requires("p", "o"), bindings("p", ""), ignore}, on(corev1.DefaultSchedulerName), false, ours},
		"a pod that names its node needs no scheduler":                    {[]build.Option{build.Bound("p", "")}, on(corev1.DefaultSchedulerName, build.On("node")), false, corev1.DefaultSchedulerName},
		"the cluster's own scheduler calls the extender: nothing changes": {[]build.Option{build.Bound("p", "")}, on(corev1.DefaultSchedulerName), true, corev1.DefaultSchedulerName},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, build.Deployment("web", tc.workload...), replicaSet)
			if !tc.off {
				w.SchedulerName = ours
			}
			got := admit(t, w, tc.pod, false)
			if got.Spec.SchedulerName != tc.want {
				t.Errorf("scheduler is %q, want %q", got.Spec.SchedulerName, tc.want)
			}
			if again := admit(t, w, got, false); again.Spec.SchedulerName != tc.want {
				t.Errorf("admitted again, the scheduler is %q", again.Spec.SchedulerName)
			}
		})
	}
}

func TestManagedPodsAreMarked(t *testing.T) {
	const mark corev1.ResourceName = "atoll.dev/managed"
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web")))
	of := func(options ...build.Option) *corev1.Pod {
		return build.Pod("", append([]build.Option{build.OwnedBy(replicaSet), build.Container("c", "nginx"), build.Container("d", "nginx")}, options...)...)
	}
	tests := map[string]struct {
		workload []build.Option
		pod      *corev1.Pod
		mark     corev1.ResourceName
		want     bool
	}{
		"a policy that is bound":                      {[]build.Option{build.Bound("p", "")}, of(), mark, true},
		"a policy that the pod waits for":             {[]build.Option{build.Requires("p", "")}, of(), mark, true},
		"overrides only: they are written at binding": {[]build.Option{build.Bound("", "o")}, of(), mark, true},
		"no policy":                                                   {nil, of(), mark, false},
		"a missing policy that is ignored":                            {[]build.Option{build.Requires("p", ""), ignore}, of(), mark, false},
		"a pod that names its node":                                   {[]build.Option{build.Bound("p", "")}, of(build.On("node")), mark, false},
		"kube-scheduler calls the extender for every pod":             {[]build.Option{build.Bound("p", "")}, of(), "", false},
		"a pod without containers, which is invalid, does not change": {[]build.Option{build.Bound("p", "")}, build.Pod("", build.OwnedBy(replicaSet)), mark, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, build.Deployment("web", tc.workload...), replicaSet)
			w.Mark = tc.mark
			got := admit(t, w, tc.pod, false)
			for i, c := range got.Spec.Containers {
				for kind, list := range map[string]corev1.ResourceList{"requests": c.Resources.Requests, "limits": c.Resources.Limits} {
					quantity, marked := list[mark]
					if marked != (tc.want && i == 0) || !quantity.IsZero() {
						t.Errorf("container %q %s %v, want the mark: %t", c.Name, kind, list, tc.want && i == 0)
					}
				}
			}
		})
	}
}

func TestAPodWhoseOwnersCannotBeFoundKeepsItsScheduler(t *testing.T) {
	w, _ := newWebhook(t)
	w.SchedulerName = "atoll-scheduler"
	pod := build.Pod("", build.OwnedBy(build.ReplicaSet("gone")), build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = corev1.DefaultSchedulerName }))
	if got := admit(t, w, pod, false); got.Spec.SchedulerName != corev1.DefaultSchedulerName {
		t.Errorf("scheduler is %q", got.Spec.SchedulerName)
	}
}

// furtherKind is a kind that a user added as a workload. The API server cannot convert its
// objects.
var furtherKind = owners.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Custom"}, Resource: "customs"}

// TestAPodWhoseOwnerCannotBeReadWaitsAtTheGate: the kind of the owner is a workload, and
// it is unknown whether that workload requires a policy.
func TestAPodWhoseOwnerCannotBeReadWaitsAtTheGate(t *testing.T) {
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web", build.Bound("p", ""))))
	w, _ := newWebhook(t, build.Deployment("web", build.Bound("p", "")), replicaSet)
	w.SchedulerName, w.Mark = "atoll-scheduler", "atoll.dev/managed"
	broken := metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme())
	broken.PrependReactor("*", "customs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("conversion webhook failed"))
	})
	w.Walker = owners.NewWalker(build.NewAPI(t, build.Deployment("web", build.Bound("p", "")), replicaSet).Client())
	w.Walker.Extend(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), broken)
	w.Walker.SetKinds([]owners.Kind{furtherKind})
	go func() { _ = w.Walker.Start(t.Context()) }()
	build.Eventually(t, "the built-in kinds are listed", w.Walker.HasSynced)
	ofFurtherKind := func(options ...build.Option) *corev1.Pod {
		return build.Pod("", append([]build.Option{build.Container("c", "nginx"), func(o build.Object) {
			yes := true
			o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Custom", Name: "s", UID: "s", Controller: &yes}})
		}}, options...)...)
	}
	got := admit(t, w, ofFurtherKind(), false)
	if diff := cmp.Diff([]string{gm.PolicyGate}, gates(got)); diff != "" {
		t.Errorf("wrong gates (-want +got):\n%s", diff)
	}
	if _, marked := got.Spec.Containers[0].Resources.Requests[w.Mark]; got.Spec.SchedulerName != w.SchedulerName || !marked {
		t.Errorf("scheduler is %q, marked %t: neither can be set later", got.Spec.SchedulerName, marked)
	}
	if again := admit(t, w, got, false); len(again.Spec.SchedulingGates) != 1 {
		t.Errorf("admitted again, gates are %v", gates(again))
	}
	if got := admit(t, w, ofFurtherKind(build.On("node")), false); len(got.Spec.SchedulingGates) != 0 {
		t.Errorf("a pod that names its node has gates %v", gates(got))
	}
	if got := admit(t, w, build.Pod("", build.OwnedBy(replicaSet)), false); len(got.Spec.SchedulingGates) != 0 || got.Labels[gm.BindingPropagationPolicyLabel] != "p" {
		t.Errorf("a pod of a Deployment has gates %v and labels %v", gates(got), got.Labels)
	}
	w.Walker.SetKinds(nil)
	if got := admit(t, w, ofFurtherKind(), false); len(got.Spec.SchedulingGates) != 0 {
		t.Errorf("a pod of a kind that is not a workload any more has gates %v", gates(got))
	}
}

func TestForgedReservedMetadataIsAlwaysDropped(t *testing.T) {
	forged := build.Pod("", build.Label(gm.NodeGroupLabel, "hz"), build.Label("app", "web"),
		build.Annotation(gm.OriginalImagesAnnotation, "{}"), build.Annotation(gm.RestartingAnnotation, "{}"),
		build.Annotation(gm.NudgeAnnotation, "x"), build.Annotation(gm.DeletionCostAnnotation, "1"),
		build.Annotation(gm.SeatAnnotation, "t"), build.Annotation(gm.OverridesAnnotation, "x"), build.Annotation(gm.CreatedForAnnotation, "x"), build.Annotation(gm.UnassignedAnnotation, "x/1 y"),
		build.Annotation(corev1.PodDeletionCost, "1"), build.Annotation("example.com/note", "x"), gatedBy(gm.PolicyGate))
	free := build.ReplicaSet("free")
	for name, owner := range map[string]build.Object{"with an owner": free, "with an unknown owner": build.ReplicaSet("gone")} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, free)
			pod := forged.DeepCopy()
			build.OwnedBy(owner)(pod)
			got := admit(t, w, pod, false)
			if diff := cmp.Diff(map[string]string{"app": "web"}, got.Labels); diff != "" {
				t.Errorf("wrong labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(map[string]string{"example.com/note": "x", corev1.PodDeletionCost: "1"}, got.Annotations); diff != "" {
				t.Errorf("wrong annotations (-want +got):\n%s", diff)
			}
			if len(got.Spec.SchedulingGates) != 0 {
				t.Errorf("gates are %v", gates(got))
			}
		})
	}
}

func TestAPodIsAdmittedUnchangedWhenItsOwnersCannotBeFound(t *testing.T) {
	pod := build.Pod("", build.OwnedBy(build.ReplicaSet("rs")), build.Label("app", "web"), gatedBy("example.com/gate"))
	want := pod.DeepCopy()
	want.Namespace, want.UID = "", ""
	check := func(t *testing.T, w *Webhook) {
		t.Helper()
		if diff := cmp.Diff(want, admit(t, w, pod, false)); diff != "" {
			t.Errorf("the pod changed (-want +got):\n%s", diff)
		}
	}
	t.Run("the owner is gone", func(t *testing.T) {
		w, _ := newWebhook(t)
		check(t, w)
	})
	t.Run("the pod names no namespace", func(t *testing.T) {
		w, _ := newWebhook(t)
		got := want.DeepCopy()
		w.Admit(t.Context(), build.Namespace, false, got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the pod changed (-want +got):\n%s", diff)
		}
	})
}

// TestReplicaWithoutListsReadsOwnersLive: a replica that has not listed anything yet reads the
// owners of pods from the API server. The Service sends it reviews for a moment after a restart of
// its container.
func TestReplicaWithoutListsReadsOwnersLive(t *testing.T) {
	managed, plain := build.ReplicaSet("managed", build.Requires("p", "")), build.ReplicaSet("plain")
	w, _ := newWebhook(t)
	api := build.NewAPI(t, managed, plain)
	w.Walker = owners.NewWalker(api.Client())
	w.Walker.Extend(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()))
	check := func(what string, pod *corev1.Pod, want ...string) {
		t.Helper()
		if got := gates(admit(t, w, pod, false)); !slices.Equal(got, want) {
			t.Errorf("%s: gates are %v, want %v", what, got, want)
		}
	}
	ofFurtherKind := build.Pod("", func(o build.Object) {
		yes := true
		o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Custom", Name: "s", UID: "s", Controller: &yes}})
	})
	check("a policy is required", build.Pod("", build.OwnedBy(managed)), gm.PolicyGate)
	check("none is", build.Pod("", build.OwnedBy(plain)))
	check("the kind may be a workload", ofFurtherKind, gm.PolicyGate)
	w.Walker.SetKinds(nil)
	check("the kind is no workload", ofFurtherKind)
	api.Fail(http.StatusInternalServerError)
	check("the owner cannot be read", build.Pod("", build.OwnedBy(build.ReplicaSet("other"))), gm.PolicyGate)
}

// TestAPodWhoseNewOwnerCannotBeReadWaits: the watch has not delivered the owner yet, and the API
// server does not answer in time. The owner may require policies.
func TestAPodWhoseNewOwnerCannotBeReadWaits(t *testing.T) {
	w, api := newWebhook(t)
	api.Fail(http.StatusInternalServerError)
	if got := admit(t, w, webPod(), false); !slices.Equal(gates(got), []string{gm.PolicyGate}) {
		t.Errorf("gates are %v", gates(got))
	}
}

func TestAnOwnerThatIsNotListedYetIsFound(t *testing.T) {
	w, api := newWebhook(t)
	late := build.ReplicaSet("late", build.Requires("p", ""))
	api.Put(late)
	got := admit(t, w, build.Pod("", build.OwnedBy(late)), false)
	if diff := cmp.Diff([]string{gm.PolicyGate}, gates(got)); diff != "" {
		t.Errorf("wrong gates (-want +got):\n%s", diff)
	}
}

func TestADryRunGetsTheSameAnswerAndLeavesNothingBehind(t *testing.T) {
	w, _ := newWebhook(t, build.Deployment("web", build.Requires("p", "")))
	for _, pod := range []*corev1.Pod{build.Pod("bare", build.Requires("p", "")), build.Pod("", build.OwnedBy(build.Deployment("web")))} {
		before := len(w.Walker.Labelled())
		dry := admit(t, w, pod, true)
		if after := len(w.Walker.Labelled()); after != before {
			t.Errorf("%d objects were known, now %d", before, after)
		}
		if diff := cmp.Diff(admit(t, w, pod, false), dry); diff != "" {
			t.Errorf("a dry run gets another answer (-real +dry):\n%s", diff)
		}
	}
}

// admitted is the annotation that the webhook sets on pods whose workload requires a policy.
var admitted = build.Annotation(gm.AdmittedAnnotation, "true")

// TestAdmittedPodsAreMarked: pods without the annotation have bypassed the webhook.
func TestAdmittedPodsAreMarked(t *testing.T) {
	ignore := build.Annotation(gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore)
	replicaSet := build.ReplicaSet("rs", build.OwnedBy(build.Deployment("web")))
	for name, tc := range map[string]struct {
		workload []build.Option
		pod      []build.Option
		want     string
	}{
		"a policy that is bound":                        {workload: []build.Option{build.Bound("p", "")}, want: "true"},
		"a policy that is not":                          {workload: []build.Option{build.Requires("", "o")}, want: "true"},
		"a policy that may be missing":                  {workload: []build.Option{build.Requires("p", ""), ignore}, want: "true"},
		"a pod that names its node":                     {workload: []build.Option{build.Bound("p", "")}, pod: []build.Option{build.On("node")}, want: "proof"},
		"no policy":                                     {},
		"no policy, and the annotation in the template": {pod: []build.Option{admitted}},
		"another value in the template":                 {workload: []build.Option{build.Bound("p", "")}, pod: []build.Option{build.Annotation(gm.AdmittedAnnotation, "x")}, want: "true"},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, build.Deployment("web", tc.workload...), replicaSet)
			got := admit(t, w, build.Pod("", append([]build.Option{build.OwnedBy(replicaSet)}, tc.pod...)...), false)
			mark := got.Annotations[gm.AdmittedAnnotation]
			if strings.Contains(mark, ".") {
				mark = "proof"
			}
			if mark != tc.want {
				t.Errorf("marked %q, want %q", mark, tc.want)
			}
		})
	}
}
