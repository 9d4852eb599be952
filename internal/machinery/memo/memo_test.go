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
	next := func() (int, error) {
		computed++
		return computed, nil
	}
	expect := func(compute func() (int, error), want int) {
		t.Helper()
		if got, err := m.Get(compute); err != nil || got != want {
			t.Errorf("got %d, %v; want %d", got, err, want)
		}
	}
	expect(next, 1)
	expect(next, 1)
	m.Invalidate()
	expect(func() (int, error) {
		m.Invalidate()
		return next()
	}, 2)
	expect(next, 3)
	m.Invalidate()
	if _, err := m.Get(func() (int, error) { return 0, errors.New("no") }); err == nil {
		t.Error("no error")
	}
	expect(next, 4)
	expect(next, 4)
}
