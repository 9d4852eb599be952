package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// isolated is the variant of the form in which a second kube-scheduler calls the extender
// and the cluster's own does not.
const isolated = "isolated"

// startSecond starts the second kube-scheduler and returns when it leads, because a
// scheduler that waits for its Lease does less work.
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

// leaderOfSecond returns the holder of the second kube-scheduler's Lease.
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
