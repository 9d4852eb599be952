package workload

import (
	"context"
	"errors"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// gateTime is how long a pod stays at the gate at least before it is
	// replaced: what keeps the webhook from seating pods may last.
	gateTime = 2 * time.Second
	// retrySeat is how soon is looked again whether a group lacks a pod.
	retrySeat = 5 * time.Second
)

// replace lets the owner of a gated pod make a new one, if the pod had to be as
// its OverridePolicy wants it from its creation and is not. It reports whether
// the pod is to stay at the gate. A Job's pod is not evicted: the Job is
// suspended and resumed, or the pod starts as it is.
func (r *Reconciler) replace(ctx context.Context, s *scope, pod *seats.Pod) (stays bool, err error) {
	if pod.Pinned() {
		return false, nil
	}
	a, err := r.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	if err != nil {
		return pod.Controller != nil || !r.Policies.Asked(), nil // the policy says why
	}
	if o := a.Application.Propagation; o != nil && o.IgnoreMissing && s.found(o).Propagation() != ownership.Bound {
		return false, nil // its workload wants no policy where it cannot be used
	}
	creation, err := r.Policies.Creation(ctx, a)
	if err != nil {
		return false, err
	}
	if !r.Policies.Asked() && !a.Divided() && !a.Takes(r.Ledger.NodeGroup(pod.For)) {
		return true, phase.Wait("the pod's node to join a NodeGroup of the policy", retrySeat)
	}
	if !creation.Fixed && (a.Divided() && creation.Early || !a.Divided() && creation.AtOnce) {
		return true, r.settle(ctx, s, pod, a, creation)
	}
	if pod.Controller == nil || !creation.Fixed || a.Counted && !creation.Early {
		return false, nil // a new one would be no other
	}
	if strings.HasPrefix(pod.Unassigned, creation.Version()+" ") {
		return true, nil // a rule cannot be applied; the OverridePolicy says so
	}
	if left := pod.Created.Add(gateTime).Sub(r.Clock.Now()); left > 0 {
		return true, phase.Wait("a replica that seats new pods", left)
	}
	request := seats.Request{Pod: pod.UID, Cohort: a.Cohort}
	if a.Counted {
		request.Total, request.Spread = a.Total, a.Spread
		if len(r.Ledger.Scores(request)) == 0 {
			return true, phase.Wait("a seat for the pod", retrySeat)
		}
	}
	if a.Job {
		stays, err := r.restartJob(ctx, s, pod, creation)
		if stays || err != nil || r.Policies.Asked() || !a.Divided() {
			return stays, err
		}
		return true, r.settle(ctx, s, pod, a, creation) // nobody else keeps it to its group
	}
	if may, after := r.Ledger.Renew(request, pod.Created); !may {
		return true, phase.Wait("a seat for the next pod", after)
	}
	err = r.Evictor.Discard(ctx, pod.Key(), pod.UID)
	if err != nil && !errors.Is(err, eviction.ErrGone) {
		r.Ledger.Stay(request)
	}
	if err == nil {
		log.FromContext(ctx).Info("Replaced a pod that waited to be created as its OverridePolicy wants it", "pod", pod.Key())
	}
	return true, eviction.Outcome(err)
}
