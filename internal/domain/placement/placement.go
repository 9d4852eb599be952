// Package placement decides how the replicas of one workload divide over
// NodeGroups (docs/sources.md, G13): how many pods each group gets, which group gets
// the next pod, which pods leave a group that has too many, and which deletion cost
// each pod has, so that a ReplicaSet that shrinks removes the right ones. Pin writes
// the decision into a pod, as required node affinity.
//
// Start with Spread: New makes one from a PropagationPolicy, Divide and Next use it.
//
// The package works on numbers of pods. It must not contain anything about how pods
// are found, counted, evicted or written; the ledger of seats (internal/seats) does
// that.
package placement

import (
	"cmp"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/webster"
)

const (
	// maxCount is the highest weight and the highest bound of a range, as in the API.
	maxCount = 1_000_000
	// maxReplicas is the highest number of pods that is divided: replicas are an int32
	// in every workload kind. Products of maxCount and 2·maxReplicas fit an int64.
	maxReplicas = math.MaxInt32
)

// Spread is a compiled PropagationPolicy for one workload: the groups that take part,
// and either a weight or a range for each. It is immutable and safe for concurrent use.
// The zero value has no group, so it places no pod.
//
// Slices that methods take or return have one entry for each group, in the order of
// Groups. If a slice argument is shorter, the missing entries count as 0, or as not
// feasible.
type Spread struct {
	names   []string // sorted ascending
	missing []string
	folded  []string
	// away are the groups whose share WithoutAway gave to the others, and home is the
	// spread before that. Both are nil if there are none.
	away []string
	home *Spread

	// weights are 0 to maxCount, by index of the group; nil for a division by ranges.
	weights    []int64
	descending bool // breaks the last tie between groups: true prefers the last name

	// ranges are by index of the group; nil for a division by weights. order lists
	// indexes in the order of the policy's list.
	ranges []bounds
	order  []int32
}

// StaticWeight makes a Spread that divides pods in proportion to weights.
//
// Names are folded to lower case. A rule that names several groups gives each of them
// the full weight. If several rules name a group, the largest weight counts. A group of
// weight 0 gets no pod, but if all weights are 0, all count as 1. Weights outside 0 to
// 1,000,000 count as the nearest bound.
//
// present reports whether a group exists and has a node; a nil present means that all
// do. Groups that are not present take no part, and the others divide their share. uid
// is the workload's: see For.
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
	// The largest weight of a name sorts first, and CompactFunc keeps the first.
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

// NumRange makes a Spread that fills groups in the order of the list: first each group
// up to its min, then each group up to its max. Pods beyond all max get no group.
//
// Names are folded to lower case. If several rules name a group, the first counts, for
// its bounds and for its place in the order. An unset min is 0, an unset max is no
// limit, and a bound that cannot be parsed counts as unset. If min is above max, both
// are max. Percentages are of the replicas that are divided, rounded up. present and
// uid are as for StaticWeight.
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

// fold returns the name in lower case, as object names always are, and records names
// that it changed for Folded.
func (s *Spread) fold(name string) string {
	lower := strings.ToLower(name)
	if lower != name {
		s.folded = append(s.folded, name)
	}
	return lower
}

// admit adds a group to the spread, or to the missing ones, and reports which. Names
// have to come in ascending order.
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

// For returns the same spread for another workload. A hash of the workload's UID decides
// which of two equal groups comes first, so that many workloads with one pod each do not
// all put it into the same group.
func (s Spread) For(uid types.UID) Spread {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(uid)) // never fails
	s.descending = hash.Sum32()%2 == 1
	if s.home != nil {
		home := s.home.For(uid)
		s.home = &home
	}
	return s
}

// Groups returns the names of the groups that take part, sorted. It includes groups that
// never get a pod, such as those of weight 0. The slice must not be changed.
func (s Spread) Groups() []string { return s.names }

// Bounded reports whether the division is by ranges, so that a group must not exceed its
// max. Weights set no such bound.
func (s Spread) Bounded() bool { return s.ranges != nil }

// Taking returns the groups that get a pod if there are enough replicas, sorted. Groups
// of weight 0 or of max 0 are not among them.
func (s Spread) Taking() []string {
	var taking []string
	for i, n := range s.Divide(maxReplicas) {
		if n > 0 {
			taking = append(taking, s.names[i])
		}
	}
	return taking
}

// Missing returns the groups that the policy names and that do not exist or have no
// node, sorted. The slice must not be changed.
func (s Spread) Missing() []string { return s.missing }

// Folded returns the names in the policy that are not in lower case, as written, sorted.
// The slice must not be changed.
func (s Spread) Folded() []string { return s.folded }

// Index returns the index of a group in Groups, -1 if the group takes no part.
func (s Spread) Index(group string) int {
	if i, found := slices.BinarySearch(s.names, group); found {
		return i
	}
	return -1
}

// Divide returns how many of n replicas each group gets. By weights the sum is n, or 0 if
// no group can get a pod. By ranges the sum may be less than n: the other pods wait. A
// negative n counts as 0.
func (s Spread) Divide(n int) []int {
	n = min(max(n, 0), maxReplicas)
	if s.ranges == nil {
		return s.webster().Divide(int64(n))
	}
	seats := make([]int, len(s.names))
	s.fill(seats, n, n)
	return seats
}

// webster is the division by weights. It must not be used when ranges are set.
func (s *Spread) webster() webster.Division {
	return webster.Division{Weights: s.weights, Descending: s.descending}
}

// First returns how many of the first k of n replicas each group gets, if replicas are
// placed one by one. It is for a revision that has k of the workload's n pods. By weights
// the result is Divide(k); by ranges, percentages are of n.
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

// Next returns the index of the group that gets the next pod: among the feasible groups
// whose current number is below the desired one, the first by the rule of division. It
// returns -1 if there is none. A nil feasible means that all groups are feasible.
//
// Next agrees with First: if desired is Divide(n) with the sum n, and current is First(k, n),
// then one more pod in the returned group gives First(k+1, n).
func (s Spread) Next(desired, current []int, feasible []bool) int {
	if s.ranges != nil {
		var total int64
		for _, want := range desired {
			total += int64(max(want, 0))
		}
		return s.nextInOrder(desired, current, feasible, min(total, maxReplicas))
	}
	division := s.webster()
	best := -1
	var bestSeats int64
	for i := range min(len(s.weights), len(desired)) {
		seats := seatsAt(current, i)
		if int64(desired[i]) <= seats || feasible != nil && (i >= len(feasible) || !feasible[i]) {
			continue
		}
		if best < 0 || division.Before(i, seats, best, bestSeats) {
			best, bestSeats = i, seats
		}
	}
	return best
}

// seatsAt returns current[i], bounded to 0 to maxReplicas; 0 beyond the end.
func seatsAt(current []int, i int) int64 {
	if i >= len(current) {
		return 0
	}
	return min(max(int64(current[i]), 0), maxReplicas)
}
