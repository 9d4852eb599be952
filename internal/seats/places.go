package seats

import (
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Places finds nodes for the successors of several pods, one after the other:
// the room that it finds for one is not there for the next. It is of use for
// one decision; not safe for concurrent use.
type Places struct {
	ledger *Ledger
	taken  map[string]*fit.Use // by node
	// found is what came of the last search for the same demand in a group: room
	// only becomes less, so a search that found none need not be done again.
	found map[search]result
}

type search struct {
	group  string
	demand *fit.Demand
}

type result struct {
	node string
	why  fit.Reason
}

// Places starts a search.
func (l *Ledger) Places() *Places {
	return &Places{ledger: l, taken: map[string]*fit.Use{}, found: map[search]result{}}
}

// CanTake tells whether some open node of a group could run the successor of a
// pod, as far as kube-scheduler looks at the one pod and the one node, and else
// why not. A group that the pod's owner avoids cannot: the pod would not come there.
func (l *Ledger) CanTake(group string, pod *Pod) (bool, fit.Reason) {
	return l.Places().Take(group, pod, nil)
}

// CanReturn tells whether the successor of a pod that runs could run in the same
// group, where the pod leaves its room, and else why not. A pod with volumes is
// to return to its node, which reaches them.
func (l *Ledger) CanReturn(pod *Pod) (bool, fit.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.nodes[pod.Node]
	if own == nil {
		return false, fit.NoOpenNode
	}
	check, why := fit.NewCheck(pod.demand(), nil), fit.NoOpenNode
	left := &fit.Use{}
	left.Remove(pod.demand())
	if own.Open {
		why = check.Of(&own.Offer, &own.used, left)
	}
	if why == fit.Fits || pod.demand().Claims {
		return why == fit.Fits, why
	}
	for _, n := range l.members[own.Group] {
		if n == own || !n.Open {
			continue
		}
		reason := check.Of(&n.Offer, &n.used)
		if reason == fit.Fits {
			return true, fit.Fits
		}
		why = fit.Further(why, reason)
	}
	return false, why
}

// Take is CanTake, and takes the room. volumes are the node affinities of the
// pod's PersistentVolumes.
func (p *Places) Take(group string, pod *Pod, volumes []*nodeaffinity.NodeSelector) (bool, fit.Reason) {
	l := p.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.avoidsLocked(pod.Owner(), group) {
		return false, fit.Avoided
	}
	key := search{group, pod.demand()}
	before, searched := p.found[key]
	if searched && before.why != fit.Fits {
		return false, before.why
	}
	check := fit.NewCheck(key.demand, volumes)
	if n := l.members[group][before.node]; n != nil && n.Open && p.checkLocked(check, n) == fit.Fits {
		p.takeLocked(n, key.demand)
		return true, fit.Fits
	}
	why, ofClass := fit.NoOpenNode, pod.ClassStamp == capacity.None
	for _, n := range l.members[group] {
		if !n.Open {
			continue
		}
		ofClass = ofClass || n.class == pod.ClassStamp
		reason := p.checkLocked(check, n)
		if reason == fit.Fits {
			p.takeLocked(n, key.demand)
			p.found[key] = result{node: n.Name}
			return true, fit.Fits
		}
		why = fit.Further(why, reason)
	}
	if why == fit.NoMatch && !ofClass {
		why = map[capacity.Class]fit.Reason{capacity.OnDemand: fit.NoOnDemand, capacity.Spot: fit.NoSpot}[pod.ClassStamp]
	}
	if len(volumes) == 0 {
		p.found[key] = result{why: why}
	}
	return false, why
}

func (p *Places) checkLocked(check *fit.Check, n *node) fit.Reason {
	if taken := p.taken[n.Name]; taken != nil {
		return check.Of(&n.Offer, &n.used, taken)
	}
	return check.Of(&n.Offer, &n.used)
}

func (p *Places) takeLocked(n *node, demand *fit.Demand) {
	if p.taken[n.Name] == nil {
		p.taken[n.Name] = &fit.Use{}
	}
	p.taken[n.Name].Add(demand)
}
