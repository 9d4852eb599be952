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
	measure func(ctx context.Context, round int) (sample, error)
}

// sample is what a round found.
type sample struct {
	// rate is the figure that is compared; more is better.
	rate float64
	// off is by how much the result of the work was not as wanted; -1 where
	// nothing was wanted of it.
	off int
	// facts are shown beside the figure.
	facts string
}

// comparison is what all rounds found, in order.
type comparison struct{ a, b []sample }

// interleave measures A and B in turns.
func interleave(ctx context.Context, rounds int, a, b side, out io.Writer) (comparison, error) {
	var c comparison
	for round := range rounds {
		for _, turn := range []struct {
			mark    string
			side    side
			samples *[]sample
		}{{"A", a, &c.a}, {"B", b, &c.b}} {
			s, err := turn.side.measure(ctx, round)
			if err != nil {
				return c, fmt.Errorf("round %d of %s: %w", round+1, turn.side.name, err)
			}
			*turn.samples = append(*turn.samples, s)
			fmt.Fprintf(out, "  round %d %s  %7.1f pods/s  %s\n", round+1, turn.mark, s.rate, s.facts)
		}
	}
	return c, nil
}

func rates(samples []sample) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = s.rate
	}
	return out
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
func (c comparison) ratio() float64 { return median(rates(c.a)) / median(rates(c.b)) }

// pairs are the ratios round by round.
func (c comparison) pairs() []float64 {
	out := make([]float64, min(len(c.a), len(c.b)))
	for i := range out {
		out[i] = c.a[i].rate / c.b[i].rate
	}
	return out
}

// off is the worst that A's rounds were off by; -1 if nothing was wanted.
func (c comparison) off() int {
	worst := -1
	for _, s := range c.a {
		worst = max(worst, s.off)
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
	return fmt.Sprintf("  A %s pods/s, B %s pods/s: ratio of medians %.2f, pair by pair %s",
		spread(rates(c.a), "%.0f"), spread(rates(c.b), "%.0f"), c.ratio(), strings.Join(pairs, " "))
}
