package membership

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// kubeletLabels are the labels below kubernetes.io and k8s.io that NodeRestriction, an
// admission plugin of the API server, allows a kubelet to set on its own node.
var kubeletLabels = map[string]bool{
	corev1.LabelHostname: true, corev1.LabelOSStable: true, corev1.LabelArchStable: true,
	corev1.LabelTopologyZone: true, corev1.LabelTopologyRegion: true, corev1.LabelInstanceTypeStable: true,
	corev1.LabelFailureDomainBetaZone: true, corev1.LabelFailureDomainBetaRegion: true, corev1.LabelInstanceType: true,
	"beta.kubernetes.io/os": true, "beta.kubernetes.io/arch": true,
}

// KubeletMaySet reports whether NodeRestriction allows a kubelet to set and to remove a label
// of its own node, with any value.
func KubeletMaySet(key string) bool {
	namespace, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	below := func(suffix string) bool { return namespace == suffix || strings.HasSuffix(namespace, "."+suffix) }
	switch {
	case !below("kubernetes.io") && !below("k8s.io"):
		return true
	case below(corev1.LabelNamespaceNodeRestriction):
		return false
	}
	return kubeletLabels[key] || below(corev1.LabelNamespaceSuffixKubelet) || below(corev1.LabelNamespaceSuffixNode)
}

// ChartGuards reports whether the admission policy atoll-node-labels of the chart keeps
// kubelets from changing a label. KubeletMaySet does not count the policy: a cluster may
// not have it.
func ChartGuards(key string) bool {
	return key == gm.NodeGroupLabel || key == apps.NodePoolLabel || strings.HasPrefix(key, "atoll.dev/")
}

// Joining is how a kubelet can make its node a member by labels that it may set. A greater
// value is worse.
type Joining int

const (
	// CannotJoin: no label that a kubelet may set decides about a membership.
	CannotJoin Joining = iota
	// JoinsUnguarded: the labels decide that the chart's admission policy guards, and no
	// others that a kubelet may set. Whether a cluster has the policy is not known here.
	JoinsUnguarded
	// JoinsWithOthers: a node whose other labels match becomes a member by labels that its
	// kubelet may set.
	JoinsWithOthers
	// JoinsAlone: any node becomes a member by labels that its kubelet may set.
	JoinsAlone
)

// CanJoin returns how a kubelet can make its node meet the group's selector, and the keys of
// the labels that it sets for that, sorted. With JoinsAlone there are none if the selector
// matches a node without labels. Names in the spec do not count: a kubelet cannot choose the
// name of its node.
func (g Group) CanJoin() (keys []string, how Joining) {
	for _, selector := range []labels.Selector{g.byLabels, g.expressions} {
		if selector == nil {
			continue
		}
		requirements, _ := selector.Requirements()
		these, can := joining(requirements)
		switch {
		case can > how:
			keys, how = these, can
		case can == how:
			keys = append(keys, these...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), how
}

// CanJoin returns the same about the pool's selector. The label that names a pool does not
// count here: a kubelet may set it too.
func (p *Pool) CanJoin() (keys []string, how Joining) {
	if len(p.requirements) == 0 {
		return nil, CannotJoin
	}
	keys, how = joining(p.requirements)
	slices.Sort(keys)
	return keys, how
}

// joining returns how a kubelet can make its node meet all requirements, and the keys of the
// labels that it sets for that. For JoinsAlone, labels that it may not set count as absent:
// most nodes do not have them. Otherwise each label with a requirement decides: a node that
// meets the others becomes a member with one value of it, and is none with another.
func joining(requirements []labels.Requirement) (keys []string, how Joining) {
	byKey := map[string][]labels.Requirement{}
	for _, r := range requirements {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	var free, set, unsure []string // set: those of free that a node without labels lacks
	alone := true
	for key, all := range byKey {
		absent := meets(all, labels.Set{})
		if _, found := valueFor(key, all); !found && !absent {
			return nil, CannotJoin // no node meets these requirements
		}
		switch {
		case ChartGuards(key):
			unsure, alone = append(unsure, key), alone && absent
		case !KubeletMaySet(key):
			alone = alone && absent
		default:
			free = append(free, key)
			if !absent {
				set = append(set, key)
			}
		}
	}
	switch {
	case alone:
		return set, JoinsAlone
	case len(free) > 0:
		return free, JoinsWithOthers
	case len(unsure) > 0:
		return unsure, JoinsUnguarded
	}
	return nil, CannotJoin
}

// valueFor returns a value of a label that meets all requirements on it.
func valueFor(key string, all []labels.Requirement) (value string, found bool) {
	candidates := []string{""}
	named := 0
	for i := range all {
		if op := all[i].Operator(); op == selection.In || op == selection.Equals {
			candidates = append(candidates, all[i].Values().List()...)
		}
		named += all[i].Values().Len()
	}
	for i := range named + 1 { // one of them is not named by any requirement
		candidates = append(candidates, strconv.Itoa(i))
	}
	for _, value := range candidates {
		if meets(all, labels.Set{key: value}) {
			return value, true
		}
	}
	return "", false
}

func meets(all []labels.Requirement, node labels.Set) bool {
	for i := range all {
		if !all[i].Matches(node) {
			return false
		}
	}
	return true
}
