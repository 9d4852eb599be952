package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// retryUnread is when a pod at the gate whose owner cannot be read is tried again.
const retryUnread = 2 * time.Second

// release takes pods off the gate once the API server has the binding labels, and nudges
// unschedulable pods.
func (r *Reconciler) release(ctx context.Context, s *scope) error {
	if !s.bound || !s.workload.IgnoreMissing && s.want.Unbound() {
		return nil
	}
	errs := []error{s.waitForAway(r.Clock.Now())}
	for _, cohort := range r.Ledger.View(r.Walker.Descendants(s.workload.UID)) {
		errs = append(errs, r.releaseCohort(ctx, s, cohort))
	}
	return errors.Join(errs...)
}

// releaseCohort releases the pods of one owner and one revision. An error about one pod does
// not keep the others at the gate.
func (r *Reconciler) releaseCohort(ctx context.Context, s *scope, cohort seats.CohortView) error {
	var errs []error
	var unschedulable, gated []*seats.Pod
	for _, pod := range cohort.Pods {
		switch {
		case pod.Node != "" || r.waitsForAnother(pod.Pod, s):
		case pod.Gated:
			gated = append(gated, pod.Pod)
		case pod.Unschedulable:
			unschedulable = append(unschedulable, pod.Pod)
		}
	}
	if len(unschedulable)+len(gated) == 0 {
		return nil
	}
	nudge := nudgeValue(s.spread + s.override)
	open, placeless, request := r.openSeats(ctx, slices.Concat(unschedulable, gated)[0])
	// A pod is nudged once for each content of the policies, and only if a seat is open.
	for _, pod := range unschedulable[:min(open, len(unschedulable))] {
		if pod.Nudge != nudge {
			errs = append(errs, r.wake(ctx, s, pod, nudge))
		}
	}
	for _, pod := range gated {
		if err := r.checkOwners(ctx, pod); err != nil {
			errs = append(errs, err)
			continue
		}
		if done, err := r.classify(ctx, s, pod); done || err != nil {
			errs = append(errs, err)
			continue
		}
		request.Pod = pod.UID
		stays, err := r.replace(ctx, s, pod)
		switch {
		case stays || err != nil:
		case placeless && !pod.Pinned() && r.Ledger.ExtendRefused(cohort.Owner):
			err = phase.Wait("a NodeGroup with a node", retrySeat)
		case request.Spread.Bounded() && !pod.Pinned() && !r.Ledger.CanUngate(request): // the expiry of a reservation is no event
			err = phase.Wait("a seat for a pod at the gate", seats.ReservationTTL)
		default:
			err = r.wake(ctx, s, pod, nudge)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkOwners returns a wait while it is not known whether an owner of the pod requires
// policies. The caches hold the owners of nearly every pod. Other errors of the walk are
// left to replace.
func (r *Reconciler) checkOwners(ctx context.Context, pod *seats.Pod) error {
	workload, chain, err := r.Walker.PolicyOwners(ctx, pod.Object())
	switch {
	case err == nil && r.Policies.IsBehind(pod, workload, chain):
		return waitForOwners()
	case errors.Is(err, owners.ErrOwnerUnread):
		return phase.Wait(err.Error(), retryUnread)
	case err == nil && workload.Managed() && !r.Walker.PolicyOwnersOf(pod.Owner()).Managed():
		return waitForOwners()
	}
	return nil
}

func waitForOwners() error { return phase.Wait("the watch to deliver the pod's owners", retryUnread) }

// releaseLeft takes the pods of an owner off the gate that the walker does not hold any
// more, because its kind was removed from the ConfigMap. No other workload enqueues them.
// Pods whose owner is deleted are left to the garbage collector.
func (r *Reconciler) releaseLeft(ctx context.Context, s *scope) error {
	var errs []error
	nudge := nudgeValue("")
	for _, cohort := range r.Ledger.View(r.Walker.Descendants(s.workload.UID)) {
		for _, pod := range cohort.Pods {
			if pod.Node != "" || !pod.Gated && !pod.Unschedulable {
				continue
			}
			workload, chain, err := r.Walker.PolicyOwners(ctx, pod.Object())
			if err == nil && pod.Gated {
				if r.Policies.IsBehind(pod.Pod, workload, chain) { // before its class, which may take the gate off
					errs = append(errs, waitForOwners())
					continue
				}
				if done, err := r.classify(ctx, s, pod.Pod); done || err != nil {
					errs = append(errs, err)
					continue
				}
			}
			switch {
			case errors.Is(err, owners.ErrOwnerUnread):
				errs = append(errs, phase.Wait(err.Error(), retryUnread))
			case errors.Is(err, owners.ErrOwnerGone):
			case err != nil:
				errs = append(errs, err)
			case !workload.Managed() && (pod.Gated || pod.Nudge != nudge):
				errs = append(errs, r.wake(ctx, s, pod.Pod, nudge))
			case pod.Gated: // seen before its owner, and the event of the owner may not enqueue it
				errs = append(errs, waitForOwners())
			}
		}
	}
	return errors.Join(errs...)
}

// openSeats returns the number of pods of a cohort that kube-scheduler could place now. No
// more pods are nudged, because the others would be unschedulable again. placeless reports
// that no group of the policy has a node. request is the seat request of one of the pods;
// its spread is empty if the pods are not divided.
func (r *Reconciler) openSeats(ctx context.Context, pod *seats.Pod) (open int, placeless bool, request seats.Request) {
	a, err := r.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	if err == nil && a.Counted && len(a.Spread.Groups()) == 0 && len(a.Spread.Missing()) > 0 {
		return math.MaxInt, true, seats.Request{}
	}
	if err != nil || !a.Counted || len(a.Spread.Groups()) == 0 {
		return math.MaxInt, false, seats.Request{} // nothing limits the pods
	}
	request = r.Policies.SeatRequest(&a, "")
	return r.Ledger.Open(request), false, request
}

// waitForAway returns a wait until the next group of the policy becomes away: pods that wait
// may get another group then, and there is no event for it.
func (s *scope) waitForAway(now time.Time) error {
	if s.changesAt.IsZero() {
		return nil
	}
	return phase.Wait("a NodeGroup to be away", s.changesAt.Sub(now))
}

// waitsForAnother reports whether the pod waits for a policy that an owner other than the
// workload of this pass requires: different owners may require the two policies.
func (r *Reconciler) waitsForAnother(pod *seats.Pod, s *scope) bool {
	workload := r.Walker.PolicyOwnersOf(pod.Owner())
	for _, o := range []*ownership.Object{workload.Propagation, workload.Override} {
		if o != nil && o.UID != s.workload.UID && o.Waits() {
			return true
		}
	}
	return false
}

// wake takes a pod off the gate, or nudges an unschedulable one: kube-scheduler tries that
// again when the pod changes, but not when a policy changes. It also writes the policy
// labels of the pod.
func (r *Reconciler) wake(ctx context.Context, s *scope, pod *seats.Pod, nudge string) error {
	type gate struct {
		Patch string `json:"$patch"`
		Name  string `json:"name"`
	}
	var change struct {
		Metadata struct {
			UID         types.UID          `json:"uid"`
			Labels      map[string]*string `json:"labels,omitempty"`
			Annotations map[string]string  `json:"annotations,omitempty"`
		} `json:"metadata"`
		Spec struct {
			SchedulingGates []gate `json:"schedulingGates,omitempty"`
		} `json:"spec"`
	}
	change.Metadata.UID = pod.UID
	change.Metadata.Labels = policyLabels(r.Walker.PolicyOwnersOf(pod.Owner()), s)
	for _, key := range r.selectorOf(pod).Keys() {
		delete(change.Metadata.Labels, key) // its owner selects it by this label
	}
	if pod.Gated {
		change.Spec.SchedulingGates = []gate{{Patch: "delete", Name: gm.PolicyGate}}
	} else {
		change.Metadata.Annotations = map[string]string{gm.NudgeAnnotation: nudge}
	}
	raw, err := json.Marshal(change)
	if err != nil {
		return fmt.Errorf("encoding a patch of pod %s: %w", pod.Key(), err)
	}
	_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) && !patch.AnotherOfThatName(err) {
		if pod.Gated {
			s.refused(err)
		}
		return fmt.Errorf("releasing pod %s: %w", pod.Key(), err)
	}
	return nil
}

// selectorOf returns the label selector of the owner of a pod; unknown, the zero value, if
// the caches do not hold the owner.
func (r *Reconciler) selectorOf(pod *seats.Pod) ownership.Selector {
	if pod.Controller == nil {
		return ownership.SelectorByKeys()
	}
	if owner := r.Walker.Get(pod.Owner()); owner != nil {
		return owner.Selector
	}
	return ownership.Selector{}
}

// policiesOf returns the policies of an object. For the workload of this pass they include
// the binding labels that it has written; the caches may not hold them yet.
func (s *scope) policiesOf(o *ownership.Object) ownership.Policies {
	if o.UID == s.workload.UID {
		return s.want
	}
	return o.Policies
}

// policyLabels returns the policy labels of a pod: copies of those of its workload, with the
// binding labels that this pass has written. nil removes a label.
func policyLabels(workload ownership.PolicyOwners, s *scope) map[string]*string {
	current := *s.workload
	current.Policies = s.want
	for _, o := range []**ownership.Object{&workload.Propagation, &workload.Override} {
		if *o != nil && (*o).UID == s.workload.UID {
			*o = &current
		}
	}
	want := workload.Policies().Labels()
	labels := make(map[string]*string, len(ownership.LabelKeys))
	for _, key := range ownership.LabelKeys {
		labels[key] = nil
		if value, ok := want[key]; ok {
			labels[key] = &value
		}
	}
	return labels
}

// nudgeValue returns a short hash of the contents of the policies.
func nudgeValue(spread string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(spread))
	return strconv.FormatUint(uint64(h.Sum32()), 36)
}
