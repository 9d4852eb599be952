package placement

import (
	"fmt"
	"hash/fnv"
	"slices"
)

// Equal reports whether two spreads divide alike and have the same groups away. Missing
// and folded names do not count.
func (s Spread) Equal(o Spread) bool {
	return s.descending == o.descending &&
		slices.Equal(s.names, o.names) &&
		slices.Equal(s.away, o.away) &&
		slices.Equal(s.weights, o.weights) &&
		slices.Equal(s.ranges, o.ranges) &&
		slices.Equal(s.order, o.order)
}

// Digest returns a number that is the same for spreads that are Equal, and differs for nearly
// all others.
func (s Spread) Digest() uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, s.descending, s.names, s.away, s.weights, s.ranges, s.order) // a hash takes everything
	return h.Sum64()
}
