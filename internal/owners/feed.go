package owners

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Start watches every kind until ctx is done, and returns when all watches
// have ended.
func (w *Walker) Start(ctx context.Context) error {
	var running sync.WaitGroup
	for _, f := range w.feeds {
		running.Go(func() { f.run(ctx) })
	}
	running.Wait()
	return nil
}

// NeedLeaderElection is false: every replica keeps warm caches.
func (w *Walker) NeedLeaderElection() bool { return false }

// HasSynced tells whether every kind has been listed once.
func (w *Walker) HasSynced() bool {
	for _, f := range w.feeds {
		if !f.synced.Load() {
			return false
		}
	}
	return true
}

// feed is the store behind one kind's reflector: it slims what it is given and
// hands it to the walker.
type feed struct {
	walker *Walker
	kind   *kind
	synced atomic.Bool

	mu    sync.Mutex
	known uidSet // UIDs of this kind, to find what a new list does not hold any more
}

func newFeed(w *Walker, k *kind) *feed {
	return &feed{walker: w, kind: k, known: uidSet{}}
}

func (f *feed) run(ctx context.Context) {
	lw := cache.NewListWatchFromClient(f.kind.client, f.kind.resource, "", fields.Everything())
	cache.NewReflectorWithOptions(lw, f.kind.empty(), f, cache.ReflectorOptions{Name: "owners/" + f.kind.resource}).RunWithContext(ctx)
}

func (f *feed) Add(obj any) error { return f.Update(obj) }

func (f *feed) Update(obj any) error {
	o, ok := f.kind.slim(obj)
	if !ok {
		return fmt.Errorf("storing a %s: unexpected type %T", f.kind.Kind, obj)
	}
	f.mu.Lock()
	f.known[o.UID] = struct{}{}
	f.mu.Unlock()
	f.walker.Put(o)
	return nil
}

func (f *feed) Delete(obj any) error {
	o, ok := f.kind.slim(obj)
	if !ok {
		return fmt.Errorf("forgetting a %s: unexpected type %T", f.kind.Kind, obj)
	}
	f.forget(o.UID)
	return nil
}

func (f *feed) Replace(list []any, _ string) error {
	present := uidSet{}
	objects := make([]*ownership.Object, 0, len(list))
	for _, obj := range list {
		if o, ok := f.kind.slim(obj); ok {
			present[o.UID] = struct{}{}
			objects = append(objects, o)
		}
	}
	f.mu.Lock()
	var gone []types.UID
	for uid := range f.known {
		if _, ok := present[uid]; !ok {
			gone = append(gone, uid)
		}
	}
	f.known = present
	f.mu.Unlock()
	for _, uid := range gone {
		f.walker.Drop(uid)
	}
	for _, o := range objects {
		f.walker.Put(o)
	}
	f.synced.Store(true)
	return nil
}

func (f *feed) Resync() error { return nil }

func (f *feed) forget(uid types.UID) {
	f.mu.Lock()
	delete(f.known, uid)
	f.mu.Unlock()
	f.walker.Drop(uid)
}
