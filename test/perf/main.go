// Command perf measures ratios on a real control plane: how much of a peer's
// rate, or of a limit, Atoll reaches in the same run on the same machine.
//
//	make bench                                    # every variant of extender
//	make bench ARGS='-variant managed -rounds 9'
//	make bench ARGS='-quick'                      # does it run? Figures mean nothing
//	make bench ARGS='-write'                      # into docs/benchmarks.md
//
// A benchmark has two sides, A and B, which take turns: A B A B …, so that a
// machine that gets slower or busier does so for both. What is reported is the
// ratio of the medians, the lowest and highest figure of each side, and the
// ratios pair by pair.
//
// To add a benchmark, write a file like extender.go and name it in benchmarks.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// options are what the command line says.
type options struct {
	bench, variant              string
	rounds, nodes, groups, pods int
	quick, write, runPods, keep bool
}

// benchmark measures one or more ratios on one cluster.
type benchmark struct {
	// name is that of its table in docs/benchmarks.md.
	name string
	// about explains the benchmark there, in Markdown.
	about string
	// variants are the rows of the table.
	variants []variant
	// open prepares what the sides of all variants share.
	open func(ctx context.Context, o options, log io.Writer) (bench, error)
}

// variant is one ratio of a benchmark.
type variant struct {
	name string
	// a and b say what is compared, ideal what ratio there is to be had.
	a, b, ideal string
}

// bench is a benchmark that is ready to measure.
type bench interface {
	sides(ctx context.Context, variant string) (a, b side, err error)
	close() error
}

// benchmarks are all that there are.
var benchmarks = []benchmark{extender}

func main() {
	// What client libraries log is not about figures.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	if err := start(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

func start(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends us at once
	return run(ctx, o, os.Stdout)
}

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("perf", flag.ContinueOnError)
	fs.StringVar(&o.bench, "bench", extender.name, "benchmark: "+strings.Join(names(benchmarks, func(b benchmark) string { return b.name }), ", "))
	fs.StringVar(&o.variant, "variant", "all", "one or more variants of the benchmark, with commas between, or all")
	fs.IntVar(&o.rounds, "rounds", 5, "how often each side is measured")
	fs.IntVar(&o.nodes, "nodes", 1000, "simulated nodes")
	fs.IntVar(&o.groups, "groups", 10, "NodeGroups that the nodes divide into evenly")
	fs.IntVar(&o.pods, "pods", 2000, "pods to schedule in a round; a multiple of groups")
	fs.BoolVar(&o.quick, "quick", false, "1 round, 100 nodes, 200 pods: to see that it works")
	fs.BoolVar(&o.write, "write", false, "write the figures into docs/benchmarks.md")
	fs.BoolVar(&o.runPods, "run-pods", false, "let kwok run the bound pods and renew the nodes' Leases while measuring")
	fs.BoolVar(&o.keep, "keep", false, "keep the cluster's directory, for its logs")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.rounds, o.nodes, o.pods = 1, 100, 200
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("reading the command line: %q is not a flag", fs.Arg(0))
	case o.rounds < 1 || o.groups < 1 || o.nodes < o.groups || o.pods < 20:
		return o, errors.New("reading the command line: at least 1 round, 1 group, 1 node a group and 20 pods are needed")
	case o.pods%o.groups != 0 || o.nodes%o.groups != 0:
		return o, fmt.Errorf("reading the command line: %d nodes and %d pods do not divide into %d groups", o.nodes, o.pods, o.groups)
	case o.quick && o.write:
		return o, errors.New("reading the command line: the figures of -quick mean nothing and are not written")
	}
	return o, nil
}

func names[T any](items []T, name func(T) string) []string {
	var out []string
	for _, item := range items {
		out = append(out, name(item))
	}
	return out
}

// choose returns the benchmark and the variants that the options name.
func choose(o options) (benchmark, []variant, error) {
	i := slices.IndexFunc(benchmarks, func(b benchmark) bool { return b.name == o.bench })
	if i < 0 {
		return benchmark{}, nil, fmt.Errorf("choosing a benchmark: there is no %q", o.bench)
	}
	b := benchmarks[i]
	if o.variant == "all" {
		return b, b.variants, nil
	}
	var chosen []variant
	for name := range strings.SplitSeq(o.variant, ",") {
		j := slices.IndexFunc(b.variants, func(v variant) bool { return v.name == name })
		if j < 0 {
			return b, nil, fmt.Errorf("choosing a variant of %s: there is no %q; it has %s", b.name, name,
				strings.Join(names(b.variants, func(v variant) string { return v.name }), ", "))
		}
		chosen = append(chosen, b.variants[j])
	}
	return b, chosen, nil
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	b, variants, err := choose(o)
	if err != nil {
		return err
	}
	docs := ""
	if o.write {
		// Not after half an hour of measuring.
		if docs, err = docsFile(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	opened, err := b.open(ctx, o, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.close()) }()
	var rows []row
	for _, v := range variants {
		fmt.Fprintf(out, "\n%s %s\n  A: %s\n  B: %s\n", b.name, v.name, v.a, v.b)
		sideA, sideB, err := opened.sides(ctx, v.name)
		if err != nil {
			return err
		}
		result, err := interleave(ctx, o.rounds, sideA, sideB, out)
		if err != nil {
			return fmt.Errorf("measuring %s %s: %w", b.name, v.name, err)
		}
		fmt.Fprintln(out, result.summary())
		rows = append(rows, row{variant: v, result: result})
	}
	fmt.Fprintf(out, "\nMeasured in %s on %s with:\n\n    %s\n\n%s\n%s", time.Since(began).Round(time.Second), machine(), commandLine(o), tableHead, render(rows))
	if !o.write {
		return nil
	}
	return writeDocs(docs, b, rows, commandLine(o))
}

// ends are the signals that end the program in good order. Under nohup, the
// terminal may go.
func ends() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
