package united

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// LeavingPod is a pod of a workload whose pool was removed.
type LeavingPod struct {
	Name string
	UID  types.UID
	// Node is its node; "" for none. Held is true if the node is cut off from the cloud and not
	// known to be dead. Ready is its condition, and true if it is Held: such a pod is neither
	// deleted nor evicted. Terminating is true if it is being deleted. Overdue is true if its grace period ended some time ago, which
	// usually means that its node is unreachable.
	Node                              string
	Held, Ready, Terminating, Overdue bool
}

// overdue is the time after the end of its grace period at which a pod is Overdue.
const overdue = 30 * time.Second

// LeavingPods returns those of the pods that belong to the workload and have not ended. isHeld
// returns whether a node is cut off from the cloud and not known to be dead.
func LeavingPods(w Workload, pods []corev1.Pod, isHeld func(node string) bool, now time.Time) []LeavingPod {
	var out []LeavingPod
	for i := range pods {
		pod := &pods[i]
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !belongs(w, pod) {
			continue
		}
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		held := isHeld(pod.Spec.NodeName)
		out = append(out, LeavingPod{
			Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Held: held, Ready: ready || held, Terminating: pod.DeletionTimestamp != nil,
			Overdue: pod.DeletionTimestamp != nil && now.After(pod.DeletionTimestamp.Add(overdue)),
		})
	}
	return out
}

// belongs reports whether the workload, or a ReplicaSet of it, controls a pod that the
// workload's selector matches.
func belongs(w Workload, pod *corev1.Pod) bool {
	for i := range pod.OwnerReferences {
		ref := &pod.OwnerReferences[i]
		if ref.Controller == nil || !*ref.Controller {
			continue
		}
		if _, ok := w.(*appsv1.Deployment); ok {
			// The ReplicaSets of a Deployment are named after it.
			return ref.Kind == "ReplicaSet" && ref.Name == w.GetName()+"-"+pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		}
		return ref.UID == w.GetUID()
	}
	return false
}

// Drained reports whether deleting a workload whose pool was removed would delete no pod
// that is not being deleted already. A DaemonSet must be gated; its pods without a node do
// not count.
func Drained(w Workload, pods []LeavingPod) bool {
	if _, ok := w.(*appsv1.DaemonSet); ok {
		return IsGated(w) && !slices.ContainsFunc(pods, func(p LeavingPod) bool { return p.Node != "" && !p.Terminating })
	}
	return replicasOf(w) == 0 && !slices.ContainsFunc(pods, func(p LeavingPod) bool { return !p.Terminating })
}

// MaxUnavailable returns how many of total pods may be unavailable at a time according to
// the workload's update strategy; at least 1. All may be if the strategy is Recreate.
func MaxUnavailable(w Workload, total int32) int32 {
	share := func(n *intstr.IntOrString, byDefault intstr.IntOrString) int32 {
		if n == nil {
			n = &byDefault
		}
		scaled, err := intstr.GetScaledValueFromIntOrPercent(n, int(total), false)
		if err != nil {
			return 1
		}
		return int32(max(1, scaled))
	}
	one := intstr.FromInt32(1)
	switch w := w.(type) {
	case *appsv1.Deployment:
		if w.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return max(1, total)
		}
		var n *intstr.IntOrString
		if u := w.Spec.Strategy.RollingUpdate; u != nil {
			n = u.MaxUnavailable
		}
		return share(n, intstr.FromString("25%"))
	case *appsv1.StatefulSet:
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil {
			return share(u.MaxUnavailable, one)
		}
	case *appsv1.DaemonSet:
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil {
			return share(u.MaxUnavailable, one)
		}
	}
	return 1
}

// DrainStep is the next step of draining a workload.
type DrainStep struct {
	// Replicas is the value to which spec.replicas is lowered without an eviction. It
	// removes pods that are not Ready: their controller deletes these first.
	Replicas int32
	// Evict are the pods to evict now, in this order. After each eviction the caller
	// lowers Replicas by one, so that the pod is not replaced.
	Evict []LeavingPod
}

// NextDrainStep returns the next step of draining a workload. allowed is how many of its
// pods may be evicted now; it may be negative.
//
// Pods of a Deployment are evicted in any order, and none while it still scales down: a
// replacement of an evicted pod would count as a Ready pod. Pods of a StatefulSet are
// evicted by ordinal, the highest first. If the process ends between an eviction and the
// update of replicas, the replacement of the pod is not Ready, and a later step lowers
// replicas for it.
func NextDrainStep(w Workload, pods []LeavingPod, allowed int32) DrainStep {
	now := DrainStep{Replicas: replicasOf(w)}
	if daemons, ok := w.(*appsv1.DaemonSet); ok {
		if !IsGated(daemons) {
			return now
		}
		now.Evict = pick(pods, allowed, func(p LeavingPod) bool { return p.Node != "" })
		return now
	}
	if stateful, ok := w.(*appsv1.StatefulSet); ok {
		first := int32(0)
		if stateful.Spec.Ordinals != nil {
			first = stateful.Spec.Ordinals.Start
		}
		for n := now.Replicas; n > 0; n-- {
			name := w.GetName() + "-" + strconv.Itoa(int(first+n-1))
			at := slices.IndexFunc(pods, func(p LeavingPod) bool { return p.Name == name && p.Ready && !p.Terminating })
			switch {
			case at >= 0 && allowed > int32(len(now.Evict)):
				now.Evict = append(now.Evict, pods[at])
			case at >= 0 || len(now.Evict) > 0:
				return now
			default:
				now.Replicas = n - 1
			}
		}
		return now
	}
	ready := int32(0)
	for _, p := range pods {
		if p.Ready && !p.Terminating {
			ready++
		}
	}
	switch {
	case now.Replicas > ready:
		now.Replicas = ready
	case ready <= now.Replicas+surgeOf(w):
		now.Evict = pick(pods, allowed, func(p LeavingPod) bool { return p.Ready })
	}
	return now
}

// pick returns at most n of the pods that are not terminating and satisfy which: those
// that are not Ready first and those that are Held last, then by name.
func pick(pods []LeavingPod, n int32, which func(LeavingPod) bool) []LeavingPod {
	var out []LeavingPod
	for _, p := range pods {
		if !p.Terminating && which(p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b LeavingPod) int {
		switch {
		case a.Held != b.Held && b.Held:
			return -1
		case a.Held != b.Held:
			return 1
		case a.Ready != b.Ready && b.Ready:
			return -1
		case a.Ready != b.Ready:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return out[:min(len(out), int(max(0, n)))]
}

// surgeOf returns how many pods more than replicas a Deployment may have, which is not 0
// only during a rollout.
func surgeOf(w Workload) int32 {
	d, ok := w.(*appsv1.Deployment)
	if !ok || d.Status.UpdatedReplicas == d.Status.Replicas || d.Spec.Strategy.RollingUpdate == nil {
		return 0
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(d.Spec.Strategy.RollingUpdate.MaxSurge, int(replicasOf(w)), true)
	if err != nil {
		return 0
	}
	return int32(n)
}

// replicasOf returns spec.replicas of a workload; 0 for a DaemonSet.
func replicasOf(w Workload) int32 {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return orOne(w.Spec.Replicas)
	case *appsv1.StatefulSet:
		return orOne(w.Spec.Replicas)
	}
	return 0
}

// ScaleDown sets the replicas of a workload that is drained. A StatefulSet then keeps or
// deletes the claims of the removed pods as its policy says for its own deletion.
func ScaleDown(w Workload, replicas int32) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		w.Spec.Replicas = &replicas
	case *appsv1.StatefulSet:
		w.Spec.Replicas = &replicas
		if p := w.Spec.PersistentVolumeClaimRetentionPolicy; p != nil {
			p.WhenScaled = p.WhenDeleted
		}
	}
}

// IsGated reports whether a workload is a DaemonSet that was changed by Gate.
func IsGated(w Workload) bool {
	d, ok := w.(*appsv1.DaemonSet)
	return ok && slices.ContainsFunc(d.Spec.Template.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return g.Name == apps.PoolRemovedGate
	})
}

// Gate prepares a DaemonSet for being drained. Its new pods get a scheduling gate, so that
// they do not start in place of evicted ones. Its update strategy becomes OnDelete, so
// that the change of the template replaces no pod.
func Gate(d *appsv1.DaemonSet) {
	d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	d.Spec.Template.Spec.SchedulingGates = append(d.Spec.Template.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: apps.PoolRemovedGate})
}
