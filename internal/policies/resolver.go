// Package policies makes policies ready for decisions: it joins a pod's
// application, the policies that it is bound to and the groups that have
// nodes, and keeps what it compiled for as long as none of them changes.
//
// It reads caches only and decides nothing.
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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// maxKept bounds the number of compiled policies that are kept; beyond it all
// are dropped and compiled again when asked for.
const maxKept = 20_000

// Resolver compiles policies. Safe for concurrent use.
type Resolver struct {
	reader client.Reader // a cache
	walker *owners.Walker
	ledger *seats.Ledger
	clock  clock.PassiveClock
	// asked: some kube-scheduler asks the extender, which gives pods their seat and
	// their images while they are scheduled.
	asked bool

	mu      sync.Mutex
	spreads map[spreadKey]spreadEntry
	rules   map[types.UID]rulesEntry
	trials  map[types.UID]Trial

	// classes are those of capacity; nil where they are not in use.
	classes *capacity.Classes
	// namespaces are what namespaces say about them, where they say something, and
	// counts the last count of a workload that could be used.
	namespaces      map[string]ownership.Capacity
	namespacesKnown atomic.Bool
	counts          map[types.UID]int
	// excluded are namespaces whose pods no webhook of ours sees.
	excluded map[string]bool
	// fallbackAfter is after how long without a node pods of a class may fall back to
	// the other one.
	fallbackAfter time.Duration
	// held is why pods of workloads stay at the gate that could leave it.
	held map[types.UID]string

	onTrial, onHeld []func(app types.UID) // set before anything runs
	onNamespace     []func(name string)
}

type spreadKey struct{ policy, app types.UID }

type spreadEntry struct {
	generation int64
	epoch      uint64
	spread     placement.Spread
	err        error
	since      time.Time // when the spread came to divide as it does
	until      time.Time // when a group comes to be away, if nothing changes; the zero time if none does
}

type rulesEntry struct {
	generation int64
	rules      *override.Rules
	errs       []override.RuleError
}

// NewResolver makes a book that reads policies from a cache. asked tells whether
// some kube-scheduler asks the extender.
func NewResolver(reader client.Reader, walker *owners.Walker, ledger *seats.Ledger, clock clock.PassiveClock, asked bool) *Resolver {
	return &Resolver{
		reader: reader, walker: walker, ledger: ledger, clock: clock, asked: asked,
		spreads: map[spreadKey]spreadEntry{},
		rules:   map[types.UID]rulesEntry{},
		trials:  map[types.UID]Trial{},
		held:    map[types.UID]string{},

		namespaces: map[string]ownership.Capacity{}, excluded: map[string]bool{},
		counts: map[types.UID]int{}, fallbackAfter: DefaultFallback,
	}
}

// Asked tells whether some kube-scheduler asks the extender. Where none does,
// pods get all that they need at their creation, or wait at the gate for it.
func (b *Resolver) Asked() bool { return b.asked }

// Propagation reads a PropagationPolicy from the cache.
func (b *Resolver) Propagation(ctx context.Context, namespace, name string) (*gm.PropagationPolicy, error) {
	policy := &gm.PropagationPolicy{}
	if err := b.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, policy); err != nil {
		return nil, fmt.Errorf("reading PropagationPolicy %s/%s: %w", namespace, name, err)
	}
	return policy, nil
}

// Newcomers are what a node needs to become a member of a NodeGroup; see
// membership.Newcomers. A group that is not in the cache has none.
func (b *Resolver) Newcomers(ctx context.Context, group string) [][]corev1.NodeSelectorRequirement {
	g := &gm.NodeGroup{}
	if err := b.reader.Get(ctx, types.NamespacedName{Name: group}, g); err != nil {
		return nil
	}
	return membership.Newcomers(g)
}

// Override reads an OverridePolicy from the cache.
func (b *Resolver) Override(ctx context.Context, namespace, name string) (*gm.OverridePolicy, error) {
	policy := &gm.OverridePolicy{}
	if err := b.reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, policy); err != nil {
		return nil, fmt.Errorf("reading OverridePolicy %s/%s: %w", namespace, name, err)
	}
	return policy, nil
}

// Spread makes a policy ready for one application, with the groups that are
// away by now. The error names the field that makes the policy unusable.
func (b *Resolver) Spread(policy *gm.PropagationPolicy, app types.UID) (placement.Spread, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.spreadLocked(policy, app)
	return e.spread, e.err
}

func (b *Resolver) spreadLocked(policy *gm.PropagationPolicy, app types.UID) spreadEntry {
	key := spreadKey{policy: policy.UID, app: app}
	epoch, now := b.ledger.GroupsEpoch(), b.clock.Now()
	if e, ok := b.spreads[key]; ok && e.generation == policy.Generation && e.epoch == epoch && (e.until.IsZero() || now.Before(e.until)) {
		return e
	}
	e := spreadEntry{generation: policy.Generation, epoch: epoch, since: now}
	if e.spread, e.err = placement.New(policy.Spec, b.ledger.HasMembers, app); e.err == nil && policy.Spec.Failover != nil {
		e.spread, e.until = b.withoutAway(e.spread, policy.Spec.Failover.After(), now)
	}
	last, known := b.spreads[key]
	if known && last.spread.Equal(e.spread) {
		e.since = last.since
	}
	if !known && len(b.spreads) >= maxKept {
		clear(b.spreads)
	}
	b.spreads[key] = e
	return e
}

// withoutAway leaves groups out of which no node has been Ready for a time, and
// tells when the next one will have to be; the zero time is never.
func (b *Resolver) withoutAway(spread placement.Spread, after time.Duration, now time.Time) (rest placement.Spread, until time.Time) {
	rest = spread.WithoutAway(func(group string) bool {
		since, lost := b.ledger.NotReadySince(group)
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

// ChangesAt is when a group of a policy comes to be away if its nodes stay as
// they are: nothing else tells of it. The zero time is never.
func (b *Resolver) ChangesAt(policy *gm.PropagationPolicy, app types.UID) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spreadLocked(policy, app).until
}

// SettlesAt is when a policy will have been as it is, with the members that its
// groups have, for the stabilization time that it asks for.
func (b *Resolver) SettlesAt(policy *gm.PropagationPolicy, app types.UID) time.Time {
	spread, err := b.Spread(policy, app)
	if err != nil {
		return time.Time{}
	}
	b.mu.Lock()
	last := b.spreads[spreadKey{policy: policy.UID, app: app}].since
	b.mu.Unlock()
	for _, groups := range [][]string{spread.Groups(), spread.Missing()} {
		if moved := b.ledger.MovedAt(groups...); moved.After(last) {
			last = moved
		}
	}
	return last.Add(policy.Spec.Rescheduling.Stabilization())
}

// Rules makes an override policy ready. Each error names the rule and the
// field that make the policy unusable.
func (b *Resolver) Rules(policy *gm.OverridePolicy) (*override.Rules, []override.RuleError) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.rules[policy.UID]; ok && e.generation == policy.Generation {
		return e.rules, e.errs
	}
	if _, known := b.rules[policy.UID]; !known && len(b.rules) >= maxKept {
		clear(b.rules)
	}
	e := rulesEntry{generation: policy.Generation}
	e.rules, e.errs = override.Compile(policy.Spec)
	b.rules[policy.UID] = e
	return e.rules, e.errs
}

// Assignment is all that a decision about one pod needs.
type Assignment struct {
	// Application says which owners require policies.
	Application ownership.Application
	// Cohort is what the pod is counted with.
	Cohort seats.Cohort
	// Total is the number of pods that the cohort may come to have.
	Total int
	// Counted is false for the pods of a DaemonSet: there is one a node, and
	// nothing to divide.
	Counted bool
	// Job: the pod is a Job's, directly or not. It is never made anew by evicting
	// it, so it may start as it is.
	Job bool
	// Spread is set when Application.Propagation is bound.
	Spread placement.Spread
	// Owners are those above the pod, its direct owner first.
	Owners []*ownership.Object
}

// Divided tells whether the pod gets a seat: it is one of those that a
// PropagationPolicy divides.
func (a *Assignment) Divided() bool { return a.Counted && a.Application.Propagation != nil }

// Takes tells whether a pod that is not divided may be on a node of the group.
func (a *Assignment) Takes(group string) bool {
	return a.Application.Propagation == nil || slices.Contains(a.Spread.Taking(), group)
}

// Revision is the revision of a pod with this controller and these labels.
func (b *Resolver) Revision(controller *ownership.Reference, labels map[string]string) string {
	return b.walker.Revision(controller, labels)
}

// Assignment joins what is known of a pod. Its Spread is set only if the
// propagation labels of the application are bound; the policy behind them may
// be gone or unusable all the same, which is an error.
func (b *Resolver) Assignment(ctx context.Context, pod *ownership.Object, revision string) (Assignment, error) {
	return b.assignment(ctx, pod, revision, false)
}

// Prospect is the Assignment that a pod will have once its application carries
// the binding labels: a policy that is required counts as bound.
func (b *Resolver) Prospect(ctx context.Context, pod *ownership.Object, revision string) (Assignment, error) {
	return b.assignment(ctx, pod, revision, true)
}

func (b *Resolver) assignment(ctx context.Context, pod *ownership.Object, revision string, prospect bool) (Assignment, error) {
	app, chain, err := b.walker.Application(ctx, pod)
	if err != nil {
		return Assignment{}, err
	}
	a := Assignment{Application: app, Cohort: seats.Cohort{Owner: pod.UID, Revision: revision}, Counted: true, Total: 1}
	a.Owners = chain[1:]
	if len(chain) > 1 {
		a.Cohort.Owner = chain[1].UID
		a.Counted = chain[1].Kind != "DaemonSet"
	}
	a.Job = slices.ContainsFunc(chain[1:], func(o *ownership.Object) bool { return o.Kind == "Job" })
	if app.Propagation == nil {
		return a, nil
	}
	for _, o := range chain[1:] {
		if o.Replicas != nil {
			a.Total = max(a.Total, int(*o.Replicas))
		}
		if o == app.Propagation {
			break
		}
	}
	if !prospect && app.Propagation.Policies.Propagation() != ownership.Bound {
		return a, nil
	}
	policy, err := b.Propagation(ctx, pod.Namespace, app.Propagation.Policies.RequiredPropagation)
	if err != nil {
		return a, err
	}
	a.Spread, err = b.Spread(policy, app.Propagation.Ties())
	if !a.Counted {
		a.Spread = a.Spread.Home() // one pod a node, and nothing to divide
	}
	if err != nil {
		return a, fmt.Errorf("using PropagationPolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	return a, nil
}
