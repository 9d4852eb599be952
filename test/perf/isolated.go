package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// isolated is the variant of the form in which a second kube-scheduler asks the
// extender and the cluster's own does not.
const isolated = "isolated"

// isolatedSides bind pods without a policy by the cluster's own kube-scheduler,
// with and without the second one beside it.
func (e *extenderBench) isolatedSides() (a, b side, err error) {
	// All that the two forms have in common but the extender.
	config, err := withoutKeys(e.installed.SchedulerConfig, "extenders", "profiles", "leaderElection")
	if err != nil {
		return a, b, err
	}
	beside := func(name string, prepare func(context.Context) error) side {
		return side{name: name, measure: func(ctx context.Context) (sample, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
			defer cancel()
			if err := prepare(ctx); err != nil {
				return sample{}, err
			}
			return e.round(ctx, workload{}, config)
		}}
	}
	return beside("isolated", e.startSecond), beside("peer", e.killSecond), nil
}

// startSecond starts the second kube-scheduler and returns once it leads: one
// that waits for its turn has less to do.
func (e *extenderBench) startSecond(ctx context.Context) error {
	before, err := e.leaderOfSecond(ctx)
	if err != nil {
		return err
	}
	if err := e.cluster.Restart(ctx, atoll.Scheduler); err != nil {
		return err
	}
	return e.eventually(ctx, "the second kube-scheduler to lead", func(ctx context.Context) (bool, error) {
		now, err := e.leaderOfSecond(ctx)
		return now != "" && now != before, err
	})
}

func (e *extenderBench) killSecond(ctx context.Context) error {
	return e.cluster.Kill(ctx, atoll.Scheduler)
}

// leaderOfSecond is the holder of the second kube-scheduler's Lease.
func (e *extenderBench) leaderOfSecond(ctx context.Context) (string, error) {
	lease, err := e.client.CoordinationV1().Leases(atoll.Namespace).Get(ctx, atoll.Scheduler, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("reading who leads the second kube-schedulers: %w", err)
	}
	if lease.Spec.HolderIdentity == nil {
		return "", nil
	}
	return *lease.Spec.HolderIdentity, nil
}
