package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
)

// Node is what changes on a node.
type Node struct {
	Name      string  `json:"name"`
	NodePool  *Change `json:"nodePool,omitempty"`
	NodeGroup *Change `json:"nodeGroup,omitempty"`
	// Attributes are the labels, annotations and taints that change.
	Attributes []string `json:"attributes,omitempty"`
	// Evicts are the pods that a new taint evicts, as namespace/name.
	Evicts []string `json:"evicts,omitempty"`
}

// nodesOf returns the nodes that differ.
func nodesOf(before, after *Cluster) (all []Node) {
	for _, now := range of[*corev1.Node](before) {
		then, is := after.objects[keyOf(now)].(*corev1.Node)
		if !is || now == then {
			continue
		}
		n := Node{
			Name: now.Name, NodePool: changeOf(now.Labels[apps.NodePoolLabel], then.Labels[apps.NodePoolLabel]),
			NodeGroup: changeOf(now.Labels[gm.NodeGroupLabel], then.Labels[gm.NodeGroupLabel]),
			Attributes: slices.Concat(
				attributesOf("label", now.Labels, then.Labels), attributesOf("annotation", now.Annotations, then.Annotations),
				attributesOf("taint", taintsOf(now), taintsOf(then)),
			),
			Evicts: evictedBy(now, then, after),
		}
		if n.NodePool != nil || n.NodeGroup != nil || len(n.Attributes) > 0 {
			all = append(all, n)
		}
	}
	return all
}

func changeOf(now, then string) *Change {
	if now == then {
		return nil
	}
	return &Change{now, then}
}

// attributesOf describes the keys that differ, but for those that NodePool and NodeGroup tell.
func attributesOf(what string, now, then map[string]string) (all []string) {
	union := maps.Clone(now)
	if union == nil {
		union = map[string]string{}
	}
	maps.Copy(union, then)
	for _, k := range sortedKeys(union) {
		before, had := now[k]
		value, has := then[k]
		switch {
		case k == apps.NodePoolLabel, k == gm.NodeGroupLabel, k == apps.NodePoolAnnotation, had == has && before == value:
		case !has:
			all = append(all, fmt.Sprintf("%s %s is removed", what, k))
		case !had:
			all = append(all, fmt.Sprintf("%s %s=%s", what, k, value))
		default:
			all = append(all, fmt.Sprintf("%s %s=%s, now %s", what, k, value, cmp.Or(before, `""`)))
		}
	}
	return all
}

// taintsOf returns the values of a node's taints, by key and effect.
func taintsOf(n *corev1.Node) map[string]string {
	all := map[string]string{}
	for _, t := range n.Spec.Taints {
		all[fmt.Sprintf("%s:%s", t.Key, t.Effect)] = t.Value
	}
	return all
}

// evictedBy returns the pods on a node that do not tolerate its new NoExecute taints.
func evictedBy(now, then *corev1.Node, c *Cluster) (all []string) {
	var taints []corev1.Taint
	for _, t := range then.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && !slices.ContainsFunc(now.Spec.Taints, func(has corev1.Taint) bool { return has.MatchTaint(&t) && has.Value == t.Value }) {
			taints = append(taints, t)
		}
	}
	if len(taints) == 0 {
		return nil
	}
	for _, pod := range of[*corev1.Pod](c) {
		if pod.Spec.NodeName == now.Name && !united.Tolerates(pod.Spec.Tolerations, taints) {
			all = append(all, pod.Namespace+"/"+pod.Name)
		}
	}
	return all
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (n *Node) write(line func(string, ...any)) {
	line("Node %s", n.Name)
	if c := n.NodePool; c != nil {
		line("  NodePool %s → %s", cmp.Or(c.Now, "(none)"), cmp.Or(c.Then, "(none)"))
	}
	if c := n.NodeGroup; c != nil {
		line("  NodeGroup %s → %s", cmp.Or(c.Now, "(none)"), cmp.Or(c.Then, "(none)"))
	}
	for _, a := range n.Attributes {
		line("  %s", a)
	}
	for _, pod := range n.Evicts {
		line("  evicts pod %s, which does not tolerate the taint", pod)
	}
}
