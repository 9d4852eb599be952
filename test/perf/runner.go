package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// side is one of the two that a benchmark compares.
type side struct {
	name string
	// measure runs one round.
	measure func(ctx context.Context) (sample, error)
}

// sample is what a round found.
type sample struct {
	// rate is the figure that is compared; more is better.
	rate float64
	// off is by how much the result of the work was not as wanted; -1 where
	// nothing was wanted of it.
	off int
	// strangers is the share of the CPU time that went to processes that have
	// nothing to do with the benchmark, from 0 to 1.
	strangers float64
	// cpu is what the cluster used for one unit of the work, in milliseconds:
	// the figure that strangers change least.
	cpu float64
	// facts are shown beside the figure.
	facts string
}

// pair is one round of A and the round of B right after it.
type pair struct{ a, b sample }

// strangers is that of the worse round.
func (p pair) strangers() float64 { return max(p.a.strangers, p.b.strangers) }

// comparison is the pairs that count, in order.
type comparison []pair

const (
	// calm is the share of strangers up to which a pair counts.
	calm = 0.05
	// patience is how many pairs are measured at most for each that is to count.
	patience = 2
)

// interleave measures A and B in turns. Pairs that strangers disturbed are
// measured again, for as long as patience lasts.
func interleave(ctx context.Context, rounds int, a, b side, out io.Writer) (comparison, error) {
	var all []pair
	for calmPairs := 0; calmPairs < rounds && len(all) < patience*rounds; {
		var p pair
		for _, turn := range []struct {
			mark string
			side side
			into *sample
		}{{"A", a, &p.a}, {"B", b, &p.b}} {
			s, err := turn.side.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("round %d of %s: %w", len(all)+1, turn.side.name, err)
			}
			*turn.into = s
			fmt.Fprintf(out, "  round %d %s  %7.1f pods/s  %s\n", len(all)+1, turn.mark, s.rate, s.facts)
		}
		all = append(all, p)
		if p.strangers() <= calm {
			calmPairs++
		} else {
			fmt.Fprintf(out, "  round %d was disturbed: strangers took %.0f %% of the CPU time\n", len(all), 100*p.strangers())
		}
	}
	return calmest(all, rounds), nil
}

// calmest picks the n pairs that strangers disturbed least, in order. How fast
// they were has no say.
func calmest(all []pair, n int) comparison {
	if len(all) <= n {
		return all
	}
	shares := make([]float64, len(all))
	for i, p := range all {
		shares[i] = p.strangers()
	}
	slices.Sort(shares)
	var picked comparison
	for _, p := range all {
		if p.strangers() <= shares[n-1] && len(picked) < n {
			picked = append(picked, p)
		}
	}
	return picked
}

// rates returns the figures of A and of B.
func (c comparison) rates() (a, b []float64) {
	for _, p := range c {
		a, b = append(a, p.a.rate), append(b, p.b.rate)
	}
	return a, b
}

// cpu returns what A and B used of the CPU.
func (c comparison) cpu() (a, b []float64) {
	for _, p := range c {
		a, b = append(a, p.a.cpu), append(b, p.b.cpu)
	}
	return a, b
}

// median of at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// ratio of the medians.
func (c comparison) ratio() float64 {
	a, b := c.rates()
	return median(a) / median(b)
}

// pairs are the ratios round by round.
func (c comparison) pairs() []float64 {
	var out []float64
	for _, p := range c {
		out = append(out, p.a.rate/p.b.rate)
	}
	return out
}

// off is the worst that A's rounds were off by; -1 if nothing was wanted.
func (c comparison) off() int {
	worst := -1
	for _, p := range c {
		worst = max(worst, p.a.off)
	}
	return worst
}

// strangers is the share of the most disturbed round that counts.
func (c comparison) strangers() float64 {
	worst := 0.0
	for _, p := range c {
		worst = max(worst, p.strangers())
	}
	return worst
}

// spread writes a median with the lowest and highest value.
func spread(values []float64, format string) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median(values), slices.Min(values), slices.Max(values))
}

func (c comparison) summary() string {
	var pairs []string
	for _, p := range c.pairs() {
		pairs = append(pairs, fmt.Sprintf("%.2f", p))
	}
	a, b := c.rates()
	cpuA, cpuB := c.cpu()
	return fmt.Sprintf("  A %s pods/s, B %s pods/s: ratio of medians %.2f, pair by pair %s\n  CPU per pod: A %.1f ms, B %.1f ms; strangers took at most %.0f %%",
		spread(a, "%.0f"), spread(b, "%.0f"), c.ratio(), strings.Join(pairs, " "), median(cpuA), median(cpuB), 100*c.strangers())
}
