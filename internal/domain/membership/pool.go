package membership

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// Pool is a NodePool made ready for questions.
// Immutable once compiled and safe for concurrent use.
type Pool struct {
	// Name is the NodePool's name.
	Name string
	// Created orders pools that want the same node: the older one wins.
	Created time.Time
	// Deleting pools take no node. What they have goes to another pool that
	// selects it, and stays where there is none.
	Deleting bool
	// Invalid pools have a selector that cannot be used. They select nothing
	// and keep the nodes that they have.
	Invalid bool

	requirements []labels.Requirement // all of them hold; none selects nothing
}

// CompilePool makes a Pool of a NodePool. The error names the first field that
// cannot be used; the Pool that comes with it is Invalid and is to be put into
// the index like any other.
//
// A selector on the label of NodeGroups is refused: a NodeGroup may select the
// nodes of a pool, and if the pool selected those of the group, each membership
// would be the cause of the other.
func CompilePool(p *apps.NodePool) (Pool, error) {
	pool := Pool{Name: p.Name, Created: p.CreationTimestamp.Time, Deleting: p.DeletionTimestamp != nil}
	if p.Spec.Selector == nil {
		return pool, nil
	}
	requirements, err := compileSelector(p.Spec.Selector)
	pool.Invalid = err != nil
	pool.requirements = requirements
	return pool, err
}

func compileSelector(s *apps.NodeSelector) ([]labels.Requirement, error) {
	var all []labels.Requirement
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		requirement, err := compileRequirement(key, selection.Equals, []string{string(s.MatchLabels[key])})
		if err != nil {
			return nil, fmt.Errorf("spec.selector.matchLabels[%s]: %w", key, err)
		}
		all = append(all, *requirement)
	}
	for i, expression := range s.MatchExpressions {
		operator, err := operatorOf(expression.Operator)
		if err != nil {
			return nil, fmt.Errorf("spec.selector.matchExpressions[%d].operator: %w", i, err)
		}
		values := make([]string, len(expression.Values))
		for j, value := range expression.Values {
			values[j] = string(value)
		}
		requirement, err := compileRequirement(expression.Key, operator, values)
		if err != nil {
			return nil, fmt.Errorf("spec.selector.matchExpressions[%d]: %w", i, err)
		}
		all = append(all, *requirement)
	}
	return all, nil
}

// Selects says whether the pool's selector matches a node's own labels.
func (p *Pool) Selects(own map[string]string) bool {
	for i := range p.requirements {
		if !p.requirements[i].Matches(labels.Set(own)) {
			return false
		}
	}
	return len(p.requirements) > 0
}

// anchor is a label that a node has to carry for a pool to select it. An empty
// value with any set stands for whatever value.
type anchor struct {
	key, value string
	any        bool
}

// anchors are the labels of which a node needs one to satisfy a requirement;
// none means that it can be satisfied without the label.
func anchors(r *labels.Requirement) []anchor {
	switch r.Operator() {
	case selection.Equals, selection.In:
		var out []anchor
		for value := range r.Values() {
			out = append(out, anchor{key: r.Key(), value: value})
		}
		return out
	case selection.Exists:
		return []anchor{{key: r.Key(), any: true}}
	}
	return nil
}

// Pools is an index over all NodePools. Immutable and safe for concurrent use.
// The zero value has no pool.
type Pools struct {
	byAge  []Pool
	byName map[string]int
	// byAnchor has the pools that can only select nodes with that label, so
	// that a node asks few pools of many; unanchored are all that select
	// otherwise. Positions in byAge, oldest first.
	byAnchor   map[anchor][]int
	unanchored []int
}

// NewPools indexes the pools; the slice is copied.
func NewPools(pools []Pool) Pools {
	ps := Pools{byAge: slices.Clone(pools), byName: make(map[string]int, len(pools)), byAnchor: map[anchor][]int{}}
	slices.SortStableFunc(ps.byAge, func(a, b Pool) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	// A label that few pools ask for tells them apart best.
	asked := map[anchor]int{}
	for i := range ps.byAge {
		ps.byName[ps.byAge[i].Name] = i
		for j := range ps.byAge[i].requirements {
			for _, a := range anchors(&ps.byAge[i].requirements[j]) {
				asked[a]++
			}
		}
	}
	for i := range ps.byAge {
		var best []anchor
		least := 0
		for j := range ps.byAge[i].requirements {
			of := anchors(&ps.byAge[i].requirements[j])
			sum := 0
			for _, a := range of {
				sum += asked[a]
			}
			if of != nil && (best == nil || sum < least) {
				best, least = of, sum
			}
		}
		for _, a := range best {
			ps.byAnchor[a] = append(ps.byAnchor[a], i)
		}
		if best == nil && len(ps.byAge[i].requirements) > 0 {
			ps.unanchored = append(ps.unanchored, i)
		}
	}
	return ps
}

// Get returns the pool of that name.
func (ps *Pools) Get(name string) (*Pool, bool) {
	i, found := ps.byName[name]
	if !found {
		return nil, false
	}
	return &ps.byAge[i], true
}

// All returns the pools, oldest first. The slice must not be changed.
func (ps *Pools) All() []Pool { return ps.byAge }

// Selecting returns the pools whose selector matches a node's own labels,
// oldest first. It asks only the pools that a label of the node leads to.
func (ps *Pools) Selecting(own map[string]string) []*Pool {
	var found []int
	ask := func(candidates []int) {
		for _, i := range candidates {
			if ps.byAge[i].Selects(own) {
				found = append(found, i)
			}
		}
	}
	for key, value := range own {
		ask(ps.byAnchor[anchor{key: key, value: value}])
		ask(ps.byAnchor[anchor{key: key, any: true}])
	}
	ask(ps.unanchored)
	slices.Sort(found)
	pools := make([]*Pool, len(found))
	for i, at := range found {
		pools[i] = &ps.byAge[at]
	}
	return pools
}

// Claim is what a node says about pools.
type Claim struct {
	// Own are the node's own labels: without those that its pool gave it, and
	// with what it had under their keys before.
	Own map[string]string
	// Chosen is the pool that the node's owner wrote into its label, "" if none.
	Chosen string
	// Incumbent is the pool whose attributes the node carries, "" if none.
	Incumbent string
}

// Assign names the one pool that a node belongs to, "" if none, and says
// whether a selector brought it there.
//
// The owner's word goes first: a node whose label he wrote is in that pool or,
// while the pool does not exist or is being deleted, in none. Otherwise the
// pool that has the node keeps it while its selector matches or cannot be used;
// else the oldest pool that selects the node gets it, by creation and then by
// name. A pool that is being deleted gets no node, and keeps one only as long
// as no other pool selects it.
func (ps *Pools) Assign(c Claim) (pool string, selected bool) {
	incumbent, has := ps.Get(c.Incumbent)
	if c.Chosen != "" {
		chosen, exists := ps.Get(c.Chosen)
		if exists && (!chosen.Deleting || has && incumbent == chosen) {
			return c.Chosen, false
		}
		return "", false
	}
	keeps := has && (incumbent.Invalid || incumbent.Selects(c.Own))
	if keeps && !incumbent.Deleting {
		return incumbent.Name, true
	}
	for _, p := range ps.Selecting(c.Own) {
		if !p.Deleting {
			return p.Name, true
		}
	}
	if keeps {
		return incumbent.Name, true
	}
	return "", false
}
