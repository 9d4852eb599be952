// Package policies prepares policies for decisions about pods. It joins a pod's
// workload, the policies that the workload is bound to, and the groups that have
// nodes. It keeps compiled policies until the policy or a group changes.
//
// It reads from caches only. It decides nothing.
package policies

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// maxKept bounds what the Resolver keeps of workloads, and of policies, in one namespace. When
// there is more, all of it is forgotten, and made again when it is needed. The counts of
// on-demand pods have this bound for all namespaces.
const maxKept = 20_000

// Resolver compiles policies. Safe for concurrent use.
type Resolver struct {
	reader client.Reader // a cache
	walker *owners.Walker
	ledger *seats.Ledger
	clock  clock.PassiveClock
	// extenderInUse is true if some kube-scheduler calls the extender, which gives
	// pods their seat and their images while they are scheduled.
	extenderInUse bool

	spreads *compiled[spreadEntry]
	rules   *compiled[rulesEntry]

	mu     sync.Mutex
	since  *kept[since] // by policy
	trials *kept[Trial] // by workload

	// budgets are those of the caches of policies.
	budgets []*budget.Budget

	// classes are the capacity classes; nil if they are not in use.
	classes *capacity.Classes
	// namespaces holds the capacity settings of namespaces that have any, by name.
	namespaces      map[string]ownership.Capacity
	namespacesKnown atomic.Bool
	// counts holds the last valid count of on-demand pods of each workload, by its UID.
	counts map[types.UID]int
	// excluded are the namespaces whose pods the webhooks do not see.
	excluded sets.Set[string]
	// fallbackAfter is how long a class has to be without nodes before pods may fall
	// back to the other class.
	fallbackAfter time.Duration
	// held is the reason why pods of a workload stay at the gate although all policies
	// exist, by the UID of the workload.
	held map[types.UID]string

	// Handlers are added before anything runs and not changed afterwards.
	onTrial, onHeld []func(workload types.UID)
	onNamespace     []func(name string)
}

// spreadEntry is a compiled PropagationPolicy, for no workload yet. It is valid while the
// generation of the policy and the epoch of the ledger's groups are the same, and before
// until.
type spreadEntry struct {
	generation int64
	epoch      uint64
	spread     placement.Spread
	digest     uint64 // of spread
	err        error
	until      time.Time // when the next group will be away if nothing changes; zero if none
}

// since is when a policy began to divide pods as it does now. It outlives the spread, which
// may be forgotten and compiled again.
type since struct {
	digest uint64
	at     time.Time
}

type rulesEntry struct {
	generation int64
	rules      *override.Rules
	errs       []override.RuleError
}

// NewResolver returns a Resolver that reads policies from a cache. extenderInUse is
// true if some kube-scheduler calls the extender.
func NewResolver(reader client.Reader, walker *owners.Walker, ledger *seats.Ledger, clock clock.PassiveClock, extenderInUse bool) *Resolver {
	return &Resolver{
		reader: reader, walker: walker, ledger: ledger, clock: clock, extenderInUse: extenderInUse,
		since:   newKept[since](maxKept),
		spreads: newCompiled[spreadEntry](maxSpreads, maxSpreadsInAll),
		rules:   newCompiled[rulesEntry](maxRules, maxRulesInAll),
		trials:  newKept[Trial](maxKept),
		held:    map[types.UID]string{},

		namespaces: map[string]ownership.Capacity{}, excluded: sets.New[string](),
		counts: map[types.UID]int{}, fallbackAfter: DefaultFallback,
	}
}

// ExtenderInUse returns true if some kube-scheduler calls the extender. If none does, a pod
// gets its group and its overrides when it is created, or waits for them at the gate.
func (r *Resolver) ExtenderInUse() bool { return r.extenderInUse }

// Propagation reads a PropagationPolicy from the cache. It returns an error for which
// budget.IsUnread is true if the policy was left out of the cache.
func (r *Resolver) Propagation(ctx context.Context, namespace, name string) (*gm.PropagationPolicy, error) {
	policy := &gm.PropagationPolicy{}
	if err := r.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, policy); err != nil {
		return nil, fmt.Errorf("reading PropagationPolicy %s/%s: %w", namespace, name, err)
	}
	if err := budget.Unread(policy); err != nil {
		return nil, fmt.Errorf("reading PropagationPolicy %s/%s: %w", namespace, name, err)
	}
	return policy, nil
}

// Newcomers returns the labels that make a node a new member of a NodeGroup; see
// membership.Newcomers. It returns nil for a group that is not in the cache.
func (r *Resolver) Newcomers(ctx context.Context, group string) [][]corev1.NodeSelectorRequirement {
	g := &gm.NodeGroup{}
	if err := r.reader.Get(ctx, types.NamespacedName{Name: group}, g); err != nil {
		return nil
	}
	return membership.Newcomers(g)
}

// Override reads an OverridePolicy from the cache, as Propagation does.
func (r *Resolver) Override(ctx context.Context, namespace, name string) (*gm.OverridePolicy, error) {
	policy := &gm.OverridePolicy{}
	if err := r.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, policy); err != nil {
		return nil, fmt.Errorf("reading OverridePolicy %s/%s: %w", namespace, name, err)
	}
	if err := budget.Unread(policy); err != nil {
		return nil, fmt.Errorf("reading OverridePolicy %s/%s: %w", namespace, name, err)
	}
	return policy, nil
}

// Spread compiles a policy for one workload. Groups whose nodes have not been Ready
// for the failover time of the policy are marked as away. The error names the field
// that makes the policy unusable.
func (r *Resolver) Spread(policy *gm.PropagationPolicy, workload types.UID) (placement.Spread, error) {
	e := r.spread(policy)
	return e.spread.For(workload), e.err
}

// spread compiles a policy, unless that is kept.
func (r *Resolver) spread(policy *gm.PropagationPolicy) spreadEntry {
	if err := budget.Unread(policy); err != nil {
		return spreadEntry{err: err} // not kept: the generation stays when it is read
	}
	valid := func(e spreadEntry) bool {
		return e.generation == policy.Generation && e.epoch == r.ledger.GroupsEpoch() && (e.until.IsZero() || r.clock.Now().Before(e.until))
	}
	return r.spreads.value(policy.Namespace, policy.UID, valid, func() (spreadEntry, int64) {
		e := spreadEntry{generation: policy.Generation, epoch: r.ledger.GroupsEpoch()}
		if e.spread, e.err = placement.New(policy.Spec, r.ledger.HasMembers, ""); e.err == nil && policy.Spec.Failover != nil {
			e.spread, e.until = r.withoutAway(e.spread, policy.Spec.Failover.After(), r.clock.Now())
		}
		e.digest = e.spread.Digest()
		r.dividesSince(policy, e.digest)
		return e, e.weight()
	})
}

// weight returns the weight of a spread in the unit of maxSpreads.
func (e *spreadEntry) weight() int64 {
	const fixed = 8
	names := len(e.spread.Groups()) + len(e.spread.Missing())
	if len(e.spread.Away()) > 0 {
		names *= 2 // Home too
	}
	return int64(fixed + names)
}

// dividesSince returns since when a policy has divided pods as it does now.
func (r *Resolver) dividesSince(policy *gm.PropagationPolicy, digest uint64) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.since.get(policy.UID)
	if !known || last.digest != digest {
		last = since{digest: digest, at: r.clock.Now()}
		r.since.put(policy.Namespace, policy.UID, last)
	}
	return last.at
}

// withoutAway marks as away the groups that have had no Ready node for the given time.
// It returns when the next group will be away if nothing changes; zero if none.
func (r *Resolver) withoutAway(spread placement.Spread, after time.Duration, now time.Time) (rest placement.Spread, until time.Time) {
	rest = spread.WithoutAway(func(group string) bool {
		since, lost := r.ledger.NotReadySince(group)
		if !lost {
			return false
		}
		at := since.Add(after)
		if !now.Before(at) {
			return true
		}
		if until.IsZero() || at.Before(until) {
			until = at
		}
		return false
	})
	return rest, until
}

// ChangesAt returns when the next group of a policy will be away if its nodes stay as
// they are; zero if none. No event is sent at that time, so callers set a timer.
func (r *Resolver) ChangesAt(policy *gm.PropagationPolicy) time.Time { return r.spread(policy).until }

// SettlesAt returns when the stabilization time of a policy will be over: its length
// after the last change of the policy or of the members of its groups, whenever a workload
// began to require the policy. It returns zero for a policy that is unusable.
func (r *Resolver) SettlesAt(policy *gm.PropagationPolicy) time.Time {
	e := r.spread(policy)
	if e.err != nil {
		return time.Time{}
	}
	last := r.dividesSince(policy, e.digest)
	for _, groups := range [][]string{e.spread.Groups(), e.spread.Missing()} {
		if moved := r.ledger.MovedAt(groups...); moved.After(last) {
			last = moved
		}
	}
	return last.Add(policy.Spec.Rescheduling.Stabilization())
}

// Rules compiles an OverridePolicy. Each error names the rule and the field that make
// the policy unusable.
func (r *Resolver) Rules(policy *gm.OverridePolicy) (*override.Rules, []override.RuleError) {
	if err := budget.Unread(policy); err != nil {
		return nil, []override.RuleError{{Overrider: "spec", Err: err}}
	}
	valid := func(e rulesEntry) bool { return e.generation == policy.Generation }
	e := r.rules.value(policy.Namespace, policy.UID, valid, func() (rulesEntry, int64) {
		e := rulesEntry{generation: policy.Generation}
		e.rules, e.errs = override.Compile(policy.Spec)
		return e, budget.SizeOf(policy.Spec)
	})
	return e.rules, e.errs
}

// Assignment holds the data that a decision about one pod needs.
type Assignment struct {
	// PolicyOwners holds the owners that require policies.
	PolicyOwners ownership.PolicyOwners
	// Cohort is the set of pods with which the pod is counted: those of the same owner
	// and revision.
	Cohort seats.Cohort
	// Total is the number of pods that the cohort may grow to.
	Total int
	// Counted is false for pods of a DaemonSet: each node has one, so there is nothing
	// to divide.
	Counted bool
	// Job is true if a Job owns the pod, directly or not. Such a pod is never evicted
	// in order to be recreated, so it may start without its overrides.
	Job bool
	// Spread is set if PolicyOwners.Propagation is bound.
	Spread placement.Spread
	// Owners are the owners of the pod, the direct one first.
	Owners []*ownership.Object
}

// Divided returns true if a PropagationPolicy divides the pods to which this one
// belongs. Only such pods get a seat.
func (a *Assignment) Divided() bool { return a.Counted && a.PolicyOwners.Propagation != nil }

// SeatRequest returns the request for the seat of a pod, or of a pod in creation, by its token.
func (r *Resolver) SeatRequest(a *Assignment, pod types.UID) seats.Request {
	request := seats.Request{Pod: pod, Cohort: a.Cohort, Total: a.Total, Spread: a.Spread}
	if o := a.PolicyOwners.Propagation; o != nil {
		if divided := ownership.Divided(a.Owners, o.UID); divided != nil {
			request.Workload = r.walker.Descendants(divided.UID)
		}
	}
	return request
}

// Allows returns true if a pod that is not divided may be on a node of the group.
func (a *Assignment) Allows(group string) bool {
	return a.PolicyOwners.Propagation == nil || slices.Contains(a.Spread.Taking(), group)
}

// Revision returns the revision of a pod with this controller and these labels.
func (r *Resolver) Revision(controller *ownership.Reference, labels map[string]string) string {
	return r.walker.Revision(controller, labels)
}

// Chain returns a pod and its owners: see owners.Walker.Chain.
func (r *Resolver) Chain(ctx context.Context, pod *ownership.Object) ([]*ownership.Object, error) {
	return r.walker.Chain(ctx, pod)
}

// Assignment joins the data about a pod. Spread is set only if the workload is bound
// to its PropagationPolicy. It returns an error if that policy is missing or unusable.
func (r *Resolver) Assignment(ctx context.Context, pod *ownership.Object, revision string) (Assignment, error) {
	chain, err := r.walker.Chain(ctx, pod)
	if err != nil {
		return Assignment{}, err
	}
	return r.assignment(ctx, chain, revision, false)
}

// AssignmentOnceBound returns the Assignment that a pod will have once its workload carries the
// binding labels: it treats each required policy as bound. chain is owners.Walker.Chain of the pod.
func (r *Resolver) AssignmentOnceBound(ctx context.Context, chain []*ownership.Object, revision string) (Assignment, error) {
	return r.assignment(ctx, chain, revision, true)
}

func (r *Resolver) assignment(ctx context.Context, chain []*ownership.Object, revision string, prospect bool) (Assignment, error) {
	pod, policyOwners := chain[0], ownership.PolicyOwnersOfPod(chain)
	a := Assignment{PolicyOwners: policyOwners, Cohort: seats.Cohort{Owner: pod.UID, Revision: revision}, Counted: true, Total: 1}
	a.Owners = chain[1:]
	if len(chain) > 1 {
		a.Cohort.Owner = chain[1].UID
		a.Counted = chain[1].Kind != "DaemonSet"
	}
	a.Job = slices.ContainsFunc(chain[1:], func(o *ownership.Object) bool { return o.Kind == "Job" })
	if policyOwners.Propagation == nil {
		return a, nil
	}
	for _, o := range chain[1:] {
		if o.Replicas != nil {
			a.Total = max(a.Total, int(*o.Replicas))
		}
		if o == policyOwners.Propagation {
			break
		}
	}
	if !prospect && policyOwners.Propagation.Policies.Propagation() != ownership.Bound {
		return a, nil
	}
	policy, err := r.Propagation(ctx, pod.Namespace, policyOwners.Propagation.Policies.RequiredPropagation)
	if err != nil {
		return a, err
	}
	a.Spread, err = r.Spread(policy, policyOwners.Propagation.Ties())
	if !a.Counted {
		a.Spread = a.Spread.Home() // nothing is divided, so no group takes over the share of one that is away
	}
	if err != nil {
		return a, fmt.Errorf("using PropagationPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	return a, nil
}
