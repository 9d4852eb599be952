package propagationpolicy

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// maxWidth bounds the evictions of one workload that are under way at a time.
const maxWidth = 32

// evict executes the plans: as many pods of each workload as may be disturbed now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	var errs []error
	for i, a := range s.apps {
		if r.Clock.Since(a.seen) > eviction.Fresh { // the workloads before it took long
			again, err := r.observeApp(ctx, s, a.app)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			again.evictions, again.anew = a.evictions, a.anew // those of the whole pass
			s.apps[i], a = again, again
		}
		if a.reason == gm.ReasonNoFeasibleTarget {
			errs = append(errs, phase.Wait("room in a NodeGroup that lacks pods", retryFeasible))
		}
		errs = append(errs, a.waitForVolumes())
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
	pods, err := r.mayMove(a)
	if err != nil {
		return err
	}
	pods, wait := a.succeeded(pods)
	width, widest := 1, 0 // one first: it may be refused
	for len(pods) > 0 {
		batch := pods[:min(width, len(pods))]
		evicted, err := r.evictBatch(ctx, a, batch)
		if err != nil || evicted < len(batch) {
			return errors.Join(wait, err) // pods that change bring us back
		}
		pods = pods[len(batch):]
		if r.Clock.Since(a.seen) > eviction.Fresh {
			return errors.Join(wait, phase.Wait("another look", 0))
		}
		if widest == 0 && len(pods) > 0 {
			widest = r.widest(ctx, a)
		}
		width = min(2*width, widest)
	}
	return wait
}

// succeeded leaves out the pods that are to stay for now, because their owner
// may not be able to create successors; if there are any, it says when to come
// back. A running pod stays once the API server has refused one.
func (a *appScope) succeeded(pods []*seats.Pod) (may []*seats.Pod, wait error) {
	for _, pod := range pods {
		cohort := seats.Cohort{Owner: pod.Owner(), Revision: pod.Revision}
		ok := a.refused == "" || !a.short[cohort.Owner]
		if pod.Node == "" {
			ok = a.anew[cohort] > 0
		}
		if !ok {
			wait = waitForOwner()
			continue
		}
		if pod.Node == "" {
			a.anew[cohort]--
		}
		may = append(may, pod)
	}
	return may, wait
}

// widest is how many evictions of a workload may be under way at a time.
func (r *Reconciler) widest(ctx context.Context, a *appScope) int {
	if a.maxUnavailable == 1 || !r.Evictor.SideBySide(ctx, a.app.Namespace) {
		return 1
	}
	return maxWidth
}

// evictBatch evicts pods side by side, the first of them that may be disturbed
// now, and returns how many those are.
func (r *Reconciler) evictBatch(ctx context.Context, a *appScope, pods []*seats.Pod) (n int, err error) {
	owners := r.Walker.Descendants(a.app.UID)
	answers := make([]error, len(pods))
	var running sync.WaitGroup
	for n < len(pods) && r.Ledger.Disrupt(pods[n].UID, owners, a.replicas, a.maxUnavailable) {
		answer, pod := &answers[n], pods[n]
		running.Go(func() { *answer = r.Evictor.EvictAnnounced(ctx, pod.Key(), pod.UID, pod.Node, r.Ledger.Undisrupt) })
		n++
	}
	running.Wait()
	var errs []error
	left := map[string][]*seats.Pod{}
	for i, answer := range answers[:n] {
		if answer == nil {
			group := r.Ledger.NodeGroup(pods[i].Node)
			left[group] = append(left[group], pods[i])
			continue
		}
		errs = append(errs, refusal(a, answer))
	}
	for group, evicted := range left {
		r.evicted(ctx, a, group, evicted)
	}
	return n, errors.Join(errs...)
}

// refusal is what an eviction that was not done means for the pass.
func refusal(a *appScope, err error) error {
	switch {
	case eviction.Moot(err): // one that is gone is missed until we see it
		return nil
	case errors.Is(err, eviction.ErrPace):
		return phase.Wait(err.Error(), eviction.Retry)
	case errors.Is(err, eviction.ErrRefused):
		evictionsTotal.WithLabelValues("refused").Inc()
		a.plan.reason = gm.ReasonBlockedByPDB
		a.plan.spread.Message = "pods are surplus and stay for now: a PodDisruptionBudget allows no eviction"
		return phase.Wait(err.Error(), eviction.Retry)
	case errors.Is(err, eviction.ErrBusy):
		evictionsTotal.WithLabelValues("error").Inc()
		a.plan.spread.Message = "pods are surplus and stay for now: " + err.Error()
		return phase.Wait(err.Error(), eviction.Retry)
	default:
		evictionsTotal.WithLabelValues("error").Inc()
		return err
	}
}

// evicted tells of pods of one group: in one event, for there may be a thousand.
func (r *Reconciler) evicted(ctx context.Context, a *appScope, group string, pods []*seats.Pod) {
	evictionsTotal.WithLabelValues("evicted").Add(float64(len(pods)))
	a.evictions += len(pods)
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod.Name
		cohort := seats.Cohort{Owner: pod.Owner(), Revision: pod.Revision}
		r.rollouts.moved(a.app.UID, cohort, a.plan.surplus[cohort])
		r.returns.moved(&a.observed, pod)
		log.FromContext(ctx).Info("Evicted a surplus pod", "pod", pod.Key(), "nodeGroup", group, "workload", a.app.Namespace+"/"+a.app.Name)
	}
	workload := &corev1.ObjectReference{
		APIVersion: a.app.GroupVersion().String(), Kind: a.app.Kind,
		Namespace: a.app.Namespace, Name: a.app.Name, UID: a.app.UID,
	}
	related := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pods[0].Namespace, Name: pods[0].Name, UID: pods[0].UID}
	what := "pod " + pods[0].Name
	if len(pods) > 1 {
		what = fmt.Sprintf("%d pods (%s)", len(pods), conditions.List(names))
	}
	r.Recorder.Eventf(workload, related, corev1.EventTypeNormal, "SurplusPodEvicted", "Evict",
		"Evicted %s: NodeGroup %q has more than its share", what, group)
}
