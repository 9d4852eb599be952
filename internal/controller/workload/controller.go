// Package workload reconciles workloads of any kind that require policies:
//
//   - stop: stops the overrides of a workload whose controller releases overridden pods (it
//     removes its owner reference, as if they were not its own) and creates others, without
//     end.
//   - resume: resumes a Job that the phase release has suspended, once its pods are deleted.
//   - bind: writes binding labels for exactly the required policies that exist and are
//     valid (docs/sources.md, G4 to G6), and removes all other binding labels.
//   - release: removes the scheduling gate of pods once every policy that the workload
//     requires is bound. It first reserves their NodeGroup and capacity class in the ledger
//     (package seats). If an override changes fields that cannot change on an existing pod,
//     it deletes the pod, so that its owner recreates it. It writes an annotation to
//     unschedulable pods (the nudge), so that kube-scheduler tries them again.
//   - reportMissing: emits an event on a workload that requires a policy which does not exist.
//
// The package reads owners and pods from the caches of Walker and Ledger.
package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
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
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/fairqueue"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// workers is the number of workloads that are reconciled concurrently.
const workers = 4

// request is the UID of a workload. A name can be used again by another one.
type request struct{ uid types.UID }

// Reconciler binds workloads to their policies.
type Reconciler struct {
	// Client writes labels on workloads of any kind.
	Client client.Client
	// Pods reads and patches pods, and creates pods and PodTemplates as dry runs.
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Synced reports whether the caches of Walker and Ledger have synced.
	Synced   func() bool
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Jobs     *jobs.Restarter
	Clock    clock.PassiveClock
	// SchedulerName and Mark are those that the webhook gives to managed pods so that kube-scheduler
	// calls the extender for them (flags --scheduler-name and --mark-resource); "" gives none.
	SchedulerName string
	Mark          corev1.ResourceName

	changed *trigger.Source[request]
	givenUp givenUp
	// missing is since when a policy of each workload has not existed, and missed bounds the events.
	missing pace.Since
	missed  pace.ByName
	// slots bound the workers that try overrides on the API server.
	slots slots
}

// scope is what one pass observed.
type scope struct {
	workload *ownership.Object
	// want holds the policy labels that the workload should have. bound is true if the API
	// server has exactly these labels.
	want  ownership.Policies
	bound bool
	// spread and override identify the contents of the bound policies. The nudge annotation
	// holds a hash of both, so that a pod is tried again once for each change of a policy.
	spread, override string
	// changesAt is when the next group of the PropagationPolicy will count as away, because
	// none of its nodes has been Ready for spec.failover.afterSeconds. It is zero if there
	// is no such group.
	changesAt time.Time
	// held is the first error by which the API server refused a write without which pods
	// stay at the gate: of the binding labels, or of the removal of the gate.
	held error
	// retrial is a wait for the next trial of an override whose result is known, or nil.
	retrial error
	// restarts holds the results of suspending Jobs whose pods have to be recreated.
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
		WithOptions(controller.TypedOptions[request]{
			MaxConcurrentReconciles: workers, NewQueue: fairqueue.New(func(req request) string { return r.Walker.NamespaceOf(req.uid) }),
		}).
		Complete(phase.Backoff[request](reconcile.TypedFunc[request](r.Reconcile)))
}

// Reconcile runs the phases for one workload.
func (r *Reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	workload := r.Walker.Get(req.uid)
	if workload == nil { // deleted, or its kind was removed from the ConfigMap of further kinds
		r.Policies.DropTrial(req.uid)
		r.Policies.SetHeld(req.uid, "")
		r.givenUp.drop(req.uid)
		r.found(req.uid)
		return phase.Run(ctx, &scope{workload: &ownership.Object{UID: req.uid}}, r.releaseLeft)
	}
	if workload.Deleting { // its deletion enqueues it once more
		return ctrl.Result{}, nil
	}
	s := &scope{workload: workload, want: workload.Policies}
	result, err := phase.Run(ctx, s, r.stop, r.resume, r.bind, r.release, r.reportMissing)
	r.reportHeld(s)
	return result, err
}

// bind writes the binding labels.
func (r *Reconciler) bind(ctx context.Context, s *scope) error {
	propagation, err := r.bindablePropagation(ctx, s)
	if err != nil {
		return err
	}
	override, untried, err := r.bindableOverride(ctx, s)
	if err != nil {
		return err
	}
	return errors.Join(untried, s.retrial, r.write(ctx, s, propagation, override))
}

// write patches the binding labels of the workload, if they differ.
func (r *Reconciler) write(ctx context.Context, s *scope, propagation, override string) error {
	want := s.workload.Policies
	want.BindingPropagation, want.BindingOverride = propagation, override
	if want == s.workload.Policies { // the labels are right already
		s.bound = true
		return nil
	}
	raw, err := labelPatch(s.workload.UID, map[string]string{
		gm.BindingPropagationPolicyLabel: propagation,
		gm.BindingOverridePolicyLabel:    override,
	})
	if err != nil {
		return err
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(s.workload.GroupVersionKind)
	object.Namespace, object.Name = s.workload.Namespace, s.workload.Name
	err = r.Client.Patch(ctx, object, client.RawPatch(types.MergePatchType, raw))
	if apierrors.IsNotFound(err) || patch.AnotherOfThatName(err) {
		return nil
	}
	if err != nil {
		s.refused(err)
		return fmt.Errorf("writing binding labels of %s %s/%s: %w", s.workload.Kind, s.workload.Namespace, s.workload.Name, err)
	}
	if written := ownership.PoliciesOf(object.Labels); written != want {
		return fmt.Errorf("writing binding labels of %s %s/%s: %w", s.workload.Kind, s.workload.Namespace, s.workload.Name, errNotKept)
	}
	s.want, s.bound = want, true
	log.FromContext(ctx).V(1).Info("Workload bound to policies", "kind", s.workload.Kind, "workload", s.workload.Namespace+"/"+s.workload.Name,
		"propagationPolicy", propagation, "overridePolicy", override)
	return nil
}

// errNotKept: the API server accepted the patch but stored other policy labels. An
// admission webhook changed them, or the required labels changed meanwhile.
var errNotKept = errors.New("the workload has other policy labels than were written")

// labelPatch returns a merge patch that writes labels, and removes those with value "". It
// carries the UID, so that it fails for another object of the name.
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

// kept returns the binding to a policy that was left out of the cache: it stays as it is until
// the policy is read.
func kept(binding, required string) string {
	if binding == required {
		return binding
	}
	return ""
}

// bindablePropagation returns the name of the required PropagationPolicy if it exists and
// is valid, "" otherwise. It sets s.spread and s.changesAt.
func (r *Reconciler) bindablePropagation(ctx context.Context, s *scope) (string, error) {
	name := s.workload.Policies.RequiredPropagation
	if name == "" {
		return "", nil
	}
	policy, err := r.Policies.Propagation(ctx, s.workload.Namespace, name)
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if budget.IsUnread(err) {
		return kept(s.workload.Policies.BindingPropagation, name), nil
	}
	if err != nil {
		return "", err
	}
	spread, err := r.Policies.Spread(policy, s.workload.Ties())
	if err != nil {
		return "", nil //nolint:nilerr // the policy is invalid, and its status says why
	}
	s.spread = fmt.Sprint(policy.UID, policy.Generation, spread.Missing())
	if away := spread.Away(); len(away) > 0 {
		s.spread += fmt.Sprint(away)
	}
	s.changesAt = r.Policies.ChangesAt(policy)
	return name, nil
}

// bindableOverride returns the name of the required OverridePolicy if it exists and is
// valid, and if the API server accepts the overridden pods in a dry run; "" otherwise. It sets
// s.override. If there was no dry run yet, untried is an error of phase.Wait. Until there is
// one, a bound workload stays bound, and an unbound one is not bound: a previous leader may
// have unbound it after a refusal.
func (r *Reconciler) bindableOverride(ctx context.Context, s *scope) (bindable string, untried, err error) {
	name := s.workload.Policies.RequiredOverride
	if name == "" {
		return "", nil, nil
	}
	policy, err := r.Policies.Override(ctx, s.workload.Namespace, name)
	if apierrors.IsNotFound(err) {
		return "", nil, nil
	}
	if budget.IsUnread(err) {
		return kept(s.workload.Policies.BindingOverride, name), nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	rules, errs := r.Policies.Rules(policy)
	if len(errs) > 0 {
		return "", nil, nil // the status of the policy shows the errors
	}
	untried = r.try(ctx, s, policy, rules)
	if r.Policies.Usable(ctx, s.workload, rules) != nil || untried != nil && s.workload.Policies.BindingOverride != name {
		return "", untried, nil
	}
	s.override = fmt.Sprint(policy.UID, policy.Generation)
	return name, untried, nil
}
