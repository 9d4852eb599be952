// Command demo shows the example of examples/groups on a cluster of hollow kubelets:
// nginx runs with 2 pods in Hangzhou and 3 in Beijing, NodeGroups and policies are
// applied, and the pods move and change until they match the policies.
//
//	make demo                 # live on a terminal, until Ctrl-C
//	make demo DEMO_EXIT=1     # plain lines, ends by itself
//	make demo ARGS=-form=pinned
//	make demo SCENE=scale     # one thing more: rollout, scale, early, pools, capacity, gangs, offline, pool or governance
//
// Without a terminal, or with DEMO_EXIT set, it prints a line for every event and ends
// with a table. It exits with 0 only if the table matches the policies. Everything that
// it shows is read from the API server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

const (
	// wantedWithin is the maximum time from applying the policies to the end of the
	// example.
	wantedWithin = 3 * time.Minute
	// setupWithin is the maximum time from the installation of Atoll to the policies,
	// without the building of programs.
	setupWithin = 5 * time.Minute
	// curtain is how long a terminal shows the starting point, because the next steps
	// take only two seconds.
	curtain = 3 * time.Second
	// stopWithin is the maximum time to stop the cluster.
	stopWithin = 30 * time.Second

	exitFailed      = 1
	exitInterrupted = 130
)

func main() {
	// Logs of client libraries would break the picture.
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
	os.Exit(run())
}

func run() int {
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	name := fs.String("form", string(atoll.Plain), "form in which Atoll is installed: Pinned, Isolated or Plain (docs/scheduler.md)")
	if err := fs.Parse(os.Args[1:]); err != nil {
		return exitFailed
	}
	form, err := atoll.ParseForm(*name)
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return exitFailed
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends()...)
	defer stop()
	// A second signal ends this process at once; the kernel ends the cluster with it.
	context.AfterFunc(ctx, stop)

	live := term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("DEMO_EXIT") == ""
	j := newJournal(time.Now())
	s := &stage{journal: j, state: newState(j), form: form, reported: map[string]string{}}
	var d *display
	if live {
		s.curtain = curtain
		d = startDisplay(os.Stdout, s, os.Getenv("NO_COLOR") == "")
	} else {
		j.follow(func(e entry) { fmt.Println(e.line()) })
	}
	end, err := s.perform(ctx)
	if err == nil && live {
		<-ctx.Done()
	}
	if d != nil {
		d.close()
	}
	// A live demo that is interrupted after its end was successful.
	interrupted := ctx.Err() != nil && end == nil
	stopErr := s.strike()
	if end != nil {
		fmt.Print(closing(end))
	}
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		return exitInterrupted
	case errors.Join(err, stopErr) != nil:
		fmt.Fprintln(os.Stderr, "demo:", errors.Join(err, stopErr))
		return exitFailed
	case len(end.failures) > 0:
		return exitFailed
	default:
		return 0
	}
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
