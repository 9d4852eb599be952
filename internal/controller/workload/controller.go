// Package workload reconciles workloads that require policies, of any kind:
//
//   - stop: a workload that gives up overridden pods, and makes others without
//     end, gets no more overrides.
//   - bind: the workload carries binding labels exactly for the policies that
//     exist and are valid (docs/sources.md, G4 to
//     G6); a binding label that nobody requires goes.
//   - resume: a Job that release suspended is resumed when its pods are gone.
//   - release: pods that wait at our scheduling gate are let go when every
//     policy that the workload requires is bound, or replaced if they must be as
//     wanted from their creation; pods that kube-scheduler refused before are woken.
//
// It reads the owners' walk and the ledger, and writes labels and gates. It
// places nothing.
package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// workers is the number of workloads that are looked at side by side.
const workers = 4

// request names a workload by UID: names are used again, UIDs are not.
type request struct{ uid types.UID }

// Reconciler binds workloads to their policies.
type Reconciler struct {
	// Client writes labels on workloads of any kind.
	Client client.Client
	// Pods writes gates and nudges.
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Synced tells whether walk and ledger know everything.
	Synced   func() bool
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Jobs     *jobs.Restarter
	Clock    clock.PassiveClock

	changed *trigger.Source[request]
	givenUp givenUp
	// trying is the number of workers that ask the API server about an override.
	trying atomic.Int32
}

// scope is what one pass observed.
type scope struct {
	app *ownership.Object
	// want are the labels that the workload carries, once bound is set: the API
	// server has them, written by this pass or before.
	want  ownership.Policies
	bound bool
	// spread and override make nudges of the same policies equal, and of
	// different ones different.
	spread, override string
	// changesAt is when a group of the PropagationPolicy comes to be away; the
	// zero time is never.
	changesAt time.Time
	// held is the first refusal of a change that pods at the gate wait for.
	held error
	// restarts are the answers of Jobs that were asked to make their pods anew.
	restarts map[types.UID]error
}

// +kubebuilder:rbac:groups=apps,resources=deployments;replicasets;statefulsets;daemonsets,verbs=patch
// +kubebuilder:rbac:groups=batch,resources=jobs;cronjobs,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies;overridepolicies,verbs=get;list;watch

// SetupWithManager registers the controller. Call before walker and ledger are started.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return r.watch(builder.TypedControllerManagedBy[request](mgr).Named("workload")).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[request](reconcile.TypedFunc[request](r.Reconcile)))
}

// Reconcile runs the phases for one workload.
func (r *Reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	app := r.Walker.Get(req.uid)
	if app == nil {
		r.Policies.DropTrial(req.uid)
		r.Policies.SetHeld(req.uid, "")
		r.givenUp.drop(req.uid)
		return phase.Run(ctx, &scope{app: &ownership.Object{UID: req.uid}}, r.releaseLeft)
	}
	if app.Deleting {
		return ctrl.Result{}, nil
	}
	s := &scope{app: app, want: app.Policies}
	result, err := phase.Run(ctx, s, r.stop, r.resume, r.bind, r.release)
	r.tellHeld(s)
	return result, err
}

// bind makes the binding labels true.
func (r *Reconciler) bind(ctx context.Context, s *scope) error {
	propagation, err := r.bindablePropagation(ctx, s)
	if err != nil {
		return err
	}
	override, untried, err := r.bindableOverride(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(untried, r.write(ctx, s, propagation, override))
}

// write writes the binding labels.
func (r *Reconciler) write(ctx context.Context, s *scope, propagation, override string) error {
	want := s.app.Policies
	want.BindingPropagation, want.BindingOverride = propagation, override
	if want == s.app.Policies {
		s.bound = true
		return nil
	}
	raw, err := labelPatch(s.app.UID, map[string]string{
		gm.BindingPropagationPolicyLabel: propagation,
		gm.BindingOverridePolicyLabel:    override,
	})
	if err != nil {
		return err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(s.app.GroupVersionKind)
	object.Namespace, object.Name = s.app.Namespace, s.app.Name
	err = r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || patch.AnotherOfThatName(err) {
		return nil
	}
	if err != nil {
		s.refused(err)
		return fmt.Errorf("writing binding labels of %s %s/%s: %w", s.app.Kind, s.app.Namespace, s.app.Name, err)
	}
	if written := ownership.PoliciesOf(object.Labels); written != want {
		return fmt.Errorf("writing binding labels of %s %s/%s: %w", s.app.Kind, s.app.Namespace, s.app.Name, errNotKept)
	}
	s.want, s.bound = want, true
	log.FromContext(ctx).Info("Workload bound to policies", "kind", s.app.Kind, "workload", s.app.Namespace+"/"+s.app.Name,
		"propagationPolicy", propagation, "overridePolicy", override)
	return nil
}

// errNotKept: the API server took the binding labels and has others, for somebody
// changes them on the way or the required labels changed meanwhile.
var errNotKept = errors.New("the workload carries other policy labels than were written")

// labelPatch is a merge patch that writes labels, and drops those that are empty.
func labelPatch(uid types.UID, labels map[string]string) ([]byte, error) {
	values := make(map[string]any, len(labels))
	for key, value := range labels {
		values[key] = value
		if value == "" {
			values[key] = nil
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid, "labels": values}})
}

// bindablePropagation is the required policy's name if it exists and is valid.
func (r *Reconciler) bindablePropagation(ctx context.Context, s *scope) (string, error) {
	name := s.app.Policies.RequiredPropagation
	if name == "" {
		return "", nil
	}
	policy, err := r.Policies.Propagation(ctx, s.app.Namespace, name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	spread, err := r.Policies.Spread(policy, s.app.Ties())
	if err != nil {
		return "", nil //nolint:nilerr // the policy's own condition names the field
	}
	s.spread = fmt.Sprint(policy.UID, policy.Generation, spread.Missing())
	if away := spread.Away(); len(away) > 0 {
		s.spread += fmt.Sprint(away)
	}
	s.changesAt = r.Policies.ChangesAt(policy, s.app.Ties())
	return name, nil
}

// bindableOverride is the required policy's name if it exists and is valid, and
// if the API server takes what it makes of the workload's pods. untried says
// that this could not be found out, and asks to come back: a workload that is
// bound stays so, and one that is not may be unbound because of an answer that
// another replica got.
func (r *Reconciler) bindableOverride(ctx context.Context, s *scope) (bindable string, untried, err error) {
	name := s.app.Policies.RequiredOverride
	if name == "" {
		return "", nil, nil
	}
	policy, err := r.Policies.Override(ctx, s.app.Namespace, name)
	if apierrors.IsNotFound(err) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	rules, errs := r.Policies.Rules(policy)
	if len(errs) > 0 {
		return "", nil, nil // the policy's own status says why
	}
	untried = r.try(ctx, s.app, policy, rules)
	if r.Policies.Usable(ctx, s.app, rules) != nil || untried != nil && s.app.Policies.BindingOverride != name {
		return "", untried, nil
	}
	s.override = fmt.Sprint(policy.UID, policy.Generation)
	return name, untried, nil
}
