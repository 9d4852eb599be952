package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	toolscache "k8s.io/client-go/tools/cache"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/controller/podgroup"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// gangs measures the time that PodGroups add to the creation of pods, and the API calls
// that they cost.
var gangs = benchmark{
	name: "gangs", unit: "s or calls", nodes: 10, pods: 500,
	about: `The time from the creation of a Deployment with schedulerName volcano until all its pods have their PodGroup ÷ the time until the pods of the same
Deployment with another schedulerName exist; and the API calls of atoll-manager meanwhile.

- Both Deployments have 500 pods, which kube-controller-manager creates and no scheduler binds. The rules choose the Deployment itself (adjust-level 0).
  A pod has its PodGroup when it names the PodGroup and the PodGroup exists. Both sides are measured in turns, by the same watches of pods and PodGroups.
- ` + "`named`" + `: the pod webhook names the PodGroup. ` + "`by the controller`" + `: for these rounds, on both sides, the MutatingWebhookConfiguration is deleted, so
  that atoll-manager patches each pod after its creation. ` + "`against a patch`" + ` compares with pods of another scheduler that a client without any logic
  watches and patches in the same way, 16 at a time. This is the cost of a second write for each pod, for any client.
- The other rows are calls of atoll-manager to the API server, in the same rounds, until 6 s after the last pod has its PodGroup: ` + "`podgroups`" + ` created,
  ` + "`patches`" + ` of pods, ` + "`lists`" + ` of pods, and ` + "`reads`" + ` (GET) of owners, which are a Deployment and its ReplicaSet. The peer of each row is the number of objects that the call
  could be made for. The API server counts the calls: each kind of call of this ServiceAccount has its own FlowSchema, so no proxy is needed.
- ` + "`unrelated`" + `: all calls of atoll-manager during 5,000 changes of the status of 50 ReplicaSets, each with a pod of another scheduler.
- Watches, Leases, access reviews and the upkeep of certificates and webhooks are not counted: they do not depend on pods.`,
	variants: append(append(
		gangVariants(withWebhook, "with the webhook", "A = 0"),
		gangVariants(byController, "without the webhook", "≤ 1")...),
		variant{
			name: byController + patching, stage: byController, ideal: "≤ 1.2", a: "a Deployment until its pods have their PodGroup, without the webhook",
			b: "until its pods exist, of another scheduler, and a plain client has patched each",
		},
		variant{name: unrelated, stage: unrelated, ideal: "A = 0", a: "calls of atoll-manager", b: "changes of the status of ReplicaSets of other pods"},
	),
	open: func(ctx context.Context, o options, log io.Writer) (bench, error) {
		return openGangs(ctx, o, false, log)
	},
}

// gangsLimited measures the time of gangs in a cluster whose kube-controller-manager has
// its default limits.
var gangsLimited = benchmark{
	name: "gangs limited", unit: "s", nodes: 10, pods: 500,
	about: fmt.Sprintf("As `named` and `by the controller` of gangs, where kube-controller-manager has the limits that it has by default: %d requests a second, and %d at once.",
		defaultQPS, defaultBurst),
	variants: []variant{gangVariants(withWebhook, "with the webhook", "")[0], gangVariants(byController, "without the webhook", "")[0]},
	open: func(ctx context.Context, o options, log io.Writer) (bench, error) {
		return openGangs(ctx, o, true, log)
	},
}

const (
	// The stages: the webhook names the PodGroup of a pod; the controller does; pods need
	// no PodGroup.
	withWebhook, byController, unrelated = "named", withWebhook + later, "unrelated"
	// later is the suffix of the names of rows that are measured without the webhook.
	later = " by the controller"

	// Pods of scheduler volcano get PodGroups, pods of otherScheduler do not. Pods of
	// patchedScheduler do not either: patchAdded writes plainGroup into them.
	volcano, otherScheduler, patchedScheduler = "volcano", "other-scheduler", "patched-scheduler"
	plainGroup                                = "plain"

	// statusSets is the number of ReplicaSets, and statusChanges that of all changes of
	// their status.
	statusSets, statusChanges = 50, 5000

	// settleFor is longer than the longest delay after which atoll-manager acts on pods
	// whose PodGroup exists: 5 s, before it deletes a PodGroup that no pod needs.
	settleFor = 6 * time.Second

	rulesNamespace, rulesName = "volcano-system", "volcano-controller-configmap"

	// levelRules are rules by which the Deployment has the PodGroup of its pods.
	levelRules = "podgroupLevel:\n- apiversion: apps/v1\n  kind: deployment\n  adjust-level: 0\n"
)

// gangVariants returns the rows of a stage: its time, and its calls.
func gangVariants(stage, how, patches string) []variant {
	of := func(row string) string { return row + strings.TrimPrefix(stage, withWebhook) }
	return []variant{
		{name: stage, stage: stage, ideal: "≤ 1.2", a: "a Deployment until its pods have their PodGroup, " + how, b: "until its pods exist, of another scheduler, " + how},
		{name: of(podGroupCalls), stage: stage, ideal: "1", a: "PodGroups created, " + how, b: "Deployments"},
		{name: of(patchCalls), stage: stage, ideal: patches, a: "patches of pods, " + how, b: "pods"},
		{name: of(listCalls), stage: stage, ideal: "A = 0", a: "LISTs of pods, " + how, b: "pods"},
		{name: of(readCalls), stage: stage, ideal: "≤ 1", a: "reads of owners, " + how, b: "owners"},
	}
}

type gangsBench struct {
	*bed
	members *members
	limited bool
	// found is the last round of each stage.
	found map[string]*gangRound
	// rounds is the number of rounds of each stage.
	rounds map[string]int
}

// gangRound is a round of a stage: a pair for each of its rows, and the rows that were
// reported. A second request for the same row begins the next round.
type gangRound struct {
	pairs map[string]pair
	read  map[string]bool
}

func openGangs(ctx context.Context, o options, limited bool, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, pinned: true, gangs: true, limited: limited, log: log})
	if err != nil {
		return nil, err
	}
	g := &gangsBench{bed: b, limited: limited, found: map[string]*gangRound{}, rounds: map[string]int{}}
	if err := g.prepare(ctx); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *gangsBench) close() error {
	if g.members != nil {
		g.members.stop()
	}
	return g.bed.close()
}

func (g *gangsBench) prepare(ctx context.Context) error {
	// No scheduler may bind the pods.
	if err := g.cluster.Kill(ctx, devcluster.Scheduler); err != nil {
		return err
	}
	if err := g.setRules(ctx); err != nil {
		return err
	}
	if err := g.countCalls(ctx, atoll.Namespace, atoll.Manager); err != nil {
		return err
	}
	var err error
	if g.members, err = watchMembers(ctx, g.bed); err != nil {
		return err
	}
	for _, scheduler := range []string{volcano, otherScheduler, patchedScheduler} { // to open connections and fill caches
		if _, err := g.deploy(ctx, scheduler, g.options.pods/10); err != nil {
			return err
		}
	}
	return nil
}

// setRules writes the rules and waits until they are in force.
func (g *gangsBench) setRules(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: rulesNamespace}}
	if _, err := g.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %q: %w", rulesNamespace, err)
	}
	configs := g.client.CoreV1().ConfigMaps(rulesNamespace)
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: rulesName}, Data: map[string]string{ownership.LevelsKey: levelRules}}
	if _, err := configs.Create(ctx, config, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the rules: %w", err)
	}
	return g.eventually(ctx, "the rules to be in force", func(ctx context.Context) (bool, error) {
		config, err := configs.Get(ctx, rulesName, metav1.GetOptions{})
		if err != nil {
			return false, fmt.Errorf("reading the rules: %w", err)
		}
		return config.Annotations[podgroup.LastGoodAnnotation] == levelRules, nil
	})
}

// racing measures all rows of a stage in the same round.
func (g *gangsBench) racing(_ context.Context, name string) (*race, error) {
	stage, row := withWebhook, strings.Replace(name, later, "", 1)
	switch {
	case name == unrelated:
		stage = unrelated
	case row != name:
		stage = byController
	}
	return &race{a: name, b: "peer", run: func(ctx context.Context) (pair, error) {
		ctx, cancel := context.WithTimeout(ctx, 4*stepWithin)
		defer cancel()
		found := g.found[stage]
		if found == nil || found.read[row] { // the next round
			pairs, err := g.round(ctx, stage)
			if err != nil {
				return pair{}, err
			}
			found = &gangRound{pairs: pairs, read: map[string]bool{}}
			g.found[stage] = found
		}
		found.read[row] = true
		return found.pairs[row], nil
	}}, nil
}

func (g *gangsBench) round(ctx context.Context, stage string) (pairs map[string]pair, err error) {
	g.rounds[stage]++
	switch stage {
	case unrelated:
		return g.changeOthers(ctx)
	case byController:
		sides := []string{volcano, otherScheduler}
		if !g.limited {
			sides = append(sides, patchedScheduler)
		}
		err = g.withoutWebhook(ctx, func() (err error) {
			pairs, err = g.compare(ctx, stage, sides...)
			return err
		})
		return pairs, err
	default:
		return g.compare(ctx, stage, volcano, otherScheduler)
	}
}

// compare creates the Deployments of all sides, in every other round in reverse order.
func (g *gangsBench) compare(ctx context.Context, stage string, order ...string) (map[string]pair, error) {
	if g.rounds[stage]%2 == 0 {
		slices.Reverse(order)
	}
	times, asked := map[string]sample{}, callCounts{}
	for _, scheduler := range order {
		d, err := g.deploy(ctx, scheduler, g.options.pods)
		if err != nil {
			return nil, err
		}
		times[scheduler] = d.sample
		if scheduler == volcano {
			asked = d.asked
		}
	}
	pairs := map[string]pair{withWebhook: {times[volcano], times[otherScheduler]}, withWebhook + patching: {times[volcano], times[patchedScheduler]}}
	strangers := pairs[withWebhook].strangers()
	for row, objects := range map[string]int{podGroupCalls: 1, patchCalls: g.options.pods, listCalls: g.options.pods, readCalls: 2} {
		pairs[row] = counted(asked[row], objects, strangers)
	}
	return pairs, nil
}

// counted compares calls with the number of objects that they could be made for.
func counted(n, objects int, strangers float64) pair {
	return pair{a: sample{rate: float64(n), off: -1, strangers: strangers}, b: sample{rate: float64(objects), off: -1}}
}

// deployed has the time of the creation of a Deployment, and its calls.
type deployed struct {
	sample
	asked callCounts
}

// deploy creates a Deployment, waits until its pods have their PodGroups, and deletes
// everything.
func (g *gangsBench) deploy(ctx context.Context, scheduler string, pods int) (result deployed, err error) {
	w := workload{name: scheduler}
	d := g.deployment(w)
	d.Spec.Replicas = new(int32(pods))
	callsBefore, err := g.calls(ctx)
	if err != nil {
		return result, err
	}
	before, err := usageOf(ctx, g.cluster)
	if err != nil {
		return result, err
	}
	if scheduler == patchedScheduler {
		defer g.patchAdded(ctx, pods)()
	}
	began := time.Now()
	if d, err = g.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return result, fmt.Errorf("creating Deployment %q: %w", w.deployed(), err)
	}
	group := map[string]string{volcano: scheduling.PodGroupNamePrefix + string(d.UID), patchedScheduler: plainGroup}[scheduler]
	at, err := g.members.await(ctx, group, pods)
	if err != nil {
		return result, errors.Join(err, g.alive(ctx, devcluster.APIServer, devcluster.Etcd, devcluster.ControllerManager, atoll.Manager))
	}
	after, err := usageOf(ctx, g.cluster)
	if err != nil {
		return result, err
	}
	if err := rest(ctx, settleFor); err != nil {
		return result, err
	}
	callsAfter, err := g.calls(ctx)
	if err != nil {
		return result, err
	}
	used := after.since(before)
	result.asked = callsAfter.since(callsBefore)
	result.sample = sample{
		rate: at.Sub(began).Seconds(), off: -1, strangers: used.strangers(), cpu: 1000 * used.cluster() / float64(pods),
		facts: fmt.Sprintf("%d pods, calls: %s; %s", pods, result.asked, used),
	}
	if err := g.deletePods(ctx, w); err != nil {
		return result, err
	}
	_, err = g.members.await(ctx, "", 0)
	return result, err
}

// patchAdded writes the name of a PodGroup into the new pods, as a controller without any
// logic would, until the returned function is called.
func (g *gangsBench) patchAdded(ctx context.Context, pods int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	added := make(chan string, pods)
	g.members.notifyAdded(added)
	var patchers sync.WaitGroup
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, scheduling.GroupNameAnnotation, plainGroup)
	for range writers {
		patchers.Go(func() {
			for {
				select {
				case name := <-added:
					if _, err := g.client.CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && ctx.Err() == nil {
						fmt.Fprintf(g.log, "  patching pod %q: %v\n", name, err)
					}
				case <-ctx.Done():
					return
				}
			}
		})
	}
	return func() {
		g.members.notifyAdded(nil)
		cancel()
		patchers.Wait()
	}
}

// changeOthers changes the status of ReplicaSets whose pods have another scheduler.
func (g *gangsBench) changeOthers(ctx context.Context) (map[string]pair, error) {
	sets := g.client.AppsV1().ReplicaSets(namespace)
	w := workload{name: otherScheduler}
	names := make([]string, statusSets)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", otherScheduler, i)
		spec := g.deployment(w).Spec
		labels := map[string]string{"app": names[i]}
		spec.Template.Labels = labels
		set := &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: names[i]},
			Spec:       appsv1.ReplicaSetSpec{Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: spec.Template},
		}
		if _, err := sets.Create(ctx, set, metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("creating ReplicaSet %q: %w", names[i], err)
		}
	}
	if _, err := g.members.await(ctx, "", statusSets); err != nil {
		return nil, err
	}
	if err := g.waitIdle(ctx); err != nil {
		return nil, err
	}
	callsBefore, err := g.calls(ctx)
	if err != nil {
		return nil, err
	}
	s, err := g.timed(ctx, func(ctx context.Context) (string, error) {
		changes := make([]int, statusChanges)
		for i := range changes {
			changes[i] = i
		}
		return "", inParallel(ctx, writers, changes, func(ctx context.Context, i int) error {
			patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Perf","status":"True","message":"%d"}]}}`, i)
			if _, err := sets.Patch(ctx, names[i%statusSets], types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
				return fmt.Errorf("changing the status of ReplicaSet %q: %w", names[i%statusSets], err)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, settleFor); err != nil {
		return nil, err
	}
	callsAfter, err := g.calls(ctx)
	if err != nil {
		return nil, err
	}
	asked := callsAfter.since(callsBefore)
	p := counted(asked.sum(), statusChanges, s.strangers)
	p.a.facts, p.b.facts = "calls: "+asked.String(), fmt.Sprintf("in %.1f s; %s", s.rate, s.facts)
	if err := g.deletePods(ctx, w); err != nil {
		return nil, err
	}
	_, err = g.members.await(ctx, "", 0)
	return map[string]pair{unrelated: p}, err
}

// members are the pods and PodGroups of the namespace, from watches.
type members struct {
	stop func()
	// changed has an element if they have changed since the last receive.
	changed chan struct{}

	mu sync.Mutex
	// pods are the PodGroups that pods name, by name of the pod; "" is none. sizes
	// counts them.
	pods  map[string]string
	sizes map[string]int
	// groups are the names of PodGroups.
	groups map[string]bool
	// added receives the names of new pods, if it is not nil.
	added chan<- string
}

func watchMembers(ctx context.Context, b *bed) (*members, error) {
	objects, err := dynamic.NewForConfig(b.cluster.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	m := &members{changed: make(chan struct{}, 1), pods: map[string]string{}, sizes: map[string]int{}, groups: map[string]bool{}}
	factory := informers.NewSharedInformerFactoryWithOptions(b.client, 0, informers.WithNamespace(namespace))
	watches := []struct {
		informer toolscache.SharedIndexInformer
		set      func(name string, o metav1.Object)
	}{
		{factory.Core().V1().Pods().Informer(), m.setPod},
		{dynamicinformer.NewFilteredDynamicInformer(objects, scheduling.GroupVersion.WithResource("podgroups"), namespace, 0, toolscache.Indexers{}, nil).Informer(), m.setGroup},
	}
	running, cancel := context.WithCancel(ctx)
	var ended sync.WaitGroup
	m.stop = func() {
		cancel()
		ended.Wait()
	}
	for _, w := range watches {
		notify := func(obj any) {
			if o, ok := obj.(metav1.Object); ok {
				m.note(func() { w.set(o.GetName(), o) })
			}
		}
		registration, err := w.informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, obj any) { notify(obj) },
			DeleteFunc: func(obj any) {
				if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
					m.note(func() { w.set(key.Name, nil) })
				}
			},
		})
		if err != nil {
			m.stop()
			return nil, fmt.Errorf("watching pods and PodGroups: %w", err)
		}
		ended.Go(func() { w.informer.RunWithContext(running) })
		if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
			m.stop()
			return nil, fmt.Errorf("watching pods and PodGroups: %w", ctx.Err())
		}
	}
	return m, nil
}

func (m *members) note(change func()) {
	m.mu.Lock()
	change()
	m.mu.Unlock()
	select {
	case m.changed <- struct{}{}:
	default: // a waiter checks again in any case
	}
}

// notifyAdded sets the channel to which the names of new pods are sent, which must have
// enough capacity; nil means none.
func (m *members) notifyAdded(added chan<- string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.added = added
}

// setPod records the PodGroup that a pod names; nil means that the pod was deleted.
func (m *members) setPod(name string, o metav1.Object) {
	group, known := m.pods[name]
	if known {
		m.sizes[group]--
		delete(m.pods, name)
	} else if o != nil && m.added != nil {
		m.added <- name
	}
	if o != nil {
		group = o.GetAnnotations()[scheduling.GroupNameAnnotation]
		m.pods[name] = group
		m.sizes[group]++
	}
}

func (m *members) setGroup(name string, o metav1.Object) {
	if o == nil {
		delete(m.groups, name)
	} else {
		m.groups[name] = true
	}
}

// are returns an error unless there are exactly the given number of pods, all in the
// given PodGroup, which is the only one; "" means no PodGroup.
func (m *members) are(group string, pods int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	groups := 0
	if group != "" && group != plainGroup {
		groups = 1
	}
	if len(m.pods) != pods || m.sizes[group] != pods || len(m.groups) != groups || groups == 1 && !m.groups[group] {
		return fmt.Errorf("there are %d pods and %d PodGroups, and %d pods name %q: want %d in %d", len(m.pods), len(m.groups), m.sizes[group], group, pods, groups)
	}
	return nil
}

// await returns when the given number of pods are in a PodGroup.
func (m *members) await(ctx context.Context, group string, pods int) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, stepWithin)
	defer cancel()
	for {
		err := m.are(group, pods)
		if err == nil {
			return time.Now(), nil
		}
		select {
		case <-m.changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for pods in their PodGroup: %w: %w", ctx.Err(), err)
		}
	}
}
