package main

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// pairs builds pairs of rates of A and B and the share of strangers.
func buildPairs(values ...[3]float64) []pair {
	var out []pair
	for _, v := range values {
		out = append(out, pair{a: sample{rate: v[0], strangers: v[2], cpu: 9}, b: sample{rate: v[1], off: -1}})
	}
	return out
}

func TestComparison(t *testing.T) {
	c := comparison(buildPairs([3]float64{90, 100, 0}, [3]float64{120, 100, 0.02}, [3]float64{95, 50, 0.01}))
	c[1].a.off = 3
	if got := c.ratio(); got != 0.95 {
		t.Errorf("ratio of medians %v, want 0.95", got)
	}
	if got, want := c.pairs(), []float64{0.9, 1.2, 1.9}; !slices.Equal(got, want) {
		t.Errorf("pairs %v, want %v", got, want)
	}
	if c.off() != 3 || c.strangers() != 0.02 {
		t.Errorf("off by %d, strangers %v, want 3 and 0.02", c.off(), c.strangers())
	}
	want := "A 95.0 (90.0–120.0) pods/s, B 100 (50–100) pods/s: ratio of medians 0.95, pair by pair 0.90 1.20 1.90; strangers took at most 2 %\n    CPU per pod: A 9.0 ms, B 0.0 ms"
	if got := c.summary("pods/s"); got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

func TestMedian(t *testing.T) {
	tests := map[string]struct {
		values []float64
		want   float64
	}{
		"one":             {[]float64{3}, 3},
		"an odd number":   {[]float64{9, 1, 5}, 5},
		"an even number":  {[]float64{1, 9, 5, 3}, 4},
		"values repeated": {[]float64{2, 2, 8}, 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := median(test.values); got != test.want {
				t.Errorf("median %v, want %v", got, test.want)
			}
		})
	}
}

func TestCalmestPairsCount(t *testing.T) {
	all := buildPairs([3]float64{1, 1, 0.5}, [3]float64{2, 1, 0}, [3]float64{3, 1, 0.2}, [3]float64{4, 1, 0.01})
	tests := map[string]struct {
		n    int
		want []float64 // rates of A
	}{
		"fewer than there are": {2, []float64{2, 4}},
		"one that is not calm": {3, []float64{2, 3, 4}},
		"as many as there are": {4, []float64{1, 2, 3, 4}},
		"more than there are":  {9, []float64{1, 2, 3, 4}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, _ := calmest(all, test.n).rates(); !slices.Equal(got, test.want) {
				t.Errorf("picked %v, want %v", got, test.want)
			}
		})
	}
}

// fakeSide is measured at rates that grow with every turn of any side, and was
// disturbed in the rounds that are named.
func fakeSide(name string, turns *[]string, disturbed ...int) side {
	rounds := 0
	return side{name, func(context.Context) (sample, error) {
		rounds++
		*turns = append(*turns, name)
		s := sample{rate: float64(len(*turns))}
		if slices.Contains(disturbed, rounds) {
			s.strangers = 0.3
		}
		return s, nil
	}}
}

func TestInterleave(t *testing.T) {
	var turns []string
	peer := fakeSide("C", &turns)
	duels := []duel{
		{variant: variant{name: "one"}, a: fakeSide("A", &turns, 2), b: peer},
		{variant: variant{name: "two"}, a: fakeSide("B", &turns), b: peer},
	}
	var out bytes.Buffer
	c, err := interleave(t.Context(), options{rounds: 2}, "pods/s", duels, &out)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(turns, ""), "ACBBCAACB"; got != want {
		t.Errorf("turns %s, want %s: to and fro, the second round of A was disturbed, and C is shared", got, want)
	}
	if got, _ := c[0].rates(); !slices.Equal(got, []float64{1, 7}) {
		t.Errorf("rates of A %v, want those of the first and the third round", got)
	}
	if a, b := c[1].rates(); !slices.Equal(a, []float64{3, 4}) || !slices.Equal(b, []float64{2, 5}) {
		t.Errorf("rates of B %v and of its peer %v, want those of the first two rounds", a, b)
	}
	if !strings.Contains(out.String(), "round 2 of one was disturbed") || strings.Contains(out.String(), "of two was disturbed") {
		t.Errorf("wrong is what is said of disturbed rounds in\n%s", out.String())
	}
}

func TestRacesAreMeasuredTogether(t *testing.T) {
	n := 0.0
	d := duel{race: &race{a: "A", b: "B", run: func(context.Context) (pair, error) {
		n++
		return pair{a: sample{rate: n}, b: sample{rate: 10 * n}}, nil
	}}}
	var out bytes.Buffer
	c, err := interleave(t.Context(), options{rounds: 2}, "pods/s", []duel{d}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := c[0].rates(); !slices.Equal(a, []float64{1, 2}) || !slices.Equal(b, []float64{10, 20}) {
		t.Errorf("rates of A %v and of B %v, want those of two races", a, b)
	}
	if !strings.Contains(out.String(), "round 2  A ") || !strings.Contains(out.String(), "round 2  B ") {
		t.Errorf("not both sides are shown in\n%s", out.String())
	}
}

func TestInterleaveEnds(t *testing.T) {
	rounds := 0
	busy := side{"busy", func(context.Context) (sample, error) {
		rounds++
		return sample{rate: 1, strangers: 0.9}, nil
	}}
	c, err := interleave(t.Context(), options{rounds: 3}, "pods/s", []duel{{a: busy, b: busy}}, &bytes.Buffer{})
	if err != nil || len(c[0]) != 3 || rounds != patience*3 {
		t.Errorf("%d pairs after %d rounds, error %v, want 3 after %d", len(c[0]), rounds, err, patience*3)
	}
	broken := side{"broken", func(context.Context) (sample, error) { return sample{}, errors.New("no") }}
	if _, err := interleave(t.Context(), options{rounds: 3}, "pods/s", []duel{{a: busy, b: broken}}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v, want one that names the side", err)
	}
}

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	tests := map[string]struct {
		values []time.Duration
		p      float64
		want   time.Duration
	}{
		"one value":               {[]time.Duration{7}, 0.99, 7},
		"the second of a hundred": {hundred, 0.99, 99},
		"the middle":              {hundred, 0.5, 50},
		"the first of a few":      {hundred[:10], 0.99, 100},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := percentile(test.values, test.p); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestInParallel(t *testing.T) {
	items := []int{0, 1, 2, 3, 4, 5, 6, 7}
	done := make([]bool, len(items))
	if err := inParallel(t.Context(), 3, items, func(_ context.Context, i int) error {
		done[i] = true
		return nil
	}); err != nil || slices.Contains(done, false) {
		t.Errorf("done are %v, error %v", done, err)
	}
	no := errors.New("no")
	if err := inParallel(t.Context(), 3, items, func(_ context.Context, i int) error {
		if i == 4 {
			return no
		}
		return nil
	}); !errors.Is(err, no) {
		t.Errorf("error %v, want the one that came", err)
	}
}

func TestRateOf(t *testing.T) {
	start := time.Unix(0, 0)
	var even, slowStart []time.Time
	for i := range 101 {
		even = append(even, start.Add(time.Duration(i)*10*time.Millisecond))
	}
	slowStart = append([]time.Time{start.Add(-time.Hour)}, even[1:]...)
	tests := map[string]struct {
		times []time.Time
		want  float64
	}{
		"one every 10 ms":                {even, 100},
		"the start does not count":       {slowStart, 100},
		"nothing":                        {nil, 0},
		"too little to be a rate of any": {even[:1], 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := rateOf(test.times, warmUp); math.Abs(got-test.want) > 0.01 {
				t.Errorf("rate %v, want %v", got, test.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	pool := map[string]string{"a1": "a", "a2": "a", "b1": "b", "c1": "c"}
	created := map[types.UID]string{"1": "", "2": "", "3": "", "4": "", "5": "", "6": ""}
	tests := map[string]struct {
		placed map[types.UID]string
		want   found
	}{
		"exact":           {map[types.UID]string{"1": "a1", "2": "a2", "3": "b1", "4": "b1", "5": "c1", "6": "c1"}, found{}},
		"one moved":       {map[types.UID]string{"1": "a1", "2": "a2", "3": "a1", "4": "b1", "5": "c1", "6": "c1"}, found{off: 2}},
		"a group without": {map[types.UID]string{"1": "a1", "2": "a2", "3": "a1", "4": "b1", "5": "a1", "6": "b1"}, found{off: 4}},
		"one not bound":   {map[types.UID]string{"1": "a1", "2": "a2", "3": "", "4": "b1", "5": "c1", "6": "c1"}, found{off: 1, unbound: 1}},
		"one replaced":    {map[types.UID]string{"1": "a1", "2": "a2", "9": "b1", "4": "b1", "5": "c1", "6": "c1"}, found{replaced: 1}},
		"one gone":        {map[types.UID]string{"1": "a1", "2": "a2", "4": "b1", "5": "c1", "6": "c1"}, found{off: 1, replaced: 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := check(created, test.placed, pool, 3); got != test.want {
				t.Errorf("found %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	before := usage{all: 10, by: map[string]float64{"kube-scheduler": 1, self: 1}}
	after := usage{all: 20, by: map[string]float64{"kube-scheduler": 5, "atoll-manager": 2.5, self: 2}}
	d := after.since(before)
	if d.cluster() != 6.5 || d.others() != 2.5 {
		t.Errorf("cluster %v, strangers %v, want 6.5 and 2.5", d.cluster(), d.others())
	}
	if got, want := d.String(), "CPU s: scheduler 4.0, atoll-manager 2.5, perf 1.0; strangers 2.5"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWithoutKeys(t *testing.T) {
	config := []byte("kind: KubeSchedulerConfiguration\npercentageOfNodesToScore: 100\nextenders: [{weight: 1}]\n")
	got, err := withoutKeys(config, "extenders")
	if want := "kind: KubeSchedulerConfiguration\npercentageOfNodesToScore: 100\n"; err != nil || string(got) != want {
		t.Errorf("got %q, error %v, want %q", got, err, want)
	}
	if _, err := withoutKeys(got, "extenders"); err == nil {
		t.Error("a peer that is no different is no peer, and is accepted")
	}
}
