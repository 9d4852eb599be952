package membership

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/sets"

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
	requirements labels.Requirements
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

func compileSelector(s *apps.NodeSelector) (labels.Requirements, error) {
	var all labels.Requirements
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

func (p Pool) from() (string, time.Time)        { return p.Name, p.Created }
func (p Pool) selectors() []labels.Requirements { return []labels.Requirements{p.requirements} }
func (p Pool) names() sets.Set[string]          { return nil }

// Pools is an index of all NodePools. It is immutable and safe for concurrent use. The zero
// value has no pool.
type Pools struct{ index[Pool] }

// NewPools makes an index of the pools. It copies the slice.
func NewPools(pools []Pool) Pools { return Pools{newIndex(pools)} }

// Selecting returns the pools whose selector matches a node's own labels, oldest first. It
// checks only the pools that the index has for the labels of the node.
func (ps *Pools) Selecting(own map[string]string) []*Pool {
	return slices.DeleteFunc(ps.candidates("", own), func(p *Pool) bool { return !p.Selects(own) })
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
