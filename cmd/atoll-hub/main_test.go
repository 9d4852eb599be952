package main

import (
	"runtime"
	"testing"
)

func TestUseOneProcessor(t *testing.T) {
	for name, tc := range map[string]struct {
		variable string
		want     int
	}{
		"by default":             {"", 1},
		"the environment has it": {"3", 3},
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.GOMAXPROCS(3)
			t.Cleanup(func() { runtime.GOMAXPROCS(before) })
			t.Setenv("GOMAXPROCS", tc.variable)
			useOneProcessor()
			if got := runtime.GOMAXPROCS(0); got != tc.want {
				t.Errorf("GOMAXPROCS is %d, want %d", got, tc.want)
			}
		})
	}
}
