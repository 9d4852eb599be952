package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Refusal is what the API server said against the pods that a rule makes.
type Refusal struct{ override.RuleError }

// Unwrap returns the RuleError.
func (r Refusal) Unwrap() error { return r.RuleError }

// Trial is what the API server said of the pods that an OverridePolicy makes of
// a workload's template.
type Trial struct {
	// Key is what was tried: see TrialPlan.
	Key string
	// Rules and Template stand for the rules and the template that were tried.
	Rules, Template string
	// Refused is the API server's answer, a Refusal; nil if it
	// takes the pods.
	Refused error
	// Untried is what kept it from being asked; nil if it answered.
	Untried error
	// Again is when it is asked again, Wait after it was asked last.
	Again time.Time
	Wait  time.Duration
}

// TrialPlan is what is to be tried.
type TrialPlan struct {
	// Rules changes with the policy and the groups, Key with the workload's spec too.
	Rules, Key string
	// Groups has one group for each thing that the rules do in some group that
	// the workload's pods may get. Empty: nothing is to be tried, because pods
	// are created without anything that the API server could refuse.
	Groups []string
}

// TrialPlan tells what has to be tried before pods of the workload are created
// as the rules want them. Images alone are no reason: their form is checked
// when the policy is compiled.
func (b *Resolver) TrialPlan(ctx context.Context, app *ownership.Object, policy *gm.OverridePolicy, rules *override.Rules) TrialPlan {
	path := b.walker.PodTemplatePath(app.GroupKind())
	if !rules.TouchesImmutableAnywhere() || len(path) == 0 {
		return TrialPlan{}
	}
	plan := TrialPlan{}
	seen := map[string]bool{}
	var hashes []string
	for _, group := range b.groupsOf(ctx, app, rules) {
		hash := rules.Hash(group)
		if hash != "" && !seen[hash] && rules.TouchesImmutable(group) {
			seen[hash] = true
			hashes = append(hashes, hash)
			plan.Groups = append(plan.Groups, group)
		}
	}
	if len(plan.Groups) == 0 {
		return TrialPlan{}
	}
	slices.Sort(hashes)
	plan.Rules = Version(policy) + " " + strings.Join(hashes, ",")
	plan.Key = fmt.Sprint(plan.Rules, " ", app.Generation, " ", strings.Join(path, "."))
	return plan
}

// AnyOtherGroup stands for the groups that no rule names. It cannot be the name
// of one.
const AnyOtherGroup = "*"

// groupsOf are the groups that the pods of a workload may get: those of its
// PropagationPolicy, and without one all that rules tell apart.
func (b *Resolver) groupsOf(ctx context.Context, app *ownership.Object, rules *override.Rules) []string {
	all := append(rules.Groups(), AnyOtherGroup)
	placed := b.walker.ApplicationOfOwner(app.UID).Propagation
	if placed == nil || app.Kind == "DaemonSet" {
		return all
	}
	policy, err := b.Propagation(ctx, placed.Namespace, placed.Policies.RequiredPropagation)
	if err != nil {
		return all
	}
	spread, err := b.Spread(policy, placed.Ties())
	if err != nil {
		return all
	}
	return slices.Sorted(slices.Values(slices.Concat(spread.Groups(), spread.Missing())))
}

// OnTrial adds a handler that is told of every trial of a workload. It must not
// block. Call before anything runs.
func (b *Resolver) OnTrial(h func(app types.UID)) { b.onTrial = append(b.onTrial, h) }

// SetTrial records what came of a trial.
func (b *Resolver) SetTrial(app types.UID, t Trial) {
	b.mu.Lock()
	if _, known := b.trials[app]; !known && len(b.trials) >= maxKept {
		clear(b.trials)
	}
	b.trials[app] = t
	b.mu.Unlock()
	for _, h := range b.onTrial {
		h(app)
	}
}

// DropTrial forgets a workload.
func (b *Resolver) DropTrial(app types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.trials, app)
}

// Trial is the last trial of a workload. It may be of other rules, or of
// another template, than there are now; found is false if there was none.
func (b *Resolver) Trial(app types.UID) (t Trial, found bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t, found = b.trials[app]
	return t, found
}
