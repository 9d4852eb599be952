package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-k8s/atoll/devcluster"
)

const legsText = "LEG is cloud, to the control plane and nodes of other pools, or pool, to the other nodes of its pool."

// newLegCommands returns the commands that change what a leg of a real node does with packets.
func newLegCommands(name *string) []*cobra.Command {
	command := func(verb, short, past string, state func() (devcluster.LegState, error)) *cobra.Command {
		return &cobra.Command{
			Use:   verb + " NODE LEG",
			Short: short,
			Long:  short + ".\n\n" + legsText,
			Args:  cobra.ExactArgs(2),
			RunE: func(cmd *cobra.Command, args []string) error {
				s, err := state()
				if err != nil {
					return err
				}
				cluster, err := attach(cmd.Context(), *name)
				if err != nil {
					return err
				}
				if err := cluster.SetLeg(cmd.Context(), args[0], devcluster.Leg(args[1]), s); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "The %s leg of %s is %s.\n", args[1], args[0], past)
				return nil
			},
		}
	}
	var delay time.Duration
	var loss float64
	degrade := command("degrade", "Delay or lose packets of a leg of a real node, in both directions", "degraded", func() (devcluster.LegState, error) {
		return degraded(delay, loss)
	})
	degrade.Flags().DurationVar(&delay, "delay", 0, "added to each packet, such as 300ms")
	degrade.Flags().Float64Var(&loss, "loss", 0, "part of the packets that get lost, from 0 to 1")
	return []*cobra.Command{
		command("cut", "Cut a leg of a real node", "cut", func() (devcluster.LegState, error) { return devcluster.LegState{Cut: true}, nil }),
		degrade,
		command("restore", "Restore a leg of a real node that was cut or degraded", "restored", func() (devcluster.LegState, error) { return devcluster.LegState{}, nil }),
	}
}

func degraded(delay time.Duration, loss float64) (devcluster.LegState, error) {
	if delay == 0 && loss == 0 {
		return devcluster.LegState{}, errors.New("degrading a leg: give --delay, --loss or both")
	}
	return devcluster.LegState{Delay: delay, Loss: loss}, nil
}
