package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

const defaultName = "dev"

func newUpCommand(name *string) *cobra.Command {
	var (
		simulated, hollow int
		real              int
		podStartDelay     time.Duration
		audit             string
		schedulerConfig   string
		kubernetes        string
	)
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			options := devcluster.Options{
				Name: *name, Kubernetes: kubernetes, Persistent: true, Log: cmd.ErrOrStderr(),
				PodStartDelay: podStartDelay, AuditLog: devcluster.AuditLevel(audit),
			}
			if options.Name == "" {
				options.Name = defaultName
			}
			if simulated < 0 || hollow < 0 || real < 0 {
				return errors.New("checking the number of nodes: it is negative")
			}
			if schedulerConfig != "" {
				data, err := os.ReadFile(schedulerConfig)
				if err != nil {
					return fmt.Errorf("reading the scheduler's configuration: %w", err)
				}
				options.SchedulerConfig = data
			}
			options.RealNodes = real > 0
			return up(cmd.Context(), options, simulated, hollow, real, cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntVar(&simulated, "nodes", 3, "simulated nodes to add")
	cmd.Flags().IntVar(&hollow, "hollow", 0, "hollow kubelets to add, about 90 MB of memory each")
	cmd.Flags().IntVar(&real, "real", 0, "real nodes to add, with containerd and a kubelet each, in one pool; needs Linux, root, TUN devices and a C compiler")
	cmd.Flags().DurationVar(&podStartDelay, "pod-start-delay", 0, "how long pods on simulated nodes take to become Ready")
	cmd.Flags().StringVar(&audit, "audit", "", "log writes: Metadata, Request or RequestResponse")
	cmd.Flags().StringVar(&kubernetes, "kubernetes", "", "version of Kubernetes, such as 1.35 (default: that of $"+binaries.KubernetesEnv+", or else the newest)")
	cmd.Flags().StringVar(&schedulerConfig, "scheduler-config", "", "file with a KubeSchedulerConfiguration")
	return cmd
}

func up(ctx context.Context, options devcluster.Options, simulated, hollow, real int, out io.Writer) error {
	cluster, err := devcluster.Start(ctx, options)
	if err != nil {
		return err
	}
	err = cluster.AddNodes(ctx, devcluster.NumberedNodes("sim-", simulated)...)
	if err == nil {
		err = cluster.AddHollowNodes(ctx, devcluster.NumberedNodes("hollow-", hollow)...)
	}
	if err == nil && real > 0 {
		var specs []devcluster.RealNodeSpec
		for _, spec := range devcluster.NumberedNodes("real-", real) {
			specs = append(specs, devcluster.RealNodeSpec{NodeSpec: spec, Pool: "real"})
		}
		err = cluster.AddRealNodes(ctx, specs...)
	}
	if err != nil {
		return errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	_, err = fmt.Fprintf(out, `Cluster %[1]s runs with %[2]d simulated, %[3]d hollow and %[5]d real nodes.

  export KUBECONFIG=%[4]s
  devcluster --name %[1]s kubectl get nodes    # or any kubectl
  devcluster --name %[1]s down                 # when done
`, cluster.Name(), simulated, hollow, cluster.KubeconfigPath(), real)
	return err
}

func newDownCommand(name *string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop a cluster and remove its data",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !all {
				chosen, err := choose(*name)
				if err != nil {
					return err
				}
				return down(cmd, chosen)
			}
			infos, err := devcluster.List()
			if err != nil {
				return err
			}
			var failures []error
			for _, info := range infos {
				if info.Persistent {
					failures = append(failures, down(cmd, info.Name))
				}
			}
			swept, err := devcluster.Sweep(cmd.Context())
			for _, name := range swept {
				fmt.Fprintln(cmd.OutOrStdout(), "Cleared leftover", name)
			}
			return errors.Join(append(failures, err)...)
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "stop all clusters that `up` has started, and clear leftovers")
	return cmd
}

func down(cmd *cobra.Command, name string) error {
	if err := devcluster.Remove(cmd.Context(), name); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "Cluster %s is gone.\n", name)
	return nil
}

func newStatusCommand(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the clusters and their processes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			infos, err := devcluster.List()
			if err != nil {
				return err
			}
			shown := 0
			for _, info := range infos {
				if *name != "" && info.Name != *name {
					continue
				}
				shown++
				if err := printStatus(cmd, info); err != nil {
					return err
				}
			}
			if shown == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "No cluster runs. Start one with: devcluster up")
			}
			return nil
		},
	}
}

func printStatus(cmd *cobra.Command, info devcluster.Info) error {
	out := cmd.OutOrStdout()
	state := "owned by a test or another program"
	switch {
	case info.Leftover:
		state = "leftover of a killed run; clear it with: devcluster down --all"
	case info.Persistent:
		state = "up"
	}
	fmt.Fprintf(out, "Cluster %s (%s, since %s)\n", info.Name, state, info.Created.Format(time.DateTime))
	cluster, err := devcluster.Attach(cmd.Context(), info.Name)
	if err != nil {
		return err
	}
	statuses, err := cluster.Processes(cmd.Context())
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "  PROCESS\tKIND\tSTATE\tPID\tLOG")
	for _, s := range statuses {
		state := "down"
		switch {
		case s.Running && s.Paused:
			state = "paused"
		case s.Healthy:
			state = "healthy"
		case s.Running:
			state = "unhealthy"
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\t%d\t%s\n", s.Name, s.Kind, state, s.PID, s.LogPath)
	}
	return table.Flush()
}

func newBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the programs without starting a cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			kubernetes, err := binaries.FindKubernetes("")
			if err != nil {
				return err
			}
			set, err := binaries.Ensure(cmd.Context(), kubernetes, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), set.Dir)
			return nil
		},
	}
}

func newKubeconfigCommand(name *string) *cobra.Command {
	var user string
	var groups []string
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of a kubeconfig",
		Long:  "Print the path of the administrator's kubeconfig, or make one for another user.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			path := cluster.KubeconfigPath()
			if user != "" {
				if path, err = cluster.Kubeconfig(cmd.Context(), user, groups...); err != nil {
					return err
				}
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
	cmd.Flags().StringVar(&user, "user", "", "make a kubeconfig for this user")
	cmd.Flags().StringSliceVar(&groups, "group", nil, "group of the user")
	return cmd
}

func newKubectlCommand(name *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl ARGUMENT...",
		Short: "Run kubectl of the cluster's version",
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			kubectl := exec.CommandContext(cmd.Context(), cluster.BinaryPath("kubectl"), args...)
			kubectl.Env = append(os.Environ(), "KUBECONFIG="+cluster.KubeconfigPath())
			kubectl.Stdin, kubectl.Stdout, kubectl.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return kubectl.Run()
		},
	}
	cmd.Flags().SetInterspersed(false) // all arguments after the first are for kubectl
	return cmd
}
