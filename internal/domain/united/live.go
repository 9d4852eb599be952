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

// Pods are the numbers of pods of a workload.
type Pods struct {
	// Desired is the number that the spec demands or, for a DaemonSet, the number of nodes
	// that should have a pod. All others are observed.
	Desired, Total, Ready, Updated, Available int32
	// Current is true if the numbers were observed for the current spec.
	Current bool
}

// CountPods returns the numbers of pods from a workload's spec and status.
func CountPods(w Workload) Pods {
	switch w := w.(type) {
	case *appsv1.Deployment:
		s := &w.Status
		return Pods{orOne(w.Spec.Replicas), s.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.AvailableReplicas, s.ObservedGeneration >= w.Generation}
	case *appsv1.StatefulSet:
		s := &w.Status
		updated := s.UpdatedReplicas
		if s.CurrentRevision == s.UpdateRevision {
			updated = s.Replicas // UpdatedReplicas is not kept up to date after a rollout
		}
		return Pods{orOne(w.Spec.Replicas), s.Replicas, s.ReadyReplicas, updated, s.AvailableReplicas, s.ObservedGeneration >= w.Generation}
	case *appsv1.DaemonSet:
		s := &w.Status
		return Pods{s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable, s.ObservedGeneration >= w.Generation}
	}
	return Pods{}
}

// orOne returns replicas, or the default of 1.
func orOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// rolloutComplete reports whether all pods that should have the current template have it,
// and no surplus pod is left. partition pods may keep an older template.
func (p Pods) rolloutComplete(partition int32) bool {
	return p.Current && p.Total == p.Desired && p.Updated >= p.Desired-min(partition, p.Desired)
}

// ChildOf returns the planner's input for a workload. The caller sets the fields that do
// not follow from the workload alone: Owner, Edited, Settled, Established, Failure,
// Drained.
func ChildOf(w Workload) Child {
	c := Child{
		Name: w.GetName(), UID: string(w.GetUID()), Pool: w.GetLabels()[apps.PoolNameLabel],
		Deleting: w.GetDeletionTimestamp() != nil, Created: w.GetCreationTimestamp().Unix(),
		Revision: w.GetLabels()[apps.RevisionLabel], PoolRevision: w.GetAnnotations()[apps.PoolRevisionAnnotation],
	}
	switch w := w.(type) {
	case *appsv1.Deployment:
		c.Replicas = orOne(w.Spec.Replicas)
	case *appsv1.StatefulSet:
		c.Replicas = orOne(w.Spec.Replicas)
		if u := w.Spec.UpdateStrategy.RollingUpdate; u != nil && u.Partition != nil {
			c.Partition = *u.Partition
		}
	}
	pods := CountPods(w)
	c.RolloutComplete = pods.rolloutComplete(c.Partition)
	c.Available = pods.Current && pods.Available >= pods.Desired
	return c
}

// FailureOf returns why a workload makes no progress according to its own conditions: a
// reason of the apps package and a message. Both are empty if it reports no failure, and
// for kinds that report none.
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

// IsAdoptable reports whether a workload without an owner has exactly the selector that
// Build would give it for the pool in its label.
func IsAdoptable(w Workload, selector *metav1.LabelSelector) bool {
	_, has := templateOf(w)
	return *has != nil && equality.Semantic.DeepEqual(*has, SelectorOf(selector, w.GetLabels()[apps.PoolNameLabel]))
}

// WrittenHash returns a hash of everything that the UnitedDeployment's controller writes to
// a workload: its spec, its owner, and the labels and annotations from the template and of
// the controller itself.
func WrittenHash(w Workload) (string, error) {
	keys := templateKeysOf(w)
	labels, notes := map[string]string{}, map[string]string{}
	for _, key := range append(keys.Labels, apps.PoolNameLabel, apps.UnitedDeploymentLabel, apps.RevisionLabel) {
		labels[key] = w.GetLabels()[key]
	}
	for _, key := range append(keys.Annotations, ownAnnotations...) {
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

// ownAnnotations are the annotations that Build itself sets.
var ownAnnotations = []string{apps.PoolRevisionAnnotation, apps.PoolTaintsAnnotation, apps.TemplateKeysAnnotation}

// templateKeysOf returns the keys that a workload has from its template; none if the
// annotation is missing or invalid.
func templateKeysOf(w Workload) templateKeys {
	var keys templateKeys
	if err := json.Unmarshal([]byte(w.GetAnnotations()[apps.TemplateKeysAnnotation]), &keys); err != nil {
		return templateKeys{}
	}
	return keys
}

// TaintsOf returns the taints that the NodePool had when the workload was written last.
func TaintsOf(w Workload) []corev1.Taint {
	var taints []corev1.Taint
	if err := json.Unmarshal([]byte(w.GetAnnotations()[apps.PoolTaintsAnnotation]), &taints); err != nil {
		return nil
	}
	return taints
}

// Overlay returns a copy of live with the spec, labels and annotations of want. Labels and
// annotations that neither the template nor Build set on live stay.
func Overlay(live, want Workload) Workload {
	out := live.DeepCopyObject().(Workload)
	keys := templateKeysOf(live)
	out.SetLabels(overlaid(live.GetLabels(), keys.Labels, want.GetLabels()))
	out.SetAnnotations(overlaid(live.GetAnnotations(), slices.Concat(keys.Annotations, ownAnnotations), want.GetAnnotations()))
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

// overlaid returns live without the keys in had, and with everything in want.
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
