package owners

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
)

// kind is one kind of owner that the walk can pass through.
type kind struct {
	schema.GroupVersionKind
	resource string
	// listWatch lists and watches the objects of the kind with client.
	listWatch *cache.ListWatch
	client    any
	// get reads one object.
	get func(ctx context.Context, namespace, name string) (any, error)
	// expected is an object of the type that listWatch returns, or nil for any type.
	expected runtime.Object
	// replicas reads the number of replicas of an object; nil if it has none. An error
	// means that the object should have one and the value is invalid.
	replicas func(obj any) (*int32, error)
	// template is the path of the pod template of a further kind; nil if it is not set.
	template []string
	// further: the kind is not a built-in one.
	further bool
	// clusterScoped: objects of the kind are in no namespace.
	clusterScoped bool
	// unread is set after a read of an object of a further kind failed: no object of the
	// kind is read until it expires.
	unread atomic.Pointer[unread]
	// listed: the kind has been listed, so that the caches hold all of its objects.
	listed atomic.Bool
}

// unread is the error of a failed read, and until when it answers further reads.
type unread struct {
	err   error
	until time.Time
}

// whyUnread returns the error because of which no object of the kind is read now, or nil.
func (k *kind) whyUnread(now time.Time) error {
	if u := k.unread.Load(); u != nil && now.Before(u.until) {
		return u.err
	}
	return nil
}

// +kubebuilder:rbac:groups=apps,resources=deployments;replicasets;statefulsets;daemonsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=batch,resources=jobs;cronjobs,verbs=get;list;watch

// builtinKinds returns the workload kinds of Kubernetes itself. They are always watched.
func builtinKinds(client kubernetes.Interface) []*kind {
	apps, batch := appsv1.SchemeGroupVersion, batchv1.SchemeGroupVersion
	rest := map[schema.GroupVersion]rest.Interface{apps: client.AppsV1().RESTClient(), batch: client.BatchV1().RESTClient()}
	of := func(gv schema.GroupVersion, name, resource string, empty func() runtime.Object, replicas func(obj any) *int32) *kind {
		return &kind{
			GroupVersionKind: gv.WithKind(name), resource: resource, expected: empty(), client: rest[gv],
			listWatch: cache.NewListWatchFromClient(rest[gv], resource, "", fields.Everything()),
			get: func(ctx context.Context, namespace, name string) (any, error) {
				obj := empty()
				return obj, rest[gv].Get().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Into(obj)
			},
			replicas: func(obj any) (*int32, error) { return replicas(obj), nil },
		}
	}
	none := func(any) *int32 { return nil }
	return []*kind{
		of(apps, "Deployment", "deployments", func() runtime.Object { return &appsv1.Deployment{} },
			func(obj any) *int32 { return orOne(obj.(*appsv1.Deployment).Spec.Replicas) }),
		of(apps, "ReplicaSet", "replicasets", func() runtime.Object { return &appsv1.ReplicaSet{} },
			func(obj any) *int32 { return orOne(obj.(*appsv1.ReplicaSet).Spec.Replicas) }),
		of(apps, "StatefulSet", "statefulsets", func() runtime.Object { return &appsv1.StatefulSet{} },
			func(obj any) *int32 { return orOne(obj.(*appsv1.StatefulSet).Spec.Replicas) }),
		of(apps, "DaemonSet", "daemonsets", func() runtime.Object { return &appsv1.DaemonSet{} }, none),
		of(batch, "Job", "jobs", func() runtime.Object { return &batchv1.Job{} },
			func(obj any) *int32 { return orOne(obj.(*batchv1.Job).Spec.Parallelism) }),
		of(batch, "CronJob", "cronjobs", func() runtime.Object { return &batchv1.CronJob{} }, none),
	}
}

// podTemplates are the paths of the pod templates of the built-in kinds.
var podTemplates = map[schema.GroupKind][]string{
	{Group: appsv1.GroupName, Kind: "Deployment"}:  {"spec", "template"},
	{Group: appsv1.GroupName, Kind: "ReplicaSet"}:  {"spec", "template"},
	{Group: appsv1.GroupName, Kind: "StatefulSet"}: {"spec", "template"},
	{Group: appsv1.GroupName, Kind: "DaemonSet"}:   {"spec", "template"},
	{Group: batchv1.GroupName, Kind: "Job"}:        {"spec", "template"},
	{Group: batchv1.GroupName, Kind: "CronJob"}:    {"spec", "jobTemplate", "spec", "template"},
}

// orOne returns a copy, or the default of Kubernetes: one replica.
func orOne(n *int32) *int32 {
	if n == nil {
		return new(int32(1))
	}
	return new(*n)
}

// errNoObject: a watch delivered something that is not an API object.
var errNoObject = errors.New("unexpected type")

// slim returns the fields of an object that decisions use. If the number of replicas is
// invalid it returns both an object, without replicas, and an error.
func (k *kind) slim(obj any) (*ownership.Object, error) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("reading a %s: %w %T", k.Kind, errNoObject, obj)
	}
	replicas, err := k.replicas(obj)
	o := &ownership.Object{
		GroupVersionKind: k.GroupVersionKind,
		Namespace:        m.GetNamespace(),
		Name:             m.GetName(),
		UID:              m.GetUID(),
		Policies:         ownership.PoliciesOf(m.GetLabels()),
		IgnoreMissing:    ownership.IgnoresMissing(m.GetAnnotations()),
		Seat:             types.UID(short(m.GetAnnotations()[gm.SeatAnnotation])),
		Replicas:         replicas,
		Deleting:         m.GetDeletionTimestamp() != nil,
		Restarting:       k.Kind == "Job" && jobs.Suspended(m.GetAnnotations()[gm.JobRestartAnnotation], m.GetUID()),
		Generation:       m.GetGeneration(),
		Selector:         selectorOf(obj),
		OverridesStopped: m.GetAnnotations()[gm.OverridesStoppedAnnotation] != "",
		PodsRefused:      podsRefused(obj),
		Controller:       ControllerOf(m.GetOwnerReferences()),
	}
	setCapacity(o, obj, k.template)
	o.Gang = gangOf(m)
	return o, err
}

// selectorOf reads the label selector by which an object finds its pods. It is unknown,
// the zero value, where only the metadata of objects is read.
func selectorOf(obj any) ownership.Selector {
	switch o := obj.(type) {
	case *appsv1.Deployment:
		return ownership.SelectorOf(o.Spec.Selector)
	case *appsv1.ReplicaSet:
		return ownership.SelectorOf(o.Spec.Selector)
	case *appsv1.StatefulSet:
		return ownership.SelectorOf(o.Spec.Selector)
	case *appsv1.DaemonSet:
		return ownership.SelectorOf(o.Spec.Selector)
	case *batchv1.Job:
		return ownership.SelectorOf(o.Spec.Selector)
	case *batchv1.CronJob:
		return ownership.SelectorByKeys() // it finds its Jobs by their controller reference
	case *unstructured.Unstructured:
		return selectorIn(o.Object)
	}
	return ownership.Selector{}
}

// selectorIn reads spec.selector of an object of any kind. It returns the zero value if
// that is not a label selector.
func selectorIn(object map[string]any) ownership.Selector {
	fields, found, err := unstructured.NestedMap(object, "spec", "selector")
	if err != nil || !found || fields["matchLabels"] == nil && fields["matchExpressions"] == nil {
		return ownership.Selector{}
	}
	selector := &metav1.LabelSelector{}
	if runtime.DefaultUnstructuredConverter.FromUnstructured(fields, selector) != nil {
		return ownership.Selector{}
	}
	return ownership.SelectorOf(selector)
}

// maxRefusal bounds the part of an API server's message that is kept, in bytes.
const maxRefusal = 1000

// podsRefused reads why the pods of an object cannot be created, from its conditions. It
// copies the message, so that the cache does not keep the whole object in memory.
func podsRefused(obj any) string {
	message := ""
	switch o := obj.(type) {
	case *appsv1.ReplicaSet:
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
				message = c.Message
			}
		}
	case *appsv1.Deployment:
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				message = c.Message
			}
		}
	}
	return strings.Clone(conditions.Truncate(message, maxRefusal))
}

// maxReference bounds each field of a reference to an owner, in bytes. No object can have a
// longer kind, name or UID; the API server accepts any in a reference.
const maxReference = 512

// short returns a value, "" for one that is too long to be valid.
func short(value string) string {
	if len(value) > maxReference {
		return ""
	}
	return value
}

// ControllerOf returns the controller among the owners of an object, or nil. A reference that
// is too long for any object is none.
func ControllerOf(refs []metav1.OwnerReference) *ownership.Reference {
	for i := range refs {
		if refs[i].Controller != nil && *refs[i].Controller {
			if max(len(refs[i].APIVersion), len(refs[i].Kind), len(refs[i].Name), len(refs[i].UID)) > maxReference {
				return nil
			}
			return &ownership.Reference{
				GroupVersionKind: schema.FromAPIVersionAndKind(refs[i].APIVersion, refs[i].Kind),
				Name:             refs[i].Name,
				UID:              refs[i].UID,
			}
		}
	}
	return nil
}
