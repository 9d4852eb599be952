// Package placement decides how the replicas of one workload divide over
// NodeGroups (docs/sources.md, G13): how many each group
// gets, whose turn the next pod is, which pods leave a group that has too
// many, and in which order pods should go when the workload shrinks.
//
// It counts. It must not know what a seat, a node or a revision is, nor how
// pods are found, evicted or annotated.
package placement

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

const (
	// maxCount bounds weights and range bounds, as the API does.
	maxCount = 1_000_000
	// maxReplicas bounds what is divided: replicas are an int32 in every
	// workload kind. Products of the two fit an int64.
	maxReplicas = math.MaxInt32
)

// Spread is a policy made ready for one workload: the groups that take part,
// by index, and a rule of division. Immutable and safe for concurrent use. The
// zero value has no group: it divides everything to nowhere.
//
// Slices that methods take or return are indexed as Groups; where one that is
// taken is shorter, the rest counts as zero, or as not feasible.
type Spread struct {
	names   []string // sorted ascending
	missing []string
	folded  []string
	// away are the groups that WithoutAway gave a share of nothing, and home is
	// the spread before; nil if there are none.
	away []string
	home *Spread

	// Division by weights, 0 to maxCount, by index. nil when by ranges.
	weights    []int64
	descending bool // of groups that are equal in all else the last name wins

	// Division by ranges. order lists indexes in the policy's order.
	ranges []bounds
	order  []int32
}

// StaticWeight makes a Spread that divides in proportion to weights. Names are
// folded to lower case. A rule that names several groups gives each the full
// weight, of several rules for one group the largest counts, 0 is never, and
// if all rules say 0 they mean equal. Weights outside 0 to 1,000,000 count as
// the nearest bound. present says which groups exist and have a node; nil
// means all. Others share what a missing group would have had.
func StaticWeight(rules []gm.StaticNodeGroupWeight, present func(group string) bool, uid types.UID) Spread {
	type entry struct {
		name   string
		weight int64
	}
	var entries []entry
	allZero := true
	var s Spread
	for i := range rules {
		weight := min(max(rules[i].Weight, 0), maxCount)
		if weight > 0 && len(rules[i].NodeGroupNames) > 0 {
			allZero = false
		}
		for _, name := range rules[i].NodeGroupNames {
			entries = append(entries, entry{s.fold(name), weight})
		}
	}
	// The largest weight of a name comes first, and Compact keeps the first.
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(b.weight, a.weight))
	})
	entries = slices.CompactFunc(entries, func(a, b entry) bool { return a.name == b.name })

	s.weights = make([]int64, 0, len(entries))
	for _, e := range entries {
		if !s.admit(e.name, present) {
			continue
		}
		if allZero {
			e.weight = 1
		}
		s.weights = append(s.weights, e.weight)
	}
	s.finish()
	return s.For(uid)
}

// NumRange makes a Spread that fills groups between bounds: every group gets
// its min in list order, then each is filled to its max in list order. Where
// several rules name a group the first counts, as it also fixes the group's
// place in the order. A bound that cannot be read counts as unset; where min
// is above max, max counts, for no group may exceed it. Percentages are of the
// replicas that are divided, rounded up. present is as for StaticWeight.
func NumRange(rules []gm.NodeGroupNumRange, present func(group string) bool, uid types.UID) Spread {
	var s Spread
	var listed []string
	byName := map[string]bounds{}
	for i := range rules {
		b := boundsOf(&rules[i])
		for _, name := range rules[i].NodeGroupNames {
			name = s.fold(name)
			if _, taken := byName[name]; taken {
				continue
			}
			byName[name] = b
			listed = append(listed, name)
		}
	}
	sorted := slices.Sorted(slices.Values(listed))
	s.ranges = make([]bounds, 0, len(sorted))
	for _, name := range sorted {
		if s.admit(name, present) {
			s.ranges = append(s.ranges, byName[name])
		}
	}
	s.order = make([]int32, 0, len(s.names))
	for _, name := range listed {
		if i := s.Index(name); i >= 0 {
			s.order = append(s.order, int32(i))
		}
	}
	s.finish()
	return s.For(uid)
}

// fold returns the name in lower case, for object names always are, and
// remembers names for which that made a difference.
func (s *Spread) fold(name string) string {
	lower := strings.ToLower(name)
	if lower != name {
		s.folded = append(s.folded, name)
	}
	return lower
}

func (s *Spread) admit(name string, present func(string) bool) bool {
	if present != nil && !present(name) {
		s.missing = append(s.missing, name)
		return false
	}
	s.names = append(s.names, name)
	return true
}

func (s *Spread) finish() {
	slices.Sort(s.folded)
	s.folded = slices.Compact(s.folded)
}

// For returns the same spread for another workload: which of two equal groups
// comes first depends on the workload's UID, so that many small workloads do
// not all start in the same group. It costs one hash.
func (s Spread) For(uid types.UID) Spread {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // a hash never fails
	s.descending = hash.Sum32()%2 == 1
	return s
}

// Groups are the names of the groups that take part, sorted; groups of weight
// 0 are among them and get nothing. The slice must not be changed.
func (s Spread) Groups() []string { return s.names }

// Bounded tells whether groups have a number of pods that they must not
// exceed: that of a range. By weights there is none, only a share.
func (s Spread) Bounded() bool { return s.ranges != nil }

// Taking are the groups that get a pod once there are enough: those of weight
// 0, or of a range that ends at 0, never do.
func (s Spread) Taking() []string {
	var taking []string
	for i, n := range s.Divide(maxReplicas) {
		if n > 0 {
			taking = append(taking, s.names[i])
		}
	}
	return taking
}

// Missing are the groups that the policy names and that do not exist or have
// no node, sorted. The slice must not be changed.
func (s Spread) Missing() []string { return s.missing }

// Folded are the names that were not in lower case, as written, sorted. The
// slice must not be changed.
func (s Spread) Folded() []string { return s.folded }

// Index is the index of a group, -1 if it takes no part.
func (s Spread) Index(group string) int {
	if i, found := slices.BinarySearch(s.names, group); found {
		return i
	}
	return -1
}

// Divide says how many of n replicas each group gets. By weights the sum is n
// unless no group can take any; by ranges it may be less, and the rest waits.
// A negative n counts as 0.
func (s Spread) Divide(n int) []int {
	seats := make([]int, len(s.names))
	n = min(max(n, 0), maxReplicas)
	if s.ranges != nil {
		s.fill(seats, n, n)
	} else {
		s.apportion(seats, int64(n))
	}
	return seats
}

// First says where the first k of n replicas are, when they come one by one: what
// one revision of several has. By weights that is Divide(k); by ranges,
// percentages are of n.
func (s Spread) First(k, n int) []int {
	n = min(max(n, 0), maxReplicas)
	k = min(max(k, 0), n)
	if s.ranges == nil {
		return s.Divide(k)
	}
	seats := make([]int, len(s.names))
	s.fill(seats, k, n)
	return seats
}

// Next is the index of the group whose turn it is to get a pod: of the
// feasible groups with current below desired the one that comes first by the
// rule of division; -1 if there is none. A nil feasible means all are. From
// any state that Divide gives, Next follows Divide.
func (s Spread) Next(desired, current []int, feasible []bool) int {
	if s.ranges != nil {
		var total int64
		for _, want := range desired {
			total += int64(max(want, 0))
		}
		return s.nextInOrder(desired, current, feasible, min(total, maxReplicas))
	}
	best := -1
	var bestWeight, bestSeats int64
	for i := range min(len(s.weights), len(desired)) {
		seats := seatsAt(current, i)
		if int64(desired[i]) <= seats || feasible != nil && (i >= len(feasible) || !feasible[i]) {
			continue
		}
		if best < 0 || s.precedes(s.weights[i], seats, i, bestWeight, bestSeats, best) {
			best, bestWeight, bestSeats = i, s.weights[i], seats
		}
	}
	return best
}

// NextWanted is Next with every group feasible: whose turn it would be.
func (s Spread) NextWanted(desired, current []int) int {
	return s.Next(desired, current, nil)
}

func seatsAt(current []int, i int) int64 {
	if i >= len(current) {
		return 0
	}
	return min(max(int64(current[i]), 0), maxReplicas)
}

// Surplus says by how many pods each group exceeds what it should have.
func Surplus(desired, current []int) []int {
	surplus := make([]int, len(current))
	for i, have := range current {
		want := 0
		if i < len(desired) {
			want = desired[i]
		}
		surplus[i] = max(have-want, 0)
	}
	return surplus
}
