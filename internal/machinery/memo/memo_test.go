package memo

import (
	"errors"
	"testing"
)

// TestAValueIsComputedAgainAfterAChange, also if the change came while it was computed, and after an
// error.
func TestAValueIsComputedAgainAfterAChange(t *testing.T) {
	var m Memo[int]
	computed := 0
	next := func(before int) (int, error) {
		computed++
		return before + 1, nil
	}
	expect := func(compute func(int) (int, error), want, times int) {
		t.Helper()
		if got, err := m.Get(compute); err != nil || got != want || computed != times {
			t.Errorf("got %d, %v after %d computations; want %d after %d", got, err, computed, want, times)
		}
	}
	expect(next, 1, 1)
	expect(next, 1, 1)
	m.Invalidate()
	expect(func(before int) (int, error) {
		m.Invalidate()
		return next(before)
	}, 2, 2)
	expect(next, 3, 3)
	m.Invalidate()
	if _, err := m.Get(func(int) (int, error) { return 0, errors.New("no") }); err == nil {
		t.Error("no error")
	}
	expect(next, 4, 4)
	expect(next, 4, 4)
}
