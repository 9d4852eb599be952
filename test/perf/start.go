package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// start measures the time until a new atoll-manager gives a correct answer.
var start = benchmark{
	name: "start", unit: "s", nodes: 1000, pods: 10000,
	about: `The time from the start of the process atoll-manager to its first correct answer ÷ the time that a client takes to LIST the same objects.

- 1,000 simulated nodes in 10 NodeGroups and 10,000 pods of one Deployment, spread evenly, except for one that waits. A correct answer is a
  filter that keeps the nodes of the one group that lacks a pod: it needs every pod, node, owner, policy and group.
- The process before was killed, and its Lease is taken away: how long a standby waits for a dead leader is not what this is about.
- The peer lists pods, nodes and the six kinds of owners, all at the same time, with protobuf, and decodes them.`,
	variants: []variant{{name: "cold", ideal: "≤ 2", a: "start to first correct answer", b: "LIST of the same objects"}},
	open:     openStart,
}

type startBench struct{ *fleet }

func openStart(ctx context.Context, o options, log io.Writer) (bench, error) {
	f, err := makeFleet(ctx, settings{options: o, log: log})
	return &startBench{f}, err
}

func (s *startBench) sides(context.Context, string) (a, b side, err error) {
	return side{name: "atoll-manager", measure: s.cold}, side{name: "LIST", measure: s.listed}, nil
}

// cold starts the manager and waits for a correct answer.
func (s *startBench) cold(ctx context.Context) (sample, error) {
	a, err := newAsker(s.installed.ExtenderURL, s.installed.TLSDir)
	if err != nil {
		return sample{}, err
	}
	start, err := s.restartManager(ctx)
	if err != nil {
		return sample{}, err
	}
	return s.timed(ctx, func(ctx context.Context) (string, error) {
		started := make(chan error, 1)
		go func() { started <- start(ctx) }()
		wrong, err := s.waitCorrect(ctx, a)
		return fmt.Sprintf("%d answers before that were not correct", wrong), errors.Join(err, <-started)
	})
}

// listed lists everything once.
func (b *bed) listed(ctx context.Context) (sample, error) {
	core, apps, batch := b.client.CoreV1(), b.client.AppsV1(), b.client.BatchV1()
	lists := []func(context.Context, metav1.ListOptions) error{
		lister(core.Pods("").List), lister(core.Nodes().List),
		lister(apps.Deployments("").List), lister(apps.ReplicaSets("").List), lister(apps.StatefulSets("").List), lister(apps.DaemonSets("").List),
		lister(batch.Jobs("").List), lister(batch.CronJobs("").List),
	}
	return b.timed(ctx, func(ctx context.Context) (string, error) {
		return "", inParallel(ctx, len(lists), lists, func(ctx context.Context, list func(context.Context, metav1.ListOptions) error) error {
			return list(ctx, metav1.ListOptions{ResourceVersion: "0"}) // from the API server's cache, as informers do
		})
	})
}

func lister[L any](list func(context.Context, metav1.ListOptions) (L, error)) func(context.Context, metav1.ListOptions) error {
	return func(ctx context.Context, o metav1.ListOptions) error {
		if _, err := list(ctx, o); err != nil {
			return fmt.Errorf("listing: %w", err)
		}
		return nil
	}
}

// timed measures the duration of a function, which returns the facts to show.
func (b *bed) timed(ctx context.Context, do func(context.Context) (string, error)) (s sample, err error) {
	if err := b.waitIdle(ctx); err != nil {
		return s, err
	}
	before, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	facts, err := do(ctx)
	if err != nil {
		return s, err
	}
	after, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.rate, s.off, s.strangers = after.at.Sub(before.at).Seconds(), -1, used.strangers()
	s.facts = fmt.Sprintf("%s; %s", facts, used)
	return s, nil
}

// waitCorrect sends requests until the answer is correct, and returns how many were not.
// While no replica answers or leads, the request is repeated.
func (f *fleet) waitCorrect(ctx context.Context, a *asker) (wrong int, err error) {
	body, err := question(f.waiting, f.candidates(f.options.nodes))
	if err != nil {
		return 0, err
	}
	want := f.candidates(f.options.nodes)[:f.options.nodes/f.options.groups]
	var last error
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, stepWithin, true, func(ctx context.Context) (bool, error) {
		var kept []string
		if kept, last = a.kept(ctx, body); last != nil {
			return false, nil //nolint:nilerr // there is no leader yet
		}
		if !slices.Equal(kept, want) {
			wrong++
			return false, nil
		}
		return true, nil
	})
	if err != nil {
		return wrong, fmt.Errorf("waiting for a correct answer: %w", errors.Join(err, last))
	}
	return wrong, nil
}
