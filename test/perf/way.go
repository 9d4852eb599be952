package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// way measures the time from the creation of a Deployment to its last pod bound, in each
// form.
var way = benchmark{
	name: "way", unit: "pods/s", nodes: 1000, pods: 2000,
	about: `Pods ÷ the time from the creation of their Deployment until the last of them is bound, against the same Deployment without a policy.

- 1,000 simulated nodes in 10 NodeGroups, each a zone of its own. The Deployment of 2,000 pods is created as users do, with its label and all its
  replicas, so the measured time includes the binding to its policy, the webhook, and kube-controller-manager, which creates the pods.
- Each side has its own kube-scheduler, which runs only in its turn. ` + "`pinned`" + `, ` + "`spread`" + ` (a hard topology spread over the zones, without a
  policy) and the peer have one with default configuration; ` + "`plain`" + ` has one that calls the extender for every pod; ` + "`isolated`" + ` has one that calls the extender, beside one with default configuration.
- atoll-manager runs all the time, for the peer too. kwok does not run: pods are bound and do not start.
- *CPU per pod* is what all processes of the cluster, atoll-manager among them, used for each pod.
- *Off by* is Σ over all groups of |pods placed − pods wanted|, and no pod may have been replaced meanwhile.`,
	variants: []variant{
		wayVariant("pinned", "≥ 0.9", "managed pods in the form Pinned"),
		wayVariant("isolated", "–", "managed pods in the form Isolated, assignment Late"),
		wayVariant("plain", "–", "managed pods in the form Plain, assignment Late"),
		wayVariant("spread", "–", "pods with hard topology spread over the groups"),
	},
	open: openWay,
}

func wayVariant(name, ideal, a string) variant {
	return variant{name: name, ideal: ideal, a: a, b: "the same pods without a policy"}
}

// earlyPolicy is the even policy whose pods get their group at creation.
const earlyPolicy = "early"

type wayBench struct {
	*bed
	// asking is the configuration of a kube-scheduler that calls the extender for every
	// pod.
	asking []byte
}

func openWay(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log})
	if err != nil {
		return nil, err
	}
	w := &wayBench{bed: b}
	if err := w.prepare(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (b *wayBench) prepare(ctx context.Context) error {
	if err := b.createGroups(ctx); err != nil {
		return err
	}
	early := &gm.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: earlyPolicy, Namespace: namespace},
		Spec: gm.PropagationSpec{
			PropagationStrategy: gm.StaticWeightPropagationStrategy,
			StaticWeight:        []gm.StaticNodeGroupWeight{{Weight: 1}},
		},
	}
	for i := range b.options.groups {
		early.Spec.StaticWeight[0].NodeGroupNames = append(early.Spec.StaticWeight[0].NodeGroupNames, b.groupName(i))
	}
	if err := b.atoll.Create(ctx, early); err != nil {
		return fmt.Errorf("creating PropagationPolicy %q: %w", early.Name, err)
	}
	var err error
	if b.asking, err = askingAll(b.installed.SchedulerConfig); err != nil {
		return err
	}
	return b.cluster.Kill(ctx, devcluster.Scheduler)
}

func (b *wayBench) sides(_ context.Context, variant string) (a, peer side, err error) {
	measure := func(w workload, config []byte, beside bool) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
			defer cancel()
			return b.measure(ctx, w, config, beside)
		}
	}
	peer = side{name: "without a policy", measure: measure(workload{}, []byte(bare), false)}
	a = side{name: variant}
	switch variant {
	case "pinned":
		a.measure = measure(workload{policy: earlyPolicy}, []byte(bare), false)
	case "isolated":
		a.measure = measure(workload{policy: evenPolicy}, b.asking, true)
	case "plain":
		a.measure = measure(workload{policy: evenPolicy}, b.asking, false)
	case "spread":
		a.measure = measure(workload{spread: true}, []byte(bare), false)
	default:
		err = fmt.Errorf("choosing sides: there is no variant %q", variant)
	}
	return a, peer, err
}

// wayScheduler binds the pods of a side.
const wayScheduler = "way"

// measure creates a Deployment and waits until its pods are bound.
func (b *wayBench) measure(ctx context.Context, w workload, config []byte, beside bool) (s sample, err error) {
	w.name = wayScheduler
	if config, err = serving(config, wayScheduler); err != nil {
		return s, err
	}
	if err := b.cluster.StartScheduler(ctx, wayScheduler, config); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, b.cluster.RemoveProcess(context.WithoutCancel(ctx), wayScheduler)) }()
	if beside {
		if err := b.cluster.Restart(ctx, devcluster.Scheduler); err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, b.cluster.Kill(context.WithoutCancel(ctx), devcluster.Scheduler)) }()
	}
	bound, err := startCounter(ctx, b.client, namespace, w, b.options.pods)
	if err != nil {
		return s, err
	}
	defer bound.stop()
	if err := b.waitIdle(ctx); err != nil {
		return s, err
	}
	before, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	deployment := b.deployment(w)
	deployment.Spec.Replicas = new(int32(b.options.pods))
	began := time.Now()
	if _, err := b.client.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return s, fmt.Errorf("creating Deployment %q: %w", w.deployed(), err)
	}
	alive := func(ctx context.Context) error {
		return b.alive(ctx, devcluster.APIServer, devcluster.Etcd, devcluster.ControllerManager, wayScheduler, atoll.Manager)
	}
	if _, err := bound.rate(ctx, alive); err != nil {
		return s, err
	}
	took := time.Since(began)
	after, err := usageOf(ctx, b.cluster)
	if err != nil {
		return s, err
	}
	if err := b.waitIdle(ctx); err != nil { // corrections by the controllers happen now
		return s, err
	}
	placed, err := b.uids(ctx, w)
	if err != nil {
		return s, err
	}
	used := after.since(before)
	where := check(placed, placed, b.pool, b.options.groups)
	where.replaced = bound.count() - b.options.pods // each pod is bound once
	s = sample{
		rate: float64(b.options.pods) / took.Seconds(), off: -1, strangers: used.strangers(), cpu: 1000 * used.cluster() / float64(b.options.pods),
		facts: fmt.Sprintf("%s; %.1f s, %s", where, took.Seconds(), used),
	}
	if w.policy != "" {
		s.off = where.off + where.replaced
	}
	return s, b.deletePods(ctx, w)
}
