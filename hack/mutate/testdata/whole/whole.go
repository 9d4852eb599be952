// Package whole has a change of every kind, and tests that notice all of them.
package whole

const most = 2 * 5 // constants stay as they are

// Kind is a number with a name of its own.
type Kind int

// Sum adds up what is wanted of the numbers from the first to the last.
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

// Of tells what kind a number is.
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
