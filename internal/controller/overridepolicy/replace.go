package overridepolicy

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// missedTime is how long a pod that no webhook saw waits before it is replaced:
// the next one may be missed as well.
const missedTime = 10 * time.Second

// errNotPlaced: new pods would be no other, or wait.
var errNotPlaced = errors.New("the workload is not bound to its PropagationPolicy")

// errUntried: new pods could be refused, and running ones would be lost for it.
var errUntried = errors.New("it is not known yet whether the API server takes the pods that the rules make")

// errRefused: a pod that goes would be missing.
var errRefused = errors.New("the API server creates no pods")

// replace lets the owners of pods that were not created as the rules want them
// make new ones, as many at a time as may be disturbed.
func (r *Reconciler) replace(ctx context.Context, s *scope) error {
	var errs []error
	for _, a := range s.apps {
		pods := a.replaceable()
		if len(pods) == 0 || a.unusable || a.app.Policies.Override() != ownership.Bound {
			continue
		}
		switch {
		case a.refused != "":
			a.blocked = errRefused // the owner that says so comes back here when it changes
		case !r.seatsNewPods(s, a):
			a.blocked = errNotPlaced
		case a.untried:
			a.blocked = errUntried // its trial comes back here
		default:
			errs = append(errs, r.replacePods(ctx, s, a, pods))
		}
	}
	return errors.Join(errs...)
}

// replaceable are the stale pods that the mode lets go: without Evict, those
// without a node only. They do no work, and the extender never binds them.
func (a *appScope) replaceable() []seats.SeatView {
	if a.mode == gm.ReschedulingEvict {
		return a.stale
	}
	var waiting []seats.SeatView
	for _, pod := range a.stale {
		if pod.Node == "" {
			waiting = append(waiting, pod)
		}
	}
	return waiting
}

// seatsNewPods tells whether a new pod would be as the rules want it: its
// NodeGroup must be known at creation.
func (r *Reconciler) seatsNewPods(s *scope, a *appScope) bool {
	if !s.rules.TouchesImmutableAnywhere() || a.app.Kind == "DaemonSet" {
		return true
	}
	placed := r.Walker.ApplicationOfOwner(a.app.UID).Propagation
	return placed != nil && placed.Policies.Propagation() == ownership.Bound
}

func (r *Reconciler) replacePods(ctx context.Context, s *scope, a *appScope, pods []seats.SeatView) error {
	if a.bypassedFor > 0 {
		a.blocked = errBypassed
		return phase.Wait(errBypassed.Error(), a.bypassedFor)
	}
	below := r.Walker.Descendants(a.app.UID)
	var errs []error
	for _, pod := range pods {
		if pod.Controller == nil || r.Walker.Get(pod.Owner()) == nil || r.Walker.OfJob(pod.Controller) {
			continue // nobody makes a new one, or its work would be lost
		}
		if left := r.settlesIn(a, pod); left > 0 {
			errs = append(errs, phase.Wait("policy and NodeGroup to stay as they are", left))
			continue
		}
		if err := r.canReturn(pod); err != nil {
			a.blocked = err
			errs = append(errs, phase.Wait(err.Error(), retryDisruption))
			continue
		}
		if !r.Ledger.Disrupt(pod.UID, below, a.replicas, a.maxUnavailable) {
			errs = append(errs, phase.Wait("other pods of the workload to be available", retryDisruption))
			break
		}
		err := r.Evictor.EvictAnnounced(ctx, pod.Key(), pod.UID, pod.Node, r.Ledger.Undisrupt)
		switch {
		case err == nil:
			r.replaced(ctx, s, pod)
			r.bypasses.replaced(a.app.UID, a.missedAt, a.admittedAt, r.Clock.Now())
			if a.onlyOne {
				a.blocked = errBypassed
				return errors.Join(append(errs, phase.Wait(errBypassed.Error(), tryTime))...)
			}
		case eviction.Moot(err):
		case errors.Is(err, eviction.ErrPace), errors.Is(err, eviction.ErrRefused), errors.Is(err, eviction.ErrBusy):
			a.blocked = err
			return errors.Join(append(errs, phase.Wait(err.Error(), eviction.Retry))...)
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// canReturn tells why the successor of a pod that works could not run where the
// pod does. That of a DaemonSet comes back to its node whatever is there.
func (r *Reconciler) canReturn(pod seats.SeatView) error {
	if !pod.Available() || pod.For != "" {
		return nil
	}
	if can, why := r.Ledger.CanReturn(pod.Pod); !can {
		return fmt.Errorf("NodeGroup %q can take none: %s", pod.Group, why)
	}
	return nil
}

// settlesIn is how long a pod is still left alone.
func (r *Reconciler) settlesIn(a *appScope, pod seats.SeatView) time.Duration {
	if pod.Node == "" && !pod.Pinned() {
		return pod.Created.Add(missedTime).Sub(r.Clock.Now())
	}
	return r.Ledger.MovedAt(pod.Group).Add(a.stabilization).Sub(r.Clock.Now())
}

func (r *Reconciler) replaced(ctx context.Context, s *scope, pod seats.SeatView) {
	replacementsTotal.Inc()
	log.FromContext(ctx).Info("Replaced a pod to override what cannot change", "pod", pod.Key(), "nodeGroup", pod.Group, "overridePolicy", s.policy.Name)
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	r.Recorder.Eventf(ref, nil, corev1.EventTypeNormal, "PodReplaced", "Override",
		"OverridePolicy %q changes fields that cannot change on a pod that exists", s.policy.Name)
}
