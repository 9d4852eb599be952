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

// extender compares the number of pods that kube-scheduler binds a second with and
// without the extender.
var extender = benchmark{
	name: "extender", unit: "pods/s", places: true, nodes: 1000, pods: 2000,
	about: `Pods that kube-scheduler binds a second when it asks Atoll's extender (filter and bind over mutual TLS)
÷ pods that the same kube-scheduler binds a second without it.

- 1,000 simulated nodes in 10 NodeGroups of 100, each a zone of its own, and for each side one Deployment of 2,000 pods that names a
  kube-scheduler of its own. Managed pods require a PropagationPolicy that gives all groups the same weight; the peer's pods are those of
  the same Deployment without the label; spread asks for a hard topology spread over the zones.
- The pods are created first. Then each kube-scheduler warms up with 5 % of its pods, and the two take turns of 1.5 s, one stopped
  (SIGSTOP) while the other runs, until one has a fifth of its pods left. Pods a second are counted over a side's own turns: both meet
  the machine as it is in the same seconds. The same side against itself came to 1.00, 1.03 and 1.06 in three rounds.
- Both sides have percentageOfNodesToScore 100, as the chart sets it, and clientConnection qps and burst 5,000.
- atoll-manager runs all the time. kwok and kube-controller-manager do not: pods are bound and do not start, no Lease is renewed, and
  no controller counts the pods of a ReplicaSet again for each that is bound.
- In variants ` + "`managed`, `unmanaged` and `spread`" + ` kube-scheduler calls the extender for every pod (` + "`scheduler.asks: All`" + `), in ` + "`passed by`" + ` only for pods that
  atoll-manager has marked (` + "`scheduler.asks: Managed`" + `).
- Variant ` + "`limit`" + ` is the upper bound for an extender against a hard topology spread, if its calls cost nothing: kube-scheduler has the
  nodes of one group left after its filters, as after the extender's, scores those, and binds the pod itself.
- Variants ` + "`pinned` and `pinned spread`" + ` are of the form Pinned: pods are pinned to their group when they are
  created. In ` + "`pinned sampled` and `spread sampled`" + ` both sides' kube-schedulers have the default configuration: of 1,000 nodes they look for 420
  that fit, and then stop. A pod is pinned to 100 nodes, so they look at all nodes.
- Variant ` + "`isolated`" + ` is the form in which a second kube-scheduler calls the extender. Both sides' pods are bound by schedulers without an
  extender; the second one, leading, runs in A's turns only.
- *CPU per pod* is what all processes of the cluster, atoll-manager among them, used in a side's turns for each pod that it bound.
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
			name: "limit", ideal: "–",
			a: "pods that a node selector keeps to one group, without the extender", b: "pods with hard topology spread over the groups, without the extender",
		}, {
			name: "passed by", ideal: "≥ 0.97",
			a: "pods without a policy, with an extender that is asked about managed pods only", b: "the same pods, without the extender",
		}, {
			name: isolated, stage: isolated, ideal: "1.0",
			a: "pods without a policy, beside a second kube-scheduler with the extender", b: "the same pods, without a second kube-scheduler",
		}, {
			name: pinned, stage: pinned, ideal: "≥ 1.1",
			a: "managed pods, pinned when they were created", b: "the same pods without a policy",
		}, {
			name: pinnedSpread, stage: pinned, ideal: "≥ 1.0",
			a: "managed pods, pinned when they were created", b: "pods with hard topology spread over the groups",
		}, {
			name: pinnedSampled, stage: pinned, ideal: "–",
			a: "managed pods, pinned when they were created", b: "the same pods without a policy",
		}, {
			name: spreadSampled, stage: pinned, ideal: "–",
			a: "managed pods, pinned when they were created", b: "pods with hard topology spread over the groups",
		},
	},
	open: openExtender,
}

// extenderBench has a bed of one form at a time: that of the last variant.
type extenderBench struct {
	*bed
	stage   string // of the variant that the bed is for
	races   int    // so far
	wanted  options
	outside io.Writer // where progress is written
}

// openExtender creates no bed: the first variant does, because it has the form.
func openExtender(_ context.Context, o options, log io.Writer) (bench, error) {
	return &extenderBench{wanted: o, outside: log}, nil
}

// lay creates a bed for a stage, unless the current bed is of that stage.
func (e *extenderBench) lay(ctx context.Context, stage string) error {
	if e.bed != nil && e.stage == stage {
		return nil
	}
	if err := e.close(); err != nil {
		return err
	}
	b, err := makeBed(ctx, settings{options: e.wanted, second: stage == isolated, pinned: stage == pinned, log: e.outside})
	if err != nil {
		return err
	}
	e.bed, e.stage = b, stage
	if err := e.createGroups(ctx); err != nil {
		return err
	}
	return e.cluster.Kill(ctx, devcluster.Scheduler)
}

// close stops the bed, if there is one.
func (e *extenderBench) close() error {
	b := e.bed
	if b == nil {
		return nil
	}
	e.bed = nil
	return b.close()
}

// racing returns the two sides that a variant compares.
func (e *extenderBench) racing(ctx context.Context, variant string) (*race, error) {
	stage := variant
	switch variant {
	case pinnedSpread, pinnedSampled, spreadSampled:
		stage = pinned
	case isolated, pinned:
	default:
		stage = ""
	}
	if err := e.lay(ctx, stage); err != nil {
		return nil, err
	}
	if stage == pinned {
		return e.racingPinned(variant), nil
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
	peer := contender{name: "peer", workload: plain, config: without}
	spread := contender{name: "spread", workload: workload{spread: true}, config: without}
	switch variant {
	case "managed":
		a, b = contender{name: variant, workload: managed, config: with}, peer
	case "unmanaged":
		a, b = contender{name: variant, workload: plain, config: with}, peer
	case "spread":
		a, b = contender{name: "managed", workload: managed, config: with}, spread
	case "limit":
		a, b = contender{name: variant, workload: workload{zone: e.groupName(0)}, config: without}, spread
	case "passed by":
		a, b = contender{name: variant, workload: plain, config: managedOnly}, peer
	case isolated:
		a, b = contender{name: variant, workload: plain, config: without, beside: atoll.Scheduler}, peer
		err = e.startSecond(ctx)
	default:
		err = fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	return &race{a: a.name, b: b.name, run: func(ctx context.Context) (pair, error) { return e.race(ctx, a, b) }}, err
}

// The variants of the form Pinned.
const (
	pinned        = "pinned"
	pinnedSpread  = "pinned spread"
	pinnedSampled = "pinned sampled"
	spreadSampled = "spread sampled"
	// bare is a kube-scheduler's configuration that sets only the client limits.
	bare = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nclientConnection: {qps: 5000, burst: 5000}\n"
	// everyNode makes it score every node.
	everyNode = bare + "percentageOfNodesToScore: 100\n"
)

func (e *extenderBench) racingPinned(variant string) *race {
	config := everyNode
	if variant == pinnedSampled || variant == spreadSampled {
		config = bare
	}
	a := contender{name: variant, workload: workload{policy: evenPolicy}, config: []byte(config)}
	b := contender{name: "peer", workload: workload{}, config: []byte(config)}
	if variant == pinnedSpread || variant == spreadSampled {
		b = contender{name: "spread", workload: workload{spread: true}, config: []byte(config)}
	}
	return &race{a: a.name, b: b.name, run: func(ctx context.Context) (pair, error) { return e.race(ctx, a, b) }}
}

// askingAll changes a configuration so that the extender is called for every pod.
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

// found are the nodes of the pods at the end.
type found struct{ off, unbound, replaced int }

func (f found) String() string {
	text := fmt.Sprintf("Σ|placed−wanted| %d", f.off)
	if f.unbound+f.replaced > 0 {
		text += fmt.Sprintf(" (%d pods not bound, %d replaced)", f.unbound, f.replaced)
	}
	return text
}

// check compares the created pods with those of a LIST, and the groups of their nodes
// with equal shares.
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
