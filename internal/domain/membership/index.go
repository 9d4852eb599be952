package membership

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Label is a label of a node. If Any is true, it stands for every value, and Value is "".
type Label struct {
	Key, Value string
	Any        bool
}

// nameKey is the key of NameOf. No label can have it: = is not allowed in keys.
const nameKey = "name="

// NameOf returns the name of a node as a label that only this node carries.
func NameOf(node string) Label { return Label{Key: nameKey, Value: node} }

// IsName returns the name of a node if the label is one of NameOf.
func (l Label) IsName() (node string, is bool) { return l.Value, l.Key == nameKey }

// demanded returns the labels of which a node must carry one to meet a requirement. The result
// is nil if a node can meet the requirement without the label.
func demanded(r *labels.Requirement) []Label {
	switch r.Operator() {
	case selection.Equals, selection.In:
		var out []Label
		for value := range r.Values() {
			out = append(out, Label{Key: r.Key(), Value: value})
		}
		return out
	case selection.Exists:
		return []Label{{Key: r.Key(), Any: true}}
	}
	return nil
}

// grouping is a Group or a Pool.
type grouping interface {
	// from returns the name and the creationTimestamp.
	from() (name string, created time.Time)
	// selectors returns lists of requirements. A node has to meet all of one list; an empty list
	// selects nothing.
	selectors() []labels.Requirements
	// names returns the nodes that are selected by name.
	names() sets.Set[string]
}

// index has groups or pools by the labels that their selectors demand, so that few of many have to
// be checked for a node, and few of many nodes for one of them. If two have the same name, Get finds
// the older one; the API server does not allow that.
type index[T grouping] struct {
	byAge  []T
	byName map[string]int
	// byLabel has those that only select nodes with that label or one of others, anyNode the others
	// that select something. Both hold positions in byAge.
	byLabel map[Label][]int
	anyNode []int
	// labels are those that each is found by; nil if it is in anyNode.
	labels [][]Label
}

// newIndex makes the index. It copies the slice. A selector may demand several labels: it is found by
// those that the fewest others demand.
func newIndex[T grouping](all []T) index[T] {
	x := index[T]{byName: make(map[string]int, len(all)), byLabel: map[Label][]int{}, labels: make([][]Label, len(all))}
	order := make([]int, len(all)) // positions, because they are faster to move than groups
	for at := range all {
		order[at] = at
	}
	slices.SortStableFunc(order, func(a, b int) int {
		name, created := all[a].from()
		other, than := all[b].from()
		return cmp.Or(created.Compare(than), cmp.Compare(name, other))
	})
	for _, at := range order {
		x.byAge = append(x.byAge, all[at])
	}
	users := map[Label]int{}
	for at, one := range x.byAge {
		name, _ := one.from()
		if _, taken := x.byName[name]; !taken {
			x.byName[name] = at
		}
		for _, requirements := range one.selectors() {
			for i := range requirements {
				for _, l := range demanded(&requirements[i]) {
					users[l]++
				}
			}
		}
	}
	for at, one := range x.byAge {
		found := []Label{}
		for name := range one.names() {
			found = append(found, NameOf(name))
		}
		for _, requirements := range one.selectors() {
			if best := rarest(requirements, users); best != nil {
				found = append(found, best...)
			} else if len(requirements) > 0 {
				found = nil
				break
			}
		}
		if x.labels[at] = found; found == nil {
			x.anyNode = append(x.anyNode, at)
		}
		for _, l := range found {
			x.byLabel[l] = append(x.byLabel[l], at)
		}
	}
	return x
}

// Get returns the group or pool of that name.
func (x *index[T]) Get(name string) (*T, bool) {
	i, found := x.byName[name]
	if !found {
		return nil, false
	}
	return &x.byAge[i], true
}

// Labels returns labels, including NameOf, of which each node that a group or pool selects carries
// one. all is true if there are no such labels, so that every node may be selected.
func (x *index[T]) Labels(name string) (some []Label, all bool) {
	i, found := x.byName[name]
	if !found {
		return nil, false
	}
	return slices.Clip(x.labels[i]), x.labels[i] == nil
}

// rarest returns the labels of the requirement whose labels have the fewest users; nil if a node
// can meet all requirements without a certain label.
func rarest(requirements labels.Requirements, users map[Label]int) (best []Label) {
	least := 0
	for i := range requirements {
		candidates, sum := demanded(&requirements[i]), 0
		for _, l := range candidates {
			sum += users[l]
		}
		if candidates != nil && (best == nil || sum < least) {
			best, least = candidates, sum
		}
	}
	return best
}

// candidates returns those that may select a node with this name and these labels, oldest first.
func (x *index[T]) candidates(name string, of map[string]string) []*T {
	found := append(slices.Clone(x.anyNode), x.byLabel[NameOf(name)]...)
	for key, value := range of {
		found = append(found, x.byLabel[Label{Key: key, Value: value}]...)
		found = append(found, x.byLabel[Label{Key: key, Any: true}]...)
	}
	slices.Sort(found)
	found = slices.Compact(found)
	out := make([]*T, len(found))
	for i, at := range found {
		out[i] = &x.byAge[at]
	}
	return out
}
