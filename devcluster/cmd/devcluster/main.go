// Command devcluster runs real Kubernetes clusters on this machine, with
// simulated nodes in any number, hollow kubelets and real nodes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run())
}

// run returns the exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRootCommand().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	// kubectl has printed the error itself.
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "devcluster:", err)
	return 1
}

func newRootCommand() *cobra.Command {
	var name string
	root := &cobra.Command{
		Use:   "devcluster",
		Short: "Run real Kubernetes clusters on this machine",
		Long: "Run real Kubernetes clusters on this machine: etcd and the control plane as processes on\nloopback, with simulated nodes in any number, hollow kubelets and real nodes.\n\n" +
			"Needs Go; the first start builds the programs, which takes some minutes. Real nodes, which run\ncontainers, also need Linux, root, TUN devices (/dev/net/tun) and a C compiler.",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&name, "name", "", "name of the cluster (default: \"dev\" for up, else the only one that runs)")
	root.AddCommand(
		newUpCommand(&name),
		newDownCommand(&name),
		newStatusCommand(&name),
		newKubeconfigCommand(&name),
		newKubectlCommand(&name),
		newNodesCommand(&name),
		newBuildCommand(),
	)
	root.AddCommand(newLegCommands(&name)...)
	for _, verb := range verbs {
		root.AddCommand(newVerbCommand(&name, verb))
	}
	return root
}
