// Package mutateprobe has a test that does not notice one change: a mutation tester that
// says that it does counts something else than failed tests (hack/mutate.sh).
package mutateprobe

// Above tells whether a number is above three.
func Above(n int) bool { return n > 3 }
