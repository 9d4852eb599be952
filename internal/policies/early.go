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
	return nil //nolint:nilerr // a PropagationPolicy that is missing keeps pods waiting by itself
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
// on. Policies that are not bound count as none.
func (b *Book) Creation(ctx context.Context, a Assignment) (Creation, error) {
	var c Creation
	if o := a.Application.Override; o != nil && o.Policies.Override() == ownership.Bound {
		policy, err := b.Override(ctx, o.Namespace, o.Policies.RequiredOverride)
		if client.IgnoreNotFound(err) != nil {
			return c, err
		}
		if err == nil {
			rules, errs := b.Rules(policy)
			if len(errs) > 0 {
				return c, fmt.Errorf("using OverridePolicy %s/%s: %w", policy.Namespace, policy.Name, errs[0])
			}
			c.Policy, c.Rules, c.Fixed = policy, rules, rules.TouchesImmutableAnywhere()
		}
	}
	o := a.Application.Propagation
	if o == nil || o.Policies.Propagation() != ownership.Bound || !a.Counted {
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
	return c, nil
}
