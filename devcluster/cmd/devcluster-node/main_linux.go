// Command devcluster-node is what a devcluster with real nodes runs beside the programs of
// Kubernetes: the network of all nodes, the first process of a node, its proxy for Services,
// and a registry of images.
//
//	devcluster-node network <socket> [<address of the control plane>]
//	devcluster-node init <configuration>
//	devcluster-node proxy <kubeconfig> <address>
//	devcluster-node registry <tar of images> <host:port>
//	devcluster-node enter <process id> <program> [<argument>...]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/atoll-k8s/atoll/devcluster/internal/imageserver"
	"github.com/atoll-k8s/atoll/devcluster/internal/link"
	"github.com/atoll-k8s/atoll/devcluster/internal/realnode"
	"github.com/atoll-k8s/atoll/devcluster/internal/serviceproxy"
)

// entered is the word with which init executes itself once it is in its control group.
const entered = "entered"

// init keeps the main goroutine on the main thread, from which the first process of a node executes
// itself: the kernel sends the signal of the parent's death to this thread only.
func init() { runtime.LockOSThread() }

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "devcluster-node:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if filepath.Base(args[0]) == realnode.RuncName {
		return realnode.Runc(args[1:])
	}
	if len(args) < 3 {
		return errors.New("usage: devcluster-node network <socket> [<address of the control plane>] | init <configuration> | proxy <kubeconfig> <address> | registry <tar of images> <host:port> | enter <process id> <program>")
	}
	switch verb, of := args[1], args[2]; verb {
	case "network":
		n, err := link.NewNetwork(strings.Join(args[3:], ""))
		if err != nil {
			return err
		}
		return n.Serve(ctx, of)
	case "init":
		c, err := realnode.Read(of)
		if err != nil {
			return err
		}
		if len(args) == 3 {
			return realnode.Enter(c, append(args, entered))
		}
		return realnode.Run(ctx, c)
	case "proxy":
		if len(args) != 4 {
			return errors.New("at which address to answer for names?")
		}
		return serviceproxy.Run(ctx, of, args[3])
	case "registry":
		if len(args) < 4 {
			return errors.New("where to serve the images?")
		}
		return imageserver.Run(ctx, of, args[3])
	case "enter":
		if len(args) < 4 {
			return errors.New("which program to run?")
		}
		return realnode.RunIn(of, args[3:])
	default:
		return fmt.Errorf("there is no verb %q", verb)
	}
}
