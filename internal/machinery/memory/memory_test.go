package memory

import (
	"math"
	"runtime/debug"
	"testing"
	"testing/fstest"
)

func TestBound(t *testing.T) {
	for name, tc := range map[string]struct {
		limit      int64
		gomemlimit string
		want       int64
	}{
		"nine tenths of the limit":    {1000, "", 900},
		"no limit":                    {0, "", math.MaxInt64},
		"Go's own limit has priority": {1000, "400MiB", math.MaxInt64}, // Go has read it when the process started
	} {
		t.Run(name, func(t *testing.T) {
			before := debug.SetMemoryLimit(math.MaxInt64)
			t.Cleanup(func() { debug.SetMemoryLimit(before) })
			t.Setenv("GOMEMLIMIT", tc.gomemlimit)
			Bound(tc.limit)
			if got := debug.SetMemoryLimit(-1); got != tc.want {
				t.Errorf("the limit is %d, want %d", got, tc.want)
			}
		})
	}
}

// TestTheSmallestLimitCounts: of the control group, and of those above it.
func TestTheSmallestLimitCounts(t *testing.T) {
	for name, tc := range map[string]struct {
		group  string
		limits map[string]string
		want   int64
	}{
		"a unit of systemd":                     {"0::/system.slice/atoll-hub.service\n", map[string]string{"system.slice/atoll-hub.service/memory.max": "1000\n", "system.slice/memory.max": "max\n"}, 1000},
		"a slice with less":                     {"0::/system.slice/atoll-hub.service\n", map[string]string{"system.slice/atoll-hub.service/memory.max": "1000\n", "system.slice/memory.max": "500\n"}, 500},
		"a container":                           {"0::/\n", map[string]string{"memory.max": "1000\n"}, 1000},
		"a container that sees the groups":      {"0::/kubepods/pod1/c\n", map[string]string{"memory.max": "1000\n"}, 1000},
		"no limit":                              {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0},
		"no file":                               {"0::/a\n", nil, 0},
		"a group outside of the container's":    {"0::/../../b\n", map[string]string{"memory.max": "1000\n"}, 0},
		"version 1":                             {"4:memory:/a\n0::/\n", map[string]string{"memory/a/memory.limit_in_bytes": "1000\n"}, 0},
		"what is no number, or not a limit":     {"0::/a\n", map[string]string{"a/memory.max": "many\n", "memory.max": "-1\n"}, 0},
		"a line that is not of a control group": {"nothing\n", map[string]string{"memory.max": "1000\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/self/cgroup": {Data: []byte(tc.group)}}
			for file, text := range tc.limits {
				root["sys/fs/cgroup/"+file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := OfControlGroup(root); got != tc.want {
				t.Errorf("the limit is %d, want %d", got, tc.want)
			}
		})
	}
	if got := OfControlGroup(fstest.MapFS{}); got != 0 {
		t.Errorf("without /proc the limit is %d", got)
	}
}
