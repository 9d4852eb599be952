package seats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
	"github.com/atoll-k8s/atoll/internal/machinery/paged"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch

// Informer keeps a ledger up to date with the API server's pods. It is the store of a
// reflector, but it stores no pods: it reduces each with SlimBy and passes it to the ledger.
type Informer struct {
	ledger   *Ledger
	client   kubernetes.Interface
	revision RevisionOf
	synced   atomic.Bool
	seen     atomic.Uint64 // the highest resourceVersion that was received

	// budget bounds what the pods of a namespace take in the ledger.
	budget *budget.Budget

	// mu guards the fields below.
	mu sync.Mutex
	// known are the pods that the ledger has from this informer.
	known map[types.UID]struct{}
	// relist stops the running watch, so that the next one begins with a list; nil until the
	// first watch runs.
	relist context.CancelFunc
	// requested is the number of lists that were requested. served is the value of requested
	// when the running watch began. If they differ, the next list is not the requested one.
	requested, served int
}

// NewInformer returns an informer; Start runs it. revision is called once for each state of a
// pod. Call Relist when it begins to return other revisions for pods that exist.
func NewInformer(ledger *Ledger, client kubernetes.Interface, revision RevisionOf) *Informer {
	return &Informer{
		ledger: ledger, client: client, revision: revision, known: map[types.UID]struct{}{},
		budget: budget.New(maxPod, maxPods),
	}
}

const (
	// freePod is what every pod may have in the ledger of what its author wrote, in bytes.
	freePod = 8 << 10
	// maxPod bounds that, and maxPods bounds the sum of those pods of a namespace that have
	// more than freePod. An affinity to 800 NodeGroups takes 32 KiB.
	maxPod, maxPods = 64 << 10, 32 << 20
)

// slim returns what the ledger keeps of a pod.
func (f *Informer) slim(pod *corev1.Pod) *Pod {
	p := SlimBy(f.revision, pod)
	size := p.size()
	if size <= freePod {
		f.budget.Drop(p.UID)
		return p
	}
	if f.budget.Take(p.Namespace, p.UID, size) != nil {
		p.shorten()
	}
	return p
}

// Start watches pods until ctx is done.
func (f *Informer) Start(ctx context.Context) error {
	go wait.UntilWithContext(ctx, func(context.Context) { f.ledger.Lapse() }, takeTTL)
	go wait.UntilWithContext(ctx, f.look, lookEvery)
	lw := cache.NewListWatchFromClient(f.client.CoreV1().RESTClient(), "pods", "", fields.Everything())
	list := lw.ListWithContextFunc
	lw.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		if options.ResourceVersion == "0" {
			// "" makes the API server return nothing older than now, as it does for streamed
			// lists. CatchUp relies on it.
			options.ResourceVersion = ""
		}
		return list(ctx, options)
	}
	for ctx.Err() == nil {
		run, cancel := context.WithCancel(ctx)
		f.mu.Lock()
		f.relist, f.served = cancel, f.requested
		f.mu.Unlock()
		cache.NewReflectorWithOptions(lw, &corev1.Pod{}, f, cache.ReflectorOptions{Name: "seats/pods"}).RunWithContext(run)
		cancel()
	}
	return nil
}

// Relist lists all pods again, because the revisions of known pods have changed. HasSynced is
// false until that is done.
func (f *Informer) Relist() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.restartLocked()
}

// restartUnlessSynced starts the list again if the informer has not synced. It returns
// whether it did.
func (f *Informer) restartUnlessSynced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.synced.Load() {
		return false
	}
	f.restartLocked()
	return true
}

func (f *Informer) restartLocked() {
	f.requested++
	f.synced.Store(false)
	if f.relist != nil {
		f.relist()
	}
}

// NeedLeaderElection returns false: every replica fills its ledger, so that it is ready
// when it becomes the leader.
func (f *Informer) NeedLeaderElection() bool { return false }

// HasSynced returns whether all pods have been listed, since the last Relist if there was
// one.
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
	f.ledger.Observe(f.slim(pod))
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
	f.budget.Drop(pod.UID)
	f.note(pod.ResourceVersion)
	return nil
}

// Transformer implements cache.TransformingStore: while a list is streamed, the reflector
// collects the reduced pods and not the whole objects.
func (f *Informer) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			return f.slim(pod), nil
		}
		return obj, nil
	}
}

// Replace implements cache.ReflectorStore: pods that are not in the list are deleted. The
// list has pods that Transformer has reduced, or whole ones if the list was not streamed.
func (f *Informer) Replace(list []any, version string) error {
	pods := make([]*Pod, 0, len(list))
	present := make(map[types.UID]struct{}, len(list))
	for _, obj := range list {
		pod, ok := obj.(*Pod)
		if whole, is := obj.(*corev1.Pod); is {
			pod, ok = f.slim(whole), true
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
	f.budget.Retain(func(uid types.UID) bool { _, there := present[uid]; return there })
	for _, pod := range pods {
		f.ledger.Observe(pod)
	}
	f.note(version)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.synced.Store(f.served == f.requested)
	return nil
}

// note records that all changes up to a resourceVersion were received: the API server sends
// changes in order.
func (f *Informer) note(version string) {
	if v, err := strconv.ParseUint(version, 10, 64); err == nil && v > f.seen.Load() {
		f.seen.Store(v)
	}
}

const (
	// lookEvery is how often the informer looks for pods that the watch should have shown.
	lookEvery = 2 * time.Second
	// lookWithin is the time limit of that for one namespace.
	lookWithin = 10 * time.Second
)

// look finds out whether the pods that the watch should have shown by now were written. If a
// list fails, their reservations expire after lookTime.
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
			f.ledger.RecordLookup(overdue, func(uid types.UID) bool { return written[uid] })
		}
	}
}

// list calls visit with each pod that the API server has now, of all namespaces if
// namespace is "". If it fails on the way, some pods may have been visited, or are twice.
func (f *Informer) list(ctx context.Context, namespace string, visit func(*corev1.Pod)) error {
	if f.stream(ctx, namespace, visit) == nil {
		return nil
	}
	return f.listPages(ctx, namespace, visit) // the API server does not stream lists, or not now
}

// stream is list by a streamed list: one pod is in memory at a time.
func (f *Informer) stream(ctx context.Context, namespace string, visit func(*corev1.Pod)) error {
	pods, err := f.client.CoreV1().Pods(namespace).Watch(ctx, metav1.ListOptions{
		SendInitialEvents: new(true), AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err != nil {
		return fmt.Errorf("streaming pods: %w", err)
	}
	defer pods.Stop()
	for event := range pods.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		switch {
		case !ok:
			return fmt.Errorf("streaming pods: %w", apierrors.FromObject(event.Object))
		case event.Type != watch.Bookmark:
			visit(pod)
		case pod.Annotations[metav1.InitialEventsAnnotationKey] == "true":
			return nil
		}
	}
	return errStreamEnded
}

var errStreamEnded = errors.New("the streamed list of pods ended early")

// listPages is list by pages. It asks for no resourceVersion, so no page is older than now.
func (f *Informer) listPages(ctx context.Context, namespace string, visit func(*corev1.Pod)) error {
	err := paged.Pods(ctx, f.client.CoreV1().Pods(namespace).List, metav1.ListOptions{}, func(pods []corev1.Pod) bool {
		for i := range pods {
			visit(&pods[i])
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	return nil
}

// CatchUp returns when the ledger has all pods in the state that the API server has now. A
// replica that becomes the leader calls it first, so that a seat which the last leader has
// just given to a pod does not count as open. If the informer has not synced, its list may
// have started before now: the list is started again, and CatchUp waits for that one.
func (f *Informer) CatchUp(ctx context.Context) error {
	if f.restartUnlessSynced() {
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
