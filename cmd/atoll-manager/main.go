// Command atoll-manager runs Atoll's controllers, admission webhooks and
// scheduler extender. Several replicas may run; the elected leader decides.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/logs"
	"github.com/atoll-k8s/atoll/internal/manager"
)

func main() {
	var c manager.Config
	c.AddFlags(flag.CommandLine)
	var logging zap.Options
	logging.BindFlags(flag.CommandLine)
	parse(flag.CommandLine)
	logger := logs.Bound(zap.New(zap.UseFlagOptions(&logging)))
	ctrl.SetLogger(logger)
	logs.Redirect(logger)
	if err := run(ctrl.SetupSignalHandler(), c); err != nil {
		fail(err, 1)
	}
}

// parse reads the flags of the command line. It ends the process if they ask for help, or are
// wrong. An error is not followed by the list of all flags, which would be longer than what
// the state of a container keeps of its log.
func parse(flags *flag.FlagSet) {
	flags.Init("atoll-manager", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	err := flags.Parse(os.Args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Println("Flags of atoll-manager:")
		flags.SetOutput(os.Stdout)
		flags.PrintDefaults()
		os.Exit(0)
	case err != nil:
		fail(fmt.Errorf("%w (-h lists the flags)", err), 2)
	case flags.NArg() > 0: // package flag would ignore it, and every flag after it
		fail(fmt.Errorf("%q is not a flag (the value of a boolean flag needs =, as in --pools=false)", flags.Arg(0)), 2)
	}
}

// fail ends the process with an error as its last line.
func fail(err error, code int) {
	fmt.Fprintln(os.Stderr, "atoll-manager:", conditions.Bounded(conditions.Printable(err.Error())))
	os.Exit(code)
}

func run(ctx context.Context, c manager.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	rest, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("loading the client configuration: %w", err)
	}
	return manager.Run(ctx, rest, c)
}
