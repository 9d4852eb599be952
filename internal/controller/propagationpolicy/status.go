package propagationpolicy

import (
	"context"
	"fmt"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
)

// report writes the status, if it changed, and the gauges.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if s.unseen == nil {
		r.tallies.set(client.ObjectKeyFromObject(s.policy), tallyOf(s))
	}
	before := s.policy.DeepCopy()
	setStatus(s)
	return patch.Status(ctx, r.Client, s.policy, before)
}

// setStatus sets the policy's status from what was observed and planned. If the pass
// could not observe, only the condition changes.
func setStatus(s *scope) {
	status := &s.policy.Status
	set := func(ready metav1.ConditionStatus, reason, message string) {
		conditions.SetReady(&status.Conditions, s.policy.Generation, ready, reason, message, gm.IsStalled(reason))
	}
	if s.unseen != nil {
		set(metav1.ConditionUnknown, gm.ReasonObservationFailed, conditions.Bounded(s.unseen.Error()))
		return
	}
	status.ObservedGeneration = s.policy.Generation
	if s.invalid != nil {
		status.Workloads, status.Apps, status.Strategy = 0, nil, "" // the last ones belong to another spec
		set(metav1.ConditionFalse, gm.ReasonInvalid, s.invalid.Error())
		return
	}
	status.Strategy = placement.Strategy(&s.policy.Spec)
	status.Workloads = int32(len(s.workloads))
	sort.SliceStable(s.workloads, func(i, j int) bool { return s.workloads[i].severity() > s.workloads[j].severity() })
	status.Apps = nil
	pods, groups := int32(0), 0
	for i, w := range s.workloads {
		groups += len(w.plan.Spread.Groups)
		for _, group := range w.plan.Spread.Groups {
			pods += group.Current
		}
		if i == 0 || i < maxShown && groups <= maxShownGroups {
			status.Apps = append(status.Apps, w.plan.Spread)
		}
	}
	switch {
	case len(s.workloads) == 0:
		set(metav1.ConditionTrue, gm.ReasonNotUsed, "no workload of the namespace requires the policy with the label "+gm.RequiredPropagationPolicyLabel)
	case s.workloads[0].plan.Reason != gm.ReasonSatisfied:
		worst := s.workloads[0]
		set(metav1.ConditionFalse, worst.plan.Reason, fmt.Sprintf("%s %q: %s", worst.Object.Kind, worst.Object.Name, worst.plan.Spread.Message))
	case pods == 0:
		set(metav1.ConditionUnknown, gm.ReasonNoPods, "no workload that requires the policy has a pod on a node of a NodeGroup")
	default:
		set(metav1.ConditionTrue, gm.ReasonSatisfied, "every pod is in its NodeGroup")
	}
}

func (w *workload) severity() int { return rebalance.Severity(w.plan.Reason) }
