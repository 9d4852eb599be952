package united

import (
	"encoding/json"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// Pods counts the pods of a workload.
type Pods struct {
	// Desired is how many there are to be.
	Desired, Total, Ready, Updated, Available int32
	// Current: the counts are about the workload as it is now.
	Current bool
}

// CountPods reads the status of a workload.
func CountPods(w Workload) Pods {
	switch w := w.(type) {
	case *appsv1.Deployment:
		s := &w.Status
		return Pods{size32(w.Spec.Replicas), s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.AvailableReplicas, s.ObservedGeneration >= w.Generation}
	case *appsv1.StatefulSet:
		s := &w.Status
		updated := s.UpdatedReplicas
		if s.CurrentRevision == s.UpdateRevision {
			updated = s.Replicas // the count of updated ones is of a rollout that is over
		}
		return Pods{size32(w.Spec.Replicas), s.Replicas, s.ReadyReplicas, updated, s.AvailableReplicas, s.ObservedGeneration >= w.Generation}
	case *appsv1.DaemonSet:
		s := &w.Status
		return Pods{s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable, s.ObservedGeneration >= w.Generation}
	}
	return Pods{}
}

// size32 reads replicas, which are one where nothing is said.
func size32(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// rolled tells whether all pods that are to be of the template are, and no
// other is left.
func (p Pods) rolled(partition int32) bool {
	return p.Current && p.Total == p.Desired && p.Updated >= p.Desired-min(partition, p.Desired)
}

// ChildOf is what the planner knows of a workload. What only the
// UnitedDeployment remembers (Edited, Settled, Established, Failure) and whose it is
// are left to the caller.
func ChildOf(w Workload) Child {
	c := Child{
		Name: w.GetName(), UID: string(w.GetUID()), Pool: w.GetLabels()[apps.PoolNameLabel],
		Deleting: w.GetDeletionTimestamp() != nil, Created: w.GetCreationTimestamp().Unix(),
		Revision: w.GetLabels()[apps.RevisionLabel], PoolRevision: w.GetAnnotations()[apps.PoolRevisionAnnotation],
	}
	switch w := w.(type) {
	case *appsv1.Deployment:
		c.Replicas = size32(w.Spec.Replicas)
	case *appsv1.StatefulSet:
		c.Replicas = size32(w.Spec.Replicas)
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
			c.Partition = *u.Partition
		}
	}
	pods := CountPods(w)
	c.RolloutComplete = pods.rolled(c.Partition)
	c.Available = pods.Current && pods.Available >= pods.Desired
	return c
}

// FailureOf says what the workload itself says about why it makes no progress:
// a reason of the apps package and a message, or nothing.
func FailureOf(w Workload) (reason, message string) {
	d, ok := w.(*appsv1.Deployment)
	if !ok || d.Status.ObservedGeneration < d.Generation {
		return "", ""
	}
	for i := range d.Status.Conditions {
		c := &d.Status.Conditions[i]
		switch {
		case c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue:
			return apps.ReasonPodsRefused, c.Message
		case c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded":
			return apps.ReasonProgressDeadlineExceeded, c.Message
		}
	}
	return "", ""
}

// IsOfPool tells whether a workload that has no owner is as if it had been made
// for its pool: selected by the UnitedDeployment, with the pool's very selector.
func IsOfPool(w Workload, selector *metav1.LabelSelector) bool {
	_, has := podsOf(w)
	return *has != nil && equality.Semantic.DeepEqual(*has, SelectorOf(selector, w.GetLabels()[apps.PoolNameLabel]))
}

// Written is a hash of all of a workload that is ours: its spec, its owner, and
// the labels and annotations that we put on.
func Written(w Workload) (string, error) {
	keys := keysOf(w)
	labels, notes := map[string]string{}, map[string]string{}
	for _, key := range append(keys.Labels, apps.PoolNameLabel, apps.UnitedDeploymentLabel, apps.RevisionLabel) {
		labels[key] = w.GetLabels()[key]
	}
	for _, key := range append(keys.Annotations, ownNotes...) {
		notes[key] = w.GetAnnotations()[key]
	}
	owner := ""
	if ref := metav1.GetControllerOfNoCopy(w); ref != nil {
		owner = string(ref.UID)
	}
	var spec any
	switch w := w.(type) {
	case *appsv1.Deployment:
		spec = &w.Spec
	case *appsv1.StatefulSet:
		spec = &w.Spec
	case *appsv1.DaemonSet:
		spec = &w.Spec
	}
	return hash(owner, labels, notes, spec)
}

// ownNotes are the annotations that are on every workload of ours.
var ownNotes = []string{apps.PoolRevisionAnnotation, apps.PoolTaintsAnnotation, apps.TemplateKeysAnnotation}

// keysOf reads what a template put on the workload; nothing if that is not told.
func keysOf(w Workload) templateKeys {
	var keys templateKeys
	if err := json.Unmarshal([]byte(w.GetAnnotations()[apps.TemplateKeysAnnotation]), &keys); err != nil {
		return templateKeys{}
	}
	return keys
}

// TaintsOf are the taints that the workload's NodePool had when it was seen last.
func TaintsOf(w Workload) []corev1.Taint {
	var taints []corev1.Taint
	if err := json.Unmarshal([]byte(w.GetAnnotations()[apps.PoolTaintsAnnotation]), &taints); err != nil {
		return nil
	}
	return taints
}

// Overlay is a workload that is there, made as another: the spec wholly,
// labels and annotations but for those that others put on.
func Overlay(live, want Workload) Workload {
	out := live.DeepCopyObject().(Workload)
	keys := keysOf(live)
	out.SetLabels(overlaid(live.GetLabels(), keys.Labels, want.GetLabels()))
	out.SetAnnotations(overlaid(live.GetAnnotations(), slices.Concat(keys.Annotations, ownNotes), want.GetAnnotations()))
	switch out := out.(type) {
	case *appsv1.Deployment:
		out.Spec = want.(*appsv1.Deployment).Spec
	case *appsv1.StatefulSet:
		out.Spec = want.(*appsv1.StatefulSet).Spec
	case *appsv1.DaemonSet:
		out.Spec = want.(*appsv1.DaemonSet).Spec
	}
	return out
}

func overlaid(live map[string]string, had []string, want map[string]string) map[string]string {
	out := maps.Clone(live)
	if out == nil {
		out = map[string]string{}
	}
	for _, key := range had {
		delete(out, key)
	}
	maps.Copy(out, want)
	return out
}
