package capacity

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// evict executes the plan: it evicts as many pods as the disruption limits allow now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	if s.capacity.Invalid != nil {
		return nil //nolint:nilerr // report shows the error; what the workload wants is not known
	}
	if s.unread != nil && !errors.Is(s.unread, volumes.ErrMany) && !apierrors.IsNotFound(s.unread) {
		return s.unread
	}
	if len(s.plan.evict) == 0 {
		switch {
		case s.plan.closed != fit.Fits, s.plan.reason == api.ReasonNoNodes, // pods may fall back soon
			errors.Is(s.unread, volumes.ErrMany):
			return phase.Wait("a node of the class", retryRoom)
		case s.observed.inVain != "":
			return phase.Wait("another try to move a pod", tryTime)
		case s.observed.rollout && !s.observed.still:
			return phase.Wait("a rollout to end or pause", stillTime)
		}
		return nil
	}
	var held error
	for i, pod := range s.plan.evict {
		if r.Evictor.IsHeld(pod.Node) {
			held = eviction.Outcome(eviction.ErrHeld)
			continue
		}
		if i > 0 && r.Clock.Since(s.seen) > eviction.Fresh || r.isOutdated(s) {
			return phase.Wait("another observation", 0)
		}
		if !r.Ledger.Disrupt(pod.UID, s.below, s.observed.replicas, maxUnavailable) {
			return held // changes of its pods enqueue the workload
		}
		err := r.Evictor.EvictAnnounced(ctx, eviction.Announced{Pod: pod.Key(), UID: pod.UID, Node: pod.Node, Ready: pod.Ready}, r.Ledger.Undisrupt)
		outcome := eviction.Outcome(err)
		switch {
		case err == nil:
			r.evicted(ctx, s, pod)
		case errors.Is(err, eviction.ErrRefused):
			evictionsTotal.WithLabelValues("refused").Inc()
			s.plan.reason, s.plan.message = api.ReasonBlockedByPDB, "pods of the wrong class stay for now: a PodDisruptionBudget allows no eviction"
		case errors.Is(outcome, err): // an error of the API server, not a wait
			evictionsTotal.WithLabelValues("error").Inc()
		}
		if outcome != nil {
			return outcome
		}
	}
	return held
}

// evicted records a pod that was evicted.
func (r *Reconciler) evicted(ctx context.Context, s *scope, pod *seats.Pod) {
	evictionsTotal.WithLabelValues("evicted").Inc()
	r.mu.Lock()
	if r.moved == nil {
		r.moved = map[types.UID]move{}
	}
	r.moved[s.workload.UID] = move{at: r.Clock.Now(), pod: pod.UID, name: pod.Name, class: r.classOf(s, pod), count: s.capacity.Count}
	r.mu.Unlock()
	log.FromContext(ctx).Info("Evicted a pod of the wrong class of capacity", "pod", pod.Key(), "workload", s.workload.Namespace+"/"+s.workload.Name)
	r.podEvicted(s, pod)
}

// classOf returns the observed class of a pod.
func (r *Reconciler) classOf(s *scope, pod *seats.Pod) capacity.Class {
	for _, seen := range s.observed.pods {
		if seen.UID == pod.UID {
			return seen.Class
		}
	}
	return capacity.None
}
