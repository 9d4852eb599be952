// Package policy validates NodeGroups, PropagationPolicies and OverridePolicies when
// they are created or updated, and asks before a NodeGroup with pods is deleted. It refuses what the schemas of the CRDs cannot refuse,
// and warns of values that are accepted but read in another way, and of NodeGroups that do
// not exist. Whether an object is refused depends on itself only, and on how much memory the
// policies of its namespace take together.
//
// A refusal has the form of the API server's own: HTTP 422, reason Invalid, and one
// cause for each fault, with the path of its field.
package policy

import (
	"context"
	"fmt"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// The path of the webhook of each kind.
const (
	NodeGroupPath   = "/validate-policies/nodegroup"
	PropagationPath = "/validate-policies/propagation"
	OverridePath    = "/validate-policies/override"
)

// Options are what the validators depend on.
type Options struct {
	// ExtenderInUse is true if some kube-scheduler calls the extender, which is so in all
	// forms but Pinned.
	ExtenderInUse bool
	// Fits returns an error if a policy is so large that it would not be used. nil accepts
	// every size.
	Fits func(policy client.Object) error
	// AbsentGroups returns those of the NodeGroups that do not exist. nil returns none.
	AbsentGroups func(ctx context.Context, groups []string) []string
	// Placing returns the PropagationPolicies that have pods in a NodeGroup, as namespace/name.
	// nil returns none.
	Placing func(ctx context.Context, group string) []string
}

// absentWarnings returns a warning if groups that a policy names do not exist. effect says what
// follows.
func (o Options) absentWarnings(ctx context.Context, groups []string, effect string) admission.Warnings {
	if o.AbsentGroups == nil {
		return nil
	}
	absent := o.AbsentGroups(ctx, groups)
	if len(absent) == 0 {
		return nil
	}
	return admission.Warnings{fmt.Sprintf("NodeGroups that do not exist: %s; until they do, %s", conditions.List(absent), effect)}
}

// fits returns the fault of a policy that is too large, nil if it is not.
func (o Options) fits(kind string, policy client.Object) error {
	if o.Fits == nil {
		return nil
	}
	if err := o.Fits(policy); err != nil {
		return invalid(kind, policy.GetName(), field.ErrorList{field.Invalid(field.NewPath("spec"), field.OmitValueType{}, err.Error())})
	}
	return nil
}

// SetupWithManager registers the webhook of each kind.
func SetupWithManager(mgr ctrl.Manager, options Options) error {
	err := ctrl.NewWebhookManagedBy(mgr, &gm.NodeGroup{}).WithLogConstructor(logOf).
		WithValidator(NodeGroup{options}).WithValidatorCustomPath(NodeGroupPath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of NodeGroups: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, &gm.PropagationPolicy{}).WithLogConstructor(logOf).
		WithValidator(Propagation{options}).WithValidatorCustomPath(PropagationPath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of PropagationPolicies: %w", err)
	}
	err = ctrl.NewWebhookManagedBy(mgr, &gm.OverridePolicy{}).WithLogConstructor(logOf).
		WithValidator(Override{options}).WithValidatorCustomPath(OverridePath).Complete()
	if err != nil {
		return fmt.Errorf("registering the webhook of OverridePolicies: %w", err)
	}
	return nil
}

// logOf returns the logger for a request. A request that cannot be decoded is not from an
// API server, and anybody can send any number of them, so it is not logged.
func logOf(base logr.Logger, request *admission.Request) logr.Logger {
	if request == nil {
		return logr.Discard()
	}
	return admission.DefaultLogConstructor(base, request)
}

// maxFaults bounds the faults that a refusal names. To put them together takes time and
// memory that grow with the square of their number.
const maxFaults = 20

// invalid returns the refusal of an object, nil if there are no faults.
func invalid(kind, name string, faults field.ErrorList) error {
	if len(faults) == 0 {
		return nil
	}
	if more := len(faults) - maxFaults; more > 0 {
		faults = append(faults[:maxFaults:maxFaults], field.Invalid(field.NewPath("spec"), field.OmitValueType{}, fmt.Sprintf("and %d more faults", more)))
	}
	return apierrors.NewInvalid(gm.GroupVersion.WithKind(kind).GroupKind(), name, faults)
}

// NodeGroup validates NodeGroups: it refuses selectors that cannot be used, and deletions that
// move pods unless they are confirmed.
type NodeGroup struct{ Options }

// maxSelectors is the maximum number of matchLabels, and of matchExpressions, in the schema
// of NodeGroups.
const maxSelectors = 64

// ValidateCreate implements admission.Validator.
func (NodeGroup) ValidateCreate(_ context.Context, group *gm.NodeGroup) (admission.Warnings, error) {
	// The API server checks the schema before it sends a request, but anybody may send
	// one. To compile selectors takes time that grows with the square of their number.
	for name, n := range map[string]int{"matchLabels": len(group.Spec.MatchLabels), "matchExpressions": len(group.Spec.MatchExpressions)} {
		if n > maxSelectors {
			return nil, invalid("NodeGroup", group.Name, field.ErrorList{field.TooMany(field.NewPath("spec", name), n, maxSelectors)})
		}
	}
	return nil, invalid("NodeGroup", group.Name, membership.Validate(group))
}

// ValidateUpdate implements admission.Validator. It accepts every update of a group
// that is being deleted, so that its finalizer can always be removed.
func (g NodeGroup) ValidateUpdate(ctx context.Context, _, group *gm.NodeGroup) (admission.Warnings, error) {
	if group.DeletionTimestamp != nil {
		return nil, nil
	}
	return g.ValidateCreate(ctx, group)
}

// ValidateDelete implements admission.Validator. Without the question, one command would empty a
// site within a minute.
func (g NodeGroup) ValidateDelete(ctx context.Context, group *gm.NodeGroup) (admission.Warnings, error) {
	if g.Placing == nil || group.DeletionTimestamp != nil || group.Annotations[gm.ConfirmDeletionAnnotation] == "true" {
		return nil, nil
	}
	if policies := g.Placing(ctx, group.Name); len(policies) > 0 {
		return nil, fmt.Errorf("its deletion moves the pods that PropagationPolicies have placed there: %s. Take the NodeGroup out of the policies first, or confirm: kubectl annotate nodegroup %s %s=true",
			conditions.List(policies), group.Name, gm.ConfirmDeletionAnnotation)
	}
	return nil, nil
}

// Propagation validates PropagationPolicies.
type Propagation struct{ Options }

// ValidateCreate implements admission.Validator.
func (p Propagation) ValidateCreate(ctx context.Context, policy *gm.PropagationPolicy) (admission.Warnings, error) {
	if err := p.fits("PropagationPolicy", policy); err != nil {
		return nil, err
	}
	// The spread of an invalid policy is empty; warnings about its other fields are still returned.
	spread, _ := placement.New(policy.Spec, func(string) bool { return true }, "")
	warnings := append(foldWarnings(spread.Folded()), p.absentWarnings(ctx, spread.Groups(), "the other NodeGroups get their share")...)
	if policy.Spec.Rescheduling.Mode == gm.ReschedulingNever {
		warnings = append(warnings, "spec.rescheduling.mode: Never is deprecated and means OnRollout")
	}
	if policy.Spec.Assignment == gm.AssignmentLate && !p.ExtenderInUse {
		warnings = append(warnings, "spec.assignment: Late is read as Early, because in the form Pinned no kube-scheduler calls the extender")
	}
	return warnings, invalid("PropagationPolicy", policy.Name, placement.Validate(&policy.Spec))
}

// ValidateUpdate implements admission.Validator. It accepts every update of a policy
// that is being deleted.
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

// Override validates OverridePolicies.
type Override struct{ Options }

// ValidateCreate implements admission.Validator.
func (o Override) ValidateCreate(ctx context.Context, policy *gm.OverridePolicy) (admission.Warnings, error) {
	if err := o.fits("OverridePolicy", policy); err != nil {
		return nil, err
	}
	rules, errs := override.Compile(policy.Spec)
	if len(errs) > 0 {
		faults := make(field.ErrorList, 0, len(errs))
		for _, err := range errs {
			// The text of the error holds the value where that helps.
			faults = append(faults, field.Invalid(field.NewPath(err.Overrider), field.OmitValueType{}, err.Err.Error()))
		}
		return nil, invalid("OverridePolicy", policy.Name, faults)
	}
	warnings := append(foldWarnings(rules.Folded()), o.absentWarnings(ctx, rules.Groups(), "their rules change no pod")...)
	for _, path := range rules.Aliases() {
		warnings = append(warnings, fmt.Sprintf(`%s: operator "update" is another spelling of "replace"`, path))
	}
	return warnings, nil
}

// ValidateUpdate implements admission.Validator. It accepts every update of a policy
// that is being deleted.
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

// foldWarnings returns one warning for each name of a group that is not in lower case.
func foldWarnings(folded []string) admission.Warnings {
	var warnings admission.Warnings
	for _, name := range folded {
		warnings = append(warnings, fmt.Sprintf("NodeGroup names are lower case: %q is read as %q", name, strings.ToLower(name)))
	}
	return warnings
}
