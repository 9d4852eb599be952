package seats

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
)

// countOpen updates openOfClass and emptySince for a node that is going to be open or not,
// and of this class. It returns whether a class gets its first open node or loses its last.
func (ns *nodes) countOpen(n *node, open bool, class capacity.Class) (firstOrLast bool) {
	before := ns.openOfClass
	if n.Open {
		ns.openOfClass[n.class]--
	}
	if open {
		ns.openOfClass[class]++
	}
	for c := range before {
		switch {
		case (before[c] == 0) == (ns.openOfClass[c] == 0):
			continue
		case ns.openOfClass[c] == 0:
			ns.emptySince[c] = ns.clock.Now()
		default:
			ns.emptySince[c] = time.Time{}
		}
		firstOrLast = true
	}
	return firstOrLast
}

// emptyClass is EmptyClass of the Ledger.
func (ns *nodes) emptyClass(since time.Duration) capacity.Class {
	now, empty := ns.clock.Now(), capacity.None
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		switch {
		case ns.openOfClass[class] > 0:
		case ns.emptySince[class].IsZero(): // it has had none since the start
			ns.emptySince[class] = now
		case now.Sub(ns.emptySince[class]) >= since && ns.openOfClass[class.Other()] > 0:
			empty = class
		}
	}
	return empty
}

// addDomains adds all nodes to the domains in which the pods of a workload keep apart. pods
// is the number of the workload's pods on each node. class and group are those that the pod
// that is checked is restricted to; None and "" if it is not.
func (ns *nodes) addDomains(domains *fit.Domains, check *fit.Check, class capacity.Class, group string, pods map[string]int) {
	for _, n := range ns.byName {
		eligible := (class == capacity.None || n.class == class) && (group == "" || n.Group == group) && check.Matches(&n.Offer)
		domains.Add(&n.Offer, eligible, pods[n.Name])
	}
}

// searchClass returns whether some open node of a class could run the pod that is checked,
// and if not, why. If group is not "", only nodes of that group count. domains may be nil.
func (ns *nodes) searchClass(class capacity.Class, group string, check *fit.Check, domains *fit.Domains) (bool, fit.Reason) {
	why := fit.NoOpenNode
	for _, n := range ns.byName {
		if n.class != class || !n.Open || group != "" && n.Group != group {
			continue
		}
		reason := check.Of(&n.Offer, &n.used)
		if reason == fit.Fits && domains != nil && !domains.Take(&n.Offer) {
			reason = fit.TooClose
		}
		if reason == fit.Fits {
			return true, fit.Fits
		}
		why = fit.Further(why, reason)
	}
	return false, why
}

// classOfVolumes is ClassOfVolumes of the Ledger. volumes are the required node affinities,
// compiled.
func (ns *nodes) classOfVolumes(required []*corev1.NodeSelector, volumes []*nodeaffinity.NodeSelector) (class capacity.Class, tied bool) {
	if !slices.ContainsFunc(required, ns.namesNodes) {
		return capacity.None, false
	}
	var matching [3]int // number of nodes by class
	for _, n := range ns.byName {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Offer.Labels}}
		if n.exists && !slices.ContainsFunc(volumes, func(volume *nodeaffinity.NodeSelector) bool { return !volume.Match(node) }) {
			matching[n.class]++
		}
	}
	switch onDemand, spot := matching[capacity.OnDemand] > 0, matching[capacity.Spot] > 0; {
	case onDemand && spot:
		return capacity.None, false
	case matching[capacity.None] > 0:
		return capacity.None, true
	case onDemand:
		return capacity.OnDemand, true
	case spot:
		return capacity.Spot, true
	default:
		return capacity.None, true
	}
}

// namesNodes returns whether every term of a node selector selects nodes by name: by a field,
// by the hostname label, or by a label of a CSI driver whose value is the name of the node
// that has the label.
func (ns *nodes) namesNodes(required *corev1.NodeSelector) bool {
	isName := func(r corev1.NodeSelectorRequirement) bool {
		return r.Operator == corev1.NodeSelectorOpIn && (r.Key == corev1.LabelHostname || slices.ContainsFunc(r.Values, func(name string) bool {
			n := ns.byName[name]
			return n != nil && n.exists && n.Offer.Labels[r.Key] == name
		}))
	}
	return !slices.ContainsFunc(required.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchFields) == 0 && !slices.ContainsFunc(term.MatchExpressions, isName)
	})
}
