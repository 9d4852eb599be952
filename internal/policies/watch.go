package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// groupsField is the index of policies by the groups that they name.
	groupsField = "spec.nodeGroups"
	// everyGroup is the key in this index of rules without target groups, which are
	// about all groups. No NodeGroup can have this name.
	everyGroup = "*"
)

// IndexGroups adds the index that OfGroups reads to the cache of a kind of policies. It
// must be called before the cache is started.
func IndexGroups(indexer client.FieldIndexer, kind client.Object) error {
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

// EnqueueOnGroups returns a handler for the ledger that requests a reconcile of the
// policies that are about a changed group. It does nothing before the source runs: at
// its start the controller reconciles all policies.
func EnqueueOnGroups(reader client.Reader, list client.ObjectList, source *trigger.Source[ctrl.Request]) seats.GroupsHandler {
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
