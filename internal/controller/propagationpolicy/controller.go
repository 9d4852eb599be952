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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// debounce is how long a change waits for further changes before a pass.
	debounce = 200 * time.Millisecond
	// retryFeasible is the delay before the next look for room in a group that lacks
	// pods. No event announces room: it may come from any pod or node of the cluster.
	retryFeasible = 5 * time.Second
	// maxShown bounds the workloads in a status.
	maxShown = 50
	// workers is the number of policies that are reconciled at the same time.
	workers = 4
)

// Reconciler moves surplus pods and writes the status of PropagationPolicies.
type Reconciler struct {
	Client   client.Client
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	Recorder events.EventRecorder
	Evictor  *eviction.Evictor
	Jobs     *jobs.Restarter
	Clock    clock.PassiveClock
	// Synced returns whether Walker and Ledger have read everything that exists. No pass
	// runs before.
	Synced func() bool

	changed *trigger.Source[ctrl.Request]
	tallies tallies
	memory  memory
	volumes volumes.Reader
}

// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies,verbs=get;list;watch
// +kubebuilder:rbac:groups=groupmanagement.kubeedge.io,resources=propagationpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. It must run before Walker and Ledger start,
// because it adds handlers to them.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	r.changed = &trigger.Source[ctrl.Request]{Synced: r.Synced, Debounce: debounce}
	r.Walker.OnChange(func(old, new *ownership.Object) {
		if new == nil {
			r.memory.forget(old.UID)
		}
		for _, o := range []*ownership.Object{old, new} {
			if o != nil && o.Policies.RequiredPropagation != "" {
				r.changed.Add(request(o))
			}
		}
	})
	r.Ledger.OnChange(func(old, new *seats.Pod) {
		for _, pod := range []*seats.Pod{old, new} {
			if pod != nil {
				r.addPolicyOf(pod.Owner())
			}
		}
	})
	if err := policies.IndexGroups(mgr.GetFieldIndexer(), &gm.PropagationPolicy{}); err != nil {
		return err
	}
	r.Ledger.OnGroups(policies.WakeOfGroups(mgr.GetClient(), &gm.PropagationPolicyList{}, r.changed))
	r.Policies.OnHeld(r.addPolicyOf)
	return ctrl.NewControllerManagedBy(mgr).
		For(&gm.PropagationPolicy{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&gm.PropagationPolicy{}, trigger.Handler(r.changed), builder.WithPredicates(trigger.StatusWritten)).
		WatchesRawSource(r.changed).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// addPolicyOf triggers a pass for the policy that the workload above an owner requires.
func (r *Reconciler) addPolicyOf(owner types.UID) {
	if o := r.Walker.PolicyOwnersOf(owner).Propagation; o != nil {
		r.changed.Add(request(o))
	}
}

// request names the policy that a workload requires.
func request(o *ownership.Object) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: o.Policies.RequiredPropagation}}
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
