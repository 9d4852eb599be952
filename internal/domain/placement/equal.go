package placement

import "slices"

// Equal tells whether two spreads divide alike.
func (s Spread) Equal(o Spread) bool {
	return s.descending == o.descending &&
		slices.Equal(s.names, o.names) &&
		slices.Equal(s.away, o.away) &&
		slices.Equal(s.weights, o.weights) &&
		slices.Equal(s.ranges, o.ranges) &&
		slices.Equal(s.order, o.order)
}
