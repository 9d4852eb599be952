package main

import "testing"

func TestMetricIn(t *testing.T) {
	const text = "# HELP hits all of them\nhits_total 3\nhits{kind=\"watch\"} 1.5e+06\nhits 7\n"
	for name, want := range map[string]float64{"hits": 7, `hits{kind="watch"}`: 1_500_000, "hits_total": 3} {
		if got, err := metricIn(text, name); err != nil || got != want {
			t.Errorf("%s is %v, error %v, want %v", name, got, err, want)
		}
	}
	if got, err := metricIn(text, "hit"); err == nil {
		t.Errorf("what is not there is %v", got)
	}
}

func TestEachVariantOfTheHubHasItsSides(t *testing.T) {
	h := &hubBench{bed: &bed{}}
	seen := map[string]bool{}
	for _, v := range hubBenchmark.variants {
		a, b, err := h.sides(t.Context(), v.name)
		if err != nil || a.measure == nil || b.measure == nil || a.name == b.name || seen[a.name] {
			t.Errorf("%s has the sides %q and %q: %v", v.name, a.name, b.name, err)
		}
		seen[a.name] = true
	}
	if _, _, err := h.sides(t.Context(), "x"); err == nil {
		t.Error("a variant that does not exist has sides")
	}
}
