package membership

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
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

// CanJoin reports whether a kubelet can make its node meet the group's selector by labels that
// it may set itself, and returns the keys of these labels, sorted. There are none if the
// selector matches a node without labels. Names in the spec do not count: a kubelet cannot
// choose the name of its node.
func (g Group) CanJoin() (keys []string, can bool) {
	for _, selector := range []labels.Selector{g.byLabels, g.expressions} {
		if selector == nil {
			continue
		}
		requirements, _ := selector.Requirements()
		set, met := meetAlone(requirements)
		keys, can = append(keys, slices.Collect(maps.Keys(set))...), can || met
	}
	slices.Sort(keys)
	return slices.Compact(keys), can
}

// CanJoin reports the same about the pool's selector. The label that names a pool does not
// count here: a kubelet may set it too.
func (p *Pool) CanJoin() (keys []string, can bool) {
	if len(p.requirements) == 0 {
		return nil, false
	}
	set, can := meetAlone(p.requirements)
	return slices.Sorted(maps.Keys(set)), can
}

// meetAlone reports whether a node meets all requirements by labels that its kubelet may set,
// and returns such labels. Labels that a kubelet may not set count as absent: most nodes do
// not have them.
func meetAlone(requirements []labels.Requirement) (set map[string]string, met bool) {
	byKey := map[string][]labels.Requirement{}
	for _, r := range requirements {
		byKey[r.Key()] = append(byKey[r.Key()], r)
	}
	set = map[string]string{}
	for key, all := range byKey {
		if meets(all, labels.Set{}) {
			continue
		}
		value, found := valueFor(key, all)
		if !found || !KubeletMaySet(key) {
			return nil, false
		}
		set[key] = value
	}
	return set, true
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
