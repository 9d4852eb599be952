package overridepolicy

import (
	"fmt"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// setStatus writes what was observed into the policy's status.
func setStatus(s *scope) {
	status := &s.policy.Status
	status.ObservedGeneration = s.policy.Generation
	if s.invalid != nil {
		status.Workloads, status.Apps = 0, nil // what they were says nothing about this spec
		conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, metav1.ConditionFalse, gm.ReasonInvalid, s.invalid.Error())
		return
	}
	status.Workloads = int32(len(s.apps))
	sort.SliceStable(s.apps, func(i, j int) bool { return s.apps[i].severity() > s.apps[j].severity() })
	status.Apps = nil
	for i, a := range s.apps {
		if i == maxShown {
			break
		}
		status.Apps = append(status.Apps, gm.AppOverrides{
			Ref:  gm.AppReference{APIVersion: a.app.GroupVersion().String(), Kind: a.app.Kind, Name: a.app.Name},
			Pods: int32(a.pods), Updated: int32(a.updated), Message: a.message(),
		})
	}
	ready, reason, message := metav1.ConditionTrue, gm.ReasonSatisfied, "every pod is as the rules of its NodeGroup want it"
	switch {
	case len(s.apps) == 0:
		reason, message = gm.ReasonNotUsed, "no workload of the namespace requires the policy with the label "+gm.RequiredOverridePolicyLabel
	case s.apps[0].failure != nil:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonInvalid, s.apps[0].describe()
	case s.apps[0].severity() > 0:
		ready, reason, message = metav1.ConditionFalse, gm.ReasonConverging, s.apps[0].describe()
	}
	conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, ready, reason, message)
}

// severity is 2 for a workload that a rule cannot be applied to, 1 for one
// with pods that are not as wanted, 0 for one that is.
func (a *appScope) severity() int {
	switch {
	case a.failure != nil:
		return 2
	case a.updated < a.pods:
		return 1
	default:
		return 0
	}
}

func (a *appScope) message() string {
	switch {
	case a.failure != nil:
		return a.failure.Error()
	case a.updated == a.pods:
		return ""
	case a.blocked != nil:
		return "pods are to be replaced and stay for now: " + a.blocked.Error()
	case a.mode != gm.ReschedulingEvict:
		return fmt.Sprintf("running pods keep their images: rescheduling.mode of the PropagationPolicy is %s", a.mode)
	case a.kept == a.pods-a.updated:
		return "pods of a Job stay as they started"
	default:
		return "pods are being changed or replaced"
	}
}

func (a *appScope) describe() string {
	return fmt.Sprintf("%s %q: %s", a.app.Kind, a.app.Name, a.message())
}
