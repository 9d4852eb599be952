// Command perf measures ratios on a real control plane: Atoll's figure divided by that of
// a peer, or by a limit, in the same run on the same machine.
//
//	make bench                                    # every benchmark
//	make bench ARGS='-bench extender -variant managed -rounds 9'
//	make bench ARGS='-quick'                      # does it run? Figures mean nothing
//	make bench ARGS='-write'                      # into docs/benchmarks.md
//
// A variant of a benchmark has two sides, A and B, which take turns: A B A B …, so that a
// machine that gets slower or busier affects both. The report has the ratio of the
// medians, the lowest and highest figure of each side, and the ratios pair by pair.
//
// To add a benchmark, write a file like start.go and name it in benchmarks.
package main

import (
	"cmp"
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

// options are the values of the command line.
type options struct {
	bench, variant              string
	rounds, nodes, groups, pods int
	quick, write, runPods, keep bool
	// profile is the address at which atoll-manager serves its profiles; "" means none.
	profile string
	// informers is the kubeconfig with which this process runs as a peer instead of a
	// benchmark.
	informers string
	webhook   string // -webhook
	proxy     string // -proxy
}

// benchmark measures one or more ratios on one cluster.
type benchmark struct {
	// name is the name of its table in docs/benchmarks.md.
	name string
	// about explains the benchmark, in Markdown. It is written into docs/benchmarks.md
	// only with a new table.
	about string
	// unit is the unit of the figures; "" means that each variant has its own.
	unit string
	// places reports that the figures are of placed pods, so that the table also has the
	// CPU per pod and the deviation from the wanted division.
	places bool
	// nodes and pods are the default numbers, if the command line does not set others.
	nodes, pods int
	// variants are the rows of the table.
	variants []variant
	// open prepares the parts that the sides of all variants share.
	open func(ctx context.Context, o options, log io.Writer) (bench, error)
}

// variant is one ratio of a benchmark.
type variant struct {
	name string
	// stage is the environment that the variant's sides need. Consecutive variants on the
	// same stage are measured together, in turns.
	stage string
	// unit is that of the figures, if the benchmark has none.
	unit string
	// a and b describe the two sides, ideal the wanted ratio.
	a, b, ideal string
}

// bench is a benchmark that is ready to measure: a sider or a racer.
type bench interface {
	close() error
}

// sider is a bench that measures one side after the other.
type sider interface {
	sides(ctx context.Context, variant string) (a, b side, err error)
}

// racer is a bench that measures both sides in the same round.
type racer interface {
	racing(ctx context.Context, variant string) (*race, error)
}

// benchmarks are all that there are.
var benchmarks = []benchmark{extender, filter, memory, start, restart, rebalance, rollout, pools, united, admission, waiting, admissionCost, way, gangs, gangsLimited, hubBenchmark, hubNode, hubUploads, coordinatorBenchmark, delegation, connectivity, people}

// all stands for every benchmark, or every variant of one.
const all = "all"

func main() {
	// Logs of client libraries are not shown.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	if err := launch(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

func launch(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends this process at once
	if o.informers != "" {
		return serveInformers(ctx, o)
	}
	if o.proxy != "" {
		return servePlain(ctx, o)
	}
	if o.webhook != "" {
		return serveWebhook(ctx, o)
	}
	return run(ctx, o, os.Stdout)
}

// parse reads the command line.
func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("perf", flag.ContinueOnError)
	fs.StringVar(&o.bench, "bench", all, "one or more benchmarks, with commas between, or all: "+strings.Join(benchmarkNames(), ", "))
	fs.StringVar(&o.variant, "variant", all, "one or more variants of the benchmark, with commas between, or all")
	fs.IntVar(&o.rounds, "rounds", 3, "how often each side is measured")
	fs.IntVar(&o.nodes, "nodes", 0, "simulated nodes; 0 means the benchmark's default")
	fs.IntVar(&o.groups, "groups", 10, "NodeGroups that the nodes divide into evenly")
	fs.IntVar(&o.pods, "pods", 0, "pods; 0 means the benchmark's default; otherwise a multiple of groups")
	fs.BoolVar(&o.quick, "quick", false, "1 round, also if other processes disturb it; by default 100 nodes and 200 pods: only checks that the benchmark runs")
	fs.BoolVar(&o.write, "write", false, "write the figures into docs/benchmarks.md")
	fs.BoolVar(&o.runPods, "run-pods", false, "let kwok run the bound pods and renew the nodes' Leases while measuring")
	fs.BoolVar(&o.keep, "keep", false, "keep the cluster's directory, for its logs")
	fs.StringVar(&o.profile, "profile-address", "", "host:port where atoll-manager serves net/http/pprof meanwhile")
	fs.StringVar(&o.informers, "informers", "", "be the peer of memory instead, with this kubeconfig; the benchmark starts it so")
	fs.StringVar(&o.proxy, "proxy", "", "be the plain proxy of hub instead, with the files of this directory; the benchmark starts it so")
	fs.StringVar(&o.webhook, "webhook", "", "be the peer of admission instead, with the files of this directory; the benchmark starts it so")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.quick {
		o.rounds = 1
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("reading the command line: %q is not a flag", fs.Arg(0))
	case o.quick && o.write:
		return o, errors.New("reading the command line: the figures of -quick mean nothing and are not written")
	}
	chosen, err := choose(o)
	if err != nil {
		return o, err
	}
	for _, b := range chosen {
		if err := b.fill(o).check(); err != nil {
			return o, err
		}
	}
	return o, nil
}

// fill returns the options with the benchmark's defaults for unset values.
func (b benchmark) fill(o options) options {
	if o.quick && o.nodes == 0 {
		o.nodes = 100
	}
	if o.quick && o.pods == 0 {
		o.pods = 200
	}
	if o.nodes == 0 {
		o.nodes = b.nodes
	}
	if o.pods == 0 {
		o.pods = b.pods
	}
	return o
}

// check returns an error for invalid options.
func (o options) check() error {
	switch {
	case o.rounds < 1 || o.groups < 2 || o.nodes < o.groups || o.pods < 20:
		return errors.New("reading the command line: at least 1 round, 2 groups, 1 node a group and 20 pods are needed")
	case o.pods%o.groups != 0 || o.nodes%o.groups != 0:
		return fmt.Errorf("reading the command line: %d nodes and %d pods do not divide into %d groups", o.nodes, o.pods, o.groups)
	}
	return nil
}

func names[T any](items []T, name func(T) string) []string {
	var out []string
	for _, item := range items {
		out = append(out, name(item))
	}
	return out
}

func benchmarkNames() []string {
	return names(benchmarks, func(b benchmark) string { return b.name })
}

// choose returns the benchmarks that the options name, each with the variants
// that they name. Variants are those of one benchmark, unless all are meant.
func choose(o options) ([]benchmark, error) {
	chosen, err := pick("benchmark", benchmarks, o.bench, func(b benchmark) string { return b.name })
	if err != nil || o.variant == all {
		return chosen, err
	}
	if len(chosen) > 1 {
		return nil, errors.New("choosing variants: -variant needs one benchmark, by -bench")
	}
	b := chosen[0]
	b.variants, err = pick("variant", b.variants, o.variant, func(v variant) string { return v.name })
	return []benchmark{b}, err
}

// pick returns the items that a comma-separated list names, in its order.
func pick[T any](kind string, items []T, list string, name func(T) string) ([]T, error) {
	if list == all {
		return items, nil
	}
	var chosen []T
	for want := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(items, func(item T) bool { return name(item) == want })
		if i < 0 {
			return nil, fmt.Errorf("choosing a %s: there is no %q, there are %s", kind, want, strings.Join(names(items, name), ", "))
		}
		chosen = append(chosen, items[i])
	}
	return chosen, nil
}

func run(ctx context.Context, o options, out io.Writer) error {
	chosen, err := choose(o)
	if err != nil {
		return err
	}
	docs := ""
	if o.write {
		// Checked here, and not after half an hour of measuring.
		if docs, err = docsFile(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, b := range chosen {
		filled := b.fill(o)
		rows, err := measure(ctx, b, filled, out)
		if err != nil {
			return fmt.Errorf("measuring %s: %w", b.name, err)
		}
		fmt.Fprintf(out, "\nAfter %s in all, on %s with:\n\n    %s\n\n%s\n%s\n", time.Since(began).Round(time.Second), machine(),
			commandLine(b, filled), tableHead(b), render(b, rows))
		if !o.write {
			continue
		}
		if err := writeDocs(docs, whole(b), rows, commandLine(b, filled)); err != nil {
			return err
		}
	}
	return nil
}

// whole returns the benchmark with all its variants, from one with the chosen variants
// only.
func whole(b benchmark) benchmark {
	return benchmarks[slices.IndexFunc(benchmarks, func(other benchmark) bool { return other.name == b.name })]
}

// measure measures the variants of one benchmark, stage by stage.
func measure(ctx context.Context, b benchmark, o options, out io.Writer) (rows []row, err error) {
	opened, err := b.open(ctx, o, out)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.close()) }()
	for rest := b.variants; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].stage == rest[0].stage {
			n++
		}
		stage := rest[:n]
		rest = rest[n:]
		duels := make([]duel, len(stage))
		for i, v := range stage {
			if duels[i], err = ready(ctx, opened, v); err != nil {
				return nil, err
			}
			nameA, nameB := duels[i].names()
			fmt.Fprintf(out, "\n%s %s\n  A, %s: %s\n  B, %s: %s\n", b.name, v.name, nameA, v.a, nameB, v.b)
		}
		results, err := interleave(ctx, o, b.unit, duels, out)
		if err != nil {
			return nil, err
		}
		for i, v := range stage {
			fmt.Fprintf(out, "  %s: %s\n", v.name, results[i].summary(cmp.Or(b.unit, v.unit)))
			rows = append(rows, row{variant: v, result: results[i]})
		}
	}
	return rows, nil
}

// ready makes a variant ready to be measured.
func ready(ctx context.Context, opened bench, v variant) (d duel, err error) {
	d.variant = v
	switch opened := opened.(type) {
	case racer:
		d.race, err = opened.racing(ctx, v.name)
	case sider:
		d.a, d.b, err = opened.sides(ctx, v.name)
	}
	return d, err
}

// ends are the signals that end the program properly. Under nohup, the terminal may be
// closed.
func ends() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}
