package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Refusal is the error with which the API server refused the pods that a rule makes.
type Refusal struct{ override.RuleError }

// Unwrap returns the RuleError.
func (r Refusal) Unwrap() error { return r.RuleError }

// Trial is the result of a dry run: whether the API server accepts the pods that an
// OverridePolicy makes of a workload's template.
type Trial struct {
	// Key identifies what was tried: see TrialPlan.
	Key string
	// Rules and Template identify the rules and the template that were tried.
	Rules, Template string
	// Refused is the API server's error, a Refusal; nil if it accepts the pods.
	Refused error
	// Answer is what the API server answered to all rules in the group of Refused.
	Answer string
	// Doubt is why the API server would refuse the successor of a running pod with and
	// without the rules, or nil.
	Doubt error
	// Untried is the error that prevented the dry run; nil if the API server answered.
	Untried error
	// Accepted are the hashes of the rules in the groups that were tried without a refusal of
	// the rules, while Untried is set: the next trial of the same rules and template goes on
	// from there. Doubt is about these groups then.
	Accepted sets.Set[string]
	// Again is the earliest time of the next dry run, Wait after the last one. A trial is
	// repeated if its result is Refused, Doubt or Untried, or if the API server refuses the
	// workload's pods although the trial found them accepted.
	Again time.Time
	Wait  time.Duration
}

// TrialPlan lists what has to be tried.
type TrialPlan struct {
	// Rules changes with the policy and the groups. Key also changes with the
	// workload's spec.
	Rules, Key string
	// Groups holds one group for each different effect that the rules have in the
	// groups that the workload's pods may get. If it is empty nothing has to be tried:
	// no rule changes anything.
	Groups []string
}

// TrialPlan returns what has to be tried before pods of the workload are created with
// the overrides of the policy.
func (r *Resolver) TrialPlan(ctx context.Context, workload *ownership.Object, policy *gm.OverridePolicy, rules *override.Rules) TrialPlan {
	path := r.walker.PodTemplatePath(workload.GroupKind())
	if len(path) == 0 {
		return TrialPlan{}
	}
	plan := TrialPlan{}
	hashes := sets.New[string]()
	for _, group := range r.groupsOf(ctx, workload, rules) {
		hash := rules.Hash(group)
		if hash != "" && !hashes.Has(hash) {
			hashes.Insert(hash)
			plan.Groups = append(plan.Groups, group)
		}
	}
	if len(plan.Groups) == 0 {
		return TrialPlan{}
	}
	plan.Rules = Version(policy) + " " + strings.Join(sets.List(hashes), ",")
	plan.Key = fmt.Sprint(plan.Rules, " ", workload.Generation, " ", strings.Join(path, "."))
	return plan
}

// AnyOtherGroup stands for all groups that no rule names. No NodeGroup can have this
// name.
const AnyOtherGroup = "*"

// groupsOf returns the groups that the pods of a workload may get: those of its
// PropagationPolicy, or without one those that the rules name, and AnyOtherGroup.
func (r *Resolver) groupsOf(ctx context.Context, workload *ownership.Object, rules *override.Rules) []string {
	all := append(rules.Groups(), AnyOtherGroup)
	placed := r.walker.PolicyOwnersOf(workload.UID).Propagation
	if placed == nil || workload.Kind == "DaemonSet" {
		return all
	}
	policy, err := r.Propagation(ctx, placed.Namespace, placed.Policies.RequiredPropagation)
	if err != nil {
		return all
	}
	spread, err := r.Spread(policy, placed.Ties())
	if err != nil {
		return all
	}
	return slices.Sorted(slices.Values(slices.Concat(spread.Groups(), spread.Missing())))
}

// OnTrial adds a handler that is called after each trial of a workload. The handler
// must not block. OnTrial must be called before anything runs.
func (r *Resolver) OnTrial(h func(workload types.UID)) { r.onTrial = append(r.onTrial, h) }

// SetTrial records the result of a trial.
func (r *Resolver) SetTrial(workload types.UID, t Trial) {
	namespace := r.walker.NamespaceOf(workload)
	r.mu.Lock()
	r.trials.put(namespace, workload, t)
	r.mu.Unlock()
	for _, h := range r.onTrial {
		h(workload)
	}
}

// DropTrial deletes the result of a workload's last trial.
func (r *Resolver) DropTrial(workload types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trials.drop(workload)
}

// Trial returns the result of the last trial of a workload. The rules or the template
// may have changed since. found is false if there was no trial.
func (r *Resolver) Trial(workload types.UID) (t Trial, found bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trials.get(workload)
}
