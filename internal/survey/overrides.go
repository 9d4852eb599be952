package survey

import (
	"context"
	"errors"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Overridden is what was observed of one workload of an OverridePolicy.
type Overridden struct {
	Object *ownership.Object
	// Replicas is the number of pods that the workload wants, and Missing how many of them
	// it does not have.
	Replicas, Missing int
	// MaxUnavailable, Mode and Stabilization are those of the workload's
	// PropagationPolicy, or the defaults without one.
	MaxUnavailable int
	Mode           gm.ReschedulingMode
	Stabilization  time.Duration
	// Due are the pods whose images are to change in place, in the order of the changes.
	Due []DuePod
	// Stale are the pods that were not created as the rules want them.
	Stale []seats.SeatView
	// MissedAt is the creation of the newest pod that did not pass the pod webhook, and
	// AdmittedAt of the newest that did; zero if there is none.
	MissedAt, AdmittedAt time.Time
	// Unusable: the rules cannot be used for the workload, so it must not be bound to the
	// policy. It may still be for a moment.
	Unusable bool
	// Refused is the error with which the API server refuses new pods of the workload, as
	// the pods' owner reports it; "" if there is none.
	Refused string
	// Pods is the number of pods on nodes of groups, Updated of those that are as the
	// rules want, and Kept of those that stay as they started: pods of Jobs, and pods whose
	// containers may not be started again.
	Pods, Updated, Kept int
	// Failure is why the rules cannot be used for the workload or for one of its pods, or
	// nil.
	Failure error
}

// DuePod is a pod whose images are to change in place.
type DuePod struct {
	*seats.Pod
	Group  string
	Change policies.ImageChange
}

// Overridden observes one workload and its pods.
func (s *Surveyor) Overridden(ctx context.Context, policy *gm.OverridePolicy, rules *override.Rules, object *ownership.Object) (*Overridden, error) {
	w := &Overridden{Object: object, Mode: gm.ReschedulingEvict, MaxUnavailable: 1, Stabilization: gm.DefaultStabilization}
	if name := object.Policies.RequiredPropagation; name != "" {
		propagation, err := s.Policies.Propagation(ctx, object.Namespace, name)
		switch {
		case budget.IsUnread(err): // its mode is not known, so running pods stay
			w.Mode = gm.ReschedulingOnRollout
		case client.IgnoreNotFound(err) != nil:
			return nil, err
		case err == nil:
			if mode := propagation.Spec.Rescheduling.Mode; mode != "" {
				w.Mode = mode
			}
			w.MaxUnavailable = max(1, int(propagation.Spec.Rescheduling.MaxUnavailable))
			w.Stabilization = propagation.Spec.Rescheduling.Stabilization()
		}
	}
	w.Failure = s.Policies.Usable(ctx, object, rules)
	w.Unusable = w.Failure != nil
	below := s.Walker.Descendants(object.UID)
	w.Refused = s.Walker.PodsRefused(below)
	cohorts := s.Ledger.View(below)
	for _, cohort := range cohorts {
		for _, pod := range cohort.Pods {
			s.observeOverrides(policy, rules, w, pod)
		}
	}
	s.observeReplicas(w, below, cohorts)
	// Nothing is lost with pods that are not available, so they come first.
	sort.SliceStable(w.Due, func(i, j int) bool { return !w.Due[i].Available() && w.Due[j].Available() })
	return w, nil
}

// UpdatesImages returns whether the images of the pods in Due are changed in place.
func (w *Overridden) UpdatesImages() bool {
	return w.Mode == gm.ReschedulingEvict && w.bound()
}

func (w *Overridden) bound() bool {
	return !w.Unusable && w.Object.Policies.Override() == ownership.Bound
}

// Replacements returns what the plan of replacements depends on, but for what is remembered
// of trials and replacements before. The indexes of its Stale are those of w.Stale.
func (s *Surveyor) Replacements(rules *override.Rules, w *Overridden) *replacement.Workload {
	observed := &replacement.Workload{Mode: w.Mode, Bound: w.bound(), Placed: s.placesNewPods(rules, w), Refused: w.Refused != ""}
	for _, pod := range w.Stale {
		observed.Stale = append(observed.Stale, replacement.Pod{
			Bound: pod.Node != "", Available: pod.Available(), Pinned: pod.Pinned(), Created: pod.Created,
			GetsSuccessor: pod.Controller != nil && s.Walker.Get(pod.Owner()) != nil && !s.Walker.OfJob(pod.Controller),
		})
	}
	return observed
}

// placesNewPods returns whether the NodeGroup of a new pod is known at its creation, if
// the rules change fields that cannot change later.
func (s *Surveyor) placesNewPods(rules *override.Rules, w *Overridden) bool {
	if !rules.TouchesImmutableAnywhere() || w.Object.Kind == "DaemonSet" {
		return true
	}
	object := s.Walker.PolicyOwnersOf(w.Object.UID).Propagation
	return object != nil && object.Policies.Propagation() == ownership.Bound
}

// observeReplicas sets how many pods the workload wants, and how many of those are
// missing. The number is the workload's own, or the sum of those of its pods' owners. A
// Job counts as wanting the pods that it has: when it is done, it wants none.
func (s *Surveyor) observeReplicas(w *Overridden, below []types.UID, cohorts []seats.CohortView) {
	sized := w.Object.Replicas != nil && w.Object.Kind != "Job"
	if sized {
		w.Replicas = int(*w.Object.Replicas)
	}
	active, counted := 0, map[types.UID]bool{} // one owner may have pods of several revisions
	for _, cohort := range cohorts {
		active += len(cohort.Pods)
		owner := s.Walker.Get(cohort.Owner)
		switch {
		case sized:
		case owner != nil && owner.Replicas != nil && owner.Kind != "Job":
			if !counted[owner.UID] {
				w.Replicas += int(*owner.Replicas)
			}
			counted[owner.UID] = true
		default:
			w.Replicas += len(cohort.Pods)
		}
	}
	if !w.Object.Deleting && !s.ofJobs(below) {
		w.Missing = max(0, w.Replicas-active)
	}
}

// ofJobs returns whether a Job is among the owners.
func (s *Surveyor) ofJobs(owners []types.UID) bool {
	for _, uid := range owners {
		if o := s.Walker.Get(uid); o != nil && o.Kind == "Job" {
			return true
		}
	}
	return false
}

// observeOverrides compares one pod with the rules. Pods on nodes of no group are not compared.
func (s *Surveyor) observeOverrides(policy *gm.OverridePolicy, rules *override.Rules, w *Overridden, pod seats.SeatView) {
	newest := &w.MissedAt
	if pod.Admitted {
		newest = &w.AdmittedAt
	}
	if pod.Created.After(*newest) {
		*newest = pod.Created
	}
	if pod.Node == "" {
		s.observeWaiting(policy, rules, w, pod)
		return
	}
	if pod.Group == "" {
		return
	}
	w.Pods++
	change, err := policies.Images(rules, pod.Group, pod.Pod)
	switch stale := rules.FixedHash(pod.Group) != pod.Overrides; {
	case stale && s.Walker.OfJob(pod.Controller) && err == nil && change.Needed() && change.Starts():
		w.Due = append(w.Due, DuePod{pod.Pod, pod.Group, change}) // it is not recreated, and cannot start as it is
	case stale && s.Walker.OfJob(pod.Controller):
		w.Kept++
	case stale:
		w.Stale = append(w.Stale, pod)
	case err != nil:
		w.Failure = err
	case change.Needed() && pod.RunsOnce && !change.Starts():
		// The kubelet ends a container before it pulls the other image. If that fails once, a
		// Job counts the pod as done. A pod that went past the webhook may wait for ever for an
		// image that only the rules make one of this group: it has nothing to lose.
		w.Kept++
	case change.Needed():
		w.Due = append(w.Due, DuePod{pod.Pod, pod.Group, change})
	default:
		w.Updated++
	}
}

// observeWaiting compares a pod that has no node with the rules. The controller of
// workloads replaces pods at the scheduling gate; of those it only reports why they
// cannot leave the gate.
func (s *Surveyor) observeWaiting(policy *gm.OverridePolicy, rules *override.Rules, w *Overridden, pod seats.SeatView) {
	switch {
	case pod.Unassigned != "":
		version, why, _ := strings.Cut(pod.Unassigned, " ")
		if version == policies.Version(policy) {
			w.Failure = errors.New(why)
		}
	case pod.Pinned():
		if rules.FixedHash(pod.Group) != pod.Overrides {
			w.Stale = append(w.Stale, pod)
		} else if change, err := policies.Images(rules, pod.Group, pod.Pod); err == nil && change.Needed() && !pod.Gated && !pod.RunsOnce {
			w.Due = append(w.Due, DuePod{pod.Pod, pod.Group, change}) // nothing else overrides it when it gets a node
		}
	case pod.Gated:
	default:
		if err := bindable(rules, pod.Pod); err != nil {
			w.Failure = err
		}
		missed := rules.TouchesImmutableAnywhere() || pod.Overrides != ""
		if pod.For != "" { // a pod of a DaemonSet has no seat, but its node is known
			missed = rules.FixedHash(s.Ledger.NodeGroup(pod.For)) != pod.Overrides
		}
		if missed { // it did not pass the pod webhook
			w.Stale = append(w.Stale, pod)
		}
	}
}

// bindable returns the error of the first rule that cannot be applied to a waiting pod, in
// any group of the rules, because the pod may be bound to a node of each of them.
func bindable(rules *override.Rules, pod *seats.Pod) error {
	for _, group := range rules.Groups() {
		if _, err := policies.Images(rules, group, pod); err != nil {
			return err
		}
	}
	return nil
}
