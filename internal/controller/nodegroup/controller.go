// Package nodegroup reconciles NodeGroups (docs/sources.md, G12):
//
//   - observe: finds the members of the group, and other nodes that carry its label.
//   - adopt: sets the finalizer, before any node is labelled.
//   - label: sets gm.NodeGroupLabel of member nodes to the group's name, and removes it from
//     nodes that are not members, also if the label names no existing group. Nothing else
//     of a node is changed.
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
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	nodeutil "k8s.io/component-helpers/node/util"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

// workers is how many groups are reconciled at a time. Membership is computed from the cache
// only, so concurrent passes come to the same result about a node.
const workers = 4

// Reconciler labels nodes with their group, and writes the status of groups.
type Reconciler struct {
	Client client.Client
	Clock  clock.PassiveClock

	// statuses bounds status writes by group.
	statuses pace.ByName

	mu sync.Mutex // guards the field below
	// compiled are the compiled groups, by name. They are cached because groupsOf needs all
	// of them for every change of a node.
	compiled map[string]compiled
}

// compiled is a compiled group, and the version of the object that it was compiled from.
type compiled struct {
	uid        types.UID
	generation int64
	deleting   bool
	group      membership.Group
	invalid    error
}

// compile returns the compiled group, and the error of its selector. It compiles each version
// once. It is safe for concurrent use.
func (r *Reconciler) compile(g *gm.NodeGroup) (membership.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c, known := r.compiled[g.Name]
	if known && c.uid == g.UID && c.generation == g.Generation && c.deleting == (g.DeletionTimestamp != nil) {
		return c.group, c.invalid
	}
	c = compiled{uid: g.UID, generation: g.Generation, deleting: g.DeletionTimestamp != nil}
	c.group, c.invalid = membership.Compile(g)
	if r.compiled == nil {
		r.compiled = map[string]compiled{}
	}
	r.compiled[g.Name] = c
	return c.group, c.invalid
}

// forget removes a deleted group from the cache of compiled groups.
func (r *Reconciler) forget(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.compiled, name)
}

// scope is what one pass observed.
type scope struct {
	group    *gm.NodeGroup
	compiled membership.Group
	invalid  error
	// nodes are the nodes that the group selects or that carry its label.
	nodes []membership.Node
	// relabel is the right value of the label of nodes whose label is wrong, by name of the
	// node; "" is no label.
	relabel map[string]string
	// seen are the cached objects of nodes, by name.
	seen map[string]*corev1.Node
	// adopted is true if the group has its finalizer or is being deleted.
	adopted bool
	// patched is true if every node in relabel was patched.
	patched bool
	// held is true if a node carries the group's label in the cache.
	held bool
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=nodegroups,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=nodegroups/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get;list;watch;patch

// SetupWithManager registers the controller. Groups are reconciled concurrently. Each patch
// of a label has a resourceVersion, so two groups cannot both write the same version of a
// node.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return watch.Add(ctrl.NewControllerManagedBy(mgr), r.watches()).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for one group.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	group := &gm.NodeGroup{}
	err := r.Client.Get(ctx, req.NamespacedName, group)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	s := &scope{group: group, relabel: map[string]string{}, seen: map[string]*corev1.Node{}}
	phases := []phase.Func[*scope]{r.adopt, r.label, r.finalize, r.report}
	if err != nil { // nodes may carry its label: a person wrote it, or removed the finalizer
		r.forget(req.Name)
		r.statuses.Forget(req.Name)
		group.Name, s.adopted = req.Name, true
		phases = []phase.Func[*scope]{r.label}
	}
	if err := r.observe(ctx, s); err != nil {
		return ctrl.Result{}, err
	}
	return phase.Run(ctx, s, phases...)
}

// adopt sets the finalizer. Nodes are labelled only after that.
func (r *Reconciler) adopt(ctx context.Context, s *scope) error {
	before := s.group.DeepCopy()
	s.adopted = s.group.DeletionTimestamp != nil || !controllerutil.AddFinalizer(s.group, gm.NodeGroupFinalizer)
	if s.adopted {
		return nil
	}
	err := r.patchFinalizers(ctx, s.group, before)
	s.adopted = err == nil
	return client.IgnoreNotFound(err)
}

func (r *Reconciler) patchFinalizers(ctx context.Context, group, before *gm.NodeGroup) error {
	// Other programs write the list of finalizers too, so the patch has a resourceVersion.
	err := r.Client.Patch(ctx, group, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return fmt.Errorf("writing finalizers of NodeGroup %q: %w", group.Name, err)
	}
	return nil
}

// observe computes the right label of every node that concerns the group.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	var groups gm.NodeGroupList
	if err := r.Client.List(ctx, &groups, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeGroups: %w", err)
	}
	all := make([]membership.Group, 0, len(groups.Items))
	for i := range groups.Items {
		g, err := r.compile(&groups.Items[i])
		if g.Name == s.group.Name {
			s.compiled, s.invalid = g, err
		}
		all = append(all, g)
	}
	index := membership.NewGroups(all)
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		has := node.Labels[gm.NodeGroupLabel]
		if has != s.group.Name && !s.compiled.Selects(node.Name, node.Labels) {
			continue // it does not concern this group; Assign may test all groups, which is slow
		}
		want := index.Assign(node.Name, node.Labels)
		if has != want && (has == s.group.Name || want == s.group.Name) {
			s.relabel[node.Name] = want
		}
		s.held = s.held || has == s.group.Name
		s.seen[node.Name] = node
		s.nodes = append(s.nodes, membership.Node{Name: node.Name, Labels: node.Labels, Ready: readyStatus(node), Group: want})
	}
	return nil
}

// readyStatus returns the readiness of a node as the group's status shows it.
func readyStatus(node *corev1.Node) gm.NodeReadyStatus {
	_, c := nodeutil.GetNodeCondition(&node.Status, corev1.NodeReady)
	switch {
	case c == nil:
		return gm.NodeUnknown
	case c.Status == corev1.ConditionTrue:
		return gm.NodeReady
	case c.Status == corev1.ConditionFalse:
		return gm.NodeNotReady
	}
	return gm.NodeUnknown
}

// label patches the label of the nodes in relabel. A node whose patch fails does not stop the
// others. If a node has changed since it was observed, the patch has a conflict and the pass
// is repeated: the node may belong to another group now.
func (r *Reconciler) label(ctx context.Context, s *scope) error {
	if !s.adopted {
		return nil
	}
	var errs []error
	for name, want := range s.relabel {
		var value any = want
		if want == "" {
			value = nil
		}
		seen := s.seen[name]
		raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": seen.UID, "resourceVersion": seen.ResourceVersion,
			"labels": map[string]any{gm.NodeGroupLabel: value},
		}})
		if err == nil {
			node := &corev1.Node{}
			node.Name = name
			err = client.IgnoreNotFound(r.Client.Patch(ctx, node, client.RawPatch(types.MergePatchType, raw)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("labelling node %q: %w", name, err))
			continue
		}
		log.FromContext(ctx).Info("Node changed its NodeGroup", "node", name, "from", seen.Labels[gm.NodeGroupLabel], "to", want)
	}
	s.patched = len(errs) == 0
	return errors.Join(errs...)
}

// finalize removes the finalizer of a deleted group when no node in the cache carries its
// label. The patches of this pass reach the cache later, and their events start a new pass.
func (r *Reconciler) finalize(ctx context.Context, s *scope) error {
	if s.group.DeletionTimestamp == nil || !s.patched || s.held {
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
	if s.group.DeletionTimestamp != nil {
		return nil
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
