package invariants

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

const (
	// linesBefore and linesAfter bound the history that a violation shows.
	linesBefore = 14
	linesAfter  = 4
)

// near returns the keys of the objects on which a decision about a pod depends.
func (c *checker) near(pod Pod, ancestries []ancestry) []any {
	keys := []any{pod.key()}
	if pod.Node != "" {
		keys = append(keys, nodeKey(pod.Node))
	}
	for _, a := range ancestries {
		for _, o := range a.chain {
			keys = append(keys, workloadKey(o.UID))
		}
		if o := a.propagation; o != nil {
			keys = append(keys, propagationKey(types.NamespacedName{Namespace: pod.Namespace, Name: o.Policies.RequiredPropagation}))
		}
		if o := a.override; o != nil {
			keys = append(keys, overrideKey(types.NamespacedName{Namespace: pod.Namespace, Name: o.Policies.RequiredOverride}))
		}
	}
	keys = append(keys, c.cohorts[pod.cohort()]...)
	slices.SortFunc(keys, func(a, b any) int { return cmp.Compare(fmt.Sprintf("%T%v", a, a), fmt.Sprintf("%T%v", b, b)) })
	return slices.Compact(keys)
}

// around describes the versions of the given objects near a resourceVersion.
func (c *checker) around(rv uint64, keys []any) []string {
	type line struct {
		Stamp
		text string
	}
	var before, after []line
	for _, key := range keys {
		t := c.timelines[key]
		for i, v := range t {
			text := fmt.Sprint("gone: ", describe(t[:i+1].last()))
			if v.object != nil {
				text = describe(v.object)
			}
			if v.RV <= rv {
				before = append(before, line{v.Stamp, text})
			} else {
				after = append(after, line{v.Stamp, text})
			}
		}
	}
	byRV := func(a, b line) int { return cmp.Compare(a.RV, b.RV) }
	slices.SortStableFunc(before, byRV)
	slices.SortStableFunc(after, byRV)
	before, after = before[max(0, len(before)-linesBefore):], after[:min(len(after), linesAfter)]
	lines := make([]string, 0, len(before)+len(after))
	for _, l := range slices.Concat(before, after) {
		lines = append(lines, fmt.Sprintf("%d %s %s", l.RV, clockOf(l.Seen), l.text))
	}
	return lines
}

// describe formats the fields of an object that are judged.
func describe(o Object) string {
	switch o := o.(type) {
	case Pod:
		text := fmt.Sprintf("pod %s node=%q group=%q revision=%q", o.Name, o.Node, o.Group, o.Revision)
		for _, is := range []struct {
			bool
			name string
		}{
			{o.Pinned, "pinned"},
			{o.Gated, "gated"},
			{o.Unschedulable, "unschedulable"},
			{o.Evicted, "evicted"},
			{!o.Active, "inactive"},
		} {
			if is.bool {
				text += " " + is.name
			}
		}
		return text
	case Node:
		return fmt.Sprintf("node %s group=%q", o.Name, o.Group)
	case Workload:
		return fmt.Sprintf("%s %s replicas=%d %+v", o.Kind, o.Name, o.Replicas, o.Policies)
	case PropagationPolicy:
		return fmt.Sprintf("PropagationPolicy %s generation %d %s", o.Name, o.Generation, rulesOf(o.Spec))
	case OverridePolicy:
		return fmt.Sprintf("OverridePolicy %s generation %d", o.Name, o.Generation)
	}
	return "unknown"
}

// rulesOf formats the rules of a policy in one line.
func rulesOf(spec *gm.PropagationSpec) string {
	var rules []string
	for _, rule := range spec.StaticWeight {
		rules = append(rules, fmt.Sprintf("%v:%d", rule.NodeGroupNames, rule.Weight))
	}
	for _, rule := range spec.NumRange {
		rules = append(rules, fmt.Sprintf("%v:%v..%v", rule.NodeGroupNames, rule.Min, rule.Max))
	}
	return strings.Join(rules, " ")
}
