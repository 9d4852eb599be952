package owners

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// kind is one kind of owner that the walk can pass through.
type kind struct {
	schema.GroupVersionKind
	resource string
	client   rest.Interface
	// empty makes an empty object of the kind, for decoding.
	empty func() runtime.Object
	// replicas reads the number of pods that an object wants, or nil.
	replicas func(obj any) *int32
}

// +kubebuilder:rbac:groups=apps,resources=deployments;replicasets;statefulsets;daemonsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=batch,resources=jobs;cronjobs,verbs=get;list;watch

// builtinKinds are the workload kinds of Kubernetes itself, which are always on.
func builtinKinds(client kubernetes.Interface) []*kind {
	apps, batch := client.AppsV1().RESTClient(), client.BatchV1().RESTClient()
	none := func(any) *int32 { return nil }
	return []*kind{{
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("Deployment"), resource: "deployments", client: apps,
		empty:    func() runtime.Object { return &appsv1.Deployment{} },
		replicas: func(obj any) *int32 { return orOne(obj.(*appsv1.Deployment).Spec.Replicas) },
	}, {
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), resource: "replicasets", client: apps,
		empty:    func() runtime.Object { return &appsv1.ReplicaSet{} },
		replicas: func(obj any) *int32 { return orOne(obj.(*appsv1.ReplicaSet).Spec.Replicas) },
	}, {
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("StatefulSet"), resource: "statefulsets", client: apps,
		empty:    func() runtime.Object { return &appsv1.StatefulSet{} },
		replicas: func(obj any) *int32 { return orOne(obj.(*appsv1.StatefulSet).Spec.Replicas) },
	}, {
		GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("DaemonSet"), resource: "daemonsets", client: apps,
		empty: func() runtime.Object { return &appsv1.DaemonSet{} }, replicas: none,
	}, {
		GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("Job"), resource: "jobs", client: batch,
		empty:    func() runtime.Object { return &batchv1.Job{} },
		replicas: func(obj any) *int32 { return orOne(obj.(*batchv1.Job).Spec.Parallelism) },
	}, {
		GroupVersionKind: batchv1.SchemeGroupVersion.WithKind("CronJob"), resource: "cronjobs", client: batch,
		empty: func() runtime.Object { return &batchv1.CronJob{} }, replicas: none,
	}}
}

func orOne(n *int32) *int32 {
	if n == nil {
		one := int32(1)
		return &one
	}
	return n
}

// slim keeps of an object what the decisions need.
func (k *kind) slim(obj any) (*ownership.Object, bool) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return nil, false
	}
	o := &ownership.Object{
		GroupVersionKind: k.GroupVersionKind,
		Namespace:        m.GetNamespace(),
		Name:             m.GetName(),
		UID:              m.GetUID(),
		Policies:         ownership.PoliciesOf(m.GetLabels()),
		IgnoreMissing:    ownership.IgnoresMissing(m.GetAnnotations()),
		Replicas:         k.replicas(obj),
		Deleting:         m.GetDeletionTimestamp() != nil,
		Generation:       m.GetGeneration(),
		Controller:       ControllerOf(m.GetOwnerReferences()),
	}
	if o.Replicas != nil {
		n := *o.Replicas
		o.Replicas = &n
	}
	return o, true
}

// ControllerOf picks the controller among an object's owners, or nil.
func ControllerOf(refs []metav1.OwnerReference) *ownership.Reference {
	for i := range refs {
		if refs[i].Controller != nil && *refs[i].Controller {
			return &ownership.Reference{
				GroupVersionKind: schema.FromAPIVersionAndKind(refs[i].APIVersion, refs[i].Kind),
				Name:             refs[i].Name,
				UID:              refs[i].UID,
			}
		}
	}
	return nil
}
