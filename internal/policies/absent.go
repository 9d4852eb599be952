package policies

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// Absent returns one sentence for each policy that an object of a namespace requires and that the
// cache does not have. It names the policies that the namespace has, because most are misspelt.
func (r *Resolver) Absent(ctx context.Context, namespace string, required ownership.Policies, ignoresMissing bool) (sentences []string) {
	add := func(kind, name string, object client.Object, list client.ObjectList) {
		if name == "" || !apierrors.IsNotFound(r.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)) {
			return
		}
		effect := "Pods wait until it does"
		if ignoresMissing {
			effect = "Pods start without it"
		}
		has := "the namespace has none"
		if names := r.names(ctx, namespace, list); len(names) > 0 {
			has = "the namespace has " + conditions.List(names)
		}
		sentences = append(sentences, fmt.Sprintf("%s %q does not exist in namespace %q. %s; %s", kind, name, namespace, effect, has))
	}
	add("PropagationPolicy", required.RequiredPropagation, &gm.PropagationPolicy{}, &gm.PropagationPolicyList{})
	add("OverridePolicy", required.RequiredOverride, &gm.OverridePolicy{}, &gm.OverridePolicyList{})
	return sentences
}

// names returns the names of the objects of a kind in a namespace, sorted; nil if they cannot be
// read.
func (r *Resolver) names(ctx context.Context, namespace string, list client.ObjectList) (names []string) {
	if err := r.reader.List(ctx, list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	_ = meta.EachListItem(list, func(o runtime.Object) error {
		if object, is := o.(client.Object); is {
			names = append(names, object.GetName())
		}
		return nil
	})
	slices.Sort(names)
	return names
}

// AbsentGroups returns those of the groups that do not exist.
func (r *Resolver) AbsentGroups(ctx context.Context, groups []string) (absent []string) {
	for _, name := range groups {
		if apierrors.IsNotFound(r.reader.Get(ctx, client.ObjectKey{Name: name}, &gm.NodeGroup{}, client.UnsafeDisableDeepCopy)) {
			absent = append(absent, name)
		}
	}
	return absent
}

// Placing returns the PropagationPolicies that have pods in a group now, by their status, sorted.
func (r *Resolver) Placing(ctx context.Context, group string) (names []string) {
	var list gm.PropagationPolicyList
	if err := r.reader.List(ctx, &list, client.MatchingFields{groupsField: group}, client.UnsafeDisableDeepCopy); err != nil {
		return nil
	}
	for i := range list.Items {
		has := func(w gm.WorkloadSpread) bool {
			return slices.ContainsFunc(w.Groups, func(g gm.GroupSpread) bool { return g.Name == group && g.Current > 0 })
		}
		if policy := &list.Items[i]; slices.ContainsFunc(policy.Status.Apps, has) {
			names = append(names, policy.Namespace+"/"+policy.Name)
		}
	}
	slices.Sort(names)
	return names
}

// WithoutNodes returns those of the groups that do not exist or have no node.
func (r *Resolver) WithoutNodes(groups []string) []string {
	return slices.DeleteFunc(slices.Clone(groups), r.ledger.HasMembers)
}
