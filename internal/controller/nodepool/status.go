package nodepool

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/members"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// observe reads every node that concerns the pool, in the order of their names.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	pools, err := r.index.pools(ctx, r.Client)
	if err != nil {
		return err
	}
	self, listed := pools.Get(s.pool.Name)
	e := pools.byName[s.pool.Name]
	if !listed || !e.isOf(s.pool) {
		return phase.Wait("the index does not have the pool's last change yet", members.Debounce)
	}
	s.invalid, s.ignored = e.invalid, e.gives.Ignored
	s.joinKeys, s.joins = self.CanJoin()
	nodes, err := pools.nodesOf(ctx, r.Client, s.pool.Name)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if err := r.observeNode(s, pools, self, node); err != nil {
			return err
		}
	}
	if s.delay = r.delayOf(ctx, s.pool.Name, s.evicting); len(s.evicting) == 0 {
		r.holds.forget(s.pool.Name)
	}
	s.failed = r.failedWrites.Of(s.pool.Name)
	s.observed = true
	return nil
}

// observeNode adds a node to the lists of the scope that it belongs to.
func (r *Reconciler) observeNode(s *scope, pools *pools, self *membership.Pool, node *corev1.Node) error {
	read := r.index.read(node)
	if !pools.concerns(self.Name, read) {
		return nil
	}
	has, selects := read.Incumbent() == self.Name, self.Selects(read.OwnLabels())
	claim, in, change, err := pools.plan(read)
	if err != nil {
		return fmt.Errorf("planning node %q: %w", node.Name, err)
	}
	switch {
	case in != nil && in.gives.Name == self.Name:
		s.nodes = append(s.nodes, member{node.Name, members.Readiness(node) == corev1.ConditionTrue})
		evicting := in.gives.Evicting(read)
		if len(evicting) > 0 && connectivity.Held(node) {
			s.kept = append(s.kept, node.Name)
			evicting = nil
			_, selected := pools.Assign(claim)
			gives := in.gives.WithoutEvicting(read)
			if change, err = read.Plan(&gives, selected); err != nil {
				return fmt.Errorf("planning node %q: %w", node.Name, err)
			}
		}
		if !change.Empty() {
			s.behind = append(s.behind, node.Name)
		}
		for _, t := range evicting {
			if !slices.ContainsFunc(s.evicting, func(has corev1.Taint) bool { return sameTaint(has, t) }) {
				s.evicting = append(s.evicting, t)
			}
		}
	case has:
		s.leaving = append(s.leaving, node.Name)
	}
	switch {
	case !selects || self.Deleting:
	case claim.Chosen != "" && claim.Chosen != self.Name:
		s.elsewhere = append(s.elsewhere, node.Name)
	case in != nil && in.gives.Name != self.Name:
		s.contested = append(s.contested, node.Name)
	}
	return nil
}

// isSyncing reports whether nodes are being written, and nothing keeps them from it.
func (s *scope) isSyncing() bool {
	return len(s.behind)+len(s.leaving) > 0 && len(s.failed) == 0 && !s.delay.waits()
}

// statusDiffers reports whether the status has to be written.
func statusDiffers(before, after *apps.NodePool) bool {
	return !equality.Semantic.DeepEqual(before.Status, after.Status)
}

// setStatus sets the pool's status from what was observed. Of the condition Ready it sets
// the first reason that applies.
func setStatus(s *scope) {
	status := &s.pool.Status
	status.ObservedGeneration = s.pool.Generation
	status.Nodes, status.ReadyNode, status.NotReadyNode = nil, 0, 0
	var notReady, names []string
	for _, node := range s.nodes {
		names = append(names, node.name)
		if node.ready {
			status.ReadyNode++
			continue
		}
		status.NotReadyNode++
		notReady = append(notReady, node.name)
	}
	status.Nodes = names
	set := func(kind string, is metav1.ConditionStatus, reason, message string) {
		conditions.Set(&status.Conditions, s.pool.Generation, kind, is, reason, message)
	}

	synced, syncReason, syncMessage := metav1.ConditionTrue, apps.ReasonSynced, "every node carries what the pool gives"
	switch behind := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(s.behind), s.leaving...)))); {
	case len(s.failed) > 0:
		synced, syncReason, syncMessage = metav1.ConditionFalse, apps.ReasonSyncFailed, members.Message(s.failed)
	case len(behind) > 0 && s.delay.waits():
		synced, syncReason, syncMessage = metav1.ConditionFalse, apps.ReasonTaintsWait, waitsFor(&s.delay)
	case s.isSyncing():
		synced, syncReason, syncMessage = metav1.ConditionFalse, apps.ReasonSyncing, "nodes that are being written: "+conditions.List(behind)
	case len(s.kept) > 0:
		synced, syncReason, syncMessage = metav1.ConditionFalse, apps.ReasonTaintsWait, "NoExecute taints wait for nodes that are cut off from the cloud: "+conditions.List(s.kept)
	}
	set(apps.ConditionAttributesSynced, synced, syncReason, syncMessage)

	tolerated, toleratedReason, toleratedMessage := metav1.ConditionTrue, apps.ReasonTolerated, "no NoExecute taint of the pool waits for tolerations"
	switch {
	case s.delay.failed != nil:
		tolerated, toleratedReason, toleratedMessage = metav1.ConditionUnknown, apps.ReasonObservationFailed, waitsFor(&s.delay)
	case s.delay.waits():
		tolerated, toleratedReason, toleratedMessage = metav1.ConditionFalse, apps.ReasonTaintsWait, waitsFor(&s.delay)
	}
	set(apps.ConditionTaintsTolerated, tolerated, toleratedReason, toleratedMessage)

	alone, aloneReason, aloneMessage := metav1.ConditionTrue, apps.ReasonUncontested, "no node that spec.selector matches is in another pool"
	switch {
	case len(s.contested) > 0:
		alone, aloneReason, aloneMessage = metav1.ConditionFalse, apps.ReasonNodesContested, "nodes that spec.selector matches and that are in another pool: "+conditions.List(s.contested)
	case len(s.elsewhere) > 0:
		aloneMessage = namesAnother + conditions.List(s.elsewhere)
	}
	set(apps.ConditionUncontested, alone, aloneReason, aloneMessage)

	protected, protectedReason, protectedMessage := protection(s)
	set(apps.ConditionMembershipProtected, protected, protectedReason, protectedMessage)

	ready, reason, message := metav1.ConditionTrue, apps.ReasonNodesReady, "every node in the pool is Ready"
	no := metav1.ConditionFalse
	switch {
	case s.pool.DeletionTimestamp != nil && len(names) > 0:
		ready, reason, message = no, apps.ReasonNodesLeft, "the pool is being deleted and still has nodes: "+conditions.List(names)+
			": kubectl label nodes -l "+apps.NodePoolLabel+"="+s.pool.Name+" "+apps.NodePoolLabel+"-; and, if it has a selector: kubectl patch nodepool "+s.pool.Name+` --type=merge -p '{"spec":{"selector":null}}'`
	case s.invalid != nil:
		ready, reason, message = no, apps.ReasonInvalid, s.invalid.Error()
	case len(s.ignored) > 0:
		ready, reason, message = no, apps.ReasonInvalid, "keys that a pool cannot give, and that are ignored: "+conditions.List(s.ignored)
	case synced != metav1.ConditionTrue:
		ready, reason, message = no, syncReason, syncMessage
	case alone != metav1.ConditionTrue:
		ready, reason, message = no, aloneReason, aloneMessage
	case len(names) == 0 && len(s.elsewhere) > 0:
		ready, reason, message = no, apps.ReasonNoNodes, namesAnother+conditions.List(s.elsewhere)
	case len(names) == 0:
		ready, reason, message = no, apps.ReasonNoNodes, "no node carries the label "+apps.NodePoolLabel+" with the pool's name, and spec.selector matches none"
	case len(notReady) > 0:
		ready, reason, message = no, apps.ReasonNodesNotReady, "nodes that are not Ready: "+conditions.List(notReady)
	}
	conditions.SetReady(&status.Conditions, s.pool.Generation, ready, reason, message, apps.IsStalled(reason))
}

// namesAnother begins a message about nodes that the selector matches.
const namesAnother = "nodes that spec.selector matches name another pool in their label " + apps.NodePoolLabel + ", which is first: "

// protection returns the condition MembershipProtected. It cannot be True: whether a policy
// of the cluster keeps kubelets from writing the label that names a pool is not known here.
func protection(s *scope) (is metav1.ConditionStatus, reason, message string) {
	const wayOut = ": select by labels below node-restriction.kubernetes.io/"
	switch {
	case s.invalid != nil:
		return metav1.ConditionUnknown, apps.ReasonInvalid, "the selector cannot be used"
	case s.joins == membership.JoinsAlone && len(s.joinKeys) == 0:
		return metav1.ConditionFalse, apps.ReasonNodesCanJoin, "a node without labels gets into the pool" + wayOut
	case s.joins == membership.JoinsAlone:
		return metav1.ConditionFalse, apps.ReasonNodesCanJoin, "a kubelet can put its node into the pool, because it may set these labels: " + conditions.List(s.joinKeys) + wayOut
	case s.joins == membership.JoinsWithOthers:
		return metav1.ConditionFalse, apps.ReasonNodesCanJoin, "a node that has the other labels can join by itself, because its kubelet may set these labels: " + conditions.List(s.joinKeys) + wayOut
	case s.joins == membership.JoinsUnguarded:
		return metav1.ConditionUnknown, apps.ReasonLabelGuardUnknown, "a kubelet can put its node into the pool by the label " + apps.NodePoolLabel + ", or by these labels, unless an admission policy of the cluster refuses that: " + conditions.List(s.joinKeys) + ": check that the chart's policy atoll-node-labels is installed"
	}
	return metav1.ConditionUnknown, apps.ReasonLabelGuardUnknown, "a kubelet can put its node into the pool by the label " + apps.NodePoolLabel + ", unless an admission policy of the cluster refuses that"
}

// waitsFor returns the message about what NoExecute taints wait for.
func waitsFor(d *delay) string {
	if d.failed != nil {
		return "NoExecute taints wait, 5 minutes at most: the pods that must tolerate them cannot be read: " + members.ReasonOf(d.failed)
	}
	return "NoExecute taints wait, 5 minutes at most, for the pods of these workloads to tolerate them: " + conditions.List(d.workloads)
}
