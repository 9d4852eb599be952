package policies

const (
	// maxSpreads and maxSpreadsInAll bound the compiled PropagationPolicies that are kept for
	// one namespace and for all together, in names of groups. A spread is compiled for each
	// workload, and takes about 60 bytes for each group.
	maxSpreads, maxSpreadsInAll = 400_000, 2_000_000
	// maxRules and maxRulesInAll bound the compiled OverridePolicies, in bytes of their specs.
	maxRules, maxRulesInAll = 16 << 20, 128 << 20
)

// compiled keeps what was compiled, by namespace. It bounds the weight of each namespace and
// of all together. When a namespace has too much, its values are forgotten, and compiled
// again when they are needed. So values of policies that were deleted are forgotten too.
type compiled[K comparable, V any] struct {
	most, mostInAll int64
	weight          int64
	namespaces      map[string]*compiledOf[K, V]
}

// compiledOf are the values of one namespace.
type compiledOf[K comparable, V any] struct {
	weight int64
	values map[K]weighed[V]
}

type weighed[V any] struct {
	value  V
	weight int64
}

func newCompiled[K comparable, V any](most, mostInAll int64) *compiled[K, V] {
	return &compiled[K, V]{most: most, mostInAll: mostInAll, namespaces: map[string]*compiledOf[K, V]{}}
}

// get returns a value, and whether it is kept.
func (c *compiled[K, V]) get(namespace string, key K) (value V, kept bool) {
	if of := c.namespaces[namespace]; of != nil {
		w, found := of.values[key]
		return w.value, found
	}
	return value, false
}

// put keeps a value in place of the last one with this key.
func (c *compiled[K, V]) put(namespace string, key K, value V, weight int64) {
	of := c.namespaces[namespace]
	if of != nil {
		before := of.values[key].weight
		of.weight -= before
		c.weight -= before
		delete(of.values, key)
		if of.weight+weight > c.most {
			c.weight -= of.weight
			of = nil
		}
	}
	if c.weight+weight > c.mostInAll {
		clear(c.namespaces)
		c.weight = 0
		of = nil
	}
	if of == nil {
		of = &compiledOf[K, V]{values: map[K]weighed[V]{}}
		c.namespaces[namespace] = of
	}
	of.values[key] = weighed[V]{value, weight}
	of.weight += weight
	c.weight += weight
}
