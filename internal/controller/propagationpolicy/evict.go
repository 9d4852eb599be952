package propagationpolicy

import (
	"context"
	"errors"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// maxWidth bounds the evictions of one workload that are requested at the same time.
	maxWidth = 32
	// returnedMessage is the workload's message in the status during a pause (see
	// rebalance.Returns).
	returnedMessage = "pods are surplus and stay for now: the successors of evicted pods came back to the same NodeGroups; the next move is tried later"
)

// evict evicts the surplus pods of each workload, as many as may be disturbed now.
func (r *Reconciler) evict(ctx context.Context, s *scope) error {
	var errs []error
	for i, w := range s.workloads {
		if r.Clock.Since(w.seen) > eviction.Fresh { // the workloads before it took long
			again, err := r.observeWorkload(ctx, s, w.Object)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			again.evictions, again.recreatable = w.evictions, w.recreatable // both count for the whole pass
			s.workloads[i], w = again, again
		}
		if w.plan.Reason == gm.ReasonNoFeasibleTarget {
			errs = append(errs, phase.Wait("room in a NodeGroup that lacks pods", retryFeasible))
		}
		errs = append(errs, w.waitForVolumes())
		if err := r.evictSurplus(ctx, w); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// evictSurplus evicts surplus pods of one workload: first one alone, because it may be
// refused, then batches that double in size.
func (r *Reconciler) evictSurplus(ctx context.Context, w *workload) error {
	if len(w.plan.Evict) == 0 {
		return nil
	}
	if left := w.settlesAt.Sub(r.Clock.Now()); left > 0 {
		return phase.Wait("the policy and its NodeGroups to stay as they are", left)
	}
	pods, err := r.movableNow(w)
	if err != nil {
		return err
	}
	pods, kept := r.withoutHeld(w, pods)
	pods, wait := w.withSuccessor(pods)
	wait = errors.Join(wait, kept)
	width, widest := 1, 0
	for len(pods) > 0 {
		batch := pods[:min(width, len(pods))]
		evicted, err := r.evictBatch(ctx, w, batch)
		if err != nil || evicted < len(batch) {
			return errors.Join(wait, err) // the next change of a pod triggers a pass
		}
		pods = pods[len(batch):]
		if r.Clock.Since(w.seen) > eviction.Fresh {
			return errors.Join(wait, phase.Wait("another look", 0))
		}
		if widest == 0 && len(pods) > 0 {
			widest = r.widest(ctx, w)
		}
		width = min(2*width, widest)
	}
	return wait
}

// movableNow returns the surplus pods that may be evicted now: none during a pause after
// an eviction that was of no use, and one after that pause (see rebalance.Returns).
func (r *Reconciler) movableNow(w *workload) ([]*seats.Pod, error) {
	pods := make([]*seats.Pod, len(w.plan.Evict))
	for i, pod := range w.plan.Evict {
		pods[i] = w.Pods[pod.UID]
	}
	left, underWay, cameBack := r.memory.pause(w.Object.UID, r.Clock.Now())
	switch {
	case !cameBack:
		return pods, nil
	case left > 0:
		w.plan.Spread.Message = returnedMessage
		return nil, phase.Wait("pods that were moved came back", left)
	case underWay:
		return nil, nil // its successor triggers a pass
	}
	return pods[:1], nil
}

// withoutHeld returns the pods whose nodes are not Held, and a wait if there are others.
func (r *Reconciler) withoutHeld(w *workload, pods []*seats.Pod) (may []*seats.Pod, wait error) {
	for _, pod := range pods {
		if r.Evictor.IsHeld(pod.Node) {
			w.plan.Spread.Message = "pods are surplus and stay for now: " + eviction.ErrHeld.Error()
			wait = eviction.Outcome(eviction.ErrHeld)
			continue
		}
		may = append(may, pod)
	}
	return may, wait
}

// withSuccessor returns the pods whose owner can probably create successors, and a wait if
// there are others. A running pod stays if its owner has too few pods and
// the API server refuses new ones. Waiting pods stay once recreatable is used up.
func (w *workload) withSuccessor(pods []*seats.Pod) (may []*seats.Pod, wait error) {
	for _, pod := range pods {
		cohort := cohortOf(pod)
		ok := w.Observed.Refused == "" || !w.Short[cohort.Owner]
		if pod.Node == "" {
			ok = w.recreatable[cohort] > 0
		}
		if !ok {
			wait = waitForOwner()
			continue
		}
		if pod.Node == "" {
			w.recreatable[cohort]--
		}
		may = append(may, pod)
	}
	return may, wait
}

func cohortOf(pod *seats.Pod) seats.Cohort {
	return seats.Cohort{Owner: pod.Owner(), Revision: pod.Revision}
}

// widest returns how many evictions of a workload may be requested at the same time.
func (r *Reconciler) widest(ctx context.Context, w *workload) int {
	if w.maxUnavailable == 1 || !r.Evictor.SideBySide(ctx, w.Object.Namespace) {
		return 1
	}
	return maxWidth
}

// evictBatch evicts pods at the same time, in order up to the first that may not be
// disturbed now. n is the number of evictions that it requested.
func (r *Reconciler) evictBatch(ctx context.Context, w *workload, pods []*seats.Pod) (n int, err error) {
	owners := r.Walker.Descendants(w.Object.UID)
	answers := make([]error, len(pods))
	var running sync.WaitGroup
	for n < len(pods) && r.Ledger.Disrupt(pods[n].UID, owners, w.Observed.Replicas, w.maxUnavailable) {
		answer, pod := &answers[n], pods[n]
		running.Go(func() {
			*answer = r.Evictor.EvictAnnounced(ctx, eviction.Announced{Pod: pod.Key(), UID: pod.UID, Node: pod.Node, Ready: pod.Ready}, r.Ledger.Undisrupt)
		})
		n++
	}
	running.Wait()
	var errs []error
	byGroup := map[string][]*seats.Pod{}
	for i, answer := range answers[:n] {
		if answer == nil {
			group := r.Ledger.NodeGroup(pods[i].Node)
			byGroup[group] = append(byGroup[group], pods[i])
			continue
		}
		errs = append(errs, w.notEvicted(answer))
	}
	for group, evicted := range byGroup {
		r.evicted(ctx, w, group, evicted)
	}
	return n, errors.Join(errs...)
}

// notEvicted returns the phase's error for an eviction that failed, and puts the cause
// into the status.
func (w *workload) notEvicted(err error) error {
	switch {
	case eviction.Moot(err): // a pod that is gone counts as disturbed until the ledger sees that
		return nil
	case errors.Is(err, eviction.ErrPace):
		return phase.Wait(err.Error(), eviction.Again(err))
	case errors.Is(err, eviction.ErrRefused):
		evictionsTotal.WithLabelValues("refused").Inc()
		w.plan.Reason = gm.ReasonBlockedByPDB
		w.plan.Spread.Message = "pods are surplus and stay for now: a PodDisruptionBudget allows no eviction"
		return phase.Wait(err.Error(), eviction.Retry)
	case errors.Is(err, eviction.ErrBusy):
		evictionsTotal.WithLabelValues("error").Inc()
		w.plan.Spread.Message = "pods are surplus and stay for now: " + err.Error()
		return phase.Wait(err.Error(), eviction.Retry)
	default:
		evictionsTotal.WithLabelValues("error").Inc()
		return err
	}
}

// evicted records pods of one group that were evicted.
func (r *Reconciler) evicted(ctx context.Context, w *workload, group string, pods []*seats.Pod) {
	evictionsTotal.WithLabelValues("evicted").Add(float64(len(pods)))
	w.evictions += len(pods)
	for _, pod := range pods {
		r.memory.evicted(w, pod)
		log.FromContext(ctx).Info("Evicted a surplus pod", "pod", pod.Key(), "nodeGroup", group, "workload", w.Object.Namespace+"/"+w.Object.Name)
	}
	r.surplusPodsEvicted(w, group, pods)
}
