package policies

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// maxSpreads and maxSpreadsInAll bound the compiled PropagationPolicies that are kept for
	// one namespace and for all together, in names of groups. Each name takes about 60 bytes.
	maxSpreads, maxSpreadsInAll = 400_000, 2_000_000
	// maxRules and maxRulesInAll bound the compiled OverridePolicies, in bytes of their specs.
	maxRules, maxRulesInAll = 16 << 20, 128 << 20
)

// compiled keeps what was compiled, by namespace and UID of the policy. It bounds the weight
// of each namespace and of all together. When a namespace has too much, its values are
// forgotten, and when all together have, those of the namespaces that were not used for the
// longest time. They are compiled again when they are needed. So values of policies that were
// deleted are forgotten too. It is safe for concurrent use.
type compiled[V any] struct {
	most, mostInAll int64

	mu         sync.Mutex
	weight     int64
	uses       uint64
	namespaces map[string]*compiledOf[V]
}

// compiledOf are the values of one namespace. compiling is held while one of its policies is
// compiled, and callers is the number of those who hold it or wait for it; all else is guarded
// by compiled.mu.
type compiledOf[V any] struct {
	compiling sync.Mutex
	callers   int
	weight    int64
	used      uint64 // the number of uses of all namespaces when it was used last
	values    map[types.UID]weighed[V]
}

type weighed[V any] struct {
	value  V
	weight int64
}

func newCompiled[V any](most, mostInAll int64) *compiled[V] {
	return &compiled[V]{most: most, mostInAll: mostInAll, namespaces: map[string]*compiledOf[V]{}}
}

// value returns the value of a policy if it is kept and valid, and otherwise compiles it,
// which also returns its weight. A policy is compiled once, however many callers wait for
// it. Meanwhile policies of the same namespace that are not kept wait, and those of others
// do not.
func (c *compiled[V]) value(namespace string, policy types.UID, valid func(V) bool, compile func() (V, int64)) V {
	if v, kept := c.get(namespace, policy); kept && valid(v) {
		return v
	}
	defer c.compiling(namespace)()
	if v, kept := c.get(namespace, policy); kept && valid(v) { // compiled in the meantime
		return v
	}
	v, weight := compile()
	c.put(namespace, policy, v, weight)
	return v
}

// get returns a value, and whether it is kept.
func (c *compiled[V]) get(namespace string, policy types.UID) (value V, kept bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if of := c.namespaces[namespace]; of != nil {
		c.uses++
		of.used = c.uses
		w, found := of.values[policy]
		return w.value, found
	}
	return value, false
}

// compiling waits until the caller may compile a policy of a namespace. It returns a function
// that lets the next one do so.
func (c *compiled[V]) compiling(namespace string) (done func()) {
	c.mu.Lock()
	of := c.inNamespaceLocked(namespace)
	of.callers++
	c.mu.Unlock()
	of.compiling.Lock()
	return func() {
		of.compiling.Unlock()
		c.mu.Lock()
		defer c.mu.Unlock()
		of.callers--
	}
}

func (c *compiled[V]) inNamespaceLocked(namespace string) *compiledOf[V] {
	of := c.namespaces[namespace]
	if of == nil {
		of = &compiledOf[V]{values: map[types.UID]weighed[V]{}}
		c.namespaces[namespace] = of
	}
	return of
}

// put keeps a value in place of the last one of this policy.
func (c *compiled[V]) put(namespace string, policy types.UID, value V, weight int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.inNamespaceLocked(namespace)
	before := of.values[policy].weight
	of.weight -= before
	c.weight -= before
	delete(of.values, policy)
	if of.weight+weight > c.most {
		c.weight -= of.weight
		of.weight = 0
		clear(of.values)
	}
	c.uses++
	of.used = c.uses
	for c.weight+weight > c.mostInAll && c.forgetOldestLocked(of) {
	}
	of.values[policy] = weighed[V]{value, weight}
	of.weight += weight
	c.weight += weight
}

// forgetOldestLocked forgets the values of the namespace that was not used for the longest
// time, other than the given one. It returns false if no other has any.
func (c *compiled[V]) forgetOldestLocked(except *compiledOf[V]) bool {
	var name string
	var oldest *compiledOf[V]
	for namespace, of := range c.namespaces {
		if of != except && len(of.values) > 0 && (oldest == nil || of.used < oldest.used) {
			name, oldest = namespace, of
		}
	}
	if oldest == nil {
		return false
	}
	c.weight -= oldest.weight
	oldest.weight = 0
	clear(oldest.values)
	if oldest.callers == 0 {
		delete(c.namespaces, name)
	}
	return true
}
