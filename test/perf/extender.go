package main

import (
	"context"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// extender compares the pods that kube-scheduler binds a second with and
// without the extender.
var extender = benchmark{
	name: "extender", unit: "pods/s", places: true, nodes: 1000, pods: 2000,
	about: `Pods that kube-scheduler binds a second when it asks Atoll's extender (filter and bind over mutual TLS)
÷ pods that the same kube-scheduler binds a second without it.

- One Deployment of 2,000 pods, 1,000 simulated nodes in 10 NodeGroups of 100. Managed pods require a PropagationPolicy that gives
  all groups the same weight; the peer's pods are those of the same Deployment without the label.
- The pods are created first, without a scheduler. Then a fresh kube-scheduler starts, and pods are counted from 5 % to 100 % bound.
- Both sides have percentageOfNodesToScore 100, as the chart sets it, and clientConnection qps and burst 5,000.
- atoll-manager runs during the rounds of both sides. kwok and kube-controller-manager do not: pods are bound and do not start, no Lease
  is renewed, and nobody counts the pods of the ReplicaSet again for each that is bound.
- In variants ` + "`managed`, `unmanaged` and `spread`" + ` kube-scheduler asks about every pod (` + "`scheduler.asks: All`" + `), in ` + "`passed by`" + ` about those only that
  atoll-manager has marked (` + "`scheduler.asks: Managed`" + `).
- Variant ` + "`isolated`" + ` is the form in which a second kube-scheduler asks the extender. Both sides' pods are bound by the cluster's own, which has
  no extender; beside it A has the second one running and leading, B has not.
- *CPU per pod* is what all processes of the cluster, atoll-manager among them, used for one pod; it hardly depends on what else runs.
- *Off by* is Σ over all groups of |pods placed − pods wanted|, the worst of A's rounds, and no pod may have been replaced meanwhile.`,
	variants: []variant{
		{
			name: "managed", ideal: "≥ 0.9",
			a: "managed pods, with the extender", b: "the same pods without a policy, without the extender",
		}, {
			name: "unmanaged", ideal: "≥ 0.97",
			a: "pods without a policy, with the extender", b: "the same pods, without the extender",
		}, {
			name: "spread", ideal: "≥ 1.2",
			a: "managed pods, with the extender", b: "pods with hard topology spread over the groups, without the extender",
		}, {
			name: "passed by", ideal: "≥ 0.97",
			a: "pods without a policy, with an extender that is asked about managed pods only", b: "the same pods, without the extender",
		}, {
			name: isolated, stage: isolated, ideal: "1.0",
			a: "pods without a policy, beside a second kube-scheduler with the extender", b: "the same pods, without a second kube-scheduler",
		},
	},
	open: openExtender,
}

// extenderBench has a bed of one form at a time: the last variant's.
type extenderBench struct {
	*bed
	second  bool // the bed has a second kube-scheduler
	races   int  // so far
	wanted  options
	outside io.Writer // where progress is shown
}

// openExtender leaves the bed to the first variant: it knows the form.
func openExtender(_ context.Context, o options, log io.Writer) (bench, error) {
	return &extenderBench{wanted: o, outside: log}, nil
}

// lay makes a bed of a form, unless that is what there is.
func (e *extenderBench) lay(ctx context.Context, second bool) error {
	if e.bed != nil && e.second == second {
		return nil
	}
	if err := e.close(); err != nil {
		return err
	}
	b, err := makeBed(ctx, settings{options: e.wanted, second: second, log: e.outside})
	if err != nil {
		return err
	}
	e.bed, e.second = b, second
	if err := e.createGroups(ctx); err != nil {
		return err
	}
	return e.cluster.Kill(ctx, devcluster.Scheduler)
}

// close takes the bed away, if there is one.
func (e *extenderBench) close() error {
	b := e.bed
	if b == nil {
		return nil
	}
	e.bed = nil
	return b.close()
}

// sides returns what a variant compares that is no race.
func (e *extenderBench) sides(ctx context.Context, _ string) (a, b side, err error) {
	if err := e.lay(ctx, true); err != nil {
		return a, b, err
	}
	return e.isolatedSides()
}

// racing returns what a variant compares, but for the one whose sides differ in
// what runs beside.
func (e *extenderBench) racing(ctx context.Context, variant string) (*race, error) {
	if variant == isolated {
		return nil, nil
	}
	if err := e.lay(ctx, false); err != nil {
		return nil, err
	}
	managedOnly := e.installed.SchedulerConfig
	with, err := askingAll(managedOnly)
	if err != nil {
		return nil, err
	}
	without, err := withoutKeys(with, "extenders")
	if err != nil {
		return nil, err
	}
	var a, b contender
	managed, plain := workload{policy: evenPolicy}, workload{}
	peer := contender{"peer", plain, without}
	switch variant {
	case "managed":
		a, b = contender{variant, managed, with}, peer
	case "unmanaged":
		a, b = contender{variant, plain, with}, peer
	case "spread":
		a, b = contender{"managed", managed, with}, contender{variant, workload{spread: true}, without}
	case "passed by":
		a, b = contender{variant, plain, managedOnly}, peer
	default:
		return nil, fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	return &race{a: a.name, b: b.name, run: func(ctx context.Context) (pair, error) { return e.race(ctx, a, b) }}, nil
}

// askingAll makes the extender of a configuration be asked about every pod.
func askingAll(config []byte) ([]byte, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %w", err)
	}
	extenders, _ := fields["extenders"].([]any)
	for _, e := range extenders {
		if extender, ok := e.(map[string]any); ok {
			delete(extender, "managedResources")
		}
	}
	out, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler's configuration: %w", err)
	}
	return out, nil
}

// withoutKeys drops keys of a configuration.
func withoutKeys(config []byte, keys ...string) ([]byte, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %w", err)
	}
	for _, key := range keys {
		if _, ok := fields[key]; !ok {
			return nil, fmt.Errorf("changing the scheduler's configuration: it has no %s to drop", key)
		}
		delete(fields, key)
	}
	out, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler's configuration: %w", err)
	}
	return out, nil
}

// round creates the pods, lets a fresh scheduler loose on them, and takes all
// away again.
func (e *extenderBench) round(ctx context.Context, w workload, config []byte) (s sample, err error) {
	if err := e.createPods(ctx, w); err != nil {
		return s, err
	}
	created, err := e.uids(ctx, w)
	if err != nil {
		return s, err
	}
	counter, err := startCounter(ctx, e.client, namespace, w, e.options.pods)
	if err != nil {
		return s, err
	}
	defer counter.stop()
	// It would look at all pods of the ReplicaSet for each that is bound, and
	// take a sixth of two cores for that.
	if err := e.cluster.Kill(ctx, devcluster.ControllerManager); err != nil {
		return s, err
	}
	before, err := usageOf(ctx, e.cluster)
	if err != nil {
		return s, err
	}
	if err := e.cluster.RestartScheduler(ctx, config); err != nil {
		return s, err
	}
	if s.rate, err = counter.rate(ctx, e.scheduling); err != nil {
		return s, err
	}
	after, err := usageOf(ctx, e.cluster)
	if err != nil {
		return s, err
	}
	if err := e.cluster.Kill(ctx, devcluster.Scheduler); err != nil {
		return s, err
	}
	placed, err := e.uids(ctx, w)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	s.off, s.strangers = -1, used.strangers()
	s.cpu = 1000 * used.cluster() / float64(e.options.pods)
	found := check(created, placed, e.pool, e.options.groups)
	s.facts = fmt.Sprintf("%s; %.1f s with its start, %s", found, after.at.Sub(before.at).Seconds(), used)
	if w.policy != "" {
		s.off = found.off
	}
	if found.unbound+found.replaced > 0 {
		return s, fmt.Errorf("checking where pods are: %s", found)
	}
	if err := e.cluster.Restart(ctx, devcluster.ControllerManager); err != nil {
		return s, err
	}
	return s, e.deletePods(ctx, w)
}

// scheduling returns an error if pods cannot be bound because somebody is gone.
func (e *extenderBench) scheduling(ctx context.Context) error {
	return e.alive(ctx, devcluster.APIServer, devcluster.Etcd, devcluster.Scheduler, atoll.Manager)
}

// found is where pods are in the end.
type found struct{ off, unbound, replaced int }

func (f found) String() string {
	text := fmt.Sprintf("Σ|placed−wanted| %d", f.off)
	if f.unbound+f.replaced > 0 {
		text += fmt.Sprintf(" (%d pods not bound, %d replaced)", f.unbound, f.replaced)
	}
	return text
}

// check compares the pods that were created with those that a LIST found, and
// the groups of their nodes with equal shares.
func check(created, placed map[types.UID]string, pool map[string]string, groups int) found {
	var f found
	count := map[string]int{}
	for uid := range created {
		if _, ok := placed[uid]; !ok {
			f.replaced++
		}
	}
	for _, node := range placed {
		if node == "" {
			f.unbound++
			continue
		}
		count[pool[node]]++
	}
	share := len(created) / groups
	for _, n := range count {
		f.off += max(n-share, share-n)
	}
	f.off += share * (groups - len(count)) // groups without a pod
	return f
}
