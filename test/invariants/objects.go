package invariants

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// evictedReason is the reason of the condition that the API server writes to a pod that
// it evicts.
const evictedReason = "EvictionByEvictionAPI"

// Object is the part of an object that a History keeps: one of the types of this file.
type Object interface{ key() any }

// Pod has the fields of a pod that are judged.
type Pod struct {
	UID             types.UID
	Namespace, Name string
	// Owner is the UID of the controller, and OwnerKind its kind; both are empty
	// without one.
	Owner     types.UID
	OwnerKind string
	// Revision identifies the revision of the owner's template.
	Revision string
	// Policies and IgnoreMissing are read from the pod itself.
	Policies      ownership.Policies
	IgnoreMissing bool
	Node          string
	// Group is the group of the pod's seat; Pinned pods got it at creation.
	Group  string
	Pinned bool
	// Class is the class of capacity that atoll-manager gave the pod.
	Class string
	// Overrides is the value of gm.OverridesAnnotation.
	Overrides string
	// Active pods have neither finished nor begun to terminate.
	Active               bool
	Gated, Unschedulable bool
	// Refused reports that the extender refused nodes because they are of other groups.
	Refused bool
	// Evicted reports that the pod has the API server's condition for an eviction.
	Evicted bool
}

// Node has the fields of a node that are judged.
type Node struct {
	Name, Group string
	// Class is the class of capacity, by the label of the node.
	Class string
	Ready bool
}

// refusals are parts of the messages on a pod that waits for its group.
var refusals = []string{"node is in no NodeGroup of the workload's", "node's NodeGroup has its share of the workload's"}

// Workload is an owner of pods, or of owners of pods.
type Workload struct {
	UID                   types.UID
	Kind, Namespace, Name string
	Policies              ownership.Policies
	IgnoreMissing         bool
	// Replicas is the number of wanted pods; -1 for kinds without replicas.
	Replicas int
	// Owner and OwnerKind are as a Pod's.
	Owner     types.UID
	OwnerKind string
	// United and Pool are the names of the UnitedDeployment and of the pool in the
	// workload's labels.
	United, Pool string
	// Pools are those of a UnitedDeployment, each between slashes. Total is the number of
	// pods of all pools in its spec, -1 for DaemonSets. Done reports that by its status
	// every pool has its workload and none a failure.
	Pools string
	Total int
	Done  bool
	// Count is the text of the workload's number of on-demand pods; "" if its pods are
	// not divided. FirstOrdinal is the first ordinal of a StatefulSet.
	Count        string
	FirstOrdinal int
	// Fallback reports that its pods get the other class if their class has no nodes.
	Fallback bool
	// Surge is the number of pods that a Deployment may have in addition to its replicas.
	Surge int
	// SelectsClass reports that it selects its pods by the label of the class. Then the
	// label is its author's, and says nothing about the class that atoll-manager gave.
	SelectsClass bool
}

func (w Workload) name() types.NamespacedName {
	return types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
}

type (
	// PropagationPolicy has the fields of a PropagationPolicy that are judged; they
	// change only with its generation.
	PropagationPolicy struct {
		types.NamespacedName
		UID        types.UID
		Generation int64
		Spec       *gm.PropagationSpec
	}
	// OverridePolicy is the same for an OverridePolicy.
	OverridePolicy struct {
		types.NamespacedName
		UID        types.UID
		Generation int64
		Spec       *gm.OverrideSpec
	}
)

type (
	podKey         types.UID
	nodeKey        string
	workloadKey    types.UID
	propagationKey types.NamespacedName
	overrideKey    types.NamespacedName
)

func (p Pod) key() any               { return podKey(p.UID) }
func (n Node) key() any              { return nodeKey(n.Name) }
func (w Workload) key() any          { return workloadKey(w.UID) }
func (p PropagationPolicy) key() any { return propagationKey(p.NamespacedName) }
func (p OverridePolicy) key() any    { return overrideKey(p.NamespacedName) }

// equal reports whether two versions of an object have the same judged fields.
func equal(a, b Object) bool {
	switch a := a.(type) {
	case PropagationPolicy:
		b, ok := b.(PropagationPolicy)
		return ok && a.UID == b.UID && a.Generation == b.Generation
	case OverridePolicy:
		b, ok := b.(OverridePolicy)
		return ok && a.UID == b.UID && a.Generation == b.Generation
	}
	return a == b
}

// cohort identifies the pods that are divided together.
type cohort struct {
	owner    types.UID
	revision string
}

func (p Pod) cohort() cohort {
	if p.Owner == "" {
		return cohort{owner: p.UID, revision: p.Revision}
	}
	return cohort{owner: p.Owner, revision: p.Revision}
}

// slim returns the judged part of an object; nil for objects that are not judged.
func slim(o runtime.Object) Object {
	switch o := o.(type) {
	case *corev1.Pod:
		return slimPod(o)
	case *corev1.Node:
		return slimNode(o)
	case *gm.PropagationPolicy:
		return PropagationPolicy{nameOf(o), o.UID, o.Generation, &o.Spec}
	case *gm.OverridePolicy:
		return OverridePolicy{nameOf(o), o.UID, o.Generation, &o.Spec}
	case *appsv1.Deployment:
		return workload("Deployment", o, o.Spec.Replicas)
	case *appsv1.ReplicaSet:
		return workload("ReplicaSet", o, o.Spec.Replicas)
	case *appsv1.StatefulSet:
		return workload("StatefulSet", o, o.Spec.Replicas)
	case *appsv1.DaemonSet:
		return workload("DaemonSet", o, new(int32(-1)))
	case *apps.UnitedDeployment:
		return unitedWorkload(o)
	case *batchv1.Job:
		return workload("Job", o, o.Spec.Parallelism)
	case *batchv1.CronJob:
		return workload("CronJob", o, nil)
	}
	return nil
}

// watchedKinds are the kinds of owners that a History has.
var watchedKinds = map[string]bool{
	"Deployment": true, "ReplicaSet": true, "StatefulSet": true, "DaemonSet": true, "Job": true, "CronJob": true,
	"UnitedDeployment": true,
}

func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func workload(kind string, o metav1.Object, replicas *int32) Workload {
	w := Workload{
		UID: o.GetUID(), Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), Replicas: 1,
		Policies: ownership.PoliciesOf(o.GetLabels()), IgnoreMissing: ownership.IgnoresMissing(o.GetAnnotations()),
		United: o.GetLabels()[apps.UnitedDeploymentLabel], Pool: o.GetLabels()[apps.PoolNameLabel],
	}
	if replicas != nil {
		w.Replicas = int(*replicas)
	}
	if a := o.GetAnnotations(); a[gm.CapacitySwitchKey] == "true" {
		w.Fallback = a[gm.CapacityOnEmptyKey] == gm.OnEmptyFallback
		w.Count = cmp.Or(a[gm.CapacityCountKey], strconv.Itoa(math.MaxInt32))
	}
	if d, ok := o.(*appsv1.Deployment); ok {
		if d.Spec.Strategy.RollingUpdate != nil {
			w.Surge, _ = intstr.GetScaledValueFromIntOrPercent(d.Spec.Strategy.RollingUpdate.MaxSurge, w.Replicas, true)
		}
		if d.Spec.Selector != nil {
			_, w.SelectsClass = d.Spec.Selector.MatchLabels[gm.CapacityClassLabel]
		}
	}
	if set, ok := o.(*appsv1.StatefulSet); ok && set.Spec.Ordinals != nil {
		w.FirstOrdinal = int(set.Spec.Ordinals.Start)
	}
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		w.Owner, w.OwnerKind = c.UID, c.Kind
	}
	return w
}

func slimNode(o *corev1.Node) Node {
	n := Node{Name: o.Name, Group: o.Labels[gm.NodeGroupLabel], Class: o.Labels["node.kubernetes.io/capacity"]}
	for _, c := range o.Status.Conditions {
		n.Ready = n.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	return n
}

func slimPod(o *corev1.Pod) Pod {
	p := Pod{
		UID: o.UID, Namespace: o.Namespace, Name: o.Name, Revision: ownership.Revision(o.Labels, ""),
		Policies: ownership.PoliciesOf(o.Labels), IgnoreMissing: ownership.IgnoresMissing(o.Annotations),
		Node: o.Spec.NodeName, Group: o.Labels[gm.NodeGroupLabel], Overrides: o.Annotations[gm.OverridesAnnotation],
		Class:  o.Labels[gm.CapacityClassLabel],
		Active: o.DeletionTimestamp == nil && o.Status.Phase != corev1.PodSucceeded && o.Status.Phase != corev1.PodFailed,
	}
	p.Pinned = p.Group != "" && o.Annotations[gm.SeatAnnotation] != ""
	if c := metav1.GetControllerOfNoCopy(o); c != nil {
		p.Owner, p.OwnerKind = c.UID, c.Kind
	}
	for _, gate := range o.Spec.SchedulingGates {
		p.Gated = p.Gated || gate.Name == gm.PolicyGate
	}
	for _, c := range o.Status.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			p.Unschedulable = c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
			p.Refused = p.Unschedulable && slices.ContainsFunc(refusals, func(text string) bool { return strings.Contains(c.Message, text) })
		case corev1.DisruptionTarget:
			p.Evicted = c.Status == corev1.ConditionTrue && c.Reason == evictedReason
		}
	}
	return p
}
