// Package policy looks at policies and NodeGroups as they are written: it warns of what is
// accepted and spelled otherwise, and refuses what the schemas of the CRDs
// cannot. It reads the one object and nothing else.
package policy

import (
	"context"
	"fmt"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
)

// Where each kind is looked at.
const (
	NodeGroupPath   = "/validate-policies/nodegroup"
	PropagationPath = "/validate-policies/propagation"
	OverridePath    = "/validate-policies/override"
)

// SetupWithManager registers the webhook of each kind. asked tells whether some
// kube-scheduler asks the extender.
func SetupWithManager(mgr ctrl.Manager, asked bool) error {
	err := ctrl.NewWebhookManagedBy(mgr, &gm.NodeGroup{}).
		WithValidator(NodeGroup{}).WithValidatorCustomPath(NodeGroupPath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of NodeGroups: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, &gm.PropagationPolicy{}).
		WithValidator(Propagation{Asked: asked}).WithValidatorCustomPath(PropagationPath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of PropagationPolicies: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, &gm.OverridePolicy{}).
		WithValidator(Override{}).WithValidatorCustomPath(OverridePath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of OverridePolicies: %w", err)
	}
	return nil
}

// NodeGroup looks at NodeGroups: a selector that cannot be used is refused.
type NodeGroup struct{}

// ValidateCreate implements admission.Validator.
func (NodeGroup) ValidateCreate(_ context.Context, group *gm.NodeGroup) (admission.Warnings, error) {
	_, err := membership.Compile(group)
	return nil, err
}

// ValidateUpdate implements admission.Validator. A group that is on its way
// out is left alone: its finalizer has to come off.
func (g NodeGroup) ValidateUpdate(ctx context.Context, _, group *gm.NodeGroup) (admission.Warnings, error) {
	if group.DeletionTimestamp != nil {
		return nil, nil
	}
	return g.ValidateCreate(ctx, group)
}

// ValidateDelete implements admission.Validator.
func (NodeGroup) ValidateDelete(context.Context, *gm.NodeGroup) (admission.Warnings, error) {
	return nil, nil
}

// Propagation looks at PropagationPolicies.
type Propagation struct {
	// Asked: some kube-scheduler asks the extender.
	Asked bool
}

// ValidateCreate implements admission.Validator.
func (p Propagation) ValidateCreate(_ context.Context, policy *gm.PropagationPolicy) (admission.Warnings, error) {
	spread, err := placement.New(policy.Spec, func(string) bool { return true }, "")
	warnings := foldWarnings(spread.Folded())
	if policy.Spec.Rescheduling.Mode == gm.ReschedulingNever {
		warnings = append(warnings, "spec.rescheduling.mode: Never is deprecated and means OnRollout")
	}
	if policy.Spec.Assignment == gm.AssignmentLate && !p.Asked {
		warnings = append(warnings, "spec.assignment: Late is read as Early, because in the form Pinned no kube-scheduler asks the extender")
	}
	return warnings, err
}

// ValidateUpdate implements admission.Validator. A policy that is on its way
// out is left alone.
func (p Propagation) ValidateUpdate(ctx context.Context, _, policy *gm.PropagationPolicy) (admission.Warnings, error) {
	if policy.DeletionTimestamp != nil {
		return nil, nil
	}
	return p.ValidateCreate(ctx, policy)
}

// ValidateDelete implements admission.Validator.
func (Propagation) ValidateDelete(context.Context, *gm.PropagationPolicy) (admission.Warnings, error) {
	return nil, nil
}

// Override looks at OverridePolicies.
type Override struct{}

// ValidateCreate implements admission.Validator.
func (Override) ValidateCreate(_ context.Context, policy *gm.OverridePolicy) (admission.Warnings, error) {
	rules, errs := override.Compile(policy.Spec)
	if len(errs) > 0 {
		messages := make([]string, 0, len(errs))
		for _, err := range errs {
			messages = append(messages, err.Error())
		}
		return nil, fmt.Errorf("%s", strings.Join(messages, "; "))
	}
	warnings := foldWarnings(rules.Folded())
	for _, path := range rules.Aliases() {
		warnings = append(warnings, fmt.Sprintf(`%s: operator "update" is another spelling of "replace"`, path))
	}
	return warnings, nil
}

// ValidateUpdate implements admission.Validator. A policy that is on its way
// out is left alone.
func (o Override) ValidateUpdate(ctx context.Context, _, policy *gm.OverridePolicy) (admission.Warnings, error) {
	if policy.DeletionTimestamp != nil {
		return nil, nil
	}
	return o.ValidateCreate(ctx, policy)
}

// ValidateDelete implements admission.Validator.
func (Override) ValidateDelete(context.Context, *gm.OverridePolicy) (admission.Warnings, error) {
	return nil, nil
}

func foldWarnings(folded []string) admission.Warnings {
	var warnings admission.Warnings
	for _, name := range folded {
		warnings = append(warnings, fmt.Sprintf("NodeGroup names are lower case: %q is read as %q", name, strings.ToLower(name)))
	}
	return warnings
}
