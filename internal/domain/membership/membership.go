// Package membership decides which NodeGroup (docs/sources.md, G12) and which NodePool (P2) a
// node belongs to. If several select the node, the present one keeps it; otherwise the
// oldest gets it.
//
// Groups and Pools are indexes; their method Assign decides for one node, from its name and
// labels only. The package must not contain anything about how nodes, groups and pools are
// watched, or how a membership is written to the node.
package membership

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Group is a compiled NodeGroup. It is immutable and safe for concurrent use.
type Group struct {
	// Name is the NodeGroup's name and the value of its members' label.
	Name string
	// Created is the creationTimestamp. Of several groups that select a node, the oldest
	// gets it.
	Created time.Time
	// Deleting groups have no members: their nodes go to other groups that select them.
	Deleting bool
	// Invalid groups have a selector that cannot be used. They select no node, but keep the
	// nodes that carry their label until the spec is repaired, so that a typing error does
	// not remove all nodes of a site.
	Invalid bool

	nodes       sets.Set[string]
	byLabels    labels.Selector // nil selects nothing
	expressions labels.Selector // nil selects nothing
}

// Compile makes a Group from a NodeGroup. The error is the first fault that
// Validate reports. The Group returned with an error is Invalid; callers must add it to the
// index too.
//
// Compile refuses a selector on the label that members carry: a node would then be a member
// because it is one, and nothing could end the membership.
func Compile(g *gm.NodeGroup) (Group, error) {
	group, faults := compile(g)
	if len(faults) > 0 {
		return group, faults[0]
	}
	return group, nil
}

// Validate returns all faults of the NodeGroup's spec: matchLabels by key, then
// matchExpressions in order. Compile succeeds exactly if there are no faults.
func Validate(g *gm.NodeGroup) field.ErrorList {
	_, faults := compile(g)
	return faults
}

func compile(g *gm.NodeGroup) (Group, field.ErrorList) {
	group := Group{
		Name:     g.Name,
		Created:  g.CreationTimestamp.Time,
		Deleting: g.DeletionTimestamp != nil,
	}
	byLabels, faults := compileLabels(g.Spec.MatchLabels, field.NewPath("spec", "matchLabels"))
	expressions, more := compileExpressions(g.Spec.MatchExpressions, field.NewPath("spec", "matchExpressions"))
	if faults = append(faults, more...); len(faults) > 0 {
		group.Invalid = true
		return group, faults
	}
	group.byLabels, group.expressions = byLabels, expressions
	if len(g.Spec.Nodes) > 0 {
		group.nodes = sets.New(g.Spec.Nodes...)
	}
	return group, nil
}

func compileLabels(want map[string]string, path *field.Path) (labels.Selector, field.ErrorList) {
	if len(want) == 0 {
		return nil, nil
	}
	var faults field.ErrorList
	selector := labels.NewSelector()
	for _, key := range slices.Sorted(maps.Keys(want)) { // sorted, so that the faults are the same each time
		at := path.Key(key)
		requirement, err := compileRequirement(key, selection.Equals, []string{want[key]})
		if err != nil {
			for _, fault := range faultsOf(err, at) {
				fault.Field = at.String() // an entry of a map has no fields of its own
				faults = append(faults, fault)
			}
			continue
		}
		selector = selector.Add(*requirement)
	}
	return selector, faults
}

func compileExpressions(want []metav1.LabelSelectorRequirement, path *field.Path) (labels.Selector, field.ErrorList) {
	if len(want) == 0 {
		return nil, nil
	}
	var faults field.ErrorList
	selector := labels.NewSelector()
	for i, expression := range want {
		at := path.Index(i)
		values := expression.Values
		operator, err := operatorOf(expression.Operator)
		if err != nil {
			faults = append(faults, field.Invalid(at.Child("operator"), field.OmitValueType{}, err.Error()))
			operator, values = selection.Exists, nil // so that the key is checked as well
		}
		requirement, err := compileRequirement(expression.Key, operator, values, field.WithPath(at))
		if err != nil {
			faults = append(faults, faultsOf(err, at)...)
			continue
		}
		selector = selector.Add(*requirement)
	}
	return selector, faults
}

// faultsOf returns the faults that an error of compileRequirement is made of:
// those of labels.NewRequirement, or one at the given path.
func faultsOf(err error, path *field.Path) field.ErrorList {
	var all utilerrors.Aggregate
	if !errors.As(err, &all) {
		return field.ErrorList{field.Forbidden(path, err.Error())}
	}
	var faults field.ErrorList
	for _, one := range all.Errors() {
		var fault *field.Error
		if !errors.As(one, &fault) {
			fault = field.Invalid(path, field.OmitValueType{}, one.Error())
		}
		faults = append(faults, fault)
	}
	return faults
}

func operatorOf(operator metav1.LabelSelectorOperator) (selection.Operator, error) {
	switch operator {
	case metav1.LabelSelectorOpIn:
		return selection.In, nil
	case metav1.LabelSelectorOpNotIn:
		return selection.NotIn, nil
	case metav1.LabelSelectorOpExists:
		return selection.Exists, nil
	case metav1.LabelSelectorOpDoesNotExist:
		return selection.DoesNotExist, nil
	}
	return "", fmt.Errorf("%q is not one of In, NotIn, Exists, DoesNotExist", operator)
}

func compileRequirement(key string, operator selection.Operator, values []string, path ...field.PathOption) (*labels.Requirement, error) {
	if key == gm.NodeGroupLabel {
		return nil, fmt.Errorf("must not select by the label %s: atoll-manager puts it on members", key)
	}
	return labels.NewRequirement(key, operator, values, path...)
}

// Selects reports whether the spec selects the node, by name or by labels, no matter which
// group the node is in.
func (g Group) Selects(name string, nodeLabels map[string]string) bool {
	if g.nodes.Has(name) {
		return true
	}
	if g.byLabels != nil && g.byLabels.Matches(labels.Set(nodeLabels)) {
		return true
	}
	return g.expressions != nil && g.expressions.Matches(labels.Set(nodeLabels))
}

func (g Group) from() (string, time.Time) { return g.Name, g.Created }
func (g Group) names() sets.Set[string]   { return g.nodes }
func (g Group) selectors() (all []labels.Requirements) {
	for _, selector := range []labels.Selector{g.byLabels, g.expressions} {
		if selector != nil {
			requirements, _ := selector.Requirements()
			all = append(all, requirements)
		}
	}
	return all
}

// Groups is an index of all NodeGroups. It is immutable and safe for concurrent use. The zero
// value has no group.
type Groups struct{ index[Group] }

// NewGroups makes an index of the groups. It copies the slice.
func NewGroups(groups []Group) Groups { return Groups{newIndex(groups)} }

// Selecting returns the groups that select a node, oldest first. It checks only the groups that
// the index has for the name and the labels of the node.
func (gs *Groups) Selecting(nodeName string, nodeLabels map[string]string) []*Group {
	return slices.DeleteFunc(gs.candidates(nodeName, nodeLabels), func(g *Group) bool { return !g.Selects(nodeName, nodeLabels) })
}

// Assign returns the one group that the node belongs to, "" if none. The group in the node's
// label keeps the node while it selects the node or is Invalid. Otherwise the oldest group
// that selects the node gets it, by creation and then by name. A group that is Deleting
// neither keeps nor gets nodes.
func (gs *Groups) Assign(nodeName string, nodeLabels map[string]string) string {
	if incumbent := nodeLabels[gm.NodeGroupLabel]; incumbent != "" {
		if group, found := gs.Get(incumbent); found && !group.Deleting && (group.Invalid || group.Selects(nodeName, nodeLabels)) {
			return incumbent
		}
	}
	for _, group := range gs.Selecting(nodeName, nodeLabels) {
		if !group.Deleting {
			return group.Name
		}
	}
	return ""
}

// Newcomers returns the requirements that select a node by its labels before the node is in
// any group, as for placement.Pin: one list each for matchLabels and matchExpressions. A
// node has to meet all requirements of one list. The result is nil for a group that selects
// nodes by name only, is being deleted, or is invalid.
//
// A node that meets a list may still become a member of another group, if an older one
// selects it too.
func Newcomers(g *gm.NodeGroup) (lists [][]corev1.NodeSelectorRequirement) {
	if g.DeletionTimestamp != nil {
		return nil
	}
	if _, err := Compile(g); err != nil {
		return nil // it gets no node until its spec is repaired
	}
	if len(g.Spec.MatchLabels) > 0 {
		var list []corev1.NodeSelectorRequirement
		for _, key := range slices.Sorted(maps.Keys(g.Spec.MatchLabels)) {
			list = append(list, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{g.Spec.MatchLabels[key]}})
		}
		lists = append(lists, list)
	}
	if len(g.Spec.MatchExpressions) > 0 {
		var list []corev1.NodeSelectorRequirement
		for _, e := range g.Spec.MatchExpressions {
			list = append(list, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
		}
		lists = append(lists, list)
	}
	return lists
}
