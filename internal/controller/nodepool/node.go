package nodepool

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/attributes"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// visit is what one pass over a node observed.
type visit struct {
	node   *corev1.Node
	pools  *pools
	read   *attributes.Node
	change attributes.Change
	// skip is true if nothing is to be written now.
	skip bool
}

// reconcileNode runs the phases for one node.
func (r *Reconciler) reconcileNode(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	node := &corev1.Node{}
	if err := r.Client.Get(ctx, req.NamespacedName, node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.forgetNode(req.Name)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return ctrl.Result{}, err
	}
	v := &visit{node: node, pools: pools, read: r.index.read(node)}
	return phase.Run(ctx, v, r.decide, r.write)
}

// decide plans the change of the node. It sets skip if the change is empty or must wait.
func (r *Reconciler) decide(ctx context.Context, v *visit) error {
	v.skip = true
	claim, in, change, err := v.pools.plan(v.read)
	if err != nil {
		return fmt.Errorf("planning node %q: %w", v.node.Name, err)
	}
	var waits error
	if in != nil {
		evicting := in.gives.Evicting(v.read)
		// A node that is Held gets no NoExecute taint: the change that ends that starts a pass.
		isHeld := len(evicting) > 0 && connectivity.Held(v.node)
		if hold := r.delayOf(ctx, in.gives.Name, evicting); hold.waits() || isHeld {
			_, selected := v.pools.Assign(claim)
			gives := in.gives.WithoutEvicting(v.read)
			if change, err = v.read.Plan(&gives, selected); err != nil {
				return fmt.Errorf("planning node %q: %w", v.node.Name, err)
			}
			if hold.waits() {
				waits = hold.retry(r.Clock.Now())
			}
		}
	}
	v.change = change
	if change.Empty() {
		r.members().Written(v.node.Name)
	}
	missing := claim.Chosen
	if in != nil {
		missing = ""
	}
	r.missing(v.node, missing)
	if in != nil {
		adopted, err := r.isAdopted(ctx, in.gives.Name)
		if err != nil {
			return err
		}
		if !adopted { // that change of the pool enqueues the node, unless the pool goes before
			return phase.Wait("the finalizer of NodePool "+in.gives.Name, members.AdoptedWithin)
		}
	}
	if _, known := v.pools.Get(claim.Incumbent); claim.Incumbent != "" && !known {
		// The attributes of a pool that does not exist are removed. The cache may not have a
		// new pool yet, so the API server is asked.
		err := r.Live.Get(ctx, types.NamespacedName{Name: claim.Incumbent}, &apps.NodePool{})
		if err == nil {
			return phase.Wait("the cache does not have a NodePool yet", members.Debounce)
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("looking for NodePool %q of node %q: %w", claim.Incumbent, v.node.Name, err)
		}
	}
	v.skip = change.Empty()
	return waits
}

// isAdopted reports whether a pool has its finalizer or is being deleted: nodes in it may be
// written.
func (r *Reconciler) isAdopted(ctx context.Context, name string) (bool, error) {
	pool := &apps.NodePool{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: name}, pool, client.UnsafeDisableDeepCopy); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return pool.DeletionTimestamp != nil || controllerutil.ContainsFinalizer(pool, apps.NodePoolFinalizer), nil
}

// write writes the planned change in one patch.
func (r *Reconciler) write(ctx context.Context, v *visit) error {
	if v.skip {
		return nil
	}
	if v.change.Repair {
		if delay := r.repairs.Delay(v.node.Name, r.Clock.Now(), repairEvery, repairBurst); delay > 0 {
			return phase.Wait("the pace of repairs", delay)
		}
	}
	raw, err := patchOf(v.node, &v.change)
	if err == nil {
		node := &corev1.Node{}
		node.Name = v.node.Name
		err = r.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, raw))
	}
	switch {
	case err == nil:
		patchesTotal.WithLabelValues(kindOf(&v.change)).Inc()
		r.members().Written(v.node.Name)
		r.reportChange(ctx, v)
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		patchesTotal.WithLabelValues("conflict").Inc()
		return err
	default:
		patchesTotal.WithLabelValues("error").Inc()
		r.members().Failed(members.Failure{Node: v.node.Name, Why: members.ReasonOf(err), From: v.change.From, To: v.change.To})
		return fmt.Errorf("writing attributes of node %q: %w", v.node.Name, err)
	}
}

// forgetNode removes everything that is kept about a deleted node.
func (r *Reconciler) forgetNode(name string) {
	r.index.drop(name)
	r.repairs.Forget(name)
	r.members().Written(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.reportedMissing, name)
}

// patchOf encodes a change as a merge patch. It has the resourceVersion of the node, because
// it replaces the whole list of taints, and because the record in the annotation must match
// the values that are overwritten.
func patchOf(node *corev1.Node, c *attributes.Change) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": node.ResourceVersion}
	if len(c.Labels) > 0 {
		metadata["labels"] = c.Labels
	}
	if len(c.Annotations) > 0 {
		metadata["annotations"] = c.Annotations
	}
	patch := map[string]any{"metadata": metadata}
	if c.TaintsChanged {
		patch["spec"] = map[string]any{"taints": c.Taints}
	}
	raw, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("encoding the patch of node %q: %w", node.Name, err)
	}
	return raw, nil
}

// Kinds of changes: the values of the metric's label and of the log.
const (
	joined   = "joined"
	moved    = "moved"
	left     = "left"
	updated  = "updated"
	repaired = "repaired"
)

// kindOf returns which of these kinds a change is.
func kindOf(c *attributes.Change) string {
	switch {
	case c.From == "" && c.To != "":
		return joined
	case c.From != "" && c.To == "":
		return left
	case c.From != c.To:
		return moved
	case c.Repair:
		return repaired
	}
	return updated
}

// reportChange emits events and logs a change.
func (r *Reconciler) reportChange(ctx context.Context, v *visit) {
	c := &v.change
	log.FromContext(ctx).Info("Node changed by its NodePool", "node", v.node.Name, "change", kindOf(c), "from", c.From, "to", c.To)
	if v.read.Lost() != nil {
		r.recordLost(v.node)
	}
	switch kindOf(c) {
	case joined:
		r.joined(v.node, v.pools.reference(c.To))
	case moved:
		r.movedPool(v.node, c.From, v.pools.reference(c.To))
	case left:
		r.left(v.node, v.pools.reference(c.From))
	case repaired:
		r.repaired(v.node, v.pools.reference(c.To), c)
	}
}
