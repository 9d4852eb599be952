package manager

import (
	"flag"
	"math"
	"runtime/debug"
	"testing"
)

func TestTheMemoryLimitIsThatOfTheContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		env, gomemlimit string
		want            int64
	}{
		"nine tenths of the limit":    {"1000", "", 900},
		"no limit":                    {"", "", math.MaxInt64},
		"one that cannot be read":     {"512Mi", "", math.MaxInt64},
		"Go's own limit has priority": {"1000", "400MiB", math.MaxInt64}, // Go has read it when the process started
	} {
		t.Run(name, func(t *testing.T) {
			before := debug.SetMemoryLimit(math.MaxInt64)
			t.Cleanup(func() { debug.SetMemoryLimit(before) })
			t.Setenv("MEMORY_LIMIT", tc.env)
			t.Setenv("GOMEMLIMIT", tc.gomemlimit)
			var c Config
			c.AddFlags(flag.NewFlagSet("", flag.ContinueOnError))
			c.limitMemory()
			if got := debug.SetMemoryLimit(-1); got != tc.want {
				t.Errorf("the limit is %d, want %d", got, tc.want)
			}
		})
	}
}
