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

	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/machinery/logs"
)

func main() {
	path := flag.String("config", "/etc/atoll/hub.yaml", "the configuration file")
	var logging zap.Options
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *path, &logging)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "atoll-hub:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, path string, logging *zap.Options) error {
	c, err := config.Read(path)
	if err != nil {
		return err
	}
	log := logs.Bound(zap.New(zap.UseFlagOptions(logging)))
	logs.Redirect(log)
	return hub.Run(ctx, c, log)
}
