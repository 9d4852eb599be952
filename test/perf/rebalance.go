package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// rebalance measures how fast running pods move when a policy changes.
var rebalance = benchmark{
	name: "rebalance", unit: "pods/s", nodes: 1000, pods: 2000,
	about: `Pods moved a second when a policy changes ÷ the slowest part of a move: pods evicted, created or bound a second.

- 2,000 pods of one Deployment are in 5 of 10 NodeGroups. Then the policy names all 10: half of the pods must leave, through the Eviction
  API, and their successors must start in the other groups. The time is measured from the change of the policy to the last pod bound, and
  every group must have its share then.
- The rate limits are off: evictions-per-second is unlimited, maxUnavailable is the number of pods that move, and there is no stabilization time. The pods have no grace period.
- The peer is measured in the same run without Atoll, in three steps one after the other: a Deployment scaled up to as many pods as move, by the
  controller manager; kube-scheduler without an extender binding them; and then 8 clients evicting them.
- Variant ` + "`slowest`" + ` compares with the slowest of the three, which is the lower bound if each has cores of its own; ` + "`sum`" + ` with the time of all
  three together, which is the lower bound if all of them share a few busy cores.`,
	variants: []variant{
		{name: "slowest", ideal: "≥ 0.5", a: "half of the pods move", b: "the slowest of evicting, creating and binding as many"},
		{name: "sum", ideal: "≥ 0.5", a: "half of the pods move", b: "evicting, creating and binding as many, one after the other"},
	},
	open: openRebalance,
}

// movePolicy gives every group that it names the same weight.
const movePolicy = "move"

// evictors is the number of concurrent evictions of the peer.
const evictors = 8

type rebalanceBench struct {
	*bed
	// sum is the sum of the peer's last measurement.
	sum sample
}

func openRebalance(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log, managerArgs: []string{"--evictions-per-second=1000000"}})
	if err != nil {
		return nil, err
	}
	r := &rebalanceBench{bed: b}
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func (r *rebalanceBench) prepare(ctx context.Context) error {
	if err := r.createGroups(ctx); err != nil {
		return err
	}
	policy := &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: movePolicy, Namespace: namespace},
		Spec: gm.PropagationSpec{
			PropagationStrategy: gm.StaticWeightPropagationStrategy,
			Assignment:          gm.AssignmentLate,
			StaticWeight:        []gm.StaticNodeGroupWeight{{Weight: 1, NodeGroupNames: r.groupNames(r.options.groups / 2)}},
			Rescheduling: gm.Rescheduling{
				Mode: gm.ReschedulingEvict, MaxUnavailable: int32(r.moves()), StabilizationSeconds: new(int32(0)),
			},
		},
	}
	if err := r.atoll.Create(ctx, policy); err != nil {
		return fmt.Errorf("creating PropagationPolicy %q: %w", policy.Name, err)
	}
	return r.cluster.Kill(ctx, devcluster.Scheduler)
}

// moves returns the number of pods that move.
func (r *rebalanceBench) moves() int { return r.options.pods / 2 }

func (r *rebalanceBench) groupNames(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = r.groupName(i)
	}
	return out
}

// nameGroups makes the policy name the first n groups.
func (r *rebalanceBench) nameGroups(ctx context.Context, n int) error {
	policy := &gm.PropagationPolicy{}
	if err := r.atoll.Get(ctx, types.NamespacedName{Namespace: namespace, Name: movePolicy}, policy); err != nil {
		return fmt.Errorf("reading PropagationPolicy %q: %w", movePolicy, err)
	}
	policy.Spec.StaticWeight[0].NodeGroupNames = r.groupNames(n)
	if err := r.atoll.Update(ctx, policy); err != nil {
		return fmt.Errorf("changing PropagationPolicy %q: %w", movePolicy, err)
	}
	return nil
}

func (r *rebalanceBench) sides(_ context.Context, variant string) (a, b side, err error) {
	bounded := func(name string, measure func(context.Context) (sample, error)) side {
		return side{name: name, measure: func(ctx context.Context) (sample, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
			defer cancel()
			return measure(ctx)
		}}
	}
	a, b = bounded("rebalance", r.move), bounded("floor", r.floor)
	if variant == "sum" {
		b = side{name: "floor, sum", measure: func(ctx context.Context) (sample, error) {
			if r.sum.rate == 0 { // the other variant is not measured
				if _, err := r.floor(ctx); err != nil {
					return sample{}, err
				}
			}
			s := r.sum
			r.sum = sample{}
			return s, nil
		}}
	}
	return a, b, nil
}

// move lets pods settle in half of the groups and then changes the policy.
func (r *rebalanceBench) move(ctx context.Context) (s sample, err error) {
	if err := r.nameGroups(ctx, r.options.groups/2); err != nil {
		return s, err
	}
	if err := r.createPods(ctx, workload{policy: movePolicy, atOnce: true}); err != nil {
		return s, err
	}
	if err := r.schedule(ctx, r.installed.SchedulerConfig, r.options.pods); err != nil {
		return s, err
	}
	if err := r.waitIdle(ctx); err != nil {
		return s, err
	}
	settled, err := r.uids(ctx, workload{})
	if err != nil {
		return s, err
	}
	// It also counts pods that are bound already.
	counter, err := startCounter(ctx, r.client, namespace, workload{}, r.options.pods+r.moves())
	if err != nil {
		return s, err
	}
	defer counter.stop()
	before, err := usageOf(ctx, r.cluster)
	if err != nil {
		return s, err
	}
	if err := r.nameGroups(ctx, r.options.groups); err != nil {
		return s, err
	}
	if _, err := counter.rate(ctx, r.scheduling); err != nil {
		return s, err
	}
	var placed map[types.UID]string
	var where found
	err = r.eventually(ctx, "every group to have its share", func(ctx context.Context) (bool, error) {
		if placed, err = r.uids(ctx, workload{}); err != nil {
			return false, err
		}
		where = check(settled, placed, r.pool, r.options.groups)
		return len(placed) == len(settled) && where.off+where.unbound == 0, nil
	})
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, where)
	}
	after, err := usageOf(ctx, r.cluster)
	if err != nil {
		return s, err
	}
	took := counter.last().Sub(before.at)
	used := after.since(before)
	s.rate, s.off, s.strangers = float64(r.moves())/took.Seconds(), where.off, used.strangers()
	s.facts = fmt.Sprintf("%.1f s, %d pods replaced; %s", took.Seconds(), where.replaced, used)
	if err := r.cluster.Kill(ctx, devcluster.Scheduler); err != nil {
		return s, err
	}
	return s, r.deletePods(ctx, workload{})
}

// schedule starts kube-scheduler and waits until so many pods are bound.
func (r *rebalanceBench) schedule(ctx context.Context, config []byte, pods int) error {
	counter, err := startCounter(ctx, r.client, namespace, workload{}, pods)
	if err != nil {
		return err
	}
	defer counter.stop()
	if err := r.cluster.RestartScheduler(ctx, config); err != nil {
		return err
	}
	_, err = counter.rate(ctx, r.scheduling)
	return err
}

// floor measures the parts of a move, each by itself.
func (r *rebalanceBench) floor(ctx context.Context) (s sample, err error) {
	created, err := r.creating(ctx)
	if err != nil {
		return s, err
	}
	bound, err := r.binding(ctx)
	if err != nil {
		return s, err
	}
	evicted, err := r.evicting(ctx)
	if err != nil {
		return s, err
	}
	s.off, s.strangers = -1, max(created.strangers, bound.strangers, evicted.strangers)
	s.rate = min(created.rate, bound.rate, evicted.rate)
	r.sum = sample{off: -1, strangers: s.strangers, rate: 1 / (1/created.rate + 1/bound.rate + 1/evicted.rate)}
	s.facts = fmt.Sprintf("created %.0f, bound %.0f, evicted %.0f pods/s", created.rate, bound.rate, evicted.rate)
	return s, r.deletePods(ctx, workload{})
}

// perSecond returns the rate of moved pods for a duration.
func (r *rebalanceBench) perSecond(s sample, err error) (sample, error) {
	s.rate = float64(r.moves()) / s.rate
	return s, err
}

func (r *rebalanceBench) creating(ctx context.Context) (sample, error) {
	d := r.deployment(workload{atOnce: true})
	if _, err := r.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return sample{}, fmt.Errorf("creating Deployment %q: %w", loadName, err)
	}
	return r.perSecond(r.timed(ctx, func(ctx context.Context) (string, error) { return "", r.scale(ctx, workload{}, r.moves()) }))
}

func (r *rebalanceBench) binding(ctx context.Context) (s sample, err error) {
	config, err := withoutKeys(r.installed.SchedulerConfig, "extenders")
	if err != nil {
		return s, err
	}
	if err := r.waitIdle(ctx); err != nil {
		return s, err
	}
	counter, err := startCounter(ctx, r.client, namespace, workload{}, r.moves())
	if err != nil {
		return s, err
	}
	defer counter.stop()
	before, err := usageOf(ctx, r.cluster)
	if err != nil {
		return s, err
	}
	if err := r.cluster.RestartScheduler(ctx, config); err != nil {
		return s, err
	}
	if s.rate, err = counter.rate(ctx, r.scheduling); err != nil {
		return s, err
	}
	after, err := usageOf(ctx, r.cluster)
	s.strangers = after.since(before).strangers()
	return s, errors.Join(err, r.cluster.Kill(ctx, devcluster.Scheduler))
}

// evicting evicts all pods while no controller creates new ones.
func (r *rebalanceBench) evicting(ctx context.Context) (sample, error) {
	if err := r.cluster.Kill(ctx, devcluster.ControllerManager); err != nil {
		return sample{}, err
	}
	pods, err := r.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return sample{}, fmt.Errorf("listing pods: %w", err)
	}
	s, err := r.perSecond(r.timed(ctx, func(ctx context.Context) (string, error) {
		names := make([]string, len(pods.Items))
		for i := range names {
			names[i] = pods.Items[i].Name
		}
		return "", inParallel(ctx, evictors, names, func(ctx context.Context, name string) error {
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			if err := r.client.PolicyV1().Evictions(namespace).Evict(ctx, eviction); err != nil {
				return fmt.Errorf("evicting pod %q: %w", name, err)
			}
			return nil
		})
	}))
	return s, errors.Join(err, r.cluster.Restart(ctx, devcluster.ControllerManager))
}

// last is when the last pod was seen bound.
func (c *counter) last() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.times[len(c.times)-1]
}
