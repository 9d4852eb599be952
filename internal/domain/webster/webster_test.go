package webster

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// oneByOne divides by the definition: each of n seats goes to the weight that comes first.
func oneByOne(d Division, n int) []int {
	seats := make([]int, len(d.Weights))
	for range n {
		best := -1
		for i, weight := range d.Weights {
			if weight > 0 && (best < 0 || d.Before(i, int64(seats[i]), best, int64(seats[best]))) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		seats[best]++
	}
	return seats
}

func genDivision(t *rapid.T) Division {
	weight := rapid.OneOf(rapid.Int64Range(0, 6), rapid.Int64Range(0, 1_000_000), rapid.SampledFrom([]int64{1, 2, 3, 6, 1_000_000}))
	return Division{Weights: rapid.SliceOfN(weight, 1, 12).Draw(t, "weights"), Descending: rapid.Bool().Draw(t, "descending")}
}

func TestCompare(t *testing.T) {
	tests := map[string]struct {
		weightA, seatsA, weightB, seatsB int64
		want                             int
	}{
		"3/1 and 2/1":               {3, 0, 2, 0, 1},
		"2/1 and 3/1":               {2, 0, 3, 0, -1},
		"3/3 and 1/1":               {3, 1, 1, 0, 0},
		"5/3 and 1/1":               {5, 1, 1, 0, 1},
		"0 and 1/5":                 {0, 0, 1, 2, -1},
		"the largest of all groups": {1_000_000, 1<<31 - 1, 1_000_000, 1<<31 - 2, -1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Compare(tc.weightA, tc.seatsA, tc.weightB, tc.seatsB); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestBeforeBreaksTies(t *testing.T) {
	for name, tc := range map[string]struct {
		d            Division
		i, j         int
		seatsI, with int64
		want         bool
	}{
		"a larger quotient":             {d: Division{Weights: []int64{1, 3}}, i: 1, j: 0, want: true},
		"a smaller quotient":            {d: Division{Weights: []int64{1, 3}}, i: 0, j: 1},
		"fewer seats":                   {d: Division{Weights: []int64{3, 1}}, i: 1, j: 0, with: 1, want: true},
		"more seats":                    {d: Division{Weights: []int64{3, 1}}, i: 0, seatsI: 1, j: 1},
		"the lower index":               {d: Division{Weights: []int64{2, 2}}, i: 0, j: 1, want: true},
		"the higher index":              {d: Division{Weights: []int64{2, 2}}, i: 1, j: 0},
		"the lower index, descending":   {d: Division{Weights: []int64{2, 2}, Descending: true}, i: 0, j: 1},
		"the higher index, descending":  {d: Division{Weights: []int64{2, 2}, Descending: true}, i: 1, j: 0, want: true},
		"fewer seats before descending": {d: Division{Weights: []int64{1, 3}, Descending: true}, i: 0, j: 1, with: 1, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.d.Before(tc.i, tc.seatsI, tc.j, tc.with); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestDivideGivesWhatOneSeatAtATimeGives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDivision(t)
		n := rapid.IntRange(0, 3000).Draw(t, "n")
		if diff := cmp.Diff(oneByOne(d, n), d.Divide(int64(n))); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestManyWeightsDivideAsOneSeatAtATime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	d := Division{Weights: make([]int64, 300)} // more than the heap keeps on the stack
	for i := range d.Weights {
		d.Weights[i] = random.Int64N(5)
	}
	for _, n := range []int{1, 7, 150, 299, 300, 301, 2000} {
		if diff := cmp.Diff(oneByOne(d, n), d.Divide(int64(n))); diff != "" {
			t.Errorf("n=%d: %s", n, diff)
		}
	}
}

func TestZeroWeightsGetNoSeats(t *testing.T) {
	for _, weights := range [][]int64{nil, {0}, {0, 0}} {
		if diff := cmp.Diff(make([]int, len(weights)), Division{Weights: weights}.Divide(5)); diff != "" {
			t.Errorf("%v: %s", weights, diff)
		}
	}
}

// TestRankIsTheSmallestDivision: Rank is the smallest n with which Divide gives the weight
// its k-th seat.
func TestRankIsTheSmallestDivision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDivision(t)
		i := rapid.IntRange(0, len(d.Weights)-1).Draw(t, "i")
		k := rapid.IntRange(1, 30).Draw(t, "k")
		const limit = 2000
		rank := d.Rank(i, int64(k), limit)
		switch {
		case rank < 0 || rank > limit:
			t.Fatalf("the rank is %d", rank)
		case rank == 0:
			if got := d.Divide(limit)[i]; got >= k {
				t.Fatalf("no rank, and %d of %d seats", got, limit)
			}
		default:
			if before, at := d.Divide(rank - 1)[i], d.Divide(rank)[i]; before != k-1 || at != k {
				t.Fatalf("at rank %d the weight has %d seats, and %d before", rank, at, before)
			}
		}
	})
}
