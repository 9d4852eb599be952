package workload

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// ofWidget sets a controller of a kind that is not a workload, or not any more.
func ofWidget(o build.Object) {
	yes := true
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: "widget", UID: "widget", Controller: &yes}})
}

func TestPodsOfARemovedKindLeaveTheGate(t *testing.T) {
	s := newSite(t, policy, build.ReplicaSet("below", ofWidget))
	s.World.Add(t, build.Pod("direct", ofWidget, build.Gated(), build.Requires("p", ""), build.Label("app", "web")))
	s.World.Add(t, build.Pod("indirect", build.OwnedBy(build.ReplicaSet("below")), build.Unschedulable(), build.Bound("p", "")))
	s.World.Add(t, build.Pod("running", ofWidget, build.On("node-hz"), build.Running(0)))
	s.World.Add(t, build.Pod("new", ofWidget))
	for _, uid := range []string{"widget", "widget"} {
		s.reconcile(types.UID(uid))
		for _, name := range s.woken {
			s.World.See(s.pod(name))
		}
	}
	if len(s.woken) != 0 {
		t.Errorf("pods were woken twice: %v", s.woken)
	}
	if pod := s.pod("direct"); len(pod.Spec.SchedulingGates) != 0 || !cmp.Equal(pod.Labels, map[string]string{"app": "web"}) {
		t.Errorf("the gated pod is %v, labels %v", pod.Spec.SchedulingGates, pod.Labels)
	}
	if pod := s.pod("indirect"); len(pod.Annotations) == 0 || len(pod.Labels) != 0 {
		t.Errorf("the unschedulable pod has annotations %v, labels %v", pod.Annotations, pod.Labels)
	}
}

// TestPodsWhoseOwnerIsGoneAreLeftAlone: the garbage collector deletes them.
func TestPodsWhoseOwnerIsGoneAreLeftAlone(t *testing.T) {
	s := newSite(t, policy)
	s.World.Add(t, build.Pod("a", build.OwnedBy(build.ReplicaSet("gone")), build.Gated()))
	s.reconcile("gone")
	if len(s.woken) != 0 {
		t.Errorf("woken: %v", s.woken)
	}
}

// TestPodsOfAnOwnerThatIsNotCachedYetStay: the owner is read and requires a policy. The
// request is repeated, because the event of the owner may not enqueue it.
func TestPodsOfAnOwnerThatIsNotCachedYetStay(t *testing.T) {
	s := newSite(t, policy)
	s.World.API.Put(build.ReplicaSet("late", build.Requires("p", "")))
	s.World.Add(t, build.Pod("a", build.OwnedBy(build.ReplicaSet("late")), build.Gated()))
	result, err := s.Reconcile(t.Context(), request{"late"})
	if err != nil || len(s.woken) != 0 {
		t.Errorf("woken: %v, error %v", s.woken, err)
	}
	if result.RequeueAfter != retryUnread {
		t.Errorf("runs again after %s, want %s: the pod would stay at the gate for ever", result.RequeueAfter, retryUnread)
	}
}

// TestPodsWithNewerPolicyLabelsStayGated: the webhook has seen the labels of the workload, and the
// leader has not yet. Some time later the labels have been taken away since.
func TestPodsWithNewerPolicyLabelsStayGated(t *testing.T) {
	for name, before := range map[string]build.Option{
		"no policy":                 build.Replicas(1),
		"the PropagationPolicy":     build.Bound("p", ""),
		"another PropagationPolicy": build.Bound("other", "o"),
	} {
		t.Run(name, func(t *testing.T) {
			web := build.Deployment("web", before, build.Replicas(1))
			s := newSite(t, web, build.ReplicaSet("web-1", build.OwnedBy(web)), policy, override, build.PropagationPolicy("other", build.Weight(1, "hz")), node)
			s.World.Add(t, gated("a", 0, build.OwnedBy(build.ReplicaSet("web-1")), build.Container("c", "nginx:1"), build.Requires("p", "o"), build.Annotation(gm.AdmittedAnnotation, "true")))
			for _, uid := range []types.UID{"web", "web-1"} {
				if _, err := s.Reconcile(t.Context(), request{uid}); err != nil || len(s.woken) != 0 {
					t.Errorf("woken: %v, error %v", s.woken, err)
				}
			}
			s.World.Clock.Step(time.Minute)
			for _, uid := range []types.UID{"web", "web-1"} {
				if _, err := s.Reconcile(t.Context(), request{uid}); err != nil {
					t.Error(err)
				}
			}
			if len(s.woken) == 0 {
				t.Error("the pod stays for ever")
			}
		})
	}
}

// TestPodsOfAReplacedPolicyLeaveTheGateAtOnce: the leader has seen the workload with the policies
// that the pod names, so the workload has changed since, and not only for the webhook.
func TestPodsOfAReplacedPolicyLeaveTheGateAtOnce(t *testing.T) {
	for name, changes := range map[string][]build.Option{
		"no policy":               {build.Replicas(1)},
		"policies of other names": {build.Bound("other", "other")},
		"one after the other":     {build.Requires("other", "o"), build.Bound("other", "other")},
	} {
		t.Run(name, func(t *testing.T) {
			other := build.OverridePolicy("other", build.Registry("hz", "hz.io"))
			s := newSite(t, build.Deployment("web", build.Requires("p", "o")), build.ReplicaSet("web-1", build.OwnedBy(build.Deployment("web"))), build.PropagationPolicy("other", build.Weight(1, "hz")), other, node)
			s.World.Add(t, gated("a", 0, build.OwnedBy(build.ReplicaSet("web-1")), build.Container("c", "nginx:1"), build.Requires("p", "o"), build.Annotation(gm.AdmittedAnnotation, "true")))
			s.reconcile("web")
			if len(s.woken) != 0 {
				t.Fatal("the pod does not wait for its policies")
			}
			for _, change := range changes {
				s.World.Walker.Put(build.Owner(build.Deployment("web", change)))
			}
			s.reconcile("web")
			if len(s.woken) == 0 {
				t.Error("the pod waits until it is old")
			}
		})
	}
}

func TestAMissingPermissionToBindIsAnEventOnTheWorkload(t *testing.T) {
	s := newSite(t, policy, build.Deployment("web", build.Requires("p", "")))
	denied := apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", errors.New(`User "atoll" cannot patch resource "deployments"`))
	s.Reconciler.Client = interceptor.NewClient(s.World.Client, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return denied
		},
	})
	if _, err := s.Reconcile(t.Context(), request{"web"}); !errors.Is(err, denied) {
		t.Errorf("error is %v", err)
	}
	select {
	case event := <-s.events.Events:
		if !strings.HasPrefix(event, "Warning BindingForbidden ") || !strings.Contains(event, `cannot patch resource "deployments"`) {
			t.Errorf("the event is %q", event)
		}
	default:
		t.Error("no event says why the workload is not bound")
	}
}

// TestPodsOfAnOwnerThatCannotBeReadStay: it is not known whether the owner, direct or
// further up, requires a policy. The request is repeated.
func TestPodsOfAnOwnerThatCannotBeReadStay(t *testing.T) {
	s := newSite(t, build.ReplicaSet("below", ofWidget))
	s.World.Walker.Extend(dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()), metadatafake.NewSimpleMetadataClient(metadatafake.NewTestScheme()))
	widgets := owners.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}} // not served: cannot be read
	s.World.Walker.SetKinds([]owners.Kind{widgets})
	s.World.Add(t, build.Pod("direct", ofWidget, build.Gated()))
	s.World.Add(t, build.Pod("indirect", build.OwnedBy(build.ReplicaSet("below")), build.Gated()))
	for _, uid := range []types.UID{"widget", "below"} {
		result, err := s.Reconcile(t.Context(), request{uid})
		if err != nil || result.RequeueAfter != retryUnread || len(s.woken) != 0 {
			t.Errorf("%s: runs again after %s, error %v, released: %v", uid, result.RequeueAfter, err, s.woken)
		}
	}
	s.World.Walker.SetKinds(nil)
	for _, uid := range []types.UID{"widget", "below"} {
		s.reconcile(uid)
		if len(s.woken) == 0 {
			t.Errorf("%s: the kind was removed, and its pods still wait", uid)
		}
	}
}
