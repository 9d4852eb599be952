package main

import (
	"cmp"
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

// sample is the result of a round.
type sample struct {
	// rate is the figure that is compared, in the benchmark's unit.
	rate float64
	// off is the deviation of the result from the wanted division; -1 if none was wanted.
	off int
	// strangers is the share of the CPU time that processes outside of the benchmark
	// used, from 0 to 1.
	strangers float64
	// cpu is the CPU time of the cluster for one unit of the work, in milliseconds: the
	// figure that other processes affect least.
	cpu float64
	// facts are shown beside the figure.
	facts string
}

// pair is one round of A and the round of B right after it.
type pair struct{ a, b sample }

// strangers is the value of the more disturbed round.
func (p pair) strangers() float64 { return max(p.a.strangers, p.b.strangers) }

// comparison has the pairs that count, in order.
type comparison []pair

const (
	// calm is the largest share of strangers with which a pair counts.
	calm = 0.05
	// patience is the maximum number of measured pairs for each pair that counts.
	patience = 2
)

// race is a comparison whose sides are measured in the same round, and their names.
type race struct {
	a, b string
	run  func(ctx context.Context) (pair, error)
}

// duel is a variant of a benchmark that is ready to be measured.
type duel struct {
	variant
	a, b side
	// race replaces the sides; nil if they are measured one after the other.
	race *race
}

// names are those of the sides.
func (d duel) names() (a, b string) {
	if d.race != nil {
		return d.race.a, d.race.b
	}
	return d.a.name, d.b.name
}

// interleave measures the sides of duels in turns and returns a comparison for each duel.
// A side that several duels share is measured once a turn. Every other turn begins with
// the last side, because the first side pays for cold caches. Turns that other processes
// disturbed are repeated, at most patience times.
func interleave(ctx context.Context, o options, unit string, duels []duel, out io.Writer) ([]comparison, error) {
	rounds, most := o.rounds, patience*o.rounds
	if o.quick {
		most = rounds
	}
	order, units := sidesOf(duels), map[string]string{}
	for _, d := range duels {
		units[d.a.name], units[d.b.name] = d.unit, d.unit
	}
	show := func(turn int, name, own string, s sample) {
		fmt.Fprintf(out, "  round %d  %-18s %9.2f %s  %s\n", turn, name, s.rate, cmp.Or(unit, own), s.facts)
	}
	all, calmPairs := make([][]pair, len(duels)), make([]int, len(duels))
	for turn := 1; turn <= most && slices.Min(calmPairs) < rounds; turn++ {
		found := map[string]sample{}
		for _, side := range order {
			s, err := side.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("round %d of %s: %w", turn, side.name, err)
			}
			found[side.name] = s
			show(turn, side.name, units[side.name], s)
		}
		slices.Reverse(order)
		for i, d := range duels {
			p := pair{a: found[d.a.name], b: found[d.b.name]}
			if d.race != nil {
				var err error
				if p, err = d.race.run(ctx); err != nil {
					return nil, fmt.Errorf("round %d of %s: %w", turn, d.name, err)
				}
				show(turn, d.race.a, d.unit, p.a)
				show(turn, d.race.b, d.unit, p.b)
			}
			all[i] = append(all[i], p)
			if p.strangers() <= calm {
				calmPairs[i]++
			} else {
				fmt.Fprintf(out, "  round %d of %s was disturbed: strangers took %.0f %% of the CPU time\n", turn, d.name, 100*p.strangers())
			}
		}
	}
	comparisons := make([]comparison, len(duels))
	for i := range duels {
		comparisons[i] = calmest(all[i], rounds)
	}
	return comparisons, nil
}

// sidesOf returns the sides of duels that are not races, each once.
func sidesOf(duels []duel) (sides []side) {
	for _, d := range duels {
		for _, s := range []side{d.a, d.b} {
			if s.measure != nil && !slices.ContainsFunc(sides, func(other side) bool { return other.name == s.name }) {
				sides = append(sides, s)
			}
		}
	}
	return sides
}

// calmest returns the n pairs that other processes disturbed least, in order, regardless
// of their figures.
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

// cpu returns the CPU figures of A and of B.
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

// off is the largest deviation of A's rounds; -1 if no division was wanted.
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

// summary formats the result of a comparison, with the unit.
func (c comparison) summary(unit string) string {
	var pairs []string
	for _, p := range c.pairs() {
		pairs = append(pairs, fmt.Sprintf("%.2f", p))
	}
	a, b := c.rates()
	text := fmt.Sprintf("A %s %s, B %s %s: ratio of medians %.2f, pair by pair %s; strangers took at most %.0f %%",
		spread(a, digits(a)), unit, spread(b, digits(b)), unit, c.ratio(), strings.Join(pairs, " "), 100*c.strangers())
	if cpuA, cpuB := c.cpu(); median(cpuA) > 0 {
		text += fmt.Sprintf("\n    CPU per pod: A %.1f ms, B %.1f ms", median(cpuA), median(cpuB))
	}
	return text
}

// digits formats a figure with about three significant digits.
func digits(values []float64) string {
	switch m := median(values); {
	case m >= 100:
		return "%.0f"
	case m >= 10:
		return "%.1f"
	default:
		return "%.2f"
	}
}
