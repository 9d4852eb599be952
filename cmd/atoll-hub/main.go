// Command atoll-hub runs on a node, between the kubelet and the API servers. Clients of the node
// are answered also while the cloud is not reachable.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/zapr"
	"go.uber.org/zap"

	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/machinery/logs"
)

func main() {
	path := flag.String("config", "/etc/atoll/hub.yaml", "the configuration file")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *path)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "atoll-hub:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string) error {
	c, err := config.Read(path)
	if err != nil {
		return err
	}
	base, err := zap.NewProduction()
	if err != nil {
		return fmt.Errorf("making the log: %w", err)
	}
	log := logs.Bound(zapr.NewLogger(base))
	logs.Redirect(log)
	return hub.Run(ctx, c, log)
}
