package usage

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"
)

func TestCPURateNeedsTwoMeasurements(t *testing.T) {
	begin := time.Unix(1768000000, 0)
	at := func(seconds, cpu float64) point {
		return point{at: begin.Add(time.Duration(seconds * float64(time.Second))), seconds: cpu, bytes: 1000}
	}
	for name, tc := range map[string]struct {
		points []point
		want   string // "" for none
	}{
		"one measurement":                      {[]point{at(0, 10)}, ""},
		"two":                                  {[]point{at(0, 10), at(10, 15)}, "500m"},
		"nothing used":                         {[]point{at(0, 10), at(10, 10)}, "0"},
		"the last two count":                   {[]point{at(0, 10), at(10, 15), at(20, 16)}, "100m"},
		"the same twice is one":                {[]point{at(0, 10), at(0, 10)}, ""},
		"the same twice after a rate":          {[]point{at(0, 10), at(10, 15), at(10, 15)}, "500m"},
		"two at once":                          {[]point{at(0, 10), at(0.5, 15)}, ""},
		"a container that was started again":   {[]point{at(0, 10), at(10, 1)}, ""},
		"and one measurement later":            {[]point{at(0, 10), at(10, 1), at(20, 2)}, "100m"},
		"a container started again at once":    {[]point{at(0, 10), at(0, 1), at(10, 2)}, "100m"},
		"a clock that goes back":               {[]point{at(0, 10), at(-300, 15)}, ""},
		"and one measurement later than that":  {[]point{at(0, 10), at(-300, 15), at(-290, 16)}, "100m"},
		"a clock that goes forward":            {[]point{at(0, 10), at(3600, 15)}, ""},
		"a clock that goes to the end of time": {[]point{at(0, 10), {at: time.UnixMilli(9223372036854775807), seconds: 15}}, ""},
		"more than a machine has":              {[]point{at(0, 0), at(10, maxSeconds)}, ""},
	} {
		var s series
		for _, p := range tc.points {
			s = s.next(p, begin)
		}
		if !s.isShown(begin) {
			if tc.want != "" {
				t.Errorf("%s: there is no rate", name)
			}
			continue
		}
		if cpu := s.usage()["cpu"]; tc.want == "" || cpu.Cmp(resource.MustParse(tc.want)) != 0 {
			t.Errorf("%s: the rate is %s, want %q", name, cpu.String(), tc.want)
		}
		if s.isShown(begin.Add(keepFor + time.Second)) {
			t.Errorf("%s: an old measurement is shown", name)
		}
	}
}

func TestRatesAreNeverNegativeOrTooLarge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s series
		for range rapid.IntRange(1, 10).Draw(t, "points") {
			s = s.next(point{
				at: time.UnixMilli(rapid.Int64().Draw(t, "at")), seconds: rapid.Float64Range(0, maxSeconds).Draw(t, "seconds"), bytes: rapid.Float64Range(0, maxBytes).Draw(t, "bytes"),
			}, time.Unix(1, 0))
			if cpu, memory := s.usage()["cpu"], s.usage()["memory"]; cpu.Sign() < 0 || memory.Sign() < 0 || cpu.CmpInt64(maxCores) > 0 {
				t.Fatalf("the usage is %s and %s", cpu.String(), memory.String())
			}
		}
	})
}
