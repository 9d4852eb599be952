package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// follow watches from a version on, until ctx is done. It misses no event: when the API
// server ends a watch, as it often does with busy ones, the next one continues from the
// last version.
func (f *fixture) follow(ctx context.Context, version string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error)) <-chan watch.Event {
	f.Helper()
	w, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{WatchFuncWithContext: begin})
	if err != nil {
		f.Fatal(err)
	}
	return w.ResultChan()
}

// versions collects an object's versions until the returned function is called. It
// returns all versions that were written until then, although watches are behind.
func versions[T client.Object](f *fixture, object T, begin func(context.Context, metav1.ListOptions) (watch.Interface, error)) func() []T {
	f.Helper()
	ctx, cancel := context.WithCancel(f.ctx)
	events := f.follow(ctx, object.GetResourceVersion(), func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.FieldSelector = "metadata.name=" + object.GetName()
		return begin(ctx, o)
	})
	var seen []T
	var newest atomic.Uint64
	newest.Store(versionOf(object))
	var gone atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range events {
			if o, ok := event.Object.(T); ok {
				seen = append(seen, o)
				newest.Store(versionOf(o))
				gone.Store(event.Type == watch.Deleted)
			}
		}
	}()
	return func() []T {
		f.Helper()
		now := object.DeepCopyObject().(client.Object)
		err := f.client.Get(f.ctx, client.ObjectKeyFromObject(object), now)
		if client.IgnoreNotFound(err) != nil {
			f.Fatal(err)
		}
		f.eventually(patience, "the watch is up to date", func() error {
			if err == nil && newest.Load() >= versionOf(now) || gone.Load() {
				return nil
			}
			return fmt.Errorf("it is at version %d of %q", newest.Load(), now.GetResourceVersion())
		})
		cancel()
		<-done
		return seen
	}
}

// versionOf returns an object's version as a number; 0 without one.
func versionOf(o client.Object) uint64 {
	v, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return v
}

// podWatch reports pods until it is stopped.
type podWatch struct {
	*fixture
	seen   atomic.Uint64 // the newest version that it has reported
	cancel context.CancelFunc
	done   chan struct{}
}

// watchPods calls a function for each existing pod, and then for each change of a pod,
// one call after the other.
func (f *fixture) watchPods(options metav1.ListOptions, tell func(kind watch.EventType, pod *corev1.Pod)) *podWatch {
	f.Helper()
	pods := f.kube.CoreV1().Pods(f.ns)
	list, err := pods.List(f.ctx, options)
	if err != nil {
		f.Fatal(err)
	}
	w := &podWatch{fixture: f, done: make(chan struct{})}
	var ctx context.Context
	ctx, w.cancel = context.WithCancel(f.ctx)
	events := f.follow(ctx, list.ResourceVersion, func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.LabelSelector, o.FieldSelector = options.LabelSelector, options.FieldSelector
		return pods.Watch(ctx, o)
	})
	go func() {
		defer close(w.done)
		for i := range list.Items {
			tell(watch.Added, &list.Items[i])
		}
		for event := range events {
			if pod, ok := event.Object.(*corev1.Pod); ok {
				tell(event.Type, pod)
				w.note(pod)
			}
		}
	}()
	return w
}

func (w *podWatch) note(pod *corev1.Pod) {
	if v := versionOf(pod); v > 0 {
		w.seen.Store(max(w.seen.Load(), v))
	}
}

// stop ends the watch.
func (w *podWatch) stop() {
	w.cancel()
	<-w.done
}

// stopAfter ends the watch once it has reported all writes of a workload's pods so far:
// it makes one more write, and waits for its event.
func (w *podWatch) stopAfter(app string) {
	w.Helper()
	defer w.stop()
	pods := w.pods(app)
	if len(pods) == 0 {
		return
	}
	pod := &pods[0]
	w.patch(pod, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"e2e/mark": pod.ResourceVersion}}})
	written, err := strconv.ParseUint(pod.ResourceVersion, 10, 64)
	if err != nil {
		w.Fatal(err)
	}
	w.eventually(patience, "the watch is up to date", func() error {
		if now := w.seen.Load(); now < written {
			return fmt.Errorf("it is at version %d of %d", now, written)
		}
		return nil
	})
}

// leavers are the pods that were seen leaving. Those that left already when the watch
// began have the value false.
type leavers map[types.UID]bool

// see notes an event of a pod, and reports whether the pod leaves.
func (l leavers) see(kind watch.EventType, pod *corev1.Pod) bool {
	if kind != watch.Deleted && pod.DeletionTimestamp == nil {
		return false
	}
	if _, known := l[pod.UID]; !known {
		l[pod.UID] = kind != watch.Added
	}
	return true
}

// count returns the number of pods that have left since the watch began.
func (l leavers) count() int {
	n := 0
	for _, since := range l {
		if since {
			n++
		}
	}
	return n
}

// watchDeletions counts a workload's pods that are deleted or start to terminate
// from now on, until the returned function is called.
func (f *fixture) watchDeletions(app string) func() int {
	f.Helper()
	gone := leavers{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(kind watch.EventType, pod *corev1.Pod) {
		gone.see(kind, pod)
	})
	return func() int {
		w.stopAfter(app)
		return gone.count()
	}
}

// watchAvailability follows a workload's pods until the returned function is called,
// which returns the smallest number of available pods and the number of deleted pods.
func (f *fixture) watchAvailability(app string, replicas int) func() (worst, deleted int) {
	f.Helper()
	available, gone := map[types.UID]bool{}, leavers{}
	worst, complete := replicas, false
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(kind watch.EventType, pod *corev1.Pod) {
		available[pod.UID] = !gone.see(kind, pod) && podReady(pod)
		n := 0
		for _, is := range available {
			if is {
				n++
			}
		}
		complete = complete || n == replicas
		if complete {
			worst = min(worst, n)
		}
	})
	return func() (int, int) {
		w.stopAfter(app)
		return worst, gone.count()
	}
}

// watchEvictions counts a workload's pods that are evicted from now on, by any client,
// until the returned function is called.
func (f *fixture) watchEvictions(app string) func() int {
	f.Helper()
	evicted := map[types.UID]bool{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI" {
				evicted[pod.UID] = true
			}
		}
	})
	return func() int {
		w.stopAfter(app)
		return len(evicted)
	}
}

// watchGroups follows a workload's bound pods until the returned function is called,
// which returns the largest number of pods in each NodeGroup. Nodes without a NodeGroup
// count as those of "".
func (f *fixture) watchGroups(app string) func() map[string]int {
	f.Helper()
	groups := f.groupsOfNodes()
	in, most := map[types.UID]string{}, map[string]int{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(kind watch.EventType, pod *corev1.Pod) {
		delete(in, pod.UID)
		if kind == watch.Deleted || pod.DeletionTimestamp != nil || pod.Spec.NodeName == "" {
			return
		}
		in[pod.UID] = groups[pod.Spec.NodeName]
		n := 0
		for _, group := range in {
			if group == groups[pod.Spec.NodeName] {
				n++
			}
		}
		most[groups[pod.Spec.NodeName]] = max(most[groups[pod.Spec.NodeName]], n)
	})
	return func() map[string]int {
		w.stopAfter(app)
		return most
	}
}

// someBound watches a workload's pods from now on. The returned function waits until n of them are bound; a check
// each now and then would find all of them bound on a fast machine.
func (f *fixture) someBound(app string, n int) (wait func()) {
	f.Helper()
	bound, reached := map[types.UID]bool{}, make(chan struct{})
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		if pod.Spec.NodeName == "" || bound[pod.UID] {
			return
		}
		if bound[pod.UID] = true; len(bound) == n {
			close(reached)
		}
	})
	return func() {
		f.Helper()
		defer w.stop()
		select {
		case <-reached:
		case <-time.After(4 * patience):
			f.Fatalf("%d pods of %s are not bound within %s", n, app, 4*patience)
		}
	}
}
