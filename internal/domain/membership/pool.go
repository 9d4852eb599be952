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

// Pool is a compiled NodePool. It is immutable and safe for concurrent use.
type Pool struct {
	// Name is the NodePool's name.
	Name string
	// Created is the creationTimestamp. Of several pools that select a node, the oldest gets
	// it.
	Created time.Time
	// Deleting pools get no node. Each of their nodes goes to another pool that selects it,
	// and stays if there is none.
	Deleting bool
	// Invalid pools have a selector that cannot be used. They select no node, but keep the
	// nodes that they have.
	Invalid bool

	// requirements is the compiled selector: a node has to meet all. Without requirements
	// the pool selects no node.
	requirements []labels.Requirement
}

// CompilePool makes a Pool from a NodePool. The error names the first field that cannot be
// used. The Pool returned with an error is Invalid; callers must add it to the index too.
//
// CompilePool refuses a selector on the label of NodeGroups. A NodeGroup may select the nodes
// of a pool; if the pool also selected the nodes of that group, each membership would depend
// on the other.
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

// Selects reports whether the pool's selector matches a node's own labels.
func (p *Pool) Selects(own map[string]string) bool {
	for i := range p.requirements {
		if !p.requirements[i].Matches(labels.Set(own)) {
			return false
		}
	}
	return len(p.requirements) > 0
}

// anchor is a label that a node must carry so that a pool can select it. If any is true,
// every value is accepted and value is "".
type anchor struct {
	key, value string
	any        bool
}

// anchors returns the labels of which a node must carry one to meet a requirement. The result
// is nil if a node can meet the requirement without the label.
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

// Pools is an index of all NodePools. It is immutable and safe for concurrent use. The zero
// value has no pool.
type Pools struct {
	byAge  []Pool
	byName map[string]int
	// byAnchor has the pools that only select nodes with that label, so that Selecting
	// checks few of many pools. unanchored has the others that have a selector. Both hold
	// indexes in byAge, oldest first.
	byAnchor   map[anchor][]int
	unanchored []int
}

// NewPools makes an index of the pools. It copies the slice.
func NewPools(pools []Pool) Pools {
	ps := Pools{byAge: slices.Clone(pools), byName: make(map[string]int, len(pools)), byAnchor: map[anchor][]int{}}
	slices.SortStableFunc(ps.byAge, func(a, b Pool) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	// A pool may have several anchors. It is indexed by the ones that the fewest pools have.
	users := map[anchor]int{}
	for i := range ps.byAge {
		ps.byName[ps.byAge[i].Name] = i
		for j := range ps.byAge[i].requirements {
			for _, a := range anchors(&ps.byAge[i].requirements[j]) {
				users[a]++
			}
		}
	}
	for i := range ps.byAge {
		var best []anchor
		least := 0
		for j := range ps.byAge[i].requirements {
			candidates := anchors(&ps.byAge[i].requirements[j])
			sum := 0
			for _, a := range candidates {
				sum += users[a]
			}
			if candidates != nil && (best == nil || sum < least) {
				best, least = candidates, sum
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

// Selecting returns the pools whose selector matches a node's own labels, oldest first. It
// checks only the pools that the index has for the labels of the node.
func (ps *Pools) Selecting(own map[string]string) []*Pool {
	var found []int
	check := func(candidates []int) {
		for _, i := range candidates {
			if ps.byAge[i].Selects(own) {
				found = append(found, i)
			}
		}
	}
	for key, value := range own {
		check(ps.byAnchor[anchor{key: key, value: value}])
		check(ps.byAnchor[anchor{key: key, any: true}])
	}
	check(ps.unanchored)
	slices.Sort(found)
	pools := make([]*Pool, len(found))
	for i, at := range found {
		pools[i] = &ps.byAge[at]
	}
	return pools
}

// Claim is the part of a node that decides about its pool.
type Claim struct {
	// Own has the node's own labels: labels from its pool are replaced by the values that
	// the node had before.
	Own map[string]string
	// Chosen is the pool that a person wrote into the node's label, "" if none.
	Chosen string
	// Incumbent is the pool whose attributes the node carries, "" if none.
	Incumbent string
}

// Assign returns the one pool that a node belongs to, "" if none. selected is true if a
// selector decided, false if the node's label did.
//
// A label that a person wrote takes precedence: the node is in that pool or, if the pool does
// not exist or is being deleted, in none; but a pool that is being deleted keeps the nodes
// that carry its attributes. Without such a label, the present pool keeps the node while its
// selector matches or is invalid. Otherwise the oldest pool that selects the node gets it, by
// creation and then by name. A pool that is being deleted gets no node, and keeps one only
// while no other pool selects it.
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
