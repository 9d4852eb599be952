// Command soak runs hubs and kubelets for a long time while links are cut and processes are killed at
// random, and checks that nothing is lost:
//
//	make soak                     # an hour
//	make soak FOR=10m SEED=42     # the same faults as another run with this seed
//
// Hollow kubelets run pods behind hubs. Clients watch through the hubs what changes all the time. What
// they get is compared with a watch of the API server that nobody disturbs: no event may be missing,
// come twice or in another order, and a list has one state that there was. Without the cloud a hub
// must answer with the state that its clients had last. No pod may end that should live, and no
// container may start twice in the life of its kubelet.
//
// It prints a line a minute and each violation, and ends with 1 if there was one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// options are the values of the command line.
type options struct {
	length time.Duration
	seed   uint64
	nodes  int
	keep   bool
}

func main() {
	klog.SetLogger(logr.Discard())
	if err := launch(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func launch(args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends this process at once
	return run(ctx, o, os.Stdout)
}

// parse reads the command line.
func parse(args []string) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("soak", flag.ContinueOnError)
	fs.DurationVar(&o.length, "for", time.Hour, "how long faults are made")
	fs.Uint64Var(&o.seed, "seed", 0, "chooses the faults and the changes; 0 means a random one, which is printed")
	fs.IntVar(&o.nodes, "nodes", 2, "nodes, each with a kubelet and a hub")
	fs.BoolVar(&o.keep, "keep", false, "keep the cluster's directory, for its logs")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("reading the command line: %q is not a flag", fs.Arg(0))
	case o.length <= 0 || o.nodes < 1:
		return o, fmt.Errorf("reading the command line: -for is %s and -nodes %d, both have to be more than 0", o.length, o.nodes)
	}
	if o.seed == 0 {
		o.seed = 1 + rand.Uint64N(1<<32)
	}
	return o, nil
}
