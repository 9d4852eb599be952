// Package propagationpolicy reconciles PropagationPolicies (docs/sources.md, G13 to
// G15). For every workload that requires a policy it compares where the pods are with
// the division of the policy, and moves pods that are surplus. Its phases are:
//
//	observe ─► reassign (recreate waiting pods that can go elsewhere)
//	        ─► evict (surplus pods, through the Eviction API, paced)
//	        ─► cost (deletion costs) ─► report (status)
//
// The decisions are in internal/domain/placement/rebalance. The pod webhook and the
// extender place pods; this controller repairs what they could not place as wanted. It
// deletes no pod and places none.
package propagationpolicy

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
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/survey"
)

const (
	// debounce is how long a change waits for further changes before a pass.
	debounce = 200 * time.Millisecond
	// retryFeasible is the delay before the next look for room in a group that lacks
	// pods. No event announces room: it may come from any pod or node of the cluster.
	retryFeasible = 5 * time.Second
	// maxShown bounds the workloads in a status, and maxShownGroups the groups of all of
	// them together. The first workload is always there.
	maxShown, maxShownGroups = 50, 2000
	// workers is the number of policies that are reconciled at the same time.
	workers = 4
)

// Reconciler moves surplus pods and writes the status of PropagationPolicies.
type Reconciler struct {
	*survey.Surveyor

	Client   client.Client
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Jobs     *jobs.Restarter
	// Synced returns whether Walker and Ledger have read everything that exists. No pass
	// runs before.
	Synced func() bool

	changed *trigger.Source[ctrl.Request]
	tallies tallies
	memory  memory
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies/status,verbs=patch
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
	policy := &gm.PropagationPolicy{}
	if err := r.Client.Get(ctx, req.NamespacedName, policy); err != nil {
		r.tallies.set(req.NamespacedName, tally{})
		r.changed.Took(req, 0)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if policy.DeletionTimestamp != nil {
		r.tallies.set(req.NamespacedName, tally{})
		return ctrl.Result{}, nil
	}
	s := &scope{policy: policy}
	observe := func(ctx context.Context, s *scope) error {
		began := time.Now()
		s.unseen = r.observe(ctx, s)
		r.changed.Took(req, time.Since(began))
		return errors.Join(append(s.waits, s.unseen)...)
	}
	return phase.Run(ctx, s, observe, r.reassign, r.evict, r.cost, r.report)
}
