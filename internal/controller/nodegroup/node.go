package nodegroup

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// groups are all NodeGroups with compiled selectors. They are immutable.
type groups struct {
	membership.Groups
	byName map[string]groupEntry
}

// groupEntry is one version of a NodeGroup.
type groupEntry struct {
	uid        types.UID
	generation int64
	deleting   bool
	group      membership.Group
	// invalid is the error of its selector.
	invalid error
}

// isOf reports whether the entry was made from this version of the group.
func (e *groupEntry) isOf(g *gm.NodeGroup) bool {
	return e.uid == g.UID && e.generation == g.Generation && e.deleting == (g.DeletionTimestamp != nil)
}

// compiled returns all groups. After a change of one it lists and compiles them again.
func (r *Reconciler) compiled(ctx context.Context) (*groups, error) {
	return r.groups.Get(func() (*groups, error) {
		var list gm.NodeGroupList
		if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing NodeGroups: %w", err)
		}
		fresh := &groups{byName: make(map[string]groupEntry, len(list.Items))}
		compiled := make([]membership.Group, 0, len(list.Items))
		for i := range list.Items {
			g := &list.Items[i]
			e := groupEntry{uid: g.UID, generation: g.Generation, deleting: g.DeletionTimestamp != nil}
			e.group, e.invalid = membership.Compile(g)
			fresh.byName[g.Name] = e
			compiled = append(compiled, e.group)
		}
		fresh.Groups = membership.NewGroups(compiled)
		return fresh, nil
	})
}

// nodesOf returns the nodes that a group selects or that carry its label, sorted by name.
func (gs *groups) nodesOf(ctx context.Context, c client.Reader, group string) ([]*corev1.Node, error) {
	some, all := gs.Labels(group)
	nodes, err := survey.NodesWith(ctx, c, append(some, membership.Label{Key: gm.NodeGroupLabel, Value: group}), all)
	e := gs.byName[group]
	return slices.DeleteFunc(nodes, func(n *corev1.Node) bool {
		return n.Labels[gm.NodeGroupLabel] != group && !e.group.Selects(n.Name, n.Labels)
	}), err
}

// reconcileNode sets the label of one node. If the node has changed since it was read, the patch has
// a conflict and the pass is repeated: the node may belong to another group now.
func (r *Reconciler) reconcileNode(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, req.NamespacedName, node, client.UnsafeDisableDeepCopy); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.members().Written(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return phase.Run(ctx, node, r.label)
}

func (r *Reconciler) label(ctx context.Context, node *corev1.Node) error {
	groups, err := r.compiled(ctx)
	if err != nil {
		return err
	}
	has, want := node.Labels[gm.NodeGroupLabel], groups.Assign(node.Name, node.Labels)
	if has == want {
		r.members().Written(node.Name)
		return nil
	}
	switch adopted, err := r.isAdopted(ctx, want); {
	case err != nil:
		return err
	case !adopted: // that change of the group enqueues the node, unless the group goes before
		return phase.Wait("the finalizer of NodeGroup "+want, members.AdoptedWithin)
	}
	var value any = want
	if want == "" {
		value = nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion,
		"labels": map[string]any{gm.NodeGroupLabel: value},
	}})
	if err != nil {
		return fmt.Errorf("encoding the label of node %q: %w", node.Name, err)
	}
	patched := &corev1.Node{}
	patched.Name = node.Name
	switch err := r.Client.Patch(ctx, patched, client.RawPatch(types.MergePatchType, raw)); {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		return err
	case err != nil:
		r.members().Failed(members.Failure{Node: node.Name, Why: members.ReasonOf(err), From: has, To: want})
		return fmt.Errorf("labelling node %q: %w", node.Name, err)
	}
	r.members().Written(node.Name)
	log.FromContext(ctx).Info("Node changed its NodeGroup", "node", node.Name, "from", has, "to", want)
	return nil
}

// isAdopted reports whether nodes may be labelled with a group: it has its finalizer. "" is no group. A
// group that is being deleted gets no nodes.
func (r *Reconciler) isAdopted(ctx context.Context, name string) (bool, error) {
	if name == "" {
		return true, nil
	}
	group := &gm.NodeGroup{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: name}, group, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return controllerutil.ContainsFinalizer(group, gm.NodeGroupFinalizer), nil
}
