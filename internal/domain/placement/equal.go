package placement

import "slices"

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
