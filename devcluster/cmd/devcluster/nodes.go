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

// verb is an action on one process or node.
type verb struct {
	name  string
	short string
	past  string
	do    func(*devcluster.Cluster, context.Context, string) error
}

var verbs = []verb{
	{"kill", "Kill a process (SIGKILL); it stays down until restart", "killed", (*devcluster.Cluster).Kill},
	{"pause", "Stop a process on the spot (SIGSTOP), or silence a simulated node", "paused", (*devcluster.Cluster).Pause},
	{"resume", "Let a paused process or simulated node go on", "resumed", (*devcluster.Cluster).Resume},
	{"restart", "Kill a process if it runs, start it and wait until it is healthy", "restarted", (*devcluster.Cluster).Restart},
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
	return &cobra.Command{
		Use:   v.name + " NAME",
		Short: v.short,
		Long: v.short + ".\n\nNAME is a component (etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok),\n" +
			"a node, or another process that `devcluster status` shows.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cluster, err := attach(cmd.Context(), *name)
			if err != nil {
				return err
			}
			if err := v.do(cluster, cmd.Context(), args[0]); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s.\n", args[0], v.past)
			return nil
		},
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
