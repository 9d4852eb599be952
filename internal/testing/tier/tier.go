// Package tier divides the tests into two tiers: those of make test, which runs go test with the flag -short, and the
// others, which only make test-all runs.
package tier

import "testing"

// All leaves a test to make test-all: with the flag -short it is skipped. why is the reason, shown by go test -v: how
// long the test takes, which time a busy machine can miss, or which other test of make test has the promise.
func All(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left to make test-all: " + why)
	}
}
