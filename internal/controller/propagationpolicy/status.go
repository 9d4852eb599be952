package propagationpolicy

import (
	"fmt"
	"sort"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// severity orders the reasons: the worst is the policy's.
var severity = map[string]int{
	gm.ReasonSatisfied: 0, gm.ReasonConverging: 1, gm.ReasonPodsWaiting: 2,
	gm.ReasonNoFeasibleTarget: 3, gm.ReasonBlockedByPDB: 4, gm.ReasonGroupsAway: 5, gm.ReasonGroupsMissing: 6,
	gm.ReasonPodsRefused: 7,
}

// setStatus writes what was observed and planned into the policy's status.
func setStatus(s *scope) {
	status := &s.policy.Status
	if s.unseen != nil { // what was seen last stays
		conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, metav1.ConditionUnknown, gm.ReasonObservationFailed, conditions.Bounded(s.unseen.Error()))
		return
	}
	status.ObservedGeneration = s.policy.Generation
	if s.invalid != nil {
		status.Workloads, status.Apps = 0, nil // what they were says nothing about this spec
		conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, metav1.ConditionFalse, gm.ReasonInvalid, s.invalid.Error())
		return
	}
	status.Workloads = int32(len(s.apps))
	sort.SliceStable(s.apps, func(i, j int) bool { return severity[s.apps[i].reason] > severity[s.apps[j].reason] })
	status.Apps = nil
	pods := int32(0)
	for i, a := range s.apps {
		for _, group := range a.plan.spread.Groups {
			pods += group.Current
		}
		if i < maxShown {
			status.Apps = append(status.Apps, a.plan.spread)
		}
	}
	ready, reason, message := metav1.ConditionTrue, gm.ReasonSatisfied, "every pod is in its NodeGroup"
	switch {
	case len(s.apps) == 0:
		reason, message = gm.ReasonNotUsed, "no workload of the namespace requires the policy with the label "+gm.RequiredPropagationPolicyLabel
	case s.apps[0].reason != gm.ReasonSatisfied:
		worst := s.apps[0]
		ready, reason = metav1.ConditionFalse, worst.reason
		message = fmt.Sprintf("%s %q: %s", worst.app.Kind, worst.app.Name, worst.plan.spread.Message)
	case pods == 0:
		ready, reason, message = metav1.ConditionUnknown, gm.ReasonNoPods, "no workload that requires the policy has a pod on a node of a NodeGroup"
	}
	conditions.Set(&status.Conditions, s.policy.Generation, gm.ConditionReady, ready, reason, message)
}
