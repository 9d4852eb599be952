package seats

import (
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Places finds nodes for the successors of several pods, one after the other. The room on a
// node that it finds for one pod is not available to the next. Make a new one for each
// decision. It is not safe for concurrent use.
type Places struct {
	ledger *Ledger
	taken  map[string]*fit.Use // by node
	// found is the result of the last search for the same demand in a group. The room only
	// decreases, so a search that failed is not repeated.
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

// CanTake returns whether some open node of a group could run the successor of a pod, and if
// not, why. It checks what kube-scheduler's filters check of one pod and one node. It is
// false for a group that the pod's owner avoids, because the successor would not get a seat
// there.
func (l *Ledger) CanTake(group string, pod *Pod) (bool, fit.Reason) {
	return l.Places().Take(group, pod, nil)
}

// CanReturn returns whether the successor of a running pod could run in the same group, and
// if not, why. On the pod's own node, what the pod uses counts as free. A pod with volumes
// must fit on its own node, because other nodes may not reach the volumes.
func (l *Ledger) CanReturn(pod *Pod) (bool, fit.Reason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes.canReturn(pod)
}

// Take is CanTake, and takes the room. volumes are the node affinities of the pod's
// PersistentVolumes.
func (p *Places) Take(group string, pod *Pod, volumes []*nodeaffinity.NodeSelector) (bool, fit.Reason) {
	l := p.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting.avoids(pod.Owner(), group) {
		return false, fit.Avoided
	}
	key := search{group, pod.demand()}
	before, searched := p.found[key]
	if searched && before.why != fit.Fits {
		return false, before.why
	}
	check := fit.NewCheck(key.demand, volumes)
	if searched && l.nodes.fits(group, before.node, check, p.taken) {
		p.take(before.node, key.demand)
		return true, fit.Fits
	}
	node, why := l.nodes.search(group, pod.ClassStamp, check, p.taken)
	switch {
	case why == fit.Fits:
		p.take(node, key.demand)
		p.found[key] = result{node: node}
	case len(volumes) == 0: // volumes are not part of the key
		p.found[key] = result{why: why}
	}
	return why == fit.Fits, why
}

func (p *Places) take(node string, demand *fit.Demand) {
	if p.taken[node] == nil {
		p.taken[node] = &fit.Use{}
	}
	p.taken[node].Add(demand)
}

// check compares the node with the pod that is checked. taken, by node, is used in addition
// to what the pods on the node use.
func (n *node) check(check *fit.Check, taken map[string]*fit.Use) fit.Reason {
	if t := taken[n.Name]; t != nil {
		return check.Of(&n.Offer, &n.used, t)
	}
	return check.Of(&n.Offer, &n.used)
}

// fits returns whether the pod that is checked fits on an open node of a group.
func (ns *nodes) fits(group, name string, check *fit.Check, taken map[string]*fit.Use) bool {
	n := ns.members[group][name]
	return n != nil && n.Open && n.check(check, taken) == fit.Fits
}

// search returns an open node of a group on which the pod that is checked fits, or why there
// is none. class is the one that the pod is restricted to; None if it is not.
func (ns *nodes) search(group string, class capacity.Class, check *fit.Check, taken map[string]*fit.Use) (name string, why fit.Reason) {
	why, ofClass := fit.NoOpenNode, class == capacity.None
	for _, n := range ns.members[group] {
		if !n.Open {
			continue
		}
		ofClass = ofClass || n.class == class
		reason := n.check(check, taken)
		if reason == fit.Fits {
			return n.Name, fit.Fits
		}
		why = fit.Further(why, reason)
	}
	if why == fit.NoMatch && !ofClass {
		why = map[capacity.Class]fit.Reason{capacity.OnDemand: fit.NoOnDemand, capacity.Spot: fit.NoSpot}[class]
	}
	return "", why
}

// canReturn is CanReturn of the Ledger.
func (ns *nodes) canReturn(pod *Pod) (bool, fit.Reason) {
	own := ns.byName[pod.Node]
	if own == nil {
		return false, fit.NoOpenNode
	}
	check, why := fit.NewCheck(pod.demand(), nil), fit.NoOpenNode
	freed := &fit.Use{}
	freed.Remove(pod.demand())
	if own.Open {
		why = check.Of(&own.Offer, &own.used, freed)
	}
	if why == fit.Fits || pod.demand().Claims {
		return why == fit.Fits, why
	}
	for _, n := range ns.members[own.Group] {
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
