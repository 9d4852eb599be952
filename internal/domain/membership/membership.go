// Package membership decides which node belongs to which NodeGroup (docs/sources.md,
// G12) and to which NodePool (P2):
// of several that want a node one gets it, the one that has it before the
// oldest.
//
// It must not know how nodes, groups and pools are watched, nor how a
// membership is written down; it reads a node's name and labels and answers.
package membership

import (
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/validation/field"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Group is a NodeGroup made ready for questions. Immutable once compiled and
// safe for concurrent use.
type Group struct {
	// Name is the NodeGroup's name and the value of its members' label.
	Name string
	// Created orders groups that want the same node: the older one wins.
	Created time.Time
	// Deleting groups have no members: their nodes go to whom else selects them.
	Deleting bool
	// Invalid groups have a selector that cannot be used. They select nothing,
	// and keep the nodes that carry their label until the spec is repaired: a
	// typing error must not empty a site.
	Invalid bool

	nodes       map[string]struct{}
	byLabels    labels.Selector // nil selects nothing
	expressions labels.Selector // nil selects nothing
}

// Compile makes a Group of a NodeGroup. The error is the first fault that
// Validate reports; the Group that comes with it is Invalid and is to be put
// into the index like any other.
//
// A selector on the label that members carry is refused: it would make
// membership the cause of itself, and no order of events would end it.
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
		group.nodes = make(map[string]struct{}, len(g.Spec.Nodes))
		for _, name := range g.Spec.Nodes {
			group.nodes[name] = struct{}{}
		}
	}
	return group, nil
}

func compileLabels(want map[string]string, path *field.Path) (labels.Selector, field.ErrorList) {
	if len(want) == 0 {
		return nil, nil
	}
	var faults field.ErrorList
	selector := labels.NewSelector()
	for _, key := range slices.Sorted(maps.Keys(want)) { // sorted: the same faults in the same order every time
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
		return nil, fmt.Errorf("the label %s is put on nodes because they are members and cannot select them", key)
	}
	return labels.NewRequirement(key, operator, values, path...)
}

// Selects says whether the spec wants the node, whoever has it now.
func (g Group) Selects(name string, nodeLabels map[string]string) bool {
	if _, named := g.nodes[name]; named {
		return true
	}
	if g.byLabels != nil && g.byLabels.Matches(labels.Set(nodeLabels)) {
		return true
	}
	return g.expressions != nil && g.expressions.Matches(labels.Set(nodeLabels))
}

// Groups is an index over all NodeGroups. Immutable and safe for concurrent
// use. The zero value has no group.
type Groups struct {
	byAge  []Group
	byName map[string]int
}

// NewGroups indexes the groups; the slice is copied. Names are unique among
// cluster-scoped objects; of two that are equal the older is found by name.
func NewGroups(groups []Group) Groups {
	byAge := slices.Clone(groups)
	slices.SortStableFunc(byAge, func(a, b Group) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	byName := make(map[string]int, len(byAge))
	for i := range byAge {
		if _, taken := byName[byAge[i].Name]; !taken {
			byName[byAge[i].Name] = i
		}
	}
	return Groups{byAge: byAge, byName: byName}
}

// Get returns the group of that name.
func (gs Groups) Get(name string) (Group, bool) {
	i, found := gs.byName[name]
	if !found {
		return Group{}, false
	}
	return gs.byAge[i], true
}

// All returns the groups, oldest first. The slice must not be changed.
func (gs Groups) All() []Group { return gs.byAge }

// Assign names the one group that the node belongs to, "" if none: the group
// whose label it carries keeps it while that group selects it, or is Invalid;
// otherwise it goes to the oldest group that selects it, by creation and then
// by name. Deleting groups neither keep nor get. The cost is one lookup while
// the incumbent holds and one question per group when not.
func (gs Groups) Assign(nodeName string, nodeLabels map[string]string) string {
	if incumbent := nodeLabels[gm.NodeGroupLabel]; incumbent != "" {
		if i, found := gs.byName[incumbent]; found {
			group := &gs.byAge[i]
			if !group.Deleting && (group.Invalid || group.Selects(nodeName, nodeLabels)) {
				return incumbent
			}
		}
	}
	for i := range gs.byAge {
		group := &gs.byAge[i]
		if !group.Deleting && group.Selects(nodeName, nodeLabels) {
			return group.Name
		}
	}
	return ""
}

// Newcomers are what a node that is in no group yet has to have so that the
// NodeGroup takes it in by its labels: one list for each way, all of it to be
// met. A group of names alone has none: only its members' label tells. Of
// several groups that want a node the oldest gets it, which this does not tell.
func Newcomers(g *gm.NodeGroup) (ways [][]corev1.NodeSelectorRequirement) {
	if g.DeletionTimestamp != nil {
		return nil
	}
	if _, err := Compile(g); err != nil {
		return nil // it takes nobody in until it is repaired
	}
	if len(g.Spec.MatchLabels) > 0 {
		var way []corev1.NodeSelectorRequirement
		for _, key := range slices.Sorted(maps.Keys(g.Spec.MatchLabels)) {
			way = append(way, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{g.Spec.MatchLabels[key]}})
		}
		ways = append(ways, way)
	}
	if len(g.Spec.MatchExpressions) > 0 {
		var way []corev1.NodeSelectorRequirement
		for _, e := range g.Spec.MatchExpressions {
			way = append(way, corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOperator(e.Operator), Values: e.Values})
		}
		ways = append(ways, way)
	}
	return ways
}
