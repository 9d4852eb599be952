// Package ownership decides, from a pod and the chain of owners above it, which object is the
// workload that a policy is for (PolicyOwners), which owner has the pod's PodGroup (Levels),
// and which workload is divided over capacity classes (CapacityWorkload). It also parses the
// policy labels of an object (docs/sources.md, G4 and G5).
//
// A chain is a list of objects in which each is the controller of the one before, up to the
// topmost owner. internal/owners finds chains; this package must not contain anything
// about how.
package ownership

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// MaxHops is the highest number of owners above a pod that a chain has.
const MaxHops = 10

// Object is a pod or one of its owners, reduced to what the decisions need. Objects are
// shared between goroutines and must not be changed.
type Object struct {
	schema.GroupVersionKind
	Namespace string
	Name      string
	UID       types.UID

	// Policies has the values of the object's required and binding labels.
	Policies Policies
	// Replaced are the policies that the object required before, if the caches saw a change of
	// them; nil if they did not.
	Replaced *Policies
	// IgnoreMissing is true if the missing-policy annotation is Ignore.
	IgnoreMissing bool
	// Replicas is the number of pods that the object wants (spec.replicas, of a Job
	// spec.parallelism); nil if its kind has no such number.
	Replicas *int32
	// Deleting is true if the object has a deletionTimestamp.
	Deleting bool
	// Restarting is true for a Job that atoll-manager suspended and will resume, to
	// recreate its pods.
	Restarting bool
	// Generation is metadata.generation.
	Generation int64
	// Selector has the keys of the labels by which the object selects its pods.
	Selector Selector
	// OverridesStopped is true if the object's pods get no overrides, because it created
	// pods without end. Only a person resets it.
	OverridesStopped bool
	// PodsRefused is the API server's error for the creation of the object's pods, from a
	// condition of the object. It is "" if there is none.
	PodsRefused string
	// Capacity and TemplateCapacity are the settings of capacity classes on the object and
	// on its pod template.
	Capacity, TemplateCapacity Capacity
	// Surge is the number of pods beyond Replicas that the object may have in a rollout.
	// FirstOrdinal is the ordinal of a StatefulSet's first pod.
	Surge, FirstOrdinal int32
	// Controller is the object's own controller; nil if it has none.
	Controller *Reference
	// Gang has what a PodGroup takes from the object.
	Gang Gang
	// Seat is the token that identified a pod in the ledger of seats before the pod had a
	// UID. It is "" for other objects, and for pods that got no seat at creation.
	Seat types.UID
}

// Gang is the part of an Object that a PodGroup depends on.
type Gang struct {
	// Annotations are the annotations that PodGroups use; nil for most objects.
	Annotations map[string]string
	// DependentsFirst is true while the object is being deleted in the foreground: the
	// garbage collector deletes what it owns before the object.
	DependentsFirst bool
	// Orphans is true while the object is being deleted and what it owns stays.
	Orphans bool
	// Members is the highest number of pods that the object has, for kinds where that is not
	// Replicas: of a Job its parallelism, of a DaemonSet its number of nodes. nil for all
	// others.
	Members *int32
	// Order is higher for newer ReplicaSets of the same Deployment.
	Order int64
	// UpdateRevision is the revision of the newest pods of a StatefulSet.
	UpdateRevision string
}

// Members returns the highest number of pods that the object owns, nil if that is not known.
// It is not known for a pod, which may own any number of others.
func (o *Object) Members() *int32 {
	if o.Gang.Members != nil {
		return o.Gang.Members
	}
	if o.Kind == "Pod" && o.Group == "" {
		return nil
	}
	return o.Replicas
}

// Divided returns the owner whose pods are divided together, those of all its revisions: of the
// owners of a pod, the direct one first, the topmost that has a number of replicas, up to the one
// that requires the policy. If none has, it is the direct owner. It returns nil without owners.
func Divided(owners []*Object, top types.UID) (divided *Object) {
	for i, o := range owners {
		if i == 0 || o.Replicas != nil {
			divided = o
		}
		if o.UID == top {
			break
		}
	}
	return divided
}

// Ties returns the UID that decides between NodeGroups that are equal (see placement.For).
// For a pod that is its own workload and got its seat at creation, it is the token Seat, so
// that the result does not change when the pod gets its UID.
func (o *Object) Ties() types.UID {
	if o.Kind == "Pod" && o.Seat != "" {
		return o.Seat
	}
	return o.UID
}

// Reference names the controller of an object.
type Reference struct {
	schema.GroupVersionKind
	Name string
	UID  types.UID
}

// Policies are the values of the four policy labels (docs/sources.md, G4). "" means that the
// label is absent.
type Policies struct {
	RequiredPropagation string
	RequiredOverride    string
	BindingPropagation  string
	BindingOverride     string
}

// LabelKeys are the keys of the four policy labels.
var LabelKeys = [...]string{
	gm.RequiredPropagationPolicyLabel, gm.RequiredOverridePolicyLabel,
	gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel,
}

// PoliciesOf reads the four policy labels of an object.
func PoliciesOf(labels map[string]string) Policies {
	if len(labels) == 0 {
		return Policies{}
	}
	return Policies{
		RequiredPropagation: labels[gm.RequiredPropagationPolicyLabel],
		RequiredOverride:    labels[gm.RequiredOverridePolicyLabel],
		BindingPropagation:  labels[gm.BindingPropagationPolicyLabel],
		BindingOverride:     labels[gm.BindingOverridePolicyLabel],
	}
}

// IgnoresMissing reports whether the missing-policy annotation is Ignore.
func IgnoresMissing(annotations map[string]string) bool {
	return annotations[gm.MissingPolicyAnnotation] == gm.MissingPolicyIgnore
}

// Labels is the inverse of PoliciesOf. It leaves out labels that are "".
func (p Policies) Labels() map[string]string {
	labels := make(map[string]string, 4)
	for key, value := range map[string]string{
		gm.RequiredPropagationPolicyLabel: p.RequiredPropagation,
		gm.RequiredOverridePolicyLabel:    p.RequiredOverride,
		gm.BindingPropagationPolicyLabel:  p.BindingPropagation,
		gm.BindingOverridePolicyLabel:     p.BindingOverride,
	} {
		if value != "" {
			labels[key] = value
		}
	}
	return labels
}

// Binding is the state of the required and the binding label of one kind of policy: the four
// situations of docs/sources.md, G5. A binding label without a required label has no effect
// and counts as Unmanaged.
type Binding int

const (
	// Unmanaged: no policy is required (situation 4).
	Unmanaged Binding = iota
	// Unbound: a policy is required and none is bound (situation 1).
	Unbound
	// Mismatched: another policy is bound than is required (situation 2).
	Mismatched
	// Bound: the required policy is bound (situation 3).
	Bound
)

// bindingOf returns the state of one pair of labels.
func bindingOf(required, binding string) Binding {
	switch {
	case required == "":
		return Unmanaged
	case binding == "":
		return Unbound
	case required != binding:
		return Mismatched
	default:
		return Bound
	}
}

// Propagation returns the state of the labels for PropagationPolicies.
func (p Policies) Propagation() Binding {
	return bindingOf(p.RequiredPropagation, p.BindingPropagation)
}

// Override returns the state of the labels for OverridePolicies.
func (p Policies) Override() Binding {
	return bindingOf(p.RequiredOverride, p.BindingOverride)
}

// Unbound reports whether a policy is required that is not bound.
func (p Policies) Unbound() bool { return p.Propagation().waits() || p.Override().waits() }

func (b Binding) waits() bool { return b == Unbound || b == Mismatched }

// Waits reports whether new pods of a workload wait for a policy that it requires. A nil object requires none.
func (o *Object) Waits() bool { return o != nil && !o.IgnoreMissing && o.Policies.Unbound() }

// PolicyOwners holds the workload of a pod for each kind of policy: the topmost object of the
// chain that requires such a policy. The two may be different objects.
type PolicyOwners struct {
	// Propagation is the object that requires a PropagationPolicy, or nil.
	Propagation *Object
	// Override is the object that requires an OverridePolicy, or nil.
	Override *Object
}

// WaitsForOverride reports whether pods wait for the OverridePolicy that their workload requires.
func (a PolicyOwners) WaitsForOverride() bool {
	o := a.Override
	return o != nil && !o.IgnoreMissing && o.Policies.Override().waits()
}

// Managed reports whether any policy is required.
func (a PolicyOwners) Managed() bool { return a.Propagation != nil || a.Override != nil }

// Policies returns the policy labels of the workload, which the webhook copies to its pods.
func (a PolicyOwners) Policies() Policies {
	var p Policies
	if a.Propagation != nil {
		p.RequiredPropagation = a.Propagation.Policies.RequiredPropagation
		p.BindingPropagation = a.Propagation.Policies.BindingPropagation
	}
	if a.Override != nil {
		p.RequiredOverride = a.Override.Policies.RequiredOverride
		p.BindingOverride = a.Override.Policies.BindingOverride
	}
	return p
}

// PolicyOwnersOfPod finds them in a chain that starts with the pod. The pod's own labels count
// only if it has no owner; on other pods they are copies. The chain must not be empty.
func PolicyOwnersOfPod(chain []*Object) PolicyOwners {
	if len(chain) > 1 {
		chain = chain[1:]
	}
	return PolicyOwnersOf(chain)
}

// PolicyOwnersOf finds them in a chain without the pod, which starts with the direct owner.
func PolicyOwnersOf(owners []*Object) PolicyOwners {
	var found PolicyOwners
	for _, o := range slices.Backward(owners) {
		if found.Propagation == nil && o.Policies.RequiredPropagation != "" {
			found.Propagation = o
		}
		if found.Override == nil && o.Policies.RequiredOverride != "" {
			found.Override = o
		}
	}
	return found
}

// Revision returns the revision of a pod, from the pod's labels. Pods of one direct owner and
// one revision are counted together. label is the key of the label that holds the revision;
// "" stands for the labels that Kubernetes' own kinds use. The result is "" if the label is
// absent.
func Revision(labels map[string]string, label string) string {
	if label != "" {
		return labels[label]
	}
	if v := labels["pod-template-hash"]; v != "" {
		return v
	}
	return labels["controller-revision-hash"]
}
