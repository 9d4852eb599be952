// Package whole has a change of every kind, and tests that notice all of them.
package whole

const most = 2 * 5 // constants stay as they are

// Kind is a named number type.
type Kind int

// Sum adds up the wanted numbers from first to last.
func Sum(first, last int, wanted func(int) bool) (sum, skipped int) {
	for i := first; i <= last; i++ {
		if wanted != nil && !wanted(i) {
			skipped++
			continue
		}
		if sum+i > most || sum < 0 {
			break
		}
		sum += i
	}
	return sum, skipped
}

// Of returns the kind of a number.
func Of(n int) Kind {
	switch {
	case n == 0:
		return 0
	case n >= most:
		return Kind(n) / 2
	default:
		return Kind(n)*3 - 1
	}
}
