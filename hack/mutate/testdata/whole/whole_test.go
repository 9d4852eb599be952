package whole

import "testing"

func TestSum(t *testing.T) {
	odd := func(n int) bool { return n%2 == 1 }
	for _, tc := range []struct {
		first, last  int
		wanted       func(int) bool
		sum, skipped int
	}{
		{1, 3, nil, 6, 0}, {1, 5, odd, 9, 2}, {1, 9, nil, 10, 0}, {2, 2, odd, 0, 1}, {10, 11, nil, 10, 0}, {-1, 3, nil, -1, 0},
		{0, 11, func(n int) bool { return n == 0 || n > 8 }, 9, 8}, {8, 12, func(n int) bool { return n < 12 }, 8, 0},
	} {
		if sum, skipped := Sum(tc.first, tc.last, tc.wanted); sum != tc.sum || skipped != tc.skipped {
			t.Errorf("%d to %d: sum %d and %d skipped, want %d and %d", tc.first, tc.last, sum, skipped, tc.sum, tc.skipped)
		}
	}
}

func TestOf(t *testing.T) {
	for n, want := range map[int]Kind{0: 0, 1: 2, 9: 26, 10: 5, 11: 5} {
		if got := Of(n); got != want {
			t.Errorf("%d is of kind %d, want %d", n, got, want)
		}
	}
}
