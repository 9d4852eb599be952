package workload

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// gateTime is the shortest time that a pod stays at the gate before it is replaced:
	// the webhook may still be unable to give its successor a seat.
	gateTime = 2 * time.Second
	// retrySeat is when a pod at the gate without a seat is tried again.
	retrySeat = 5 * time.Second
)

// replace settles a gated pod (settle) if it can still be changed as its OverridePolicy
// requires. It evicts a pod that had to be created with the changes, so that its owner
// recreates it. It reports whether the pod stays at the gate. A pod of a Job is not
// evicted: the Job is suspended and resumed, or the pod starts as it is.
func (r *Reconciler) replace(ctx context.Context, s *scope, pod *seats.Pod) (stays bool, err error) {
	if pod.Pinned() {
		return r.releasePinned(ctx, s, pod)
	}
	a, err := r.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	if errors.Is(err, owners.ErrOwnerGone) {
		return true, phase.Wait("the garbage collector, or another owner", retrySeat)
	}
	if err != nil {
		return pod.Controller != nil || !r.Policies.ExtenderInUse(), nil // the status of the policy shows the error
	}
	if o := a.PolicyOwners.Propagation; o != nil && o.IgnoreMissing && s.policiesOf(o).Propagation() != ownership.Bound {
		return false, nil // the workload ignores a policy that is missing or invalid
	}
	creation, err := r.Policies.Creation(ctx, a)
	if err != nil {
		return false, err
	}
	if creation.Missing {
		return true, phase.Wait("the OverridePolicy of the pod's workload", retrySeat)
	}
	unseen := r.Policies.ExtenderInUse() && !r.isScheduledByExtender(pod)
	if (unseen || !r.Policies.ExtenderInUse()) && !a.Divided() && !a.Allows(r.Ledger.NodeGroup(pod.For)) {
		return true, phase.Wait("the pod's node to join a NodeGroup of the policy", retrySeat)
	}
	early := creation.Early || unseen
	atOnce := creation.AtOnce || unseen && a.PolicyOwners.Managed()
	// No rule depends on the creation of the pod: it can be changed at the gate.
	if !creation.Fixed && (a.Divided() && early || !a.Divided() && atOnce) {
		return true, r.settle(ctx, s, pod, a, creation)
	}
	if pod.Controller == nil || !creation.Fixed || a.Counted && !early {
		return false, nil // its successor would be the same
	}
	if strings.HasPrefix(pod.Unassigned, creation.Version()+" ") {
		return true, nil // a rule cannot be applied; the status of the OverridePolicy shows it
	}
	if left := pod.Created.Add(gateTime).Sub(r.Clock.Now()); left > 0 {
		return true, phase.Wait("a replica of the webhook that gives new pods seats", left)
	}
	request := seats.Request{Pod: pod.UID, Cohort: a.Cohort}
	if a.Counted { // evict the pod only if its successor can get a seat
		request.Total, request.Spread = a.Total, a.Spread
		if len(r.Ledger.Scores(request)) == 0 {
			return true, phase.Wait("a seat for the pod", retrySeat)
		}
	}
	if a.Job {
		stays, err := r.restartJob(ctx, s, pod, creation)
		isPlacedLater := r.Policies.ExtenderInUse() && !unseen && (pod.Scheduler == "" || pod.Scheduler == r.SchedulerName)
		if stays || err != nil || isPlacedLater || !a.Divided() {
			return stays, err
		}
		return true, r.settle(ctx, s, pod, a, creation) // nothing else restricts it to its group
	}
	if may, after := r.Ledger.MayRecreateGated(request, pod.Created); !may {
		return true, phase.Wait("a seat for the next pod", after)
	}
	// MayRecreateGated has counted the successor of the pod. CancelRecreation takes that back
	// if the pod stays.
	err = r.Evictor.Discard(ctx, pod.Key(), pod.UID)
	if err != nil && !errors.Is(err, eviction.ErrGone) {
		r.Ledger.CancelRecreation(request)
	}
	if err == nil {
		log.FromContext(ctx).Info("Replaced a pod at the gate that was created without the changes of its OverridePolicy", "pod", pod.Key())
	}
	return true, eviction.Outcome(err)
}

// isScheduledByExtender returns false if kube-scheduler will not call the extender for a pod: it was
// admitted while atoll-manager was installed in another form, or had to be pinned by its policy then.
// Nothing but the gate keeps such a pod in its group. It is true for a pod with a scheduler of its own:
// such pods are corrected after they are placed, as those are that never wait at the gate.
func (r *Reconciler) isScheduledByExtender(pod *seats.Pod) bool {
	return (r.SchedulerName == "" || pod.Scheduler != "") && (r.Mark == "" || slices.Contains(pod.Marks, r.Mark))
}
