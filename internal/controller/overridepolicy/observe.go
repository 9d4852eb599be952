package overridepolicy

import (
	"cmp"
	"context"
	"slices"
	"time"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// scope is what one pass observed.
type scope struct {
	policy *gm.OverridePolicy
	rules  *override.Rules
	// invalid is the first reason why the spec cannot be used, or nil.
	invalid error
	// again is a wait for room for a policy that was not read, or nil.
	again error
	// unseen is why the pass could not observe workloads and pods, or nil. The status
	// then reports nothing else.
	unseen    error
	workloads []*workload
	// missing are the NodeGroups in the rules that do not exist or have no node.
	missing []string
}

// workload is what one pass observed of one workload.
type workload struct {
	*survey.Overridden
	// onlyOne: new pods bypass the webhook, so no more than one pod is replaced, and none
	// for the time bypassedFor.
	onlyOne     bool
	bypassedFor time.Duration
	// untried: it is not known whether the API server accepts the pods that the rules
	// make. untriedWhy is why the trial failed, or nil. doubt is why the API server would
	// refuse the successor of a running pod with and without the rules, or nil.
	untried           bool
	untriedWhy, doubt error
	// blocked is why pods are not replaced or restarted for now, or nil.
	blocked error
}

// observe observes every workload that requires the policy.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if s.invalid, s.again = r.Policies.Unread(s.policy); s.invalid != nil {
		return nil //nolint:nilerr // report puts it into the condition
	}
	rules, errs := r.Policies.Rules(s.policy)
	if len(errs) > 0 {
		s.invalid = errs[0]
		return nil
	}
	s.rules = rules
	s.missing = r.Policies.WithoutNodes(rules.Groups())
	objects := r.Walker.Requiring(owners.Override, s.policy.Namespace, s.policy.Name)
	slices.SortFunc(objects, func(a, b *ownership.Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for _, object := range objects {
		observed, err := r.Overridden(ctx, s.policy, rules, object)
		if err != nil {
			s.workloads = nil // no phase acts on a part of the workloads
			return err
		}
		w := &workload{Overridden: observed}
		r.recall(ctx, s, w)
		s.workloads = append(s.workloads, w)
	}
	return nil
}

// recall sets what is known of a workload from trials and from passes before.
func (r *Reconciler) recall(ctx context.Context, s *scope, w *workload) {
	if plan := r.Policies.TrialPlan(ctx, w.Object, s.policy, s.rules); len(plan.Groups) > 0 {
		trial, _ := r.Policies.Trial(w.Object.UID)
		w.untried = trial.Key != plan.Key || trial.Untried != nil || trial.Doubt != nil
		w.untriedWhy, w.doubt = trial.Untried, trial.Doubt
	}
	w.onlyOne, w.bypassedFor = r.memory.see(w, r.Clock.Now())
}
