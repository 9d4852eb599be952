package overridepolicy

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// replace evicts pods that were not created as the rules want them, as many of each
// workload as may be disturbed now. Their owners create successors.
func (r *Reconciler) replace(ctx context.Context, s *scope) error {
	var errs []error
	for _, w := range s.workloads {
		errs = append(errs, r.replacePods(ctx, s, w))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) replacePods(ctx context.Context, s *scope, w *workload) error {
	observed := r.Replacements(s.rules, w.Overridden)
	observed.Untried, observed.BypassedFor = w.untried, w.bypassedFor
	plan := replacement.NewPlan(observed)
	if plan.Blocked != nil {
		w.blocked = plan.Blocked
		if errors.Is(plan.Blocked, replacement.ErrUntried) && w.doubt != nil {
			w.blocked = w.doubt
		}
		if plan.Wait > 0 {
			return phase.Wait(plan.Blocked.Error(), plan.Wait)
		}
		return nil // the change that ends it triggers a pass
	}
	below := r.Walker.Descendants(w.Object.UID)
	var errs []error
	for _, i := range plan.Replace {
		pod := w.Stale[i]
		if r.Evictor.IsHeld(pod.Node) {
			w.blocked = eviction.ErrHeld
			errs = append(errs, eviction.Outcome(eviction.ErrHeld))
			continue
		}
		settlesAt := observed.Stale[i].SettlesAt(r.Ledger.MovedAt(pod.Group), w.Stabilization)
		if left := settlesAt.Sub(r.Clock.Now()); left > 0 {
			errs = append(errs, phase.Wait("policy and NodeGroup to stay as they are", left))
			continue
		}
		if err := r.canReturn(pod); err != nil {
			w.blocked = err
			errs = append(errs, phase.Wait(err.Error(), retryDisruption))
			continue
		}
		if !r.Ledger.Disrupt(pod.UID, below, w.Replicas, w.MaxUnavailable) {
			errs = append(errs, phase.Wait("other pods of the workload to be available", retryDisruption))
			break
		}
		err := r.Evictor.EvictAnnounced(ctx, eviction.Announced{Pod: pod.Key(), UID: pod.UID, Node: pod.Node, Ready: pod.Ready}, r.Ledger.Undisrupt)
		switch {
		case err == nil:
			replacementsTotal.Inc()
			log.FromContext(ctx).Info("Replaced a pod to override what cannot change", "pod", pod.Key(), "nodeGroup", pod.Group, "overridePolicy", s.policy.Name)
			r.podReplaced(s.policy, pod.Pod)
			r.memory.replaced(w, r.Clock.Now())
			if w.onlyOne {
				w.blocked = replacement.ErrBypassed
				return errors.Join(append(errs, phase.Wait(replacement.ErrBypassed.Error(), replacement.TryTime))...)
			}
		case eviction.Moot(err):
		case errors.Is(err, eviction.ErrPace), errors.Is(err, eviction.ErrRefused), errors.Is(err, eviction.ErrBusy):
			w.blocked = err
			return errors.Join(append(errs, phase.Wait(err.Error(), eviction.Again(err)))...)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// canReturn returns why the successor of an available pod could not run in the pod's
// group, or nil. The successor of a DaemonSet's pod comes to the same node in any case.
func (r *Reconciler) canReturn(pod seats.SeatView) error {
	if !pod.Available() || pod.For != "" {
		return nil
	}
	if can, why := r.Ledger.CanReturn(pod.Pod); !can {
		return fmt.Errorf("NodeGroup %q can take none: %s", pod.Group, why)
	}
	return nil
}
