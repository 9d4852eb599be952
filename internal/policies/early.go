package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Reasons why a workload cannot be bound to an OverridePolicy. All but errNeedsGroup
// are about fields that cannot change once a pod exists.
var (
	errNeedsPropagation = errors.New("it changes fields that cannot change once a pod exists, so the NodeGroup must be known at creation: let the workload require a PropagationPolicy too")
	errNeedsGroup       = errors.New("in the form Pinned images are set when a pod is created, so the NodeGroup must be known at creation: let the workload require a PropagationPolicy too")
	errIsLate           = errors.New("it changes fields that cannot change once a pod exists, and spec.assignment of the PropagationPolicy is Late: set it to Auto")
	errIsPod            = errors.New("it changes fields that cannot change once a pod exists, and a pod without an owner exists already: let a workload own the pod")
)

// ErrStopped is returned for a workload whose owner gave up overridden pods, that is,
// released them and created others. A person has to correct this.
var ErrStopped = errors.New("overrides are stopped, because the workload gave up overridden pods and created others again and again: correct the policy, delete those pods, then remove the annotation " +
	gm.OverridesStoppedAnnotation + " from the workload")

// Usable returns nil if a workload can be bound to the OverridePolicy that it requires,
// and otherwise the reason why not. The rules are valid in themselves.
func (r *Resolver) Usable(ctx context.Context, workload *ownership.Object, rules *override.Rules) error {
	if workload.OverridesStopped {
		return ErrStopped
	}
	fixed := rules.TouchesImmutableAnywhere()
	if fixed {
		if err := r.usableFixed(workload, rules); err != nil {
			return err
		}
	}
	if t, found := r.Trial(workload.UID); found && t.Refused != nil {
		return t.Refused
	}
	if !fixed && r.extenderInUse {
		return nil
	}
	if workload.Kind == "DaemonSet" {
		return nil
	}
	placed := r.walker.PolicyOwnersOf(workload.UID).Propagation
	switch {
	case placed == nil && fixed:
		return errNeedsPropagation
	case placed == nil:
		return errNeedsGroup
	case !fixed:
		return nil
	}
	policy, err := r.Propagation(ctx, placed.Namespace, placed.Policies.RequiredPropagation)
	if err == nil && !r.early(policy) {
		return errIsLate
	}
	return nil // pods wait for a missing PropagationPolicy in any case
}

// usableFixed returns the reason why rules that change immutable fields cannot be used
// for a workload in any group, nil if they can.
func (r *Resolver) usableFixed(workload *ownership.Object, rules *override.Rules) error {
	if workload.Kind == "Pod" {
		return errIsPod
	}
	return r.checkOwnersKeepPods(workload, rules)
}

// checkOwnersKeepPods refuses rules that would make owners create pods without end:
// rules that change a label by which an owner finds its pods, and rules that make pods
// end that their owner wants to keep running.
func (r *Resolver) checkOwnersKeepPods(workload *ownership.Object, rules *override.Rules) error {
	labels, ends := rules.Labels(), rules.ChangesLifetime()
	if len(labels) == 0 && ends == "" {
		return nil
	}
	var below []*ownership.Object
	for _, uid := range r.walker.Descendants(workload.UID) {
		if o := r.walker.Get(uid); o != nil && uid != workload.UID {
			below = append(below, o)
		}
	}
	slices.SortFunc(below, func(a, b *ownership.Object) int { // so that the message names the same object each time
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	for _, o := range append([]*ownership.Object{workload}, below...) {
		for _, change := range labels {
			if slices.Contains(o.Selector.Keys(), change.Key) {
				return override.RuleError{Rule: change.Rule, Overrider: change.Path, Err: fmt.Errorf(
					"must not change the label %s: %s %q finds its pods by %s", change.Key, o.Kind, o.Name, o.Selector)}
			}
		}
		if ends != "" && o.Kind != "Job" && o.Kind != "CronJob" {
			return fmt.Errorf("%s: must not change when a pod ends: %s %q creates a new pod for each pod that ends", ends, o.Kind, o.Name)
		}
	}
	return nil
}

// selected returns the label keys by which the owners of a pod find it. Unknown is set
// only if the selector of the direct owner is unknown: the owners above it select
// other objects, not the pod.
func selected(owners []*ownership.Object) override.Selected {
	var s override.Selected
	for i, o := range owners {
		s.Keys = append(s.Keys, o.Selector.Keys()...)
		s.Unknown = s.Unknown || i == 0 && !o.Selector.Known()
	}
	return s
}

// early returns true if pods get their seat at creation. That is always so if no
// kube-scheduler calls the extender.
func (r *Resolver) early(policy *gm.PropagationPolicy) bool {
	return !r.extenderInUse || policy.Spec.Assignment != gm.AssignmentLate
}

// Creation describes what the pods of a workload get when they are created.
type Creation struct {
	// Policy is the OverridePolicy in force, and Rules are its compiled rules. Both are
	// nil without one.
	Policy *gm.OverridePolicy
	Rules  *override.Rules
	// Missing is true if the workload requires an OverridePolicy that is not there, or that the
	// cache does not hold yet, and its pods have to wait for it.
	Missing bool
	// Early is true if pods get their seat at creation.
	Early bool
	// Fixed is true if some rule changes a field that cannot change once a pod exists.
	Fixed bool
	// Waiting is true if the extender recently refused all nodes for other pods of the
	// owner. New pods then get their seat at creation, too. It is always false for pods
	// of Jobs and pods without an owner: nothing recreates them if they wait too long.
	Waiting bool
	// AtOnce is true if the pod has to get its overrides, or be restricted to its
	// groups, at creation, because that is not possible while it is scheduled.
	AtOnce bool
	// Selected are the label keys by which the owners find the pod.
	Selected override.Selected
}

// Version identifies the policy and its generation; "" without a policy.
func (c *Creation) Version() string {
	if c.Policy == nil {
		return ""
	}
	return Version(c.Policy)
}

// Version identifies an OverridePolicy and its generation.
func Version(policy *gm.OverridePolicy) string {
	return fmt.Sprintf("%s/%d", policy.UID, policy.Generation)
}

// Creation returns what the pods of a workload get at creation, as if the workload
// carried the binding labels of the policies that it requires already. A missing policy
// has no rules: see Creation.Missing. A policy that cannot be used is an error.
func (r *Resolver) Creation(ctx context.Context, a Assignment) (Creation, error) {
	c := Creation{AtOnce: !r.extenderInUse && a.PolicyOwners.Propagation != nil}
	if err := r.creationRules(ctx, a.PolicyOwners.Override, &c); err != nil && !a.PolicyOwners.Override.IgnoreMissing {
		return c, err
	}
	c.Selected = selected(a.Owners)
	o := a.PolicyOwners.Propagation
	if o == nil || !a.Counted {
		return c, nil
	}
	policy, err := r.Propagation(ctx, o.Namespace, o.Policies.RequiredPropagation)
	if err != nil {
		return c, client.IgnoreNotFound(err)
	}
	c.Early = r.early(policy)
	if owner := r.walker.Get(a.Cohort.Owner); owner != nil && owner.Kind != "Job" && owner.Kind != "Pod" {
		c.Waiting = r.ledger.Refused(a.Cohort.Owner)
	}
	return c, nil
}

func (r *Resolver) creationRules(ctx context.Context, o *ownership.Object, c *Creation) error {
	if o == nil {
		return nil
	}
	policy, err := r.Override(ctx, o.Namespace, o.Policies.RequiredOverride)
	if apierrors.IsNotFound(err) {
		c.Missing = !o.IgnoreMissing || o.Policies.Override() == ownership.Bound // another replica has read it
		return nil
	}
	if err != nil {
		return err
	}
	rules, errs := r.Rules(policy)
	if len(errs) > 0 {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, errs[0])
	}
	if err := r.Usable(ctx, o, rules); err != nil {
		return fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, err)
	}
	c.Policy, c.Rules, c.Fixed = policy, rules, rules.TouchesImmutableAnywhere()
	c.AtOnce = c.Fixed || !r.extenderInUse
	return nil
}
