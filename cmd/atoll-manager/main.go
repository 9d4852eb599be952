// Command atoll-manager runs Atoll's controllers, admission webhooks and
// scheduler extender. Several replicas may run; the elected leader decides.
package main

import (
	"context"
	"flag"
	"fmt"
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
	flag.Parse()
	logger := logs.Bound(zap.New(zap.UseFlagOptions(&logging)))
	ctrl.SetLogger(logger)
	logs.Redirect(logger)
	if err := run(ctrl.SetupSignalHandler(), c); err != nil {
		fmt.Fprintln(os.Stderr, "atoll-manager:", conditions.Bounded(conditions.Printable(err.Error())))
		os.Exit(1)
	}
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
