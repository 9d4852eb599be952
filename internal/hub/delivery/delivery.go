// Package delivery decides which pods may reach a node: docs/sources.md, G21. It is pure.
package delivery

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Verdict is the decision about one version of a pod.
type Verdict string

const (
	// Deliver: the node gets this version.
	Deliver Verdict = "Deliver"
	// Hold: the node does not get the pod, because a required policy is not bound.
	Hold Verdict = "Hold"
	// Freeze: the node keeps its earlier version. A change of labels must not remove a pod from its node.
	Freeze Verdict = "Freeze"
)

// Pod is the input of the decision.
type Pod struct {
	Labels, Annotations map[string]string
	// Deleting is true if the pod has a deletionTimestamp.
	Deleting bool
	// Delivered is true if the node has had the pod.
	Delivered bool
}

// Decide returns the decision about a version of a pod. Deletions always reach the node, even of held pods,
// because the kubelet must confirm them. Mirror pods always reach it too, because the node runs them from its
// own files.
func Decide(p Pod) Verdict {
	switch {
	case p.Deleting, Waiting(p.Labels) == "", ownership.IgnoresMissing(p.Annotations), p.Annotations[corev1.MirrorPodAnnotationKey] != "":
		return Deliver
	case p.Delivered:
		return Freeze
	default:
		return Hold
	}
}

// Waiting returns why a pod with these labels may not be delivered; "" if it may.
func Waiting(labels map[string]string) string {
	p := ownership.PoliciesOf(labels)
	for _, kind := range []struct {
		name, required, bound string
		state                 ownership.Binding
	}{
		{"PropagationPolicy", p.RequiredPropagation, p.BindingPropagation, p.Propagation()},
		{"OverridePolicy", p.RequiredOverride, p.BindingOverride, p.Override()},
	} {
		switch kind.state {
		case ownership.Unbound:
			return fmt.Sprintf("the pod requires the %s %q, which is not bound to its workload", kind.name, kind.required)
		case ownership.Mismatched:
			return fmt.Sprintf("the pod requires the %s %q, but %q is bound", kind.name, kind.required, kind.bound)
		case ownership.Unmanaged, ownership.Bound:
		}
	}
	return ""
}
