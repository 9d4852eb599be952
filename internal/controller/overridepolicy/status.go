package overridepolicy

import (
	"errors"
	"fmt"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// setStatus writes what was observed into the policy's status. What could not
// be observed stays as it was last seen, and the condition says so.
func setStatus(s *scope) {
	status := &s.policy.Status
	set := func(ready metav1.ConditionStatus, reason, message string) {
		conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, ready, reason, message)
	}
	if s.unseen != nil {
		set(metav1.ConditionUnknown, gm.ReasonObservationFailed, conditions.Bounded(s.unseen.Error()))
		return
	}
	status.ObservedGeneration = s.policy.Generation
	if s.invalid != nil {
		status.Workloads, status.Apps = 0, nil // what they were says nothing about this spec
		set(metav1.ConditionFalse, gm.ReasonInvalid, conditions.Bounded(s.invalid.Error()))
		return
	}
	status.Workloads = int32(len(s.apps))
	sort.SliceStable(s.apps, func(i, j int) bool { return s.apps[i].severity() > s.apps[j].severity() })
	status.Apps = nil
	pods := 0
	for i, a := range s.apps {
		pods += a.pods
		if i >= maxShown {
			continue
		}
		status.Apps = append(status.Apps, gm.AppOverrides{
			Ref:  gm.AppReference{APIVersion: a.app.GroupVersion().String(), Kind: a.app.Kind, Name: a.app.Name},
			Pods: int32(a.pods), Updated: int32(a.updated), Message: a.message(),
		})
	}
	switch {
	case len(s.apps) == 0:
		set(metav1.ConditionTrue, gm.ReasonNotUsed, "no workload of the namespace requires the policy with the label "+gm.RequiredOverridePolicyLabel)
	case s.apps[0].severity() > missing || s.apps[0].severity() == missing && pods > 0:
		worst := verdicts[s.apps[0].severity()]
		set(worst.ready, s.apps[0].reason(), s.apps[0].describe())
	case pods == 0:
		set(metav1.ConditionUnknown, gm.ReasonNoPods, "no workload that requires the policy has a pod on a node of a NodeGroup")
	default:
		set(metav1.ConditionTrue, gm.ReasonSatisfied, "every pod is as the rules of its NodeGroup want it")
	}
}

// verdict is what a workload's state makes of the policy's condition.
type verdict struct {
	ready  metav1.ConditionStatus
	reason string
}

// The states of a workload, the worst last.
const (
	satisfied = iota
	missing
	converging
	untried
	podsRefused
	unusable
)

var verdicts = [...]verdict{
	satisfied:   {metav1.ConditionTrue, gm.ReasonSatisfied},
	missing:     {metav1.ConditionFalse, gm.ReasonConverging},
	converging:  {metav1.ConditionFalse, gm.ReasonConverging},
	untried:     {metav1.ConditionUnknown, gm.ReasonNotTried},
	podsRefused: {metav1.ConditionFalse, gm.ReasonPodsRefused},
	unusable:    {metav1.ConditionFalse, gm.ReasonInvalid},
}

// severity is the state of the workload.
func (a *appScope) severity() int {
	switch {
	case a.failure != nil:
		return unusable
	case a.refused != "":
		return podsRefused
	case a.why != nil:
		return untried
	case a.converging():
		return converging
	case a.missing > 0:
		return missing
	default:
		return satisfied
	}
}

// converging tells whether some pod is not as wanted, be it one that waits and
// is to be made anew.
func (a *appScope) converging() bool { return a.updated < a.pods || len(a.stale) > 0 }

// reason is that of the workload's state; of rules that cannot be used, it says
// who found that.
func (a *appScope) reason() string {
	var refused policies.Refusal
	switch {
	case errors.Is(a.failure, policies.ErrStopped):
		return gm.ReasonStopped
	case errors.As(a.failure, &refused):
		return gm.ReasonRefused
	}
	return verdicts[a.severity()].reason
}

func (a *appScope) message() string {
	switch {
	case a.failure != nil:
		return conditions.Bounded(a.failure.Error())
	case a.refused != "":
		return conditions.Bounded("the API server creates no pods: " + a.refused)
	case a.why != nil:
		return conditions.Bounded("it could not be found out whether the API server takes the pods that the rules make: " + a.why.Error())
	case !a.converging() && a.missing > 0:
		return fmt.Sprintf("pods are missing: %d of %d", a.missing, a.replicas)
	case !a.converging():
		return ""
	case a.blocked != nil:
		return "pods are to be replaced and stay for now: " + a.blocked.Error()
	case a.mode != gm.ReschedulingEvict && a.updated < a.pods:
		return fmt.Sprintf("running pods keep their images: rescheduling.mode of the PropagationPolicy is %s", a.mode)
	case a.kept > 0 && a.kept == a.pods-a.updated && len(a.stale) == 0:
		return "pods of a Job stay as they started"
	default:
		return "pods are being changed or replaced"
	}
}

func (a *appScope) describe() string {
	return fmt.Sprintf("%s %q: %s", a.app.Kind, a.app.Name, a.message())
}
