package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// manyWorkloads is the number of workloads of TestCapacityRestart.
var manyWorkloads = flag.Int("workloads", 30, "workloads of 10 pods in TestCapacityRestart")

// TestCapacityRestart is scenario 33, with as many workloads as -workloads says (2,000 in
// the scenario): all replicas of atoll-manager are killed while half of the workloads
// lack an on-demand pod, and the others a spot pod. The new replicas count as the old
// ones did: each successor gets the class of the pod that it replaces, no pod is moved,
// and every CapacitySplit has the right numbers.
func TestCapacityRestart(t *testing.T) {
	tier.All(t, "three replicas start with hundreds of pods: a minute")
	const replicas, onDemand = 10, 3
	f := trio.fixture(t)
	n := *manyWorkloads
	long := patience + time.Duration(n)*time.Second/4
	f.lastsUpTo(10*time.Minute + 3*long)
	f.classes(1+n*onDemand/100, 1+n*(replicas-onDemand)/100)
	f.each(n, func(ctx context.Context, i int) error {
		d := split(fmt.Sprintf("many-%d", i), replicas, fmt.Sprint(onDemand))
		d.Namespace = f.ns
		return f.client.Create(ctx, d)
	})
	exact := func() error { return f.allDivided(n, onDemand, replicas-onDemand) }
	f.eventually(long, "all workloads are exactly divided", exact)
	t.Log("all workloads are exactly divided")

	makesPods := f.killForNow(devcluster.ControllerManager)
	list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]string{} // a pod of each workload and class
	for _, pod := range list.Items {
		pods[pod.Labels["app"]+" "+pod.Labels[gm.CapacityClassLabel]] = pod.Name
	}
	f.each(n, func(ctx context.Context, i int) error {
		class := []string{"on-demand", "spot"}[i%2]
		pod := pods[fmt.Sprintf("many-%d %s", i, class)]
		return f.kube.CoreV1().Pods(f.ns).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	})
	restart := f.killForNow(atoll.ManagerReplica(0), atoll.ManagerReplica(1), atoll.ManagerReplica(2))
	var gone atomic.Int32
	w := f.watchPods(metav1.ListOptions{}, func(event watch.EventType, pod *corev1.Pod) {
		if pod.DeletionTimestamp != nil || event == watch.Deleted {
			gone.Add(1)
		}
	})
	began := time.Now()
	restart()
	t.Logf("three replicas were ready after %s", time.Since(began))
	f.leader()
	makesPods()
	f.eventually(long, "all workloads are exactly divided again", exact)
	t.Logf("exact after %s", time.Since(began))
	w.stopAfter("many-0")
	if n := gone.Load(); n > 0 {
		t.Errorf("%d pods were deleted", n)
	}
}

// each calls a function with 0 to n-1, several at a time.
func (f *fixture) each(n int, do func(context.Context, int) error) {
	f.Helper()
	errs := make([]error, n)
	workqueue.ParallelizeUntil(f.ctx, 16, n, func(i int) { errs[i] = do(f.ctx, i) })
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
}

// allDivided returns an error unless each of n workloads has the given numbers of pods of
// each class, all Ready, and a CapacitySplit with these numbers.
func (f *fixture) allDivided(n, onDemand, spot int) error {
	var splits capacity.CapacitySplitList
	if err := f.client.List(f.ctx, &splits, client.InNamespace(f.ns)); err != nil {
		return err
	}
	said := 0
	for _, s := range splits.Items {
		if s.Status.OnDemand.Have == int32(onDemand) && s.Status.Spot.Have == int32(spot) && s.Status.OnDemand.Reserved+s.Status.Spot.Reserved == 0 {
			said++
		}
	}
	if said != n {
		return fmt.Errorf("%d of %d CapacitySplits say so", said, n)
	}
	list, err := f.kube.CoreV1().Pods(f.ns).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	pods := map[string][]corev1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Labels["app"]] = append(pods[pod.Labels["app"]], pod)
	}
	for i := range n {
		app := fmt.Sprintf("many-%d", i)
		if err := f.dividedOf(app, pods[app], onDemand, spot); err != nil {
			return err
		}
	}
	return nil
}
