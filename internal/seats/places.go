package seats

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// Places finds nodes for the successors of several pods, one after the other. The room on a
// node that it finds for one pod is not available to the next. Make a new one for each
// decision. It is not safe for concurrent use.
type Places struct {
	ledger *Ledger
	// workload are the direct owners of the pods that anti-affinity and topology spread
	// count. If there are none, the owner of the first pod is.
	workload []types.UID
	taken    map[string]*fit.Use // by node
	// pods is the number of the workload's pods on each node, as if the pods for which
	// places were found had left. nil until a pod with such rules comes.
	pods map[string]int
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

// Places starts a search for pods of one workload, which are those of these owners.
func (l *Ledger) Places(workload ...types.UID) *Places {
	return &Places{ledger: l, workload: workload, taken: map[string]*fit.Use{}, found: map[search]result{}}
}

// CanTake returns whether some open node of a group could run the successor of a pod, and if
// not, why. It checks what kube-scheduler's filters check of one pod and one node, and the
// pods of its owner. It is false for a group that the pod's owner avoids, because the successor would not get a seat
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
	if l.waiting.avoids(pod.cohort(), pod.Class, group) {
		if !l.nodes.hasOpen(group) { // the reason why the group is avoided
			return false, fit.NoOpenNode
		}
		return false, fit.Avoided
	}
	key := search{group, pod.demand()}
	before, searched := p.found[key]
	if searched && before.why != fit.Fits {
		return false, before.why
	}
	check := fit.NewCheck(key.demand, volumes)
	domains := p.domains(group, pod, check)
	if searched && domains == nil && l.nodes.fits(group, before.node, check, p.taken) {
		p.take(before.node, pod)
		return true, fit.Fits
	}
	node, why := l.nodes.search(group, pod.ClassStamp, check, p.taken, domains)
	switch {
	case why == fit.Fits:
		p.take(node, pod)
		p.found[key] = result{node: node}
	case len(volumes) == 0 && domains == nil: // neither is part of the key
		p.found[key] = result{why: why}
	}
	return why == fit.Fits, why
}

// domains counts the pods of the workload, without the pod that is to leave, by the rules
// that keep them apart; nil if the pod has none.
func (p *Places) domains(group string, pod *Pod, check *fit.Check) *fit.Domains {
	domains := check.Domains()
	if domains == nil {
		return nil
	}
	if p.pods == nil {
		if len(p.workload) == 0 {
			p.workload = []types.UID{pod.Owner()}
		}
		p.pods = p.ledger.cohorts.podsByNode(p.workload, "")
	}
	if pod.Active && pod.Node != "" {
		p.pods[pod.Node]--
		defer func() { p.pods[pod.Node]++ }()
	}
	only := group // a pod that is pinned counts the nodes of its group only
	if !pod.Pinned() {
		only = ""
	}
	p.ledger.nodes.addDomains(domains, check, capacity.None, only, p.pods)
	return domains
}

func (p *Places) take(node string, pod *Pod) {
	if p.taken[node] == nil {
		p.taken[node] = &fit.Use{}
	}
	p.taken[node].Add(pod.demand())
	if p.pods == nil {
		return
	}
	p.pods[node]++
	if pod.Active && pod.Node != "" {
		p.pods[pod.Node]--
	}
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
// is none. class is the one that the pod is restricted to; None if it is not. domains may be
// nil.
func (ns *nodes) search(group string, class capacity.Class, check *fit.Check, taken map[string]*fit.Use, domains *fit.Domains) (name string, why fit.Reason) {
	why, ofClass := fit.NoOpenNode, class == capacity.None
	for _, n := range ns.members[group] {
		if !n.Open {
			continue
		}
		ofClass = ofClass || n.class == class
		reason := n.check(check, taken)
		if reason == fit.Fits && domains != nil && !domains.Take(&n.Offer) {
			reason = fit.TooClose
		}
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
