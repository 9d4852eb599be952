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

// retryUnread is how soon is looked again whether the owner of a pod at the gate
// can be read.
const retryUnread = 2 * time.Second

// release lets pods go that wait for a policy, once the API server has the
// binding labels.
func (r *Reconciler) release(ctx context.Context, s *scope) error {
	if !s.bound || waits(s.app, s.want) {
		return nil
	}
	errs := []error{s.changes(r.Clock.Now())}
	for _, cohort := range r.Ledger.View(r.Walker.Descendants(s.app.UID)) {
		errs = append(errs, r.releaseCohort(ctx, s, cohort))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) releaseCohort(ctx context.Context, s *scope, cohort seats.CohortView) error {
	var errs []error
	var refused, gated []*seats.Pod
	for _, pod := range cohort.Pods {
		switch {
		case pod.Node != "" || r.waitsForAnother(pod.Pod, s):
		case pod.Gated:
			gated = append(gated, pod.Pod)
		case pod.Unschedulable:
			refused = append(refused, pod.Pod)
		}
	}
	if len(refused)+len(gated) == 0 {
		return nil
	}
	nudge := nudgeValue(s.spread + s.override)
	open, placeless, request := r.openSeats(ctx, slices.Concat(refused, gated)[0])
	for _, pod := range refused[:min(open, len(refused))] {
		if pod.Nudge != nudge {
			errs = append(errs, r.wake(ctx, s, pod, nudge))
		}
	}
	for _, pod := range gated {
		if err := r.known(ctx, pod); err != nil {
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
		case placeless && !pod.Pinned() && r.Ledger.HoldRefused(cohort.Owner):
			err = phase.Wait("a NodeGroup with a node", retrySeat)
		case request.Spread.Bounded() && !pod.Pinned() && !r.Ledger.CanUngate(request): // a reservation that lapses tells nobody
			err = phase.Wait("a seat for a pod at the gate", seats.ReservationTTL)
		default:
			err = r.wake(ctx, s, pod, nudge)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// known is an error while it is not known whether something above the pod's owner
// requires policies. The walk's caches answer for nearly every pod.
func (r *Reconciler) known(ctx context.Context, pod *seats.Pod) error {
	app, _, err := r.Walker.Application(ctx, pod.Object())
	switch {
	case errors.Is(err, owners.ErrOwnerUnread):
		return phase.Wait(err.Error(), retryUnread)
	case err == nil && app.Managed() && !r.Walker.ApplicationOfOwner(pod.Owner()).Managed():
		return phase.Wait("the watch to bring the pod's owners", retryUnread)
	}
	return nil
}

// releaseLeft lets pods go whose owner the walk does not know any more, because
// its kind is no workload any more: nobody else would. Pods whose owner is gone
// are left to the garbage collector.
func (r *Reconciler) releaseLeft(ctx context.Context, s *scope) error {
	var errs []error
	nudge := nudgeValue("")
	for _, cohort := range r.Ledger.View(r.Walker.Descendants(s.app.UID)) {
		for _, pod := range cohort.Pods {
			if pod.Node != "" || !pod.Gated && !pod.Unschedulable {
				continue
			}
			app, _, err := r.Walker.Application(ctx, pod.Object())
			if err == nil && pod.Gated {
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
			case !app.Managed() && (pod.Gated || pod.Nudge != nudge):
				errs = append(errs, r.wake(ctx, s, pod.Pod, nudge))
			case pod.Gated: // seen before its owner, whose own event brings nobody back
				errs = append(errs, phase.Wait("the watch to bring the pod's owners", retryUnread))
			}
		}
	}
	return errors.Join(errs...)
}

// openSeats is the number of pods of a cohort that kube-scheduler could place
// now: no more are nudged, for the others would be refused again. placeless is
// set when no group of the policy has a node. The request
// is what one of the pods asks for; its spread is empty where nothing is divided.
func (r *Reconciler) openSeats(ctx context.Context, pod *seats.Pod) (open int, placeless bool, request seats.Request) {
	a, err := r.Policies.Assignment(ctx, pod.Object(), pod.Revision)
	if err == nil && a.Counted && len(a.Spread.Groups()) == 0 && len(a.Spread.Missing()) > 0 {
		return math.MaxInt, true, seats.Request{}
	}
	if err != nil || !a.Counted || len(a.Spread.Groups()) == 0 {
		return math.MaxInt, false, seats.Request{} // every pod may find its node
	}
	request = seats.Request{Cohort: a.Cohort, Total: a.Total, Spread: a.Spread}
	return r.Ledger.Open(request), false, request
}

// changes comes back when a group of the policy comes to be away: pods that
// wait may go elsewhere then, and nothing else tells.
func (s *scope) changes(now time.Time) error {
	if s.changesAt.IsZero() {
		return nil
	}
	return phase.Wait("a NodeGroup to be away", s.changesAt.Sub(now))
}

// waits tells whether new pods of a workload have to wait for a policy.
func waits(app *ownership.Object, p ownership.Policies) bool {
	for _, binding := range []ownership.Binding{p.Propagation(), p.Override()} {
		if binding == ownership.Unbound || binding == ownership.Mismatched {
			return !app.IgnoreMissing
		}
	}
	return false
}

// waitsForAnother: the two policies may be required by different owners.
func (r *Reconciler) waitsForAnother(pod *seats.Pod, s *scope) bool {
	app := r.Walker.ApplicationOfOwner(pod.Owner())
	for _, o := range []*ownership.Object{app.Propagation, app.Override} {
		if o != nil && o.UID != s.app.UID && waits(o, o.Policies) {
			return true
		}
	}
	return false
}

// wake takes our gate off a pod, or nudges one that kube-scheduler refused
// before: it looks at a refused pod again when the pod changes, never because
// a policy did.
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
	change.Metadata.Labels = copies(r.Walker.ApplicationOfOwner(pod.Owner()), s)
	for _, key := range r.selectorOf(pod).Keys() {
		delete(change.Metadata.Labels, key) // its owner finds it by that
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

// selectorOf is what the owner of a pod finds it by; not known of an owner that the
// caches do not have.
func (r *Reconciler) selectorOf(pod *seats.Pod) ownership.Selector {
	if pod.Controller == nil {
		return ownership.SelectorByKeys()
	}
	if owner := r.Walker.Get(pod.Owner()); owner != nil {
		return owner.Selector
	}
	return ownership.Selector{}
}

// found are the policies of an object: of the pass's own workload what it has found,
// which the walk may not have seen yet.
func (s *scope) found(o *ownership.Object) ownership.Policies {
	if o.UID == s.app.UID {
		return s.want
	}
	return o.Policies
}

// copies are the policy labels of a pod: those of its application, with what
// this pass found about the one workload. nil takes a label off.
func copies(app ownership.Application, s *scope) map[string]*string {
	current := *s.app
	current.Policies = s.want
	for _, o := range []**ownership.Object{&app.Propagation, &app.Override} {
		if *o != nil && (*o).UID == s.app.UID {
			*o = &current
		}
	}
	want := app.Policies().Labels()
	labels := make(map[string]*string, len(ownership.LabelKeys))
	for _, key := range ownership.LabelKeys {
		labels[key] = nil
		if value, ok := want[key]; ok {
			labels[key] = &value
		}
	}
	return labels
}

func nudgeValue(spread string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(spread))
	return strconv.FormatUint(uint64(h.Sum32()), 36)
}
