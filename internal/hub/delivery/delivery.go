// Package delivery decides which pods may reach a node: docs/sources.md, G21. It is pure.
package delivery

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Verdict is what becomes of a version of a pod on its way to the node.
type Verdict string

const (
	// Deliver: the node gets it.
	Deliver Verdict = "Deliver"
	// Hold: the node does not get the pod, because a policy that it requires is not bound.
	Hold Verdict = "Hold"
	// Freeze: the node keeps the version that it has. A pod is not taken away from a node because its
	// labels change.
	Freeze Verdict = "Freeze"
)

// Pod is what the decision depends on.
type Pod struct {
	Labels, Annotations map[string]string
	// Deleting is true if the pod has a deletionTimestamp.
	Deleting bool
	// Delivered is true if the node has had the pod.
	Delivered bool
}

// Decide returns what becomes of a version of a pod. Deletions always reach the node, also of pods
// that were held: the kubelet has to confirm them. So do mirror pods: the node runs them from its own files.
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

// Waiting returns why a pod with these labels may not reach a node; "" if it may.
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
			return fmt.Sprintf("the %s %q, which it requires, is not bound to its workload", kind.name, kind.required)
		case ownership.Mismatched:
			return fmt.Sprintf("it requires the %s %q, and %q is bound to its workload", kind.name, kind.required, kind.bound)
		case ownership.Unmanaged, ownership.Bound:
		}
	}
	return ""
}
