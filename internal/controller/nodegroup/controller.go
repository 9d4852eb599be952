// Package nodegroup reconciles NodeGroups (docs/sources.md, G12) with two queues.
//
// One queue has nodes. A pass over a node sets gm.NodeGroupLabel to the name of the node's group, or
// removes it, also if it names no existing group. Nothing else of a node is changed.
//
// The other queue has groups:
//
//   - adopt: sets the finalizer, before any node is labelled.
//   - observe: finds the members of the group, and other nodes that it selects.
//   - finalize: removes the finalizer of a deleted group when no node carries its label.
//   - report: writes the status, at a bounded pace.
//
// The label decides about membership: a node stays in the group that its label names until
// that group no longer selects it or is deleted; a group with an invalid selector keeps its
// nodes. The ledger of seats reads the label, and kube-scheduler tries refused pods again
// when it changes.
package nodegroup

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/memo"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
)

// Reconciler labels nodes with their group, and writes the status of groups.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock

	// groups are all groups. They change seldom, and each change of a node needs all of them.
	groups memo.Memo[*groups]
	// groupRequests enqueues groups for changes of nodes.
	groupRequests trigger.Source[ctrl.Request]
	// failedWrites are the nodes that could not be labelled.
	failedWrites members.Failures
	// statuses bounds status writes by group.
	statuses pace.ByName
	// labelling is since when nodes of each group are being labelled.
	labelling pace.Since
}

// scope is what one pass over a group observed.
type scope struct {
	group    *gm.NodeGroup
	compiled membership.Group
	invalid  error
	// nodes are the nodes that the group selects or that carry its label.
	nodes []membership.Node
	// failed are those of them that cannot be labelled.
	failed []members.Failure
	// behind is true if others have a wrong label, held if one carries the group's label.
	behind, held bool
	// observed is true once all fields above are set.
	observed bool
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=nodegroups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=nodegroups/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch

// SetupWithManager registers the two controllers.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return r.members().Setup(mgr, r, "nodegroup-node", r.reconcileNode)
}

// Reconcile runs the phases for one group.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	group := &gm.NodeGroup{}
	if err := r.Client.Get(ctx, req.NamespacedName, group); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.statuses.Forget(req.Name)
			r.labelling.For(req.Name, r.Clock.Now(), false)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return phase.Run(ctx, &scope{group: group}, r.adopt, r.observe, r.finalize, r.report)
}

// adopt sets the finalizer. Nodes are labelled only after that.
func (r *Reconciler) adopt(ctx context.Context, s *scope) error {
	before := s.group.DeepCopy()
	if s.group.DeletionTimestamp != nil || !controllerutil.AddFinalizer(s.group, gm.NodeGroupFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.patchFinalizers(ctx, s.group, before))
}

func (r *Reconciler) patchFinalizers(ctx context.Context, group, before *gm.NodeGroup) error {
	// Other programs write the list of finalizers too, so the patch has a resourceVersion.
	err := r.Client.Patch(ctx, group, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing finalizers of NodeGroup %q: %w", group.Name, err)
	}
	return nil
}

// observe reads every node that concerns the group.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	groups, err := r.compiled(ctx)
	if err != nil {
		return err
	}
	e, listed := groups.byName[s.group.Name]
	if !listed || !e.isOf(s.group) {
		return phase.Wait("the index does not have the group's last change yet", members.Debounce)
	}
	s.compiled, s.invalid = e.group, e.invalid
	nodes, err := groups.nodesOf(ctx, r.Client, s.group.Name)
	if err != nil {
		return err
	}
	s.failed = r.failedWrites.Of(s.group.Name)
	for _, node := range nodes {
		n := membership.Node{Name: node.Name, Labels: node.Labels, Ready: readyStatus(node), Group: groups.Assign(node.Name, node.Labels)}
		if has := node.Labels[gm.NodeGroupLabel]; has != n.Group && (has == s.group.Name || n.Group == s.group.Name) {
			n.Group = has // until it is labelled
			if at := slices.IndexFunc(s.failed, func(f members.Failure) bool { return f.Node == node.Name }); at >= 0 {
				n.Problem = "cannot be written: " + s.failed[at].Why
			} else {
				s.behind = true
			}
		}
		s.held = s.held || node.Labels[gm.NodeGroupLabel] == s.group.Name
		s.nodes = append(s.nodes, n)
	}
	s.observed = true
	return nil
}

// finalize removes the finalizer of a deleted group when no node in the cache carries its label. A
// node that was labelled too late for this pass loses the label in its own pass.
func (r *Reconciler) finalize(ctx context.Context, s *scope) error {
	if !s.observed || s.group.DeletionTimestamp == nil || s.held {
		return nil
	}
	before := s.group.DeepCopy()
	if !controllerutil.RemoveFinalizer(s.group, gm.NodeGroupFinalizer) {
		return nil
	}
	return client.IgnoreNotFound(r.patchFinalizers(ctx, s.group, before))
}

// report writes the status if it changed and the pace allows it.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if !s.observed || s.group.DeletionTimestamp != nil {
		return nil
	}
	if left := members.Unseen - r.labelling.For(s.group.Name, r.Clock.Now(), s.behind); s.behind && left > 0 {
		return phase.Wait("nodes that are being labelled", left)
	}
	before := s.group.DeepCopy()
	setStatus(s)
	if equality.Semantic.DeepEqual(before.Status, s.group.Status) {
		return nil
	}
	if delay := r.statuses.Delay(s.group.Name, r.Clock.Now(), pace.StatusEvery, pace.StatusBurst); delay > 0 {
		return phase.Wait("the pace of status writes", delay)
	}
	return patch.Status(ctx, r.Client, s.group, before)
}
