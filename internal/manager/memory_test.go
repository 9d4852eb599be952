package manager

import (
	"flag"
	"testing"
)

func TestTheMemoryLimitIsThatOfTheContainer(t *testing.T) {
	for name, tc := range map[string]struct {
		env  string
		want int64
	}{
		"that of the environment": {"1000", 1000},
		"no limit":                {"", 0},
		"one that cannot be read": {"512Mi", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MEMORY_LIMIT", tc.env)
			var c Config
			c.AddFlags(flag.NewFlagSet("", flag.ContinueOnError))
			if c.MemoryLimit != tc.want {
				t.Errorf("the limit is %d, want %d", c.MemoryLimit, tc.want)
			}
		})
	}
}
