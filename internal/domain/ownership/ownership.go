// Package ownership decides, from the chain of owners above a pod, which of
// them is the application that a policy is about, and what the labels that it
// carries say (docs/sources.md, G4 and G5).
//
// It knows nothing of how the chain was found.
package ownership

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// MaxHops is the number of owners above a pod that are looked at.
const MaxHops = 10

// Object is what the decisions need to know of a pod or of one of its owners.
// Objects are shared and never changed.
type Object struct {
	schema.GroupVersionKind
	Namespace string
	Name      string
	UID       types.UID

	// Policies holds the required and binding labels that the object carries.
	Policies Policies
	// IgnoreMissing is set when the object's missing-policy annotation says Ignore.
	IgnoreMissing bool
	// Replicas is the number of pods that the object wants; nil when its kind
	// has no such number.
	Replicas *int32
	// Deleting is set once the object has a deletionTimestamp.
	Deleting bool
	// Restarting: atoll-manager has suspended the object, a Job, and is to resume it.
	Restarting bool
	// Generation is metadata.generation.
	Generation int64
	// Selector holds the labels by which the object finds its pods.
	Selector Selector
	// OverridesStopped: the object's pods get no overrides until a person has
	// looked at it.
	OverridesStopped bool
	// PodsRefused is why pods of the object cannot be created, in the words of
	// the API server; "" if they can, or if its kind does not say.
	PodsRefused string
	// Capacity and TemplateCapacity are what the object and its pod template say
	// about classes of capacity.
	Capacity, TemplateCapacity Capacity
	// Surge is how many pods beyond Replicas the object may have in a rollout, and
	// FirstOrdinal the ordinal of a StatefulSet's first pod.
	Surge, FirstOrdinal int32
	// Controller is the object's own controller, if it has one.
	Controller *Reference
	// Gang is what a PodGroup takes from the object.
	Gang Gang
	// Seat is the token by which a pod that got its seat at its creation was known
	// before it had a UID; "" for all else.
	Seat types.UID
}

// Gang is what a PodGroup takes from an object of the chain.
type Gang struct {
	// Annotations are those that have a say in PodGroups; nil for most objects.
	Annotations map[string]string
	// DependentsFirst: the object is being deleted in the foreground, so that whatever it
	// owns is deleted before it.
	DependentsFirst bool
	// Orphans: the object is being deleted without what it owns.
	Orphans bool
	// Members is how many pods an object has at the most that is no plain number of
	// replicas: a Job, a DaemonSet. nil for all others.
	Members *int32
	// Order tells the ReplicaSets of one Deployment apart: the newest has the highest.
	Order int64
	// UpdateRevision is the revision of the newest pods of a StatefulSet.
	UpdateRevision string
}

// Members is how many pods the object owns at the most; nil if that is not known. A pod
// may own any number of others.
func (o *Object) Members() *int32 {
	if o.Gang.Members != nil {
		return o.Gang.Members
	}
	if o.Kind == "Pod" && o.Group == "" {
		return nil
	}
	return o.Replicas
}

// Ties is what decides between NodeGroups that are equal. It stays the same from
// the creation of a pod that is a workload of its own: the group that it got
// then is the one that it has a right to.
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

// Policies are the values of the four labels of docs/sources.md, G4. Empty is absent.
type Policies struct {
	RequiredPropagation string
	RequiredOverride    string
	BindingPropagation  string
	BindingOverride     string
}

// LabelKeys are the keys of the four labels.
var LabelKeys = [...]string{
	gm.RequiredPropagationPolicyLabel, gm.RequiredOverridePolicyLabel,
	gm.BindingPropagationPolicyLabel, gm.BindingOverridePolicyLabel,
}

// PoliciesOf reads the four labels.
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

// IgnoresMissing reads the missing-policy annotation.
func IgnoresMissing(annotations map[string]string) bool {
	return annotations[gm.MissingPolicyAnnotation] == gm.MissingPolicyIgnore
}

// Labels is the inverse of PoliciesOf: the labels that are not empty.
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

// Binding is what a required and a binding label of one kind of policy say
// together: the four situations of docs/sources.md, G5. Binding without required is
// the fourth; the label is stray.
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

// BindingOf tells the situation of one pair of labels.
func BindingOf(required, binding string) Binding {
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

// Propagation is the situation of the propagation labels.
func (p Policies) Propagation() Binding {
	return BindingOf(p.RequiredPropagation, p.BindingPropagation)
}

// Override is the situation of the override labels.
func (p Policies) Override() Binding {
	return BindingOf(p.RequiredOverride, p.BindingOverride)
}

// Application is what a pod belongs to: for each kind of policy the topmost
// object of the chain that requires one.
type Application struct {
	// Propagation is the object that requires a PropagationPolicy, or nil.
	Propagation *Object
	// Override is the object that requires an OverridePolicy, or nil.
	Override *Object
}

// Managed tells whether any policy is required.
func (a Application) Managed() bool { return a.Propagation != nil || a.Override != nil }

// Policies are the labels that a pod of the application carries as copies.
func (a Application) Policies() Policies {
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

// ApplicationOf picks from a chain that starts with the pod and ends with its
// topmost owner. A pod's own labels count only when it has no owner: on an
// owned pod they are copies.
func ApplicationOf(chain []*Object) Application {
	if len(chain) > 1 {
		chain = chain[1:]
	}
	return ApplicationOfOwners(chain)
}

// ApplicationOfOwners picks from a chain without the pod.
func ApplicationOfOwners(owners []*Object) Application {
	var app Application
	for _, o := range slices.Backward(owners) {
		if app.Propagation == nil && o.Policies.RequiredPropagation != "" {
			app.Propagation = o
		}
		if app.Override == nil && o.Policies.RequiredOverride != "" {
			app.Override = o
		}
	}
	return app
}

// Revision is the name under which the pods of one revision of a workload are
// counted together, beside their direct owner. label is the key of the pod
// label that tells revisions apart; empty stands for those that the kinds of
// Kubernetes itself use.
func Revision(labels map[string]string, label string) string {
	if label != "" {
		return labels[label]
	}
	if v := labels["pod-template-hash"]; v != "" {
		return v
	}
	return labels["controller-revision-hash"]
}
