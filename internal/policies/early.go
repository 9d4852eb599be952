package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// What keeps a workload from an OverridePolicy that changes fields which
// cannot change once a pod exists.
var (
	errNeedsPropagation = errors.New("it changes fields that cannot change once a pod exists, so the NodeGroup must be known at creation: let the workload require a PropagationPolicy too")
	errNeedsGroup       = errors.New("nobody changes images while a pod is scheduled in the form Pinned, so the NodeGroup must be known at creation: let the workload require a PropagationPolicy too")
	errIsLate           = errors.New("it changes fields that cannot change once a pod exists, and spec.assignment of the PropagationPolicy is Late: set it to Auto")
	errIsPod            = errors.New("it changes fields that cannot change once a pod exists, and a pod without an owner exists already: let a workload own the pod")
)

// ErrStopped: the workload gave up pods that had been overridden, and a person
// has to look at it.
var ErrStopped = errors.New("overrides are stopped, because the workload gave up overridden pods and went on making others: mend the policy, delete those pods, then take the annotation " +
	gm.OverridesStoppedAnnotation + " off the workload")

// Usable tells why a workload cannot be bound to the OverridePolicy that it
// requires although its rules are valid, or nil.
func (b *Resolver) Usable(ctx context.Context, app *ownership.Object, rules *override.Rules) error {
	if app.OverridesStopped {
		return ErrStopped
	}
	fixed := rules.TouchesImmutableAnywhere()
	if !fixed && b.asked {
		return nil
	}
	if fixed {
		if err := b.usableFixed(app, rules); err != nil {
			return err
		}
	}
	if app.Kind == "DaemonSet" {
		return nil
	}
	placed := b.walker.ApplicationOfOwner(app.UID).Propagation
	switch {
	case placed == nil && fixed:
		return errNeedsPropagation
	case placed == nil:
		return errNeedsGroup
	case !fixed:
		return nil
	}
	policy, err := b.Propagation(ctx, placed.Namespace, placed.Policies.RequiredPropagation)
	if err == nil && !b.early(policy) {
		return errIsLate
	}
	return nil // a PropagationPolicy that is missing keeps pods waiting by itself
}

// usableFixed tells why rules that change what cannot change later cannot be
// used for a workload, wherever its pods go.
func (b *Resolver) usableFixed(app *ownership.Object, rules *override.Rules) error {
	if app.Kind == "Pod" {
		return errIsPod
	}
	if err := b.keepsPods(app, rules); err != nil {
		return err
	}
	if t, found := b.Trial(app.UID); found && t.Refused != nil {
		return t.Refused
	}
	return nil
}

// keepsPods refuses rules with which owners would lose their pods and make
// others without end: a label changes by which an owner finds its pods, or pods
// come to an end that their owner wants to run.
func (b *Resolver) keepsPods(app *ownership.Object, rules *override.Rules) error {
	labels, ends := rules.Labels(), rules.ChangesLifetime()
	if len(labels) == 0 && ends == "" {
		return nil
	}
	var below []*ownership.Object
	for _, uid := range b.walker.Descendants(app.UID) {
		if o := b.walker.Get(uid); o != nil && uid != app.UID {
			below = append(below, o)
		}
	}
	slices.SortFunc(below, func(a, b *ownership.Object) int { // the message names the same one each time
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	for _, o := range append([]*ownership.Object{app}, below...) {
		for _, change := range labels {
			if slices.Contains(o.Selector.Keys(), change.Key) {
				return override.RuleError{Rule: change.Rule, Overrider: change.Path, Err: fmt.Errorf(
					"must not change the label %s: %s %q finds its pods by %s", change.Key, o.Kind, o.Name, o.Selector)}
			}
		}
		if ends != "" && o.Kind != "Job" && o.Kind != "CronJob" {
			return fmt.Errorf("%s: must not change when a pod ends: %s %q makes a new pod for each that does", ends, o.Kind, o.Name)
		}
	}
	return nil
}

// selected are the labels by which the owners of a pod find it. Those above the
// direct one find their own objects by others, so only its selector has to be known.
func selected(owners []*ownership.Object) override.Selected {
	var s override.Selected
	for i, o := range owners {
		s.Keys = append(s.Keys, o.Selector.Keys()...)
		s.Unknown = s.Unknown || i == 0 && !o.Selector.Known()
	}
	return s
}

// early tells whether pods get their seat at creation: always where nobody asks
// the extender.
func (b *Resolver) early(policy *gm.PropagationPolicy) bool {
	return !b.asked || policy.Spec.Assignment != gm.AssignmentLate
}

// Creation is what the pods of an application are to be from their creation on.
type Creation struct {
	// Policy is the OverridePolicy whose Rules are in force; both are nil
	// without one.
	Policy *gm.OverridePolicy
	Rules  *override.Rules
	// Early: pods get their seat at creation.
	Early bool
	// Fixed: some rule changes what cannot change later.
	Fixed bool
	// Waiting: kube-scheduler was refused nodes for other pods of the owner a
	// while ago, so that new ones get their seat at creation, too. Not so where
	// nobody makes a pod anew that waits there for too long.
	Waiting bool
	// AtOnce: the pod is to have its overrides from its creation on, or is kept to
	// its groups from then on: nobody could do that while it is scheduled.
	AtOnce bool
	// Selected are the labels by which the owners find the pod.
	Selected override.Selected
}

// Version tells policies, and the generations of one, apart.
func (c *Creation) Version() string {
	if c.Policy == nil {
		return ""
	}
	return Version(c.Policy)
}

// Version tells OverridePolicies, and the generations of one, apart.
func Version(policy *gm.OverridePolicy) string {
	return fmt.Sprintf("%s/%d", policy.UID, policy.Generation)
}

// Creation reads what the pods of an application are to be from their creation
// on, as it will be once the application carries the binding labels. A policy
// that is missing counts as none; one that cannot be used is an error.
func (b *Resolver) Creation(ctx context.Context, a Assignment) (Creation, error) {
	c := Creation{AtOnce: !b.asked && a.Application.Propagation != nil}
	if err := b.creationRules(ctx, a.Application.Override, &c); err != nil && !a.Application.Override.IgnoreMissing {
		return c, err
	}
	c.Selected = selected(a.Owners)
	o := a.Application.Propagation
	if o == nil || !a.Counted {
		return c, nil
	}
	policy, err := b.Propagation(ctx, o.Namespace, o.Policies.RequiredPropagation)
	if err != nil {
		return c, client.IgnoreNotFound(err)
	}
	c.Early = b.early(policy)
	if owner := b.walker.Get(a.Cohort.Owner); owner != nil && owner.Kind != "Job" && owner.Kind != "Pod" {
		c.Waiting = b.ledger.Refused(a.Cohort.Owner)
	}
	return c, nil
}

func (b *Resolver) creationRules(ctx context.Context, o *ownership.Object, c *Creation) error {
	if o == nil {
		return nil
	}
	policy, err := b.Override(ctx, o.Namespace, o.Policies.RequiredOverride)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	rules, errs := b.Rules(policy)
	if len(errs) > 0 {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, errs[0])
	}
	if err := b.Usable(ctx, o, rules); err != nil {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	c.Policy, c.Rules, c.Fixed = policy, rules, rules.TouchesImmutableAnywhere()
	c.AtOnce = c.Fixed || !b.asked
	return nil
}
