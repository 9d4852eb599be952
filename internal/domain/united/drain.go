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

// LeavingPod is a pod of a workload whose pool is removed.
type LeavingPod struct {
	Name string
	UID  types.UID
	// Bound: it has a node. Ready: it is Ready. Terminating: it has been told to
	// go. Overdue: it should be gone by now; its node is away, mostly.
	Bound, Ready, Terminating, Overdue bool
}

// overdue is how long after its grace a pod that goes is waited for.
const overdue = 30 * time.Second

// LeavingPods are the pods of a workload that hold a place: those that are over
// are left out.
func LeavingPods(w Workload, pods []corev1.Pod, now time.Time) []LeavingPod {
	var out []LeavingPod
	for i := range pods {
		pod := &pods[i]
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || !belongs(w, pod) {
			continue
		}
		ready := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
		out = append(out, LeavingPod{
			Name: pod.Name, UID: pod.UID, Bound: pod.Spec.NodeName != "", Ready: ready, Terminating: pod.DeletionTimestamp != nil,
			Overdue: pod.DeletionTimestamp != nil && now.After(pod.DeletionTimestamp.Add(overdue)),
		})
	}
	return out
}

// belongs tells whether the workload, or a ReplicaSet of it, is the controller
// of a pod that the workload's selector matches.
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

// Drained tells whether a workload whose pool is removed has no pod left that
// deleting it would take away.
func Drained(w Workload, pods []LeavingPod) bool {
	if _, ok := w.(*appsv1.DaemonSet); ok {
		return Gated(w) && !slices.ContainsFunc(pods, func(p LeavingPod) bool { return p.Bound && !p.Terminating })
	}
	return replicasOf(w) == 0 && !slices.ContainsFunc(pods, func(p LeavingPod) bool { return !p.Terminating })
}

// MayLeave is how many pods of a workload may be away at once, of so many: what
// its update strategy lets be unavailable, and at least one.
func MayLeave(w Workload, of int32) int32 {
	share := func(n *intstr.IntOrString, otherwise intstr.IntOrString) int32 {
		if n == nil {
			n = &otherwise
		}
		scaled, err := intstr.GetScaledValueFromIntOrPercent(n, int(of), false)
		if err != nil {
			return 1
		}
		return int32(max(1, scaled))
	}
	one := intstr.FromInt32(1)
	switch w := w.(type) {
	case *appsv1.Deployment:
		if w.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return max(1, of)
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

// Departure is what is done next to empty a workload.
type Departure struct {
	// Replicas is what they are lowered to before any eviction: pods that are
	// not Ready serve nobody, and their controller takes them first.
	Replicas int32
	// Evict are the pods that are evicted now, in this order. Each that goes
	// lowers replicas by one more, so that no other takes its place.
	Evict []LeavingPod
}

// Depart says what is done next to empty a workload while so many of its pods
// may go.
//
// A Deployment's pods go in any order, and nothing goes while it still scales
// down: a pod that it made in place of an evicted one would be counted. A
// StatefulSet's go by ordinal, the highest first. Where the process that
// evicted ended before it lowered replicas, the pod that came instead is not
// Ready, and replicas follow.
func Depart(w Workload, pods []LeavingPod, may int32) Departure {
	now := Departure{Replicas: replicasOf(w)}
	if daemons, ok := w.(*appsv1.DaemonSet); ok {
		if !Gated(daemons) {
			return now
		}
		now.Evict = some(pods, may, func(p LeavingPod) bool { return p.Bound })
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
			case at >= 0 && may > int32(len(now.Evict)):
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
		now.Evict = some(pods, may, func(p LeavingPod) bool { return p.Ready })
	}
	return now
}

// some are at most so many pods that are to go, those that are not Ready first.
func some(pods []LeavingPod, n int32, which func(LeavingPod) bool) []LeavingPod {
	var out []LeavingPod
	for _, p := range pods {
		if !p.Terminating && which(p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b LeavingPod) int {
		switch {
		case a.Ready != b.Ready && b.Ready:
			return -1
		case a.Ready != b.Ready:
			return 1
		}
		return cmp.Compare(a.Name, b.Name)
	})
	return out[:min(len(out), int(max(0, n)))]
}

// surgeOf is how many pods more than replicas a Deployment has in a rollout.
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

// replicasOf are those of a workload's spec; none where the kind has none.
func replicasOf(w Workload) int32 {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return size32(w.Spec.Replicas)
	case *appsv1.StatefulSet:
		return size32(w.Spec.Replicas)
	}
	return 0
}

// Lower sets the replicas of a workload that is emptied. What a StatefulSet
// does with the claims of such pods is what it is told for its own deletion.
func Lower(w Workload, replicas int32) {
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

// Gated tells whether a DaemonSet is emptied.
func Gated(w Workload) bool {
	d, ok := w.(*appsv1.DaemonSet)
	return ok && slices.ContainsFunc(d.Spec.Template.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool {
		return g.Name == apps.PoolRemovedGate
	})
}

// Gate makes a DaemonSet one that is emptied: a pod that it makes in place of
// one that is evicted waits, and it replaces none by itself.
func Gate(d *appsv1.DaemonSet) {
	d.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	d.Spec.Template.Spec.SchedulingGates = append(d.Spec.Template.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: apps.PoolRemovedGate})
}
