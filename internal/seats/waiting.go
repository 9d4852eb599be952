package seats

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

const (
	// AvoidTime is how long an owner's new pods of one revision and class avoid a group in which
	// one of them found no node. It doubles each time that the group still has no node, up to maxAvoidTime.
	AvoidTime = 5 * time.Minute
	// maxAvoidTime is the maximum of that time.
	maxAvoidTime = time.Hour
	// refusedTime is how long new pods of an owner get their group at creation after one of
	// its pods was refused.
	refusedTime = 5 * time.Minute
)

// Texts with which the extender refuses nodes. kube-scheduler writes them into the pod's
// condition, and SlimBy finds them there. They must not change: see package extender.
const (
	// TextOutsideGroups refuses a node that is in no group of the policy.
	TextOutsideGroups = "node is in no NodeGroup of the workload's PropagationPolicy"
	// TextOtherGroup refuses a node whose group has its share for now.
	TextOtherGroup = "node's NodeGroup has its share of the workload's pods"
)

// waiting holds what was learned from pods that wait, by owner: groups to avoid, and when
// waiting pods may be replaced. The Ledger's mutex guards it.
type waiting struct {
	clock clock.PassiveClock
	// avoided are, by group, the new pods that get no seat there if another group has one.
	avoided map[string]map[avoider]penalty
	// refused is until when new pods of an owner get their group at creation.
	refused map[types.UID]time.Time
	// remade is when the current round of MayRecreateUnschedulable began for an owner.
	remade map[types.UID]time.Time
	// rounds are the rounds of MayRecreateGated, by owner: see renew.go.
	rounds map[types.UID]round
}

// avoider are the pods of a cohort that have a class: they go to other nodes of a group than those
// of another class.
type avoider struct {
	cohort Cohort
	class  capacity.Class
}

// penalty is until when a group is avoided, and how long that was at first. demand is that of
// the pod that found no node there, and owners are those of its workload, of all revisions.
type penalty struct {
	until  time.Time
	span   time.Duration
	demand *fit.Demand
	owners []types.UID
}

func newWaiting(clock clock.PassiveClock) *waiting {
	return &waiting{
		clock:   clock,
		avoided: map[string]map[avoider]penalty{},
		refused: map[types.UID]time.Time{},
		remade:  map[types.UID]time.Time{},
		rounds:  map[types.UID]round{},
	}
}

// observe records whether a pod waits for a node of the group that is next, and ends the
// rounds of an owner that gets the pods that it wants.
func (w *waiting) observe(pod *Pod) {
	if pod.Active && pod.Node == "" && (pod.Refused || pod.Pinned() && pod.Unschedulable) {
		w.refused[pod.Owner()] = w.clock.Now().Add(refusedTime)
	}
	if last, known := w.rounds[pod.Owner()]; known && (pod.Pinned() || pod.CreatedFor != "") && !pod.Created.Before(last.began) {
		delete(w.rounds, pod.Owner())
	}
}

// avoid is Avoid of the Ledger.
func (w *waiting) avoid(pod *Pod, group string, owners []types.UID) {
	now := w.clock.Now()
	by := avoider{pod.cohort(), pod.Class}
	last, known := w.avoided[group][by]
	span := AvoidTime
	switch {
	case known && now.Before(last.until):
		span = last.span
	case known && now.Before(last.until.Add(maxAvoidTime)):
		span = min(2*last.span, maxAvoidTime)
	}
	if w.avoided[group] == nil {
		w.avoided[group] = map[avoider]penalty{}
	}
	w.avoided[group][by] = penalty{until: now.Add(span), span: span, demand: pod.demand(), owners: append(owners, pod.Owner())}
}

// clearAvoided removes the penalty on a group for all workloads. The span of each is kept,
// because the new room may not fit the pod that found none.
func (w *waiting) clearAvoided(group string) {
	now := w.clock.Now()
	for by, p := range w.avoided[group] {
		if now.Before(p.until) {
			p.until = now
			w.avoided[group][by] = p
		}
	}
}

// left ends the penalty on a group for the workload of a pod that leaves it, and for pods that
// have room now. The span of the latter is kept, as clearAvoided does.
func (w *waiting) left(pod *Pod, group string, madeRoom func(*fit.Demand) bool) {
	now := w.clock.Now()
	for by, p := range w.avoided[group] {
		switch {
		case slices.Contains(p.owners, pod.Owner()):
			delete(w.avoided[group], by)
		case now.Before(p.until) && madeRoom(p.demand):
			p.until = now
			w.avoided[group][by] = p
		}
	}
}

// avoids returns whether new pods of a cohort and class avoid a group now.
func (w *waiting) avoids(cohort Cohort, class capacity.Class, group string) bool {
	return w.clock.Now().Before(w.avoided[group][avoider{cohort, class}].until)
}

// isRefused is Refused of the Ledger.
func (w *waiting) isRefused(owner types.UID) bool { return w.clock.Now().Before(w.refused[owner]) }

// holdRefused is ExtendRefused of the Ledger.
func (w *waiting) holdRefused(owner types.UID) bool {
	held := w.isRefused(owner)
	if held {
		w.refused[owner] = w.clock.Now().Add(refusedTime)
	}
	return held
}

// remake is MayRecreateUnschedulable of the Ledger.
func (w *waiting) remake(owner types.UID, created time.Time) (may bool, after time.Duration) {
	now := w.clock.Now()
	began, known := w.remade[owner]
	if !known || !now.Before(began.Add(refusedTime)) {
		began = now.Truncate(time.Second) // creation times are whole seconds
		w.remade[owner] = began
	}
	return created.Before(began), began.Add(refusedTime).Sub(now)
}

// forget removes what has expired.
func (w *waiting) forget() {
	now := w.clock.Now()
	maps.DeleteFunc(w.avoided, func(_ string, by map[avoider]penalty) bool {
		maps.DeleteFunc(by, func(_ avoider, p penalty) bool { return now.After(p.until.Add(maxAvoidTime)) })
		return len(by) == 0
	})
	maps.DeleteFunc(w.refused, func(_ types.UID, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(w.remade, func(_ types.UID, began time.Time) bool { return now.After(began.Add(refusedTime)) })
	maps.DeleteFunc(w.rounds, func(_ types.UID, r round) bool { return now.After(r.ends().Add(maxRound)) })
}

// Avoid makes new pods of a pod's owner, revision and class avoid a group for AvoidTime, or until a
// node of the group has more room than before, or a pod of the owner leaves the group, or one of
// the owners of other revisions of the workload. If the group was avoided until less than
// maxAvoidTime ago, and no pod of these has left it since, it is avoided for twice as long as the
// last time.
func (l *Ledger) Avoid(pod *Pod, group string, others ...types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting.avoid(pod, group, slices.Clone(others))
}

// Refused returns whether, in the last refusedTime, a pod of the owner was observed that
// the extender had refused nodes, or that is pinned to a group and found no node there.
// This is read from the pods, so every replica gets the same result. The owner's new pods
// are to get their group at creation, because kube-scheduler retries a pod that waits
// without one whenever any pod changes.
func (l *Ledger) Refused(owner types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.isRefused(owner)
}

// ExtendRefused returns what Refused returns, and extends it by refusedTime from now. It is
// for pods that are kept from kube-scheduler: their conditions do not show that they still
// wait.
func (l *Ledger) ExtendRefused(owner types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.holdRefused(owner)
}

// MayRecreateUnschedulable returns whether a waiting pod of an owner may be recreated, so that
// its successor gets its group at creation. created is when the pod was created. Each pod may
// be recreated once. A successor that waits as well may be recreated in the next round, which
// begins refusedTime after the current one began: after is the time until then.
func (l *Ledger) MayRecreateUnschedulable(owner types.UID, created time.Time) (may bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting.remake(owner, created)
}
