package seats

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// AvoidTime is how long an owner's new pods avoid a group in which one of
	// them found no node. It doubles each time that the group still has none.
	AvoidTime = 5 * time.Minute
	// maxAvoidTime bounds that.
	maxAvoidTime = time.Hour
	// refusedTime is how long new pods of an owner get their group at creation
	// after one of them was refused.
	refusedTime = 5 * time.Minute
)

// Texts with which the extender refuses nodes to a pod, for kube-scheduler to
// write into the pod's condition. They never change: see package extender.
const (
	// TextOutsideGroups refuses a node that is in no group of the policy.
	TextOutsideGroups = "node is in no NodeGroup of the workload's PropagationPolicy"
	// TextOtherGroup refuses a node whose group has its share for now.
	TextOtherGroup = "node's NodeGroup has its share of the workload's pods"
)

// avoidance is a group that the pods of an owner do not get at creation.
type avoidance struct {
	owner types.UID
	group string
}

// penalty is until when a group is avoided, and for how long that was at first.
type penalty struct {
	until time.Time
	span  time.Duration
}

// Avoid makes new pods of an owner avoid a group for AvoidTime, or until one of
// its nodes has room that it had not. If the group was avoided until less than
// maxAvoidTime ago it is for twice as long as then.
func (l *Ledger) Avoid(owner types.UID, group string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key, now := avoidance{owner, group}, l.clock.Now()
	last, known := l.avoided[key]
	span := AvoidTime
	switch {
	case known && now.Before(last.until):
		span = last.span
	case known && now.Before(last.until.Add(maxAvoidTime)):
		span = min(2*last.span, maxAvoidTime)
	}
	l.avoided[key] = penalty{until: now.Add(span), span: span}
}

// clearAvoidedLocked ends that anybody avoids a group. For how long it was is kept:
// the room may not be for the pod that found none.
func (l *Ledger) clearAvoidedLocked(group string) {
	now := l.clock.Now()
	for a, p := range l.avoided {
		if a.group == group && now.Before(p.until) {
			p.until = now
			l.avoided[a] = p
		}
	}
}

func (l *Ledger) avoidsLocked(owner types.UID, group string) bool {
	return l.clock.Now().Before(l.avoided[avoidance{owner, group}].until)
}

// noteRefusalLocked remembers that pods of an owner wait for a node of the group
// whose turn it is.
func (l *Ledger) noteRefusalLocked(pod *Pod) {
	if pod.Active && pod.Node == "" && (pod.Refused || pod.Pinned() && pod.Unschedulable) {
		l.refused[pod.Owner()] = l.clock.Now().Add(refusedTime)
	}
}

// Refused tells whether kube-scheduler was refused all nodes for a pod of the
// owner a while ago. Every replica knows it from the pods alone. The owner's new
// pods are to get their group at creation: one that waits without is asked about
// whenever any pod changes.
func (l *Ledger) Refused(owner types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.Now().Before(l.refused[owner])
}

// HoldRefused is Refused, and makes it last: the owner's pods are kept from
// kube-scheduler, and nothing else would tell that they still wait.
func (l *Ledger) HoldRefused(owner types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	held := now.Before(l.refused[owner])
	if held {
		l.refused[owner] = now.Add(refusedTime)
	}
	return held
}

// Remake tells whether a waiting pod of an owner, created at a time, may be made
// anew so that the next one gets its group at creation. Each pod may once, and
// its successor, should it wait as well, not before after: some seconds from the
// first of them are a round, and the next round begins refusedTime later.
func (l *Ledger) Remake(owner types.UID, created time.Time) (may bool, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	began, known := l.remade[owner]
	if !known || !now.Before(began.Add(refusedTime)) {
		began = now.Truncate(time.Second) // as times of creation are
		l.remade[owner] = began
	}
	return created.Before(began), began.Add(refusedTime).Sub(now)
}

// forgetWaitingLocked drops what is over.
func (l *Ledger) forgetWaitingLocked() {
	now := l.clock.Now()
	maps.DeleteFunc(l.avoided, func(_ avoidance, p penalty) bool { return now.After(p.until.Add(maxAvoidTime)) })
	maps.DeleteFunc(l.refused, func(_ types.UID, until time.Time) bool { return now.After(until) })
	maps.DeleteFunc(l.remade, func(_ types.UID, began time.Time) bool { return now.After(began.Add(refusedTime)) })
	l.forgetRoundsLocked()
}
