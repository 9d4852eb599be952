package policies

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// What keeps a workload from an OverridePolicy that changes fields which
// cannot change once a pod exists.
var (
	errNeedsPropagation = errors.New("it changes fields that cannot change once a pod exists, so the NodeGroup must be known at creation: let the workload require a PropagationPolicy too")
	errIsLate           = errors.New("it changes fields that cannot change once a pod exists, and spec.assignment of the PropagationPolicy is Late: set it to Auto")
	errIsPod            = errors.New("it changes fields that cannot change once a pod exists, and a pod without an owner exists already: let a workload own the pod")
)

// Usable tells why a workload cannot be bound to the OverridePolicy that it
// requires although its rules are valid, or nil.
func (b *Book) Usable(ctx context.Context, app *ownership.Object, rules *override.Rules) error {
	if !rules.TouchesImmutableAnywhere() || app.Kind == "DaemonSet" {
		return nil
	}
	if app.Kind == "Pod" {
		return errIsPod
	}
	placed := b.walker.ApplicationOfOwner(app.UID).Propagation
	if placed == nil {
		return errNeedsPropagation
	}
	policy, err := b.Propagation(ctx, placed.Namespace, placed.Policies.RequiredPropagation)
	if err == nil && policy.Spec.Assignment == gm.AssignmentLate {
		return errIsLate
	}
	return nil // a PropagationPolicy that is missing keeps pods waiting by itself
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
func (b *Book) Creation(ctx context.Context, a Assignment) (Creation, error) {
	var c Creation
	if err := b.creationRules(ctx, a.Application.Override, &c); err != nil && !a.Application.Override.IgnoreMissing {
		return c, err
	}
	o := a.Application.Propagation
	if o == nil || !a.Counted {
		return c, nil
	}
	policy, err := b.Propagation(ctx, o.Namespace, o.Policies.RequiredPropagation)
	if err != nil {
		return c, client.IgnoreNotFound(err)
	}
	switch policy.Spec.Assignment {
	case gm.AssignmentEarly:
		c.Early = true
	case gm.AssignmentLate:
	default:
		c.Early = c.Fixed
	}
	if owner := b.walker.Get(a.Cohort.Owner); owner != nil && owner.Kind != "Job" && owner.Kind != "Pod" {
		c.Waiting = b.ledger.Refused(a.Cohort.Owner)
	}
	return c, nil
}

func (b *Book) creationRules(ctx context.Context, o *ownership.Object, c *Creation) error {
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
	return nil
}
