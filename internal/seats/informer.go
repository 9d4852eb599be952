package seats

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch

// Informer keeps a ledger up to date with the API server's pods. It is the store
// behind a reflector: every pod is slimmed and handed on, none is kept.
type Informer struct {
	ledger   *Ledger
	client   kubernetes.Interface
	revision RevisionOf
	synced   atomic.Bool
	seen     atomic.Uint64 // the highest resourceVersion that came in

	mu    sync.Mutex
	known map[types.UID]struct{}
	// relist ends the watch that runs, so that the next begins with a list; nil
	// until one runs.
	relist context.CancelFunc
	// asked counts the calls of Relist, and run those that came before the watch
	// that runs began.
	asked, run int
}

// NewInformer makes an informer; Start runs it. revision is asked once for each state of
// a pod: call Relist when it comes to answer otherwise.
func NewInformer(ledger *Ledger, client kubernetes.Interface, revision RevisionOf) *Informer {
	return &Informer{ledger: ledger, client: client, revision: revision, known: map[types.UID]struct{}{}}
}

// Start watches pods until ctx is done.
func (f *Informer) Start(ctx context.Context) error {
	go wait.UntilWithContext(ctx, func(context.Context) { f.ledger.Lapse() }, takeTTL)
	go wait.UntilWithContext(ctx, f.look, lookEvery)
	lw := cache.NewListWatchFromClient(f.client.CoreV1().RESTClient(), "pods", "", fields.Everything())
	list := lw.ListWithContextFunc
	lw.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" {
			options.ResourceVersion = "" // nothing older than now, as where the API server streams lists: CatchUp stands on it
		}
		return list(ctx, options)
	}
	for ctx.Err() == nil {
		run, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		f.relist, f.run = cancel, f.asked
		f.mu.Unlock()
		cache.NewReflectorWithOptions(lw, &corev1.Pod{}, f, cache.ReflectorOptions{Name: "seats/pods"}).RunWithContext(run)
		cancel()
	}
	return nil
}

// Relist lists all pods anew: those that are known have other revisions now.
// The informer has not synced until that is done.
func (f *Informer) Relist() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.beginAnewLocked()
}

// beginAnew begins the list anew unless it is done, and tells whether it did.
func (f *Informer) beginAnew() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.synced.Load() {
		return false
	}
	f.beginAnewLocked()
	return true
}

func (f *Informer) beginAnewLocked() {
	f.asked++
	f.synced.Store(false)
	if f.relist != nil {
		f.relist()
	}
}

// NeedLeaderElection is false: every replica keeps a warm ledger.
func (f *Informer) NeedLeaderElection() bool { return false }

// HasSynced tells whether all pods have been listed once.
func (f *Informer) HasSynced() bool { return f.synced.Load() }

// Add implements cache.ReflectorStore.
func (f *Informer) Add(obj any) error { return f.Update(obj) }

// Update implements cache.ReflectorStore.
func (f *Informer) Update(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("storing a pod: unexpected type %T", obj)
	}
	f.mu.Lock()
	f.known[pod.UID] = struct{}{}
	f.mu.Unlock()
	f.ledger.Observe(SlimBy(f.revision, pod))
	f.note(pod.ResourceVersion)
	return nil
}

// Delete implements cache.ReflectorStore.
func (f *Informer) Delete(obj any) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("forgetting a pod: unexpected type %T", obj)
	}
	f.mu.Lock()
	delete(f.known, pod.UID)
	f.mu.Unlock()
	f.ledger.Forget(pod.UID)
	f.note(pod.ResourceVersion)
	return nil
}

// Transformer implements cache.TransformingStore: of the pods that a list streams,
// the reflector gathers what is kept of them, and not the whole.
func (f *Informer) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return SlimBy(f.revision, pod), nil
		}
		return obj, nil
	}
}

// Replace implements cache.ReflectorStore: what the new list does not hold is
// gone. Pods come as Transformer left them, or whole where nothing is streamed.
func (f *Informer) Replace(list []any, version string) error {
	pods := make([]*Pod, 0, len(list))
	present := make(map[types.UID]struct{}, len(list))
	for _, obj := range list {
		pod, ok := obj.(*Pod)
		if whole, is := obj.(*corev1.Pod); is {
			pod, ok = SlimBy(f.revision, whole), true
		}
		if ok {
			pods = append(pods, pod)
			present[pod.UID] = struct{}{}
		}
	}
	f.mu.Lock()
	gone := f.known
	f.known = present
	f.mu.Unlock()
	for uid := range gone {
		if _, ok := present[uid]; !ok {
			f.ledger.Forget(uid)
		}
	}
	for _, pod := range pods {
		f.ledger.Observe(pod)
	}
	f.note(version)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced.Store(f.run == f.asked)
	return nil
}

// note records that everything up to a resourceVersion has come in: the API
// server sends changes in their order.
func (f *Informer) note(version string) {
	if v, err := strconv.ParseUint(version, 10, 64); err == nil && v > f.seen.Load() {
		f.seen.Store(v)
	}
}

const (
	// lookEvery is how often is looked what became of pods that were not seen.
	lookEvery = 2 * time.Second
	// lookWithin bounds that for one namespace.
	lookWithin = 10 * time.Second
	// page is the number of pods that are listed at a time.
	page = 500
)

// look finds out what became of pods that should have been seen by now. Where it
// cannot, their reservations lapse in the end.
func (f *Informer) look(ctx context.Context) {
	for namespace, overdue := range f.ledger.Overdue() {
		within, cancel := context.WithTimeout(ctx, lookWithin)
		written := map[types.UID]bool{}
		err := f.list(within, namespace, func(pod *corev1.Pod) {
			written[types.UID(pod.Annotations[gm.SeatAnnotation])] = true
			if pod.Labels[gm.NodeGroupLabel] != "" || pod.Labels[gm.CapacityClassLabel] != "" {
				written[pod.UID] = true
			}
		})
		cancel()
		if err == nil {
			f.ledger.Looked(overdue, func(uid types.UID) bool { return written[uid] })
		}
	}
}

// list calls see with each pod that the API server has now.
func (f *Informer) list(ctx context.Context, namespace string, see func(*corev1.Pod)) error {
	options := metav1.ListOptions{Limit: page} // without a resourceVersion: nothing older than now
	for {
		pods, err := f.client.CoreV1().Pods(namespace).List(ctx, options)
		if err != nil {
			return fmt.Errorf("listing pods: %w", err)
		}
		for i := range pods.Items {
			see(&pods.Items[i])
		}
		if options.Continue = pods.Continue; options.Continue == "" {
			return nil
		}
	}
}

// CatchUp returns once the ledger knows all that the API server knows now. A
// replica that comes to lead waits for it: what the last leader bound a moment
// ago must not be counted as free. The list of an informer that has not synced may
// have begun before now: it begins anew, and no other is needed.
func (f *Informer) CatchUp(ctx context.Context) error {
	if f.beginAnew() {
		return f.until(ctx, f.HasSynced)
	}
	var newest uint64
	err := f.list(ctx, "", func(pod *corev1.Pod) {
		if v, err := strconv.ParseUint(pod.ResourceVersion, 10, 64); err == nil {
			newest = max(newest, v)
		}
	})
	if err != nil {
		return err
	}
	return f.until(ctx, func() bool { return f.seen.Load() >= newest })
}

func (f *Informer) until(ctx context.Context, done func() bool) error {
	return wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) { return done(), nil })
}

// Resync implements cache.ReflectorStore.
func (f *Informer) Resync() error { return nil }
