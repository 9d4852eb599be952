package invariants

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// eviction is an eviction request and its effect.
type eviction struct {
	Request
	timeline timeline
	// left is the moment when the pod began to leave.
	left Stamp
}

// pod is the evicted pod, as it was just before.
func (e eviction) pod() Pod {
	if pod, ok := e.timeline.at(e.left.RV - 1).(Pod); ok {
		return pod
	}
	pod, _ := e.timeline.last().(Pod)
	return pod
}

// stamp returns the moment when the pod began to leave, or else that of the answer to the
// request.
func (e eviction) stamp() Stamp { return Stamp{RV: e.left.RV, Seen: e.Answered} }

// checkEvictions checks I10.
func (c *checker) checkEvictions(requests []Request) {
	var evictions []eviction
	for _, r := range requests {
		if !r.evicted() {
			continue
		}
		if e, ok := c.match(r); ok {
			evictions = append(evictions, e)
		} else {
			c.report.Unjudged++
		}
	}
	slices.SortStableFunc(evictions, func(a, b eviction) int { return cmp.Compare(a.left.RV, b.left.RV) })
	seen := map[types.UID]bool{}
	var running []eviction
	for _, e := range evictions {
		pod := e.pod()
		if seen[pod.UID] {
			c.violate("I10", e.stamp(), pod.name(), []any{pod.key()}, "was evicted twice")
			continue
		}
		seen[pod.UID] = true
		if pod.Node != "" {
			running = append(running, e)
		}
		c.checkEviction(e, pod)
	}
	c.checkPace(running)
}

// match finds the pod that a request evicted: among pods with the name, the one that left
// nearest to the answer.
func (c *checker) match(r Request) (eviction, bool) {
	best, found := eviction{Request: r}, false
	for _, key := range c.byName[r.object()] {
		t := c.timelines[key]
		left, ok := leaves(t)
		if ok && (!found || distance(left.Seen, r.Answered) < distance(best.left.Seen, r.Answered)) {
			best.timeline, best.left, found = t, left, true
		}
	}
	return best, found
}

func distance(a, b time.Time) time.Duration { return a.Sub(b).Abs() }

// leaves returns the moment when a pod was evicted, began to terminate, or was deleted.
func leaves(t timeline) (Stamp, bool) {
	var active bool
	for _, v := range t {
		pod, ok := v.object.(Pod)
		if !ok || pod.Evicted || active && !pod.Active {
			return v.Stamp, true
		}
		active = pod.Active
	}
	return Stamp{}, false
}

// checkEviction looks for the reason of an eviction in the states since the earliest
// moment at which it may have been decided.
func (c *checker) checkEviction(e eviction, pod Pod) {
	to := e.left.RV - 1
	from := e.left.Seen
	if e.Received.Before(from) {
		from = e.Received
	}
	from = from.Add(-c.Lag)
	ancestries, ok := c.ancestries(pod, from, to)
	if !ok {
		c.report.Unjudged++
		return
	}
	c.report.Evictions++
	for _, rv := range c.moments(from, to, podKey(pod.UID)) {
		then, ok := get[Pod](c.History, podKey(pod.UID), rv)
		if ok && (stuck(then) || c.stale(then, ancestries, from, to)) {
			return
		}
	}
	if c.poolRemoved(ancestries, from, e.Answered) {
		return
	}
	if c.misplaced(pod, ancestries, from, to) {
		return
	}
	groups, surplus := c.surplus(pod, ancestries, from, to)
	if surplus {
		return
	}
	if len(groups) == 0 {
		groups = []string{""}
	}
	c.violate("I10", e.stamp(), pod.name(), c.near(pod, ancestries),
		"was evicted from node %q of NodeGroup %q without a reason: it was neither surplus there, nor of the wrong class of capacity, nor other than its OverridePolicy wants it, nor without a node that could take it, nor of a removed pool",
		pod.Node, groups[0])
}

// misplaced reports whether a pod was on a node of the wrong class of capacity at some
// moment since a time: its workload had more pods of the class than it should have, or
// its ordinal is of the other class. Only the settings on the workload itself are read.
func (c *checker) misplaced(pod Pod, ancestries []ancestry, from time.Time, to uint64) bool {
	keys := slices.Clone(c.cohorts[pod.cohort()])
	for _, a := range ancestries {
		for _, o := range a.chain {
			keys = append(keys, workloadKey(o.UID))
		}
	}
	for _, rv := range c.moments(from, to, keys...) {
		a, ok := c.ancestryAt(pod, rv)
		if !ok || len(a.chain) == 0 {
			continue
		}
		workload := a.chain[len(a.chain)-1]
		count, err := strconv.Atoi(workload.Count)
		if err != nil {
			continue
		}
		if workload.Fallback { // the times at which nodes were added and removed are not judged
			return true
		}
		class := c.classAt(pod, rv)
		if pod.OwnerKind == "StatefulSet" {
			ordinal, err := strconv.Atoi(pod.Name[strings.LastIndexByte(pod.Name, '-')+1:])
			if err == nil && (ordinal-workload.FirstOrdinal < count) != (class == onDemand) {
				return true
			}
			continue
		}
		have := map[string]int{}
		for _, key := range c.cohorts[pod.cohort()] {
			if p, ok := get[Pod](c.History, key, rv); ok && p.Active {
				have[cmp.Or(c.classAt(p, rv), p.Class)]++
			}
		}
		want := map[string]int{onDemand: min(count, workload.Replicas)}
		want["spot"] = workload.Replicas - want[onDemand]
		if have[class] > want[class] {
			return true
		}
	}
	return false
}

// classAt returns the class of a pod's node; "" without a node.
func (c *checker) classAt(pod Pod, rv uint64) string {
	then, ok := get[Pod](c.History, podKey(pod.UID), rv)
	if !ok || then.Node == "" {
		return ""
	}
	n, _ := get[Node](c.History, nodeKey(then.Node), rv)
	return n.Class
}

// stuck reports whether the pod found no node in the group or of the class that it got at
// creation, or was refused by all other groups and did not get its own.
func stuck(pod Pod) bool {
	return pod.Node == "" && pod.Unschedulable && (pod.Pinned || pod.Refused || pod.Class != "")
}

// deserted reports whether a pod is in a group without a Ready node whose share the other
// groups may get.
func (c *checker) deserted(pod Pod, policies []PropagationPolicy, group string, rv uint64) bool {
	if pod.OwnerKind == "StatefulSet" || !slices.ContainsFunc(policies, func(p PropagationPolicy) bool { return p.Spec.Failover != nil }) {
		return false
	}
	return !slices.ContainsFunc(c.nodes, func(key any) bool {
		n, ok := get[Node](c.History, key, rv)
		return ok && n.Group == group && n.Ready
	})
}

// total returns the number of pods that is divided. partial reports whether there may be
// pods of another revision, so that this revision may have only a part of the total.
func (c *checker) total(pod Pod, a ancestry, active int, rv uint64) (all int, partial bool) {
	if a.propagation.Kind == "Job" {
		return active, false
	}
	partial = len(a.chain) > 0 && a.chain[0].Kind == "ReplicaSet" && a.chain[0].Replicas < a.replicas()
	for of, keys := range c.cohorts {
		if pod.OwnerKind != "StatefulSet" || of.owner != pod.Owner || of == pod.cohort() {
			continue
		}
		partial = partial || slices.ContainsFunc(keys, func(key any) bool {
			other, ok := get[Pod](c.History, key, rv)
			return ok && other.Active
		})
	}
	return max(active, a.replicas()), partial
}

// stale reports whether the pod was created with other overrides than those of its
// OverridePolicy.
func (c *checker) stale(pod Pod, ancestries []ancestry, from time.Time, to uint64) bool {
	groups := []string{pod.Group}
	if pod.Node != "" {
		groups = c.groupsOf(pod.Node, from, to)
	}
	for _, a := range ancestries {
		if a.override == nil {
			continue
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: a.override.Policies.RequiredOverride}
		for _, v := range c.timelines[overrideKey(name)].within(from, to) {
			policy, ok := v.object.(OverridePolicy)
			if !ok {
				continue
			}
			rules := c.compiled(policy)
			if pod.Node == "" && !pod.Pinned { // at the gate, or created without the webhook
				if rules.TouchesImmutableAnywhere() || pod.Overrides != "" && !pod.Gated {
					return true
				}
				continue
			}
			if slices.ContainsFunc(groups, func(group string) bool { return group != "" && rules.FixedHash(group) != pod.Overrides }) {
				return true
			}
		}
	}
	return false
}

// surplus reports whether a pod's group had more pods of its cohort than it should at
// some moment since a time. The surplus must be larger than the number of pods evicted
// since that moment, because each surplus pod is a reason for one eviction. groups are
// the groups of the pod.
func (c *checker) surplus(pod Pod, ancestries []ancestry, from time.Time, to uint64) (groups []string, surplus bool) {
	keys := slices.Clone(c.cohorts[pod.cohort()])
	for _, key := range c.cohorts[pod.cohort()] {
		for _, v := range c.timelines[key].within(from, to) {
			if p, ok := v.object.(Pod); ok && p.Node != "" {
				keys = append(keys, nodeKey(p.Node))
			}
		}
	}
	var policies []PropagationPolicy
	for _, a := range ancestries {
		for _, o := range a.chain {
			keys = append(keys, workloadKey(o.UID))
		}
		if a.propagation == nil {
			continue
		}
		name := types.NamespacedName{Namespace: pod.Namespace, Name: a.propagation.Policies.RequiredPropagation}
		keys = append(keys, propagationKey(name))
		policies = append(policies, c.propagationPolicies(name, from, to)...)
	}
	for _, rv := range c.moments(from, to, keys...) {
		a, ok := c.ancestryAt(pod, rv)
		if !ok || a.propagation == nil {
			continue
		}
		group, sits := c.seatOf(pod, rv)
		if !sits {
			continue
		}
		if !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
		if c.deserted(pod, policies, group, rv) {
			return groups, true
		}
		active, current := c.count(pod.cohort(), group, rv)
		at := seat{pod.cohort(), group}
		since := 0
		for _, moved := range c.moved[at] {
			if moved > rv {
				since++
			}
		}
		for _, policy := range policies {
			all, partial := c.total(pod, a, active, rv)
			excess := func(first, all int) bool {
				return current-c.divide(policy, a.propagation.UID, first, all, rv)[group] > since
			}
			// The workload may want fewer pods already than its ReplicaSet.
			wanted := max(active, a.propagation.Replicas)
			if excess(all, all) || partial && excess(active, all) || a.propagation.Kind != "Job" && excess(wanted, wanted) {
				c.moved[at] = append(c.moved[at], to+1) // the moment when the pod left
				return groups, true
			}
		}
	}
	return groups, false
}

// seatOf returns the group in which a pod was counted.
func (c *checker) seatOf(pod Pod, rv uint64) (group string, sits bool) {
	then, ok := get[Pod](c.History, podKey(pod.UID), rv)
	switch {
	case !ok || !then.Active:
		return "", false
	case then.Node != "":
		return c.groupOf(then.Node, rv), true
	default:
		return then.Group, then.Pinned
	}
}

// count returns the number of a cohort's pods, and of those in a group.
func (c *checker) count(of cohort, group string, rv uint64) (total, in int) {
	for _, key := range c.cohorts[of] {
		pod, ok := get[Pod](c.History, key, rv)
		if !ok || !pod.Active {
			continue
		}
		total++
		if at, sits := c.seatOf(pod, rv); sits && at == group {
			in++
		}
	}
	return total, in
}

// checkPace reports the minutes in which more running pods were evicted than the rate
// limit allows.
func (c *checker) checkPace(running []eviction) {
	if c.EvictionsPerMinute == 0 {
		return
	}
	slices.SortStableFunc(running, func(a, b eviction) int { return a.Answered.Compare(b.Answered) })
	first := 0
	for i, e := range running {
		for e.Answered.Sub(running[first].Answered) >= time.Minute {
			first++
		}
		if n := i - first + 1; n > c.EvictionsPerMinute {
			c.violate("I10", e.stamp(), e.object(), nil, "was the %dth running pod to be evicted within a minute, %d are allowed", n, c.EvictionsPerMinute)
			return
		}
	}
}
