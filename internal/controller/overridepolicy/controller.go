// Package overridepolicy reconciles OverridePolicies (docs/sources.md, G16 to G20). For
// every workload that requires a policy it compares its pods with the rules for their
// groups. Its phases are:
//
//	observe ─► update (change images in place, paced)
//	        ─► replace (pods with a difference that cannot change in place, paced)
//	        ─► report (status)
//
// Which pods are replaced is decided in internal/domain/replacement. New pods get their
// overrides from the pod webhook at creation, or their images from the extender before
// they are bound. This controller is for pods that are older than a rule. A container
// whose image changes restarts in place.
package overridepolicy

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/fairqueue"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/survey"
)

const (
	// debounce is how long a change waits for further changes before a pass.
	debounce = 200 * time.Millisecond
	// retryDisruption is the delay before the next look whether a pod may restart or be
	// replaced.
	retryDisruption = 5 * time.Second
	// maxShown bounds the workloads in a status.
	maxShown = 50
	// workers is the number of policies that are reconciled at the same time.
	workers = 4
)

// Reconciler changes images in place, replaces pods, and writes the status of
// OverridePolicies.
type Reconciler struct {
	*survey.Surveyor

	Client   client.Client
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	// Synced returns whether Walker and Ledger have read everything that exists. No pass
	// runs before.
	Synced func() bool

	changed *trigger.Source[ctrl.Request]
	memory  memory
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=overridepolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=overridepolicies/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=pods,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. It must run before Walker and Ledger start,
// because it adds handlers to them.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	b, err := r.watch(mgr)
	if err != nil {
		return err
	}
	return b.WithOptions(controller.Options{MaxConcurrentReconciles: workers, NewQueue: fairqueue.ByNamespace}).Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for one policy.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	policy := &gm.OverridePolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, policy); err != nil {
		r.changed.Took(req, 0)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if policy.DeletionTimestamp != nil {
		return ctrl.Result{}, nil
	}
	s := &scope{policy: policy}
	observe := func(ctx context.Context, s *scope) error {
		began := time.Now()
		s.unseen = r.observe(ctx, s)
		r.changed.Took(req, time.Since(began))
		return errors.Join(s.again, s.unseen)
	}
	return phase.Run(ctx, s, observe, r.update, r.replace, r.report)
}
