package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
)

// pools measures how fast nodes join many NodePools.
var pools = benchmark{
	name: "pools", unit: "nodes/s", nodes: 5000, pods: 200,
	about: `Nodes that join NodePools a second when all pools are created at once ÷ the same writes by plain clients, as fast as the API server accepts them.

- 1,000 NodePools of 5 of 5,000 nodes each, by selector, each with a label, an annotation and a taint. The time is measured from the first pool
  created to the last status that names all five.
- The peer does the minimum of writes: one patch for each node, and for each pool one for its finalizer and one for its status, by 16 clients.
- atoll-manager does not limit its requests a second: the API server's priority and fairness is the limit.`,
	variants: []variant{{name: "join", ideal: "≥ 0.5", a: "NodePools take in all nodes", b: "the writes alone"}},
	open:     openPools,
}

// united measures the writes of a UnitedDeployment.
var united = benchmark{
	name: "united", nodes: 5000, pods: 200,
	about: `Workloads created a second for one UnitedDeployment ÷ the same Deployments created by plain clients, and the API server's CPU time for an update of 300 pools ÷ for the same writes.

- The time is measured from the creation of the UnitedDeployment to the creation of the last Deployment. They have no replicas, and the controller manager is stopped.
- The peer is eight clients that send the same writes; for ` + "`update 300`" + ` to the Deployments of a UnitedDeployment that was deleted with --cascade=orphan.
- ` + "`update 300`" + `: the image of all pools changes at once (maxUpdatingPools 300). The controller manager runs, and the CPU time is that until all Deployments are updated and the cluster is idle.`,
	variants: []variant{createVariant("100", "≥ 0.7"), createVariant("300", "≥ 0.7"), createVariant("1000", "≥ 0.5"), {
		name: "update 300", unit: "CPU s", ideal: "≤ 1.1", a: "one UnitedDeployment is updated", b: "the same Deployments are updated by eight clients",
	}},
	open: openPools,
}

func createVariant(pools, ideal string) variant {
	return variant{name: "create " + pools, unit: "workloads/s", ideal: ideal, a: "one UnitedDeployment is created", b: "its Deployments are created, eight at a time"}
}

// atOnce is the number of requests of the peers of united that are sent at the same time.
const atOnce = 8

const (
	// nodesOfPool is the number of nodes of a pool.
	nodesOfPool = 5
	// siteLabel is on every node: the pool that selects it.
	siteLabel = "site"
	// manyPools is the name of the UnitedDeployment.
	manyPools = "many"
)

type poolsBench struct {
	*bed
	apps client.Client
	// sites are the names of the pools. united are those of the variant
	// that is measured.
	sites, united []string
}

func openPools(ctx context.Context, o options, log io.Writer) (bench, error) {
	b, err := makeBed(ctx, settings{options: o, log: log})
	if err != nil {
		return nil, err
	}
	p := &poolsBench{bed: b}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *poolsBench) prepare(ctx context.Context) error {
	scheme := p.atoll.Scheme()
	if err := apps.AddToScheme(scheme); err != nil {
		return fmt.Errorf("making a scheme: %w", err)
	}
	var err error
	if p.apps, err = client.New(p.cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	for i := range p.options.nodes / nodesOfPool {
		p.sites = append(p.sites, fmt.Sprint("site-", i))
	}
	if err := p.cluster.Kill(ctx, devcluster.ControllerManager); err != nil {
		return err
	}
	return p.patchNodes(ctx, func(i int) string {
		return fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, siteLabel, p.sites[i/nodesOfPool])
	})
}

// patchNodes patches every node, many at a time.
func (p *poolsBench) patchNodes(ctx context.Context, patch func(i int) string) error {
	numbers := make([]int, p.options.nodes)
	for i := range numbers {
		numbers[i] = i
	}
	return inParallel(ctx, writers, numbers, func(ctx context.Context, i int) error {
		_, err := p.client.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, []byte(patch(i)), metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("patching node %q: %w", nodeName(i), err)
		}
		return nil
	})
}

func (p *poolsBench) sides(_ context.Context, variant string) (a, b side, err error) {
	verb, number, _ := strings.Cut(variant, " ")
	if verb == "join" {
		return side{"NodePools", p.rated(p.options.nodes, p.join)}, side{"plain", p.rated(p.options.nodes, p.write)}, nil
	}
	n, err := strconv.Atoi(number)
	if err != nil {
		return a, b, fmt.Errorf("choosing sides: variant %q: %w", variant, err)
	}
	n = min(n, len(p.sites))
	of := func(measure func(context.Context) (sample, error)) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			p.united = p.sites[:n]
			return measure(ctx)
		}
	}
	a, b = side{name: "UnitedDeployment " + number}, side{name: "plain " + number}
	if verb == "update" {
		a.measure, b.measure = of(p.updating(false, p.updateUnited)), of(p.updating(true, p.updateDeployments))
		a.name, b.name = a.name+" updated", b.name+" updated"
	} else {
		a.measure, b.measure = of(p.rated(n, p.unite)), of(p.rated(n, p.createDeployments))
	}
	return a, b, nil
}

// rated returns n divided by the duration of do, as a rate; do returns a function that
// cleans up.
func (p *poolsBench) rated(n int, do func(context.Context) (clear func(context.Context) error, err error)) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
		defer cancel()
		var clear func(context.Context) error
		s, err := p.timed(ctx, func(ctx context.Context) (facts string, err error) {
			clear, err = do(ctx)
			return fmt.Sprintf("%d in all", n), err
		})
		if err != nil {
			return s, err
		}
		s.rate = float64(n) / s.rate
		return s, clear(ctx)
	}
}

func (p *poolsBench) pool(site string, selects bool) *apps.NodePool {
	pool := &apps.NodePool{
		ObjectMeta: metav1.ObjectMeta{Name: site},
		Spec: apps.NodePoolSpec{
			Labels:      map[string]apps.LabelValue{"example.com/given": apps.LabelValue(site)},
			Annotations: map[string]apps.AnnotationValue{"example.com/given": apps.AnnotationValue(site)},
			Taints:      []apps.NodePoolTaint{{Key: "given", Value: apps.LabelValue(site), Effect: corev1.TaintEffectPreferNoSchedule}},
		},
	}
	if selects {
		pool.Spec.Selector = &apps.NodeSelector{MatchLabels: map[string]apps.LabelValue{siteLabel: apps.LabelValue(site)}}
	}
	return pool
}

func (p *poolsBench) createPools(ctx context.Context, selects bool) error {
	return inParallel(ctx, writers, p.sites, func(ctx context.Context, site string) error {
		if err := p.apps.Create(ctx, p.pool(site, selects)); err != nil {
			return fmt.Errorf("creating NodePool %q: %w", site, err)
		}
		return nil
	})
}

// join creates the pools and waits until each has its nodes.
func (p *poolsBench) join(ctx context.Context) (func(context.Context) error, error) {
	if err := p.createPools(ctx, true); err != nil {
		return nil, err
	}
	return p.leave, p.awaitPools(ctx, "the NodePools to have their nodes", nodesOfPool)
}

// awaitPools waits until the status of every pool has the given number of nodes.
func (p *poolsBench) awaitPools(ctx context.Context, what string, nodes int) error {
	return p.eventually(ctx, what, func(ctx context.Context) (bool, error) {
		var list apps.NodePoolList
		if err := p.apps.List(ctx, &list); err != nil {
			return false, fmt.Errorf("listing NodePools: %w", err)
		}
		for i := range list.Items {
			if len(list.Items[i].Status.Nodes) != nodes {
				return false, nil
			}
		}
		return len(list.Items) == len(p.sites), nil
	})
}

// leave removes all nodes from the pools and deletes the pools.
func (p *poolsBench) leave(ctx context.Context) error {
	err := inParallel(ctx, writers, p.sites, func(ctx context.Context, site string) error {
		pool := p.pool(site, false)
		if err := p.apps.Patch(ctx, pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"selector":null}}`))); err != nil {
			return fmt.Errorf("emptying NodePool %q: %w", site, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.deletePools(ctx)
}

func (p *poolsBench) deletePools(ctx context.Context) error {
	if err := p.awaitPools(ctx, "the NodePools to be empty", 0); err != nil {
		return err
	}
	if err := p.apps.DeleteAllOf(ctx, &apps.NodePool{}); err != nil {
		return fmt.Errorf("deleting the NodePools: %w", err)
	}
	return p.eventually(ctx, "the NodePools to go", func(ctx context.Context) (bool, error) {
		var list apps.NodePoolList
		err := p.apps.List(ctx, &list)
		return err == nil && len(list.Items) == 0, err
	})
}

// write creates the pools without nodes, and does the minimum of writes that pools with
// nodes need.
func (p *poolsBench) write(ctx context.Context) (func(context.Context) error, error) {
	if err := p.createPools(ctx, false); err != nil {
		return nil, err
	}
	err := p.patchNodes(ctx, func(i int) string {
		site := p.sites[i/nodesOfPool]
		return fmt.Sprintf(`{"metadata":{"labels":{"example.com/written":%[1]q},"annotations":{"example.com/written":%[1]q}},"spec":{"taints":[{"key":"written","value":%[1]q,"effect":"PreferNoSchedule"}]}}`, site)
	})
	if err != nil {
		return nil, err
	}
	err = inParallel(ctx, writers, p.sites, func(ctx context.Context, site string) error {
		pool := p.pool(site, false)
		if err := p.apps.Patch(ctx, pool, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"example.com/written":"yes"}}}`))); err != nil {
			return fmt.Errorf("patching NodePool %q: %w", site, err)
		}
		status := fmt.Appendf(nil, `{"status":{"observedGeneration":1,"conditions":[{"type":"Written","status":"True","reason":"Written","message":%q,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, site)
		if err := p.apps.Status().Patch(ctx, pool, client.RawPatch(types.MergePatchType, status)); err != nil {
			return fmt.Errorf("patching the status of NodePool %q: %w", site, err)
		}
		return nil
	})
	return func(ctx context.Context) error {
		err := p.patchNodes(ctx, func(int) string {
			return `{"metadata":{"labels":{"example.com/written":null},"annotations":{"example.com/written":null}},"spec":{"taints":null}}`
		})
		return errors.Join(err, p.deletePools(ctx))
	}, err
}

// unite creates a UnitedDeployment and waits for its workloads.
func (p *poolsBench) unite(ctx context.Context) (func(context.Context) error, error) {
	app := map[string]string{"app": manyPools}
	ud := &apps.UnitedDeployment{
		ObjectMeta: metav1.ObjectMeta{Name: manyPools, Namespace: namespace},
		Spec: apps.UnitedDeploymentSpec{
			Selector:         &metav1.LabelSelector{MatchLabels: app},
			WorkloadTemplate: apps.WorkloadTemplate{DeploymentTemplate: &apps.DeploymentTemplateSpec{Spec: p.deployment(workload{}).Spec}},
			UpdateStrategy:   apps.UnitedDeploymentUpdateStrategy{MaxUpdatingPools: new(int32(len(p.united)))},
		},
	}
	template := &ud.Spec.WorkloadTemplate.DeploymentTemplate.Spec
	template.Replicas, template.Selector, template.Template.Labels = nil, nil, app
	for _, site := range p.united {
		ud.Spec.Topology.Pools = append(ud.Spec.Topology.Pools, apps.Pool{Name: site, Replicas: new(intstr.FromInt32(0))})
	}
	await, stop := p.watchDeployments(ctx)
	defer stop()
	if err := p.apps.Create(ctx, ud); err != nil {
		return nil, fmt.Errorf("creating UnitedDeployment %q: %w", ud.Name, err)
	}
	return func(ctx context.Context) error {
		if err := p.apps.Delete(ctx, ud); err != nil {
			return fmt.Errorf("deleting UnitedDeployment %q: %w", ud.Name, err)
		}
		return p.deleteDeployments(ctx) // the garbage collector does not run
	}, await(exists)
}

// createDeployments creates the same number of Deployments with a client.
func (p *poolsBench) createDeployments(ctx context.Context) (func(context.Context) error, error) {
	await, stop := p.watchDeployments(ctx)
	defer stop()
	err := inParallel(ctx, atOnce, p.united, func(ctx context.Context, site string) error {
		d := p.deployment(workload{})
		d.Name = manyPools + "-" + site
		if _, err := p.client.AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating Deployment %q: %w", d.Name, err)
		}
		return nil
	})
	return p.deleteDeployments, errors.Join(err, await(exists))
}

// watchDeployments returns a function that waits until there is one Deployment for each pool, and
// all fulfil a condition.
func (p *poolsBench) watchDeployments(ctx context.Context) (until func(func(*appsv1.Deployment) bool) error, stop func()) {
	watching, stop := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(namespace))
	deployments := factory.Apps().V1().Deployments().Lister()
	factory.Start(watching.Done())
	factory.WaitForCacheSync(watching.Done())
	return func(is func(*appsv1.Deployment) bool) error {
		err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, stepWithin, true, func(context.Context) (bool, error) {
			all, err := deployments.List(labels.Everything())
			return len(all) == len(p.united) && !slices.ContainsFunc(all, func(d *appsv1.Deployment) bool { return !is(d) }), err
		})
		if err != nil {
			return fmt.Errorf("waiting for the Deployments: %w", err)
		}
		return nil
	}, stop
}

func exists(*appsv1.Deployment) bool { return true }

// has reports whether the controller manager has seen an image.
func has(image string) func(*appsv1.Deployment) bool {
	return func(d *appsv1.Deployment) bool {
		return d.Spec.Template.Spec.Containers[0].Image == image && d.Status.ObservedGeneration == d.Generation
	}
}

// updated is the image after an update.
const updated = "nginx:1.28"

func (p *poolsBench) updateUnited(ctx context.Context, _ []appsv1.Deployment) error {
	ud := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Name: manyPools, Namespace: namespace}}
	patch := fmt.Appendf(nil, `[{"op":"replace","path":"/spec/workloadTemplate/deploymentTemplate/spec/template/spec/containers/0/image","value":%q}]`, updated)
	if err := p.apps.Patch(ctx, ud, client.RawPatch(types.JSONPatchType, patch)); err != nil {
		return fmt.Errorf("updating UnitedDeployment %q: %w", ud.Name, err)
	}
	return nil
}

func (p *poolsBench) updateDeployments(ctx context.Context, all []appsv1.Deployment) error {
	return inParallel(ctx, atOnce, all, func(ctx context.Context, d appsv1.Deployment) error {
		d.Spec.Template.Spec.Containers[0].Image = updated
		if _, err := p.client.AppsV1().Deployments(namespace).Update(ctx, &d, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("updating Deployment %q: %w", d.Name, err)
		}
		return nil
	})
}

// updating returns a round that measures the API server's CPU time for an update of all pools,
// until every Deployment is updated and the cluster is idle. orphaned Deployments are those of a
// UnitedDeployment that was deleted without them: the same objects, which atoll-manager leaves
// alone.
func (p *poolsBench) updating(orphaned bool, update func(context.Context, []appsv1.Deployment) error) func(context.Context) (sample, error) {
	return func(ctx context.Context) (s sample, err error) {
		ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
		defer cancel()
		clear, err := p.unite(ctx)
		if err != nil {
			return s, err
		}
		if err := p.cluster.Restart(ctx, devcluster.ControllerManager); err != nil {
			return s, err
		}
		if orphaned {
			if err := p.orphan(ctx); err != nil {
				return s, err
			}
			clear = p.deleteDeployments
		}
		await, stop := p.watchDeployments(ctx)
		defer stop()
		if err := errors.Join(await(has(p.deployment(workload{}).Spec.Template.Spec.Containers[0].Image)), p.waitIdle(ctx)); err != nil {
			return s, err
		}
		all, err := p.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return s, fmt.Errorf("listing Deployments: %w", err)
		}
		before, err := usageOf(ctx, p.cluster)
		if err != nil {
			return s, err
		}
		began := time.Now()
		if err := errors.Join(update(ctx, all.Items), await(has(updated))); err != nil {
			return s, err
		}
		took := time.Since(began)
		if err := p.waitIdle(ctx); err != nil {
			return s, err
		}
		after, err := usageOf(ctx, p.cluster)
		if err != nil {
			return s, err
		}
		used := after.since(before)
		s = sample{rate: used.by[devcluster.APIServer], off: -1, strangers: used.strangers(), facts: fmt.Sprintf("%d in %.1f s; %s", len(all.Items), took.Seconds(), used)}
		return s, errors.Join(p.cluster.Kill(ctx, devcluster.ControllerManager), clear(ctx), p.deleteReplicaSets(ctx))
	}
}

// orphan deletes the UnitedDeployment without its Deployments.
func (p *poolsBench) orphan(ctx context.Context) error {
	ud := &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Name: manyPools, Namespace: namespace}}
	if err := p.apps.Delete(ctx, ud, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		return fmt.Errorf("deleting UnitedDeployment %q: %w", ud.Name, err)
	}
	return p.eventually(ctx, "the UnitedDeployment to go", func(ctx context.Context) (bool, error) {
		err := p.apps.Get(ctx, client.ObjectKeyFromObject(ud), ud)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
}

func (p *poolsBench) deleteReplicaSets(ctx context.Context) error {
	if err := p.client.AppsV1().ReplicaSets(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("deleting ReplicaSets: %w", err)
	}
	return nil
}

func (p *poolsBench) deleteDeployments(ctx context.Context) error {
	all := metav1.ListOptions{}
	if err := p.client.AppsV1().Deployments(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, all); err != nil {
		return fmt.Errorf("deleting Deployments: %w", err)
	}
	return p.eventually(ctx, "the Deployments to go", func(ctx context.Context) (bool, error) {
		n, err := p.countDeployments(ctx)
		return n == 0, err
	})
}

// countDeployments counts Deployments by a LIST of one, whose answer has the number of
// the others.
func (p *poolsBench) countDeployments(ctx context.Context) (int, error) {
	var list *appsv1.DeploymentList
	list, err := p.client.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("counting Deployments: %w", err)
	}
	n := len(list.Items)
	if list.RemainingItemCount != nil {
		n += int(*list.RemainingItemCount)
	}
	return n, nil
}
