package propagationpolicy

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// evict executes the plans: as many pods of each workload as may be disturbed now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	var errs []error
	for _, a := range s.apps {
		if a.reason == gm.ReasonNoFeasibleTarget {
			errs = append(errs, phase.Wait("room in a NodeGroup that lacks pods", retryFeasible))
		}
		if err := r.evictSurplus(ctx, a); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) evictSurplus(ctx context.Context, a *appScope) error {
	if len(a.plan.evict) == 0 {
		return nil
	}
	if left := a.settlesAt.Sub(r.Clock.Now()); left > 0 {
		return phase.Wait("the policy and its NodeGroups to stay as they are", left)
	}
	owners := r.Walker.Descendants(a.app.UID)
	for _, pod := range a.plan.evict {
		if !r.Ledger.Disrupt(pod.UID, owners, a.replicas, a.maxUnavailable) {
			return nil // pods that change bring us back
		}
		evict := r.Evictor.Evict
		if pod.Node == "" {
			evict = r.Evictor.Discard
		}
		err := evict(ctx, pod.Key(), pod.UID)
		if err != nil && !errors.Is(err, eviction.ErrGone) {
			r.Ledger.Spare(pod.UID)
		}
		switch {
		case err == nil:
			r.evicted(ctx, a, pod)
		case errors.Is(err, eviction.ErrGone): // and is missed until we see it
		case errors.Is(err, eviction.ErrPace):
			return phase.Wait(err.Error(), eviction.Retry)
		case errors.Is(err, eviction.ErrRefused):
			evictionsTotal.WithLabelValues("refused").Inc()
			a.plan.reason = gm.ReasonBlockedByPDB
			a.plan.spread.Message = "pods are surplus and stay for now: a PodDisruptionBudget allows no eviction"
			return phase.Wait(err.Error(), eviction.Retry)
		default:
			evictionsTotal.WithLabelValues("error").Inc()
			return err
		}
	}
	return nil
}

func (r *Reconciler) evicted(ctx context.Context, a *appScope, pod *seats.Pod) {
	evictionsTotal.WithLabelValues("evicted").Inc()
	a.evictions++
	group := r.Ledger.NodeGroup(pod.Node)
	log.FromContext(ctx).Info("Evicted a surplus pod", "pod", pod.Key(), "nodeGroup", group, "workload", a.app.Namespace+"/"+a.app.Name)
	workload := &corev1.ObjectReference{
		APIVersion: a.app.GroupVersion().String(), Kind: a.app.Kind,
		Namespace: a.app.Namespace, Name: a.app.Name, UID: a.app.UID,
	}
	related := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.Recorder.Eventf(workload, related, corev1.EventTypeNormal, "SurplusPodEvicted", "Evict",
		"Evicted pod %s: NodeGroup %q has more than its share", pod.Name, group)
}
