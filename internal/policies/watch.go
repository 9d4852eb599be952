package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// groupsField is the index of policies by the groups that they name.
	groupsField = "spec.nodeGroups"
	// everyGroup is the key in this index of rules without target groups, which are
	// about all groups. No NodeGroup can have this name.
	everyGroup = "*"
)

// Watch enqueues the policies of one kind when something changes on which they depend:
//
//	an owner is created, changed or deleted         → OfOwner
//	a pod is created, changed or deleted            → OfPod
//	members or readiness of NodeGroups change       → the policies that name them
//
// It must be called before the walker and the ledger are started.
func (w Watched) Watch(mgr ctrl.Manager, source *trigger.Source[ctrl.Request]) error {
	policy, list := client.Object(&gm.PropagationPolicy{}), client.ObjectList(&gm.PropagationPolicyList{})
	if w.Kind == owners.Override {
		policy, list = &gm.OverridePolicy{}, &gm.OverridePolicyList{}
	}
	if err := indexGroups(mgr.GetFieldIndexer(), policy); err != nil {
		return err
	}
	w.Walker.OnChange(func(old, new *ownership.Object) { source.Add(w.OfOwner(old, new)...) })
	w.Ledger.OnChange(func(old, new *seats.Pod) { source.Add(w.OfPod(old, new)...) })
	w.Ledger.OnGroups(enqueueOnGroups(mgr.GetClient(), list, source))
	return nil
}

// Watched are the policies of one kind.
type Watched struct {
	Kind   owners.PolicyKind
	Walker *owners.Walker
	Ledger *seats.Ledger
}

// OfOwner returns the policies that an owner required before a change and requires after it.
func (w Watched) OfOwner(old, new *ownership.Object) (out []ctrl.Request) {
	for _, o := range []*ownership.Object{old, new} {
		if name := w.Kind.RequiredBy(o); name != "" {
			out = append(out, ctrl.Request{NamespacedName: client.ObjectKey{Namespace: o.Namespace, Name: name}})
		}
	}
	return out
}

// OfPod returns the policies of a pod's owner before and after a change.
func (w Watched) OfPod(old, new *seats.Pod) (out []ctrl.Request) {
	for _, pod := range []*seats.Pod{old, new} {
		if pod != nil {
			out = append(out, w.Above(pod.Owner())...)
		}
	}
	return out
}

// Above returns the policy that the workload above an owner requires.
func (w Watched) Above(owner types.UID) []ctrl.Request {
	of := w.Walker.PolicyOwnersOf(owner)
	if w.Kind == owners.Override {
		return w.OfOwner(nil, of.Override)
	}
	return w.OfOwner(nil, of.Propagation)
}

// indexGroups adds the index that OfGroups reads to the cache of a kind of policies. It
// must be called before the cache is started.
func indexGroups(indexer client.FieldIndexer, kind client.Object) error {
	if err := indexer.IndexField(context.Background(), kind, groupsField, groupsOf); err != nil {
		return fmt.Errorf("indexing policies by NodeGroup: %w", err)
	}
	return nil
}

// groupsOf returns the groups that a policy names, in lower case like the names of
// NodeGroups. The policy may be invalid.
func groupsOf(o client.Object) []string {
	var names []string
	switch policy := o.(type) {
	case *gm.PropagationPolicy:
		for i := range policy.Spec.StaticWeight {
			names = append(names, policy.Spec.StaticWeight[i].NodeGroupNames...)
		}
		for i := range policy.Spec.NumRange {
			names = append(names, policy.Spec.NumRange[i].NodeGroupNames...)
		}
	case *gm.OverridePolicy:
		for i := range policy.Spec.OverrideRules {
			rule := &policy.Spec.OverrideRules[i]
			names = append(names, rule.TargetNodeGroup...)
			if len(rule.TargetNodeGroup) == 0 {
				names = append(names, everyGroup)
			}
		}
	}
	for i, name := range names {
		names[i] = strings.ToLower(name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OfGroups returns the policies that name one of the groups, or that are about all
// groups, each once. list is an empty list of their kind.
func OfGroups(ctx context.Context, reader client.Reader, list client.ObjectList, groups ...string) ([]ctrl.Request, error) {
	var requests []ctrl.Request
	seen := sets.New[ctrl.Request]()
	for _, group := range append(slices.Clone(groups), everyGroup) {
		found := list.DeepCopyObject().(client.ObjectList)
		if err := reader.List(ctx, found, client.MatchingFields{groupsField: group}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing policies of NodeGroup %q: %w", group, err)
		}
		_ = meta.EachListItem(found, func(o runtime.Object) error {
			request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(o.(client.Object))}
			if !seen.Has(request) {
				seen.Insert(request)
				requests = append(requests, request)
			}
			return nil
		})
	}
	return requests, nil
}

// enqueueOnGroups returns a handler for the ledger that requests a reconcile of the
// policies that are about a changed group. It does nothing before the source runs: at
// its start the controller reconciles all policies.
func enqueueOnGroups(reader client.Reader, list client.ObjectList, source *trigger.Source[ctrl.Request]) seats.GroupsHandler {
	return func(groups ...string) {
		if !source.Running() {
			return
		}
		requests, err := OfGroups(context.Background(), reader, list, groups...)
		if err != nil {
			log.Log.Error(err, "Policies are not reconciled after a change of their NodeGroups", "nodeGroups", groups)
			return
		}
		source.Add(requests...)
	}
}
