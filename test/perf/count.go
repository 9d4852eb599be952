package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	toolscache "k8s.io/client-go/tools/cache"
)

// warmUp is the share of the pods that is bound before the measurement starts: a
// scheduler that has just started first opens connections and fills caches.
const warmUp = 0.05

// stuckAfter is the time without a bound pod after which a round fails: longer than the
// pause before kube-scheduler tries a refused pod again.
const stuckAfter = 60 * time.Second

// counter records the times at which pods of a workload are seen bound.
type counter struct {
	want int
	stop context.CancelFunc
	full chan struct{} // closed when as many as wanted are bound

	mu    sync.Mutex // guards times
	times []time.Time
}

// startCounter watches the pods that have a node. It returns when the watch runs. The
// caller must call close.
func startCounter(ctx context.Context, client kubernetes.Interface, namespace string, w workload, want int) (*counter, error) {
	c := &counter{want: want, full: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace),
		// A pod enters the selection once, when it is bound.
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector, o.FieldSelector = selecting(w).LabelSelector, "spec.nodeName!="
		}),
		// Fields that are not needed are dropped to save memory of this process, which
		// runs on the measured machine.
		informers.WithTransform(func(o any) (any, error) {
			if pod, ok := o.(*corev1.Pod); ok {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
				}}, nil
			}
			return o, nil
		}))
	informer := factory.Core().V1().Pods().Informer()
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { c.bound(time.Now()) }})
	if err != nil {
		return nil, fmt.Errorf("watching bound pods: %w", err)
	}
	running, cancel := context.WithCancel(ctx)
	c.stop = func() {
		cancel()
		factory.Shutdown()
	}
	factory.Start(running.Done())
	if !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		c.stop()
		return nil, fmt.Errorf("watching bound pods: %w", ctx.Err())
	}
	return c, nil
}

func (c *counter) bound(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, at)
	if len(c.times) == c.want {
		close(c.full)
	}
}

// count returns the number of pods that are bound by now.
func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.times)
}

// share returns the share of the pods that are bound by now.
func (c *counter) share() float64 { return float64(c.count()) / float64(c.want) }

// rate waits until all pods are bound and returns the number of bound pods a second after
// the warm-up. It fails when no pod is bound for stuckAfter, or when a process that binds
// them has ended.
func (c *counter) rate(ctx context.Context, alive func(context.Context) error) (float64, error) {
	stuck := time.NewTicker(stuckAfter)
	defer stuck.Stop()
	for last, full := 0, false; !full; {
		select {
		case <-c.full:
			full = true
		case <-ctx.Done():
			return 0, fmt.Errorf("waiting for pods to be bound: %d of %d are: %w", c.count(), c.want, ctx.Err())
		case <-stuck.C:
			n := c.count()
			if err := alive(ctx); err != nil {
				return 0, fmt.Errorf("waiting for pods to be bound: %d of %d are: %w", n, c.want, err)
			}
			if n == last {
				return 0, fmt.Errorf("waiting for pods to be bound: %d of %d are, and no more in %s", n, c.want, stuckAfter)
			}
			last = n
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rateOf(c.times[:c.want], warmUp), nil
}

// rateOf returns the number of times after the warm-up, divided by their duration.
func rateOf(times []time.Time, warmUp float64) float64 {
	first := int(float64(len(times)) * warmUp)
	n := len(times) - 1 - first
	if n <= 0 {
		return 0
	}
	took := times[len(times)-1].Sub(times[first])
	return float64(n) / took.Seconds()
}
