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
// compiled; all else is guarded by compiled.mu.
type compiledOf[V any] struct {
	compiling sync.Mutex
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
	of := c.inNamespace(namespace)
	of.compiling.Lock()
	defer of.compiling.Unlock()
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

// inNamespace returns the values of a namespace.
func (c *compiled[V]) inNamespace(namespace string) *compiledOf[V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inNamespaceLocked(namespace)
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
	for c.weight+weight > c.mostInAll && len(c.namespaces) > 1 {
		c.forgetOldestLocked()
	}
	of.values[policy] = weighed[V]{value, weight}
	of.weight += weight
	c.weight += weight
}

// forgetOldestLocked forgets the namespace that was not used for the longest time.
func (c *compiled[V]) forgetOldestLocked() {
	oldest, least := "", c.uses
	for namespace, of := range c.namespaces {
		if of.used < least {
			oldest, least = namespace, of.used
		}
	}
	c.weight -= c.namespaces[oldest].weight
	delete(c.namespaces, oldest)
}
