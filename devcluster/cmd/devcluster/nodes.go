package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/devcluster"
)

// verb is an action on one process or node, on a program of a real node, or on a container.
type verb struct {
	name  string
	short string
	past  string
	do    func(*devcluster.Cluster, context.Context, string) error
	// on does it to a program of a real node.
	on func(c *devcluster.Cluster, ctx context.Context, node, program string) error
	// container does it to a container of a real node; nil if that is not possible.
	container func(c *devcluster.Cluster, ctx context.Context, namespace, pod, container string) error
}

var verbs = []verb{
	{
		"kill", "Kill a process (SIGKILL); it stays down until restart", "killed",
		(*devcluster.Cluster).Kill, (*devcluster.Cluster).KillOn, (*devcluster.Cluster).KillContainer,
	},
	{
		"pause", "Stop a process on the spot (SIGSTOP), or silence a simulated node", "paused",
		(*devcluster.Cluster).Pause, (*devcluster.Cluster).PauseOn, (*devcluster.Cluster).PauseContainer,
	},
	{
		"resume", "Let a paused process or simulated node go on", "resumed",
		(*devcluster.Cluster).Resume, (*devcluster.Cluster).ResumeOn, (*devcluster.Cluster).ResumeContainer,
	},
	{
		"restart", "Kill a process if it runs, start it and wait until it is healthy", "restarted",
		(*devcluster.Cluster).Restart, (*devcluster.Cluster).RestartOn, nil,
	},
}

// choose returns the name, or that of the only cluster if it is empty.
func choose(name string) (string, error) {
	if name != "" {
		return name, nil
	}
	infos, err := devcluster.List()
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(infos))
	for _, info := range infos {
		names = append(names, info.Name)
	}
	switch len(names) {
	case 0:
		return "", errors.New("no cluster runs; start one with: devcluster up")
	case 1:
		return names[0], nil
	default:
		return "", fmt.Errorf("several clusters run; choose one with --name: %s", strings.Join(names, ", "))
	}
}

func attach(ctx context.Context, name string) (*devcluster.Cluster, error) {
	name, err := choose(name)
	if err != nil {
		return nil, err
	}
	return devcluster.Attach(ctx, name)
}

func newVerbCommand(name *string, v verb) *cobra.Command {
	container := "The kubelet restarts a container of a real node when it is killed.\n"
	if v.container != nil {
		container = "NAMESPACE/POD/CONTAINER is a container on a real node. The kubelet starts a killed one again.\n"
	}
	return &cobra.Command{
		Use:   v.name + " NAME [PROGRAM]",
		Short: v.short,
		Long: v.short + ".\n\nNAME is a component (etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok),\n" +
			"a node, or another process that `devcluster status` shows. For a real node that is its power.\n" +
			"With a PROGRAM, which is kubelet, containerd or service-proxy, it is only that program of a real node.\n" + container,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			do, err := v.action(args)
			if err != nil {
				return err
			}
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			if err := do(cluster, cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s.\n", strings.Join(args, " "), v.past)
			return nil
		},
	}
}

// action returns what the arguments of a verb ask for.
func (v verb) action(args []string) (func(*devcluster.Cluster, context.Context) error, error) {
	if len(args) == 2 {
		return func(c *devcluster.Cluster, ctx context.Context) error { return v.on(c, ctx, args[0], args[1]) }, nil
	}
	parts := strings.Split(args[0], "/")
	switch {
	case len(parts) == 1:
		return func(c *devcluster.Cluster, ctx context.Context) error { return v.do(c, ctx, args[0]) }, nil
	case len(parts) != 3:
		return nil, fmt.Errorf("reading %q: a container is NAMESPACE/POD/CONTAINER", args[0])
	case v.container == nil:
		return nil, fmt.Errorf("%s of container %s: kill it, and the kubelet starts it again", v.name, args[0])
	default:
		return func(c *devcluster.Cluster, ctx context.Context) error {
			return v.container(c, ctx, parts[0], parts[1], parts[2])
		}, nil
	}
}

func newNodesCommand(name *string) *cobra.Command {
	nodes := &cobra.Command{Use: "nodes", Short: "Add and remove nodes"}
	var (
		hollow bool
		prefix string
		labels map[string]string
	)
	add := &cobra.Command{
		Use:   "add N",
		Short: "Add simulated nodes or hollow kubelets",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return fmt.Errorf("reading the number of nodes: %q is not a number of at least 1", args[0])
			}
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			if prefix == "" {
				prefix = "sim-"
				if hollow {
					prefix = "hollow-"
				}
			}
			specs, err := cluster.NextNodes(cmd.Context(), prefix, n, func(_ int, spec *devcluster.NodeSpec) {
				spec.Labels = labels
			})
			if err != nil {
				return err
			}
			if hollow {
				err = cluster.AddHollowNodes(cmd.Context(), specs...)
			} else {
				err = cluster.AddNodes(cmd.Context(), specs...)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Added %d nodes, %s to %s.\n", n, specs[0].Name, specs[n-1].Name)
			return nil
		},
	}
	add.Flags().BoolVar(&hollow, "hollow", false, "add hollow kubelets instead of simulated nodes")
	add.Flags().StringVar(&prefix, "prefix", "", "names are the prefix and a number (default \"sim-\" or \"hollow-\")")
	add.Flags().StringToStringVar(&labels, "label", nil, "label of the nodes, as key=value")
	remove := &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove nodes",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			for _, node := range args {
				if err := cluster.RemoveNode(cmd.Context(), node); err != nil {
					return err
				}
			}
			return nil
		},
	}
	nodes.AddCommand(add, remove)
	return nodes
}
