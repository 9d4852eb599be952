package overridepolicy

import (
	"context"
	"errors"
	"fmt"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// report writes the status, if it changed.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	before := s.policy.DeepCopy()
	setStatus(s)
	return patch.Status(ctx, r.Client, s.policy, before)
}

// setStatus sets the policy's status from what was observed and done. If the pass could
// not observe, only the condition changes.
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
		status.Workloads, status.Apps = 0, nil // the last ones belong to another spec
		set(metav1.ConditionFalse, gm.ReasonInvalid, conditions.Bounded(s.invalid.Error()))
		return
	}
	status.Workloads = int32(len(s.workloads))
	sort.SliceStable(s.workloads, func(i, j int) bool { return s.workloads[i].state() > s.workloads[j].state() })
	status.Apps = nil
	pods := 0
	for i, w := range s.workloads {
		pods += w.Pods
		if i >= maxShown {
			continue
		}
		status.Apps = append(status.Apps, gm.WorkloadOverrides{
			Ref:  gm.WorkloadReference{APIVersion: w.Object.GroupVersion().String(), Kind: w.Object.Kind, Name: w.Object.Name},
			Pods: int32(w.Pods), Updated: int32(w.Updated), Message: w.message(),
		})
	}
	switch {
	case len(s.workloads) == 0:
		set(metav1.ConditionTrue, gm.ReasonNotUsed, "no workload of the namespace requires the policy with the label "+gm.RequiredOverridePolicyLabel)
	case s.workloads[0].state() > missing || s.workloads[0].state() == missing && pods > 0:
		worst := s.workloads[0]
		set(states[worst.state()].ready, worst.reason(), fmt.Sprintf("%s %q: %s", worst.Object.Kind, worst.Object.Name, worst.message()))
	case len(s.missing) > 0:
		set(metav1.ConditionFalse, gm.ReasonNodeGroupsMissing, "rules change no pod in NodeGroups that do not exist or have no node: "+conditions.List(s.missing))
	case pods == 0:
		set(metav1.ConditionUnknown, gm.ReasonNoPods, "no workload that requires the policy has a pod on a node of a NodeGroup")
	default:
		set(metav1.ConditionTrue, gm.ReasonSatisfied, "every pod is as the rules of its NodeGroup want it")
	}
}

// state is the state of a workload. The policy's condition shows the workload with the
// highest one.
type state int

const (
	satisfied state = iota
	missing
	converging
	untried
	podsRefused
	unusable
)

// states holds the condition that each state leads to.
var states = [...]struct {
	ready  metav1.ConditionStatus
	reason string
}{
	satisfied:   {metav1.ConditionTrue, gm.ReasonSatisfied},
	missing:     {metav1.ConditionFalse, gm.ReasonConverging},
	converging:  {metav1.ConditionFalse, gm.ReasonConverging},
	untried:     {metav1.ConditionUnknown, gm.ReasonOverrideNotTried},
	podsRefused: {metav1.ConditionFalse, gm.ReasonPodsRefused},
	unusable:    {metav1.ConditionFalse, gm.ReasonInvalid},
}

func (w *workload) state() state {
	switch {
	case w.Failure != nil:
		return unusable
	case w.Refused != "":
		return podsRefused
	case w.untriedWhy != nil:
		return untried
	case w.converging():
		return converging
	case w.Missing > 0:
		return missing
	default:
		return satisfied
	}
}

// converging returns whether a pod is not as the rules want it. A pod that waits and is to
// be replaced counts.
func (w *workload) converging() bool { return w.Updated < w.Pods || len(w.Stale) > 0 }

// reason returns the reason of the workload's state. If the rules cannot be used, it
// depends on the cause.
func (w *workload) reason() string {
	var refused policies.Refusal
	switch {
	case errors.Is(w.Failure, policies.ErrStopped):
		return gm.ReasonOverridesStopped
	case errors.As(w.Failure, &refused):
		return gm.ReasonOverrideRefused
	}
	return states[w.state()].reason
}

// message returns why the workload is not as the rules want it, "" if it is.
func (w *workload) message() string {
	switch {
	case w.Failure != nil:
		return conditions.Bounded(w.Failure.Error())
	case w.Refused != "":
		return conditions.Bounded("the API server creates no pods: " + w.Refused)
	case w.untriedWhy != nil:
		return conditions.Bounded("it is not known whether the API server accepts the pods that the rules make: " + w.untriedWhy.Error())
	case !w.converging() && w.Missing > 0:
		return fmt.Sprintf("pods are missing: %d of %d", w.Missing, w.Replicas)
	case !w.converging():
		return ""
	case w.blocked != nil:
		return "pods are to be replaced and stay for now: " + w.blocked.Error()
	case w.Mode != gm.ReschedulingEvict && w.Updated < w.Pods:
		return fmt.Sprintf("running pods keep their images: rescheduling.mode of the PropagationPolicy is %s", w.Mode)
	case w.Kept > 0 && w.Kept == w.Pods-w.Updated && len(w.Stale) == 0:
		return "pods that run until they are done stay as they started"
	default:
		return "pods are being changed or replaced"
	}
}
