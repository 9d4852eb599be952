package explain

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/kubectl/read"
)

// Observed is what was read about one pod. What could not be read, and what is not there, is
// nil or empty.
type Observed struct {
	Pod *corev1.Pod
	// Owners are the pod's owners, the direct one first. They have metadata only.
	Owners []*metav1.PartialObjectMetadata
	// Unseen names the first owner that could not be read, and why; "" if all were. What is above it, and the policies
	// that it requires, are not known.
	Unseen string
	// Node is the pod's.
	Node *corev1.Node
	// Propagation and Override are the policies that the pod's workload requires, and
	// PropagationNames and OverrideNames all that the namespace has.
	Propagation                     *gm.PropagationPolicy
	Override                        *gm.OverridePolicy
	PropagationNames, OverrideNames []string
	// PoliciesUnread: policies may not be read.
	PoliciesUnread bool
	// Group is the pod's NodeGroup, and Members its nodes. NodesUnread: they, or the group, may not be
	// read.
	Group       *gm.NodeGroup
	Members     []corev1.Node
	NodesUnread bool
	PodGroup    *scheduling.PodGroup
}

// Observe reads what explains a pod. It returns an error if there is no such pod, and if the
// cluster does not answer.
func Observe(ctx context.Context, r *read.Reader, namespace, name string) (*Observed, error) {
	pod := &corev1.Pod{}
	switch found, err := r.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pod); {
	case err != nil:
		return nil, err
	case !found && len(r.Unread()) > 0:
		return nil, fmt.Errorf("%s", r.Unread()[0])
	case !found:
		return nil, fmt.Errorf("there is no pod %s in namespace %s: kubectl get pods -n %[2]s lists them", name, namespace)
	}
	return observe(ctx, r, pod)
}

// observe reads what explains a pod that was read.
func observe(ctx context.Context, r *read.Reader, pod *corev1.Pod) (*Observed, error) {
	o := &Observed{Pod: pod}
	if err := o.observeOwners(ctx, r); err != nil {
		return nil, err
	}
	if err := o.observePolicies(ctx, r); err != nil {
		return nil, err
	}
	return o, o.observePlace(ctx, r)
}

// observeOwners follows controller references up, as far as they lead.
func (o *Observed) observeOwners(ctx context.Context, r *read.Reader) error {
	below := metav1.Object(o.Pod)
	for range ownership.MaxHops {
		ref := metav1.GetControllerOf(below)
		if ref == nil {
			return nil
		}
		owner := &metav1.PartialObjectMetadata{}
		owner.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
		found, err := r.Get(ctx, client.ObjectKey{Namespace: o.Pod.Namespace, Name: ref.Name}, owner)
		if err != nil {
			return err
		}
		if !found || owner.UID != ref.UID {
			why := "which is not there any more, or of a kind that the cluster does not serve"
			if r.Forbidden("get", o.Pod.Namespace, owner) {
				why = "which you may not read"
			}
			o.Unseen = fmt.Sprintf("%s %s, %s", ref.Kind, ref.Name, why)
			return nil
		}
		owner.SetGroupVersionKind(schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind))
		o.Owners, below = append(o.Owners, owner), owner
	}
	return nil
}

// chain returns the pod and its owners as the decisions see them.
func (o *Observed) chain() []*ownership.Object {
	chain := []*ownership.Object{object(o.Pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	for _, owner := range o.Owners {
		chain = append(chain, object(owner, owner.GroupVersionKind()))
	}
	return chain
}

func object(of metav1.Object, kind schema.GroupVersionKind) *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: kind, Namespace: of.GetNamespace(), Name: of.GetName(), UID: of.GetUID(),
		Policies: ownership.PoliciesOf(of.GetLabels()), IgnoreMissing: ownership.IgnoresMissing(of.GetAnnotations()),
	}
}

// observePolicies reads the policies that the pod's workload requires.
func (o *Observed) observePolicies(ctx context.Context, r *read.Reader) error {
	owners := ownership.PolicyOwnersOfPod(o.chain())
	if owners.Propagation != nil {
		policy := &gm.PropagationPolicy{}
		found, err := r.Get(ctx, client.ObjectKey{Namespace: o.Pod.Namespace, Name: owners.Propagation.Policies.RequiredPropagation}, policy)
		if err != nil {
			return err
		}
		var all gm.PropagationPolicyList
		if found {
			o.Propagation = policy
		} else if r.Forbidden("get", o.Pod.Namespace, policy) {
			o.PoliciesUnread = true
		} else if err := r.List(ctx, &all, client.InNamespace(o.Pod.Namespace)); err != nil {
			return err
		}
		for i := range all.Items {
			o.PropagationNames = append(o.PropagationNames, all.Items[i].Name)
		}
	}
	if owners.Override == nil {
		return nil
	}
	policy := &gm.OverridePolicy{}
	found, err := r.Get(ctx, client.ObjectKey{Namespace: o.Pod.Namespace, Name: owners.Override.Policies.RequiredOverride}, policy)
	if err != nil {
		return err
	}
	var all gm.OverridePolicyList
	if found {
		o.Override = policy
	} else if r.Forbidden("get", o.Pod.Namespace, policy) {
		o.PoliciesUnread = true
	} else if err := r.List(ctx, &all, client.InNamespace(o.Pod.Namespace)); err != nil {
		return err
	}
	for i := range all.Items {
		o.OverrideNames = append(o.OverrideNames, all.Items[i].Name)
	}
	return nil
}

// observePlace reads the pod's node, its NodeGroup and the nodes of that, and its PodGroup.
func (o *Observed) observePlace(ctx context.Context, r *read.Reader) error {
	if name := o.Pod.Spec.NodeName; name != "" {
		node := &corev1.Node{}
		found, err := r.Get(ctx, client.ObjectKey{Name: name}, node)
		if err != nil {
			return err
		}
		if found {
			o.Node = node
		}
	}
	if name := o.Pod.Labels[gm.NodeGroupLabel]; name != "" {
		group := &gm.NodeGroup{}
		found, err := r.Get(ctx, client.ObjectKey{Name: name}, group)
		if err != nil {
			return err
		}
		if found {
			o.Group = group
		}
		var members corev1.NodeList
		if err := r.List(ctx, &members, client.MatchingLabels{gm.NodeGroupLabel: name}); err != nil {
			return err
		}
		o.Members, o.NodesUnread = members.Items, r.Forbidden("list", "", &members) || r.Forbidden("get", "", group)
	}
	if name := o.Pod.Annotations[scheduling.GroupNameAnnotation]; name != "" {
		group := &scheduling.PodGroup{}
		found, err := r.Get(ctx, client.ObjectKey{Namespace: o.Pod.Namespace, Name: name}, group)
		if err != nil {
			return err
		}
		if found {
			o.PodGroup = group
		}
	}
	return nil
}
