package owners

import (
	"context"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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

// launchLocked runs a informer if the walker runs.
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

// HasSynced tells whether every built-in kind has been listed once, and whether
// SetKinds has said which others there are. One of the others that has not been
// listed holds up its own pods and nobody else: see ErrOwnerUnread.
func (w *Walker) HasSynced() bool {
	for _, f := range w.informers {
		if !f.synced.Load() {
			return false
		}
	}
	return w.dynamic == nil || w.configured.Load()
}

// informer is the store behind one kind's reflector: it slims what it is given and
// hands it to the walker.
type informer struct {
	walker *Walker
	kind   *kind
	synced atomic.Bool

	// cancel ends the informer, and done tells that it has ended; nil until it runs.
	// Both are guarded by the walker's lifecycle.
	cancel context.CancelFunc
	done   chan struct{}

	mu sync.Mutex
	// closed: the kind is no workload any more, or another informer has taken over.
	// Whatever still comes in is dropped.
	closed bool
	known  uidSet // UIDs of this kind, to find what a new list does not hold any more
	// failures are those of the last list and of the last watch, by verb, and
	// the first object that does not say how many pods it wants.
	failures map[string]failure
	// slow: the first list takes long.
	slow bool
}

// failure is what is wrong, and whether it is for so long that it is told.
type failure struct {
	err  error
	told bool
}

func newInformer(w *Walker, k *kind) *informer {
	return &informer{walker: w, kind: k, known: uidSet{}, failures: map[string]failure{}}
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
	f.known[o.UID] = struct{}{}
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
	delete(f.known, o.UID)
	f.walker.Drop(o.UID)
	return nil
}

// Transformer implements cache.TransformingStore: of the objects that a list
// streams, the reflector gathers what is kept of them, and not the whole.
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
	present := uidSet{}
	objects := make([]*ownership.Object, 0, len(list))
	for _, obj := range list {
		if o, _ := f.slim(obj); o != nil {
			present[o.UID] = struct{}{}
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

// replace puts the listed objects in the place of those that are known, and
// reports whether the informer is still in use.
func (f *informer) replace(objects []*ownership.Object, present uidSet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	for uid := range f.known {
		if _, ok := present[uid]; !ok {
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
	was := f.slow
	f.slow = false
	f.mu.Unlock()
	if f.kind.further && !f.walker.impatient {
		syncedGauge.WithLabelValues(f.kind.GroupKind().String()).Set(1)
	}
	if was {
		f.tell()
	}
}

func (f *informer) Resync() error { return nil }

// close makes the informer drop whatever still comes in, and returns what it knows.
func (f *informer) close() uidSet {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.known
	f.closed, f.known = true, uidSet{}
	return known
}
