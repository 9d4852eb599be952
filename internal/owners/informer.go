package owners

import (
	"context"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Start watches every kind until ctx is done, and returns when all watches
// have ended.
func (w *Walker) Start(ctx context.Context) error {
	w.lifecycle.Lock()
	w.ctx = ctx
	for _, f := range w.informers {
		w.launchLocked(f)
	}
	for _, f := range w.further {
		if f.of.Resource != "" {
			w.launchLocked(f.informer)
		}
	}
	w.lifecycle.Unlock()
	<-ctx.Done()
	w.lifecycle.Lock()
	w.ended = true
	w.lifecycle.Unlock()
	w.running.Wait()
	return nil
}

// launchLocked runs an informer if the walker runs.
func (w *Walker) launchLocked(f *informer) {
	if w.ctx == nil || w.ended {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	f.cancel, f.done = cancel, make(chan struct{})
	if f.kind.further {
		f.watchSlowness()
	}
	w.running.Go(func() {
		defer close(f.done)
		defer cancel()
		f.run(ctx)
	})
}

// NeedLeaderElection is false: every replica keeps warm caches.
func (w *Walker) NeedLeaderElection() bool { return false }

// HasSynced reports whether every built-in kind has been listed once, and whether
// SetKinds was called, if Extend was. A further kind that has not been listed delays
// its own pods only: see ErrOwnerUnread.
func (w *Walker) HasSynced() bool {
	for _, f := range w.informers {
		if !f.synced.Load() {
			return false
		}
	}
	return w.dynamic == nil || w.configured.Load()
}

// informer is the store behind the reflector of one kind. It slims objects and puts
// them into the walker.
type informer struct {
	walker *Walker
	kind   *kind
	synced atomic.Bool

	// cancel stops the informer, and done is closed once it has stopped; nil until it
	// runs. Both are guarded by the walker's lifecycle.
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// closed: the kind was removed, or another informer has replaced this one.
	// Objects that still arrive are dropped.
	closed bool
	known  sets.Set[types.UID] // UIDs of this kind, to find those that a new list lacks
	// failures holds the errors of the last list and of the last watch, by verb, and
	// under verbNone that of the first object without a valid number of replicas.
	failures map[string]failure
	// slow: the first list has taken longer than problemTime.
	slow bool
}

// failure is an error, and whether it is a Problem: it lasts long enough.
type failure struct {
	err     error
	problem bool
}

func newInformer(w *Walker, k *kind) *informer {
	return &informer{walker: w, kind: k, known: sets.New[types.UID](), failures: map[string]failure{}}
}

func (f *informer) run(ctx context.Context) {
	source := f.kind.listWatch
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := source.ListWithContext(ctx, options)
			f.note(ctx, verbList, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			events, err := source.WatchWithContext(ctx, options)
			f.note(ctx, verbWatch, err)
			return events, err
		},
	}, f.kind.client)
	cache.NewReflectorWithOptions(lw, f.kind.expected, f, cache.ReflectorOptions{Name: "owners/" + f.kind.resource}).RunWithContext(ctx)
}

func (f *informer) Add(obj any) error { return f.Update(obj) }

func (f *informer) Update(obj any) error {
	o, err := f.slim(obj)
	if o == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.known.Insert(o.UID)
	f.walker.Put(o)
	return nil
}

func (f *informer) Delete(obj any) error {
	o, err := f.kind.slim(obj)
	if o == nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.known.Delete(o.UID)
	f.walker.Drop(o.UID)
	return nil
}

// Transformer implements cache.TransformingStore: the reflector collects a streamed
// list as slim objects, so that whole objects do not add up in memory.
func (f *informer) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		o, err := f.slim(obj)
		if o == nil {
			return nil, err
		}
		return o, nil
	}
}

func (f *informer) Replace(list []any, _ string) error {
	present := sets.New[types.UID]()
	objects := make([]*ownership.Object, 0, len(list))
	for _, obj := range list {
		if o, _ := f.slim(obj); o != nil {
			present.Insert(o.UID)
			objects = append(objects, o)
		}
	}
	if f.replace(objects, present) {
		f.kind.unread.Store(nil)
		f.setSynced()
		f.note(context.Background(), verbList, nil)
	}
	return nil
}

// replace replaces the known objects by the listed ones, and reports whether the
// informer is still in use.
func (f *informer) replace(objects []*ownership.Object, present sets.Set[types.UID]) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	for uid := range f.known {
		if !present.Has(uid) {
			f.walker.Drop(uid)
		}
	}
	f.known = present
	for _, o := range objects {
		f.walker.Put(o)
	}
	return true
}

func (f *informer) setSynced() {
	f.mu.Lock()
	f.synced.Store(true)
	f.kind.listed.Store(true)
	wasSlow := f.slow
	f.slow = false
	f.mu.Unlock()
	if f.kind.further && !f.walker.ofLineage {
		syncedGauge.WithLabelValues(f.kind.GroupKind().String()).Set(1)
	}
	if wasSlow {
		f.problemsChanged()
	}
}

func (f *informer) Resync() error { return nil }

// close makes the informer drop objects that still arrive, and returns the known UIDs.
func (f *informer) close() sets.Set[types.UID] {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.known
	f.closed, f.known = true, sets.New[types.UID]()
	return known
}
