// Package build makes objects for tests: small, valid, and with the defaults that the API
// server would set. Options set what a test is about. Everything else is the same for all
// objects: the namespace is "ns", and the UID is the name.
//
// It must not contain anything that the product decides from objects. Options panic if the
// kind does not have the field that they set.
package build

import (
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
)

// Namespace is the namespace of all namespaced objects.
const Namespace = "ns"

// Object is any API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Option changes an object that is being built.
type Option func(Object)

// kinds is the scheme with every kind that tests read or write.
var kinds = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(gm.AddToScheme(scheme))
	utilruntime.Must(apps.AddToScheme(scheme))
	utilruntime.Must(capacity.AddToScheme(scheme))
	return scheme
}()

func kindOf(o Object) schema.GroupVersionKind {
	gvks, _, err := kinds.ObjectKinds(o)
	utilruntime.Must(err)
	return gvks[0]
}

// made sets what all objects have, and applies the options.
func made[T Object](o T, namespace, name string, options []Option) T {
	o.SetNamespace(namespace)
	o.SetName(name)
	o.SetUID(types.UID(name))
	o.SetGeneration(1)
	for _, option := range options {
		option(o)
	}
	return o
}

// Deployment makes a Deployment with one replica.
func Deployment(name string, options ...Option) *appsv1.Deployment {
	return made(&appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(1))}}, Namespace, name, options)
}

// ReplicaSet makes a ReplicaSet with one replica.
func ReplicaSet(name string, options ...Option) *appsv1.ReplicaSet {
	return made(&appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1))}}, Namespace, name, options)
}

// StatefulSet makes a StatefulSet with one replica.
func StatefulSet(name string, options ...Option) *appsv1.StatefulSet {
	return made(&appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}, Namespace, name, options)
}

// DaemonSet makes a DaemonSet.
func DaemonSet(name string, options ...Option) *appsv1.DaemonSet {
	return made(&appsv1.DaemonSet{}, Namespace, name, options)
}

// Job makes a Job with a parallelism of 1.
func Job(name string, options ...Option) *batchv1.Job {
	return made(&batchv1.Job{Spec: batchv1.JobSpec{Parallelism: new(int32(1))}}, Namespace, name, options)
}

// Pod makes a pod that is Pending, without node and containers.
func Pod(name string, options ...Option) *corev1.Pod {
	return made(&corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}, Namespace, name, options)
}

// Node makes a node that is Ready and not cordoned, with 8 cores, 32 GiB and 110 pods.
func Node(name string, options ...Option) *corev1.Node {
	return made(&corev1.Node{Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("8"),
			corev1.ResourceMemory: resource.MustParse("32Gi"),
			corev1.ResourcePods:   resource.MustParse("110"),
		},
	}}, "", name, options)
}

// NodeGroup makes a NodeGroup that selects no node.
func NodeGroup(name string, options ...Option) *gm.NodeGroup {
	return made(&gm.NodeGroup{}, "", name, options)
}

// NodePool makes a NodePool that selects no node and has no attributes. It has its finalizer.
func NodePool(name string, options ...Option) *apps.NodePool {
	p := made(&apps.NodePool{}, "", name, options)
	if len(p.Finalizers) == 0 {
		p.Finalizers = []string{apps.NodePoolFinalizer}
	}
	return p
}

// PropagationPolicy makes a policy without rules, with the defaults of the CRD.
func PropagationPolicy(name string, options ...Option) *gm.PropagationPolicy {
	return made(&gm.PropagationPolicy{Spec: gm.PropagationSpec{
		Rescheduling: gm.Rescheduling{Mode: gm.ReschedulingEvict, MaxUnavailable: 1},
	}}, Namespace, name, options)
}

// OverridePolicy makes a policy without rules.
func OverridePolicy(name string, options ...Option) *gm.OverridePolicy {
	return made(&gm.OverridePolicy{}, Namespace, name, options)
}

// With changes an object of one kind, in a way that no other option does.
func With[T Object](change func(T)) Option {
	return func(o Object) { change(o.(T)) }
}

// Label sets a label.
func Label(key, value string) Option {
	return func(o Object) {
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[key] = value
		o.SetLabels(labels)
	}
}

// Annotation sets an annotation.
func Annotation(key, value string) Option {
	return func(o Object) {
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[key] = value
		o.SetAnnotations(annotations)
	}
}

// Requires sets the required labels; "" sets none.
func Requires(propagation, override string) Option {
	return policies(ownership.Policies{RequiredPropagation: propagation, RequiredOverride: override})
}

// Bound sets the required and the binding labels; "" sets none.
func Bound(propagation, override string) Option {
	return policies(ownership.Policies{
		RequiredPropagation: propagation, BindingPropagation: propagation,
		RequiredOverride: override, BindingOverride: override,
	})
}

func policies(p ownership.Policies) Option {
	return func(o Object) {
		for key, value := range p.Labels() {
			Label(key, value)(o)
		}
	}
}

// OwnedBy sets the object's controller.
func OwnedBy(owner Object) Option {
	return func(o Object) {
		o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(owner, kindOf(owner))})
	}
}

// UID sets a UID that differs from the name.
func UID(uid string) Option {
	return func(o Object) { o.SetUID(types.UID(uid)) }
}

// Created sets the creationTimestamp.
func Created(at time.Time) Option {
	return func(o Object) { o.SetCreationTimestamp(metav1.NewTime(at)) }
}

// Deleting sets a deletionTimestamp, and a finalizer that keeps the object.
func Deleting(finalizer string) Option {
	return func(o Object) {
		at := metav1.NewTime(time.Unix(2_000_000, 0))
		o.SetDeletionTimestamp(&at)
		o.SetFinalizers([]string{finalizer})
	}
}

// Replicas sets the number of pods that a workload wants; of a Job, its parallelism.
func Replicas(n int32) Option {
	return func(o Object) {
		switch o := o.(type) {
		case *appsv1.Deployment:
			o.Spec.Replicas = &n
		case *appsv1.ReplicaSet:
			o.Spec.Replicas = &n
		case *appsv1.StatefulSet:
			o.Spec.Replicas = &n
		case *batchv1.Job:
			o.Spec.Parallelism = &n
		default:
			panic(fmt.Sprintf("a %T has no replicas", o))
		}
	}
}

// Container adds a container.
func Container(name, image string) Option {
	return With(func(pod *corev1.Pod) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: image})
	})
}

// InitContainer adds an init container.
func InitContainer(name, image string) Option {
	return With(func(pod *corev1.Pod) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: image})
	})
}

// On binds a pod to a node.
func On(node string) Option {
	return With(func(pod *corev1.Pod) { pod.Spec.NodeName = node })
}

// ForNode requires a node by name, as the DaemonSet controller does.
func ForNode(node string) Option {
	return With(func(pod *corev1.Pod) {
		pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{node}},
			}}},
		}}}
	})
}

// Running makes the pod Ready and every container running, after a number of restarts.
func Running(restarts int32) Option {
	return With(func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		for _, c := range pod.Spec.Containers {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, RestartCount: restarts, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			})
		}
	})
}

// Gated adds atoll-manager's scheduling gate.
func Gated() Option {
	return With(func(pod *corev1.Pod) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gm.PolicyGate})
	})
}

// Held makes a node NotReady and cut off from the cloud: its pool forwards its heartbeats.
func Held() Option {
	return With(func(n *corev1.Node) {
		Annotation(connectivity.Annotation, "Delegated since=2026-03-01T10:00:00Z reason="+connectivity.ReasonDelegated)(n)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: connectivity.ReasonDelegated, LastTransitionTime: metav1.Unix(1000, 0)}}
	})
}

// Lost makes a node NotReady since long ago, and known to be dead.
func Lost() Option {
	return With(func(n *corev1.Node) {
		Held()(n)
		Annotation(connectivity.Annotation, "Lost since=2026-03-01T10:00:00Z reason="+connectivity.ReasonLost)(n)
		n.Status.Conditions[0].Reason = connectivity.ReasonLost
	})
}

// Unschedulable sets the condition for a pod for which kube-scheduler found no node.
func Unschedulable() Option {
	return With(func(pod *corev1.Pod) {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		})
	})
}

// InGroup sets the label that makes a node a member of a NodeGroup.
func InGroup(group string) Option { return Label(gm.NodeGroupLabel, group) }

// Selects makes a NodeGroup select nodes by name.
func Selects(nodes ...string) Option {
	return With(func(g *gm.NodeGroup) { g.Spec.Nodes = append(g.Spec.Nodes, nodes...) })
}

// Weight adds a rule that gives groups a weight.
func Weight(weight int64, groups ...string) Option {
	return With(func(p *gm.PropagationPolicy) {
		p.Spec.StaticWeight = append(p.Spec.StaticWeight, gm.StaticNodeGroupWeight{NodeGroupNames: groups, Weight: weight})
	})
}

// Registry adds a rule that replaces the registry of every image in a group.
func Registry(group, registry string) Option {
	return With(func(p *gm.OverridePolicy) {
		p.Spec.OverrideRules = append(p.Spec.OverrideRules, gm.RuleWithNodeGroup{
			TargetNodeGroup: []string{group},
			Overriders: &gm.Overriders{ImageOverrider: []gm.ImageOverrider{
				{Component: gm.Registry, Operator: gm.OverriderOpReplace, Value: registry},
			}},
		})
	})
}

// Args adds a rule that appends arguments to a container in a group.
func Args(group, container string, args ...string) Option {
	return Overrides(group, gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{
		{ContainerName: container, Operator: gm.OverriderOpAdd, Value: args},
	}})
}

// Overrides adds a rule for a group.
func Overrides(group string, overriders gm.Overriders) Option {
	return With(func(p *gm.OverridePolicy) {
		p.Spec.OverrideRules = append(p.Spec.OverrideRules, gm.RuleWithNodeGroup{TargetNodeGroup: []string{group}, Overriders: &overriders})
	})
}

// Assigns sets when pods get their group.
func Assigns(when gm.Assignment) Option {
	return With(func(p *gm.PropagationPolicy) { p.Spec.Assignment = when })
}

// SelectsBy makes a workload select its pods by these labels, each with the value "x".
func SelectsBy(keys ...string) Option {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for _, key := range keys {
		selector.MatchLabels[key] = "x"
	}
	return func(o Object) {
		switch o := o.(type) {
		case *appsv1.Deployment:
			o.Spec.Selector = selector
		case *appsv1.ReplicaSet:
			o.Spec.Selector = selector
		case *appsv1.StatefulSet:
			o.Spec.Selector = selector
		case *appsv1.DaemonSet:
			o.Spec.Selector = selector
		case *batchv1.Job:
			o.Spec.Selector = selector
		}
	}
}

// Seated makes a pod one that got its seat at creation, in a group.
func Seated(group string) Option {
	return func(o Object) {
		Label(gm.NodeGroupLabel, group)(o)
		Annotation(gm.SeatAnnotation, "token-"+o.GetName())(o)
	}
}

// Owner converts an object to the form that internal/owners keeps.
func Owner(o Object) *ownership.Object {
	out := &ownership.Object{
		GroupVersionKind: kindOf(o), Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID(),
		Policies: ownership.PoliciesOf(o.GetLabels()), IgnoreMissing: ownership.IgnoresMissing(o.GetAnnotations()),
		Deleting: o.GetDeletionTimestamp() != nil, Generation: o.GetGeneration(),
		OverridesStopped: o.GetAnnotations()[gm.OverridesStoppedAnnotation] != "",
	}
	out.Capacity = ownership.CapacityOf(o.GetAnnotations(), o.GetLabels())
	out.Gang.Annotations, out.Gang.DependentsFirst, out.Gang.Orphans = gang.Annotations(o.GetAnnotations()), gang.DependentsFirst(o), gang.Orphans(o)
	if ref := metav1.GetControllerOf(o); ref != nil {
		out.Controller = &ownership.Reference{
			GroupVersionKind: schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind), Name: ref.Name, UID: ref.UID,
		}
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		out.Replicas, out.Selector = o.Spec.Replicas, ownership.SelectorOf(o.Spec.Selector)
	case *appsv1.ReplicaSet:
		out.Replicas, out.Selector = o.Spec.Replicas, ownership.SelectorOf(o.Spec.Selector)
		out.Gang.Order, _ = strconv.ParseInt(o.Annotations["deployment.kubernetes.io/revision"], 10, 64)
		for _, c := range o.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				out.PodsRefused = c.Message
			}
		}
	case *appsv1.StatefulSet:
		out.Replicas, out.Selector = o.Spec.Replicas, ownership.SelectorOf(o.Spec.Selector)
		out.Gang.UpdateRevision = o.Status.UpdateRevision
	case *appsv1.DaemonSet:
		out.Selector = ownership.SelectorOf(o.Spec.Selector)
		if o.Status.ObservedGeneration > 0 {
			out.Gang.Members = new(o.Status.DesiredNumberScheduled)
		}
	case *batchv1.Job:
		out.Gang.Members = new(ptr.Deref(o.Spec.Parallelism, 1))
		out.Replicas, out.Selector = o.Spec.Parallelism, ownership.SelectorOf(o.Spec.Selector)
		out.Restarting = jobs.Suspended(o.Annotations[gm.JobRestartAnnotation], o.UID)
	case *batchv1.CronJob:
		out.Selector = ownership.SelectorByKeys()
	}
	return out
}
