// Command atoll-hub runs on a node, between the kubelet and the API servers. Clients of the node
// are answered also while the cloud is not reachable.
//
//	atoll-hub [--config=…]          runs the hub
//	atoll-hub [--config=…] status   prints the status of the hub that runs with this configuration
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/atoll-k8s/atoll/internal/hub"
	"github.com/atoll-k8s/atoll/internal/hub/config"
	"github.com/atoll-k8s/atoll/internal/machinery/logs"
)

// statusWithin bounds the wait for the answer of the hub that runs.
const statusWithin = 10 * time.Second

func main() {
	path := flag.String("config", "/etc/atoll/hub.yaml", "the configuration file")
	var logging zap.Options
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	useOneProcessor()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, *path, &logging)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "atoll-hub:", err)
		os.Exit(1)
	}
}

// useOneProcessor runs one goroutine at a time, unless $GOMAXPROCS says something else. A request passes
// through several goroutines, and to hand it from one thread to another takes longer than what they do. One
// processor answers more than a thousand requests a second.
func useOneProcessor() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}

func run(ctx context.Context, path string, logging *zap.Options) error {
	c, err := config.Read(path)
	if err != nil {
		return err
	}
	switch verb := flag.Arg(0); verb {
	case "":
	case "status":
		within, cancel := context.WithTimeout(ctx, statusWithin)
		defer cancel()
		status, err := hub.ReadStatus(within, c.Observe)
		if err != nil {
			return err
		}
		return status.Write(os.Stdout, time.Now())
	default:
		return fmt.Errorf("there is no verb %q; without one it runs the hub, and with status it prints the hub's status", verb)
	}
	log := logs.Bound(zap.New(zap.UseFlagOptions(logging)))
	logs.Redirect(log)
	return hub.Run(ctx, c, log)
}
