package world

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Stage is a controller-runtime manager that runs controllers with fake informers, whose
// events a test sends.
type Stage struct {
	ctrl.Manager
	Informers *informertest.FakeInformers
	cache     lockedCache
	client    client.Client
	runnables []manager.Runnable
}

// NewStage makes a Stage for controllers that use the client.
func NewStage(c client.Client) *Stage {
	informers := &informertest.FakeInformers{Scheme: c.Scheme()}
	return &Stage{Informers: informers, cache: lockedCache{FakeInformers: informers}, client: c}
}

// GetCache returns the fake informers.
func (s *Stage) GetCache() cache.Cache { return &s.cache }

// Update sends an update event to the handlers that controllers have added so far. A
// controller that was just started may add its handlers later, so call Update again until
// its effect is seen.
func (s *Stage) Update(t testing.TB, before, after client.Object) {
	t.Helper()
	s.cache.mu.Lock()
	defer s.cache.mu.Unlock()
	informer, err := s.Informers.FakeInformerFor(context.Background(), after)
	if err != nil {
		t.Fatal(err)
	}
	informer.Update(before, after)
}

// lockedCache serializes the access to fake informers, which are not safe for concurrent use:
// a controller that watches one kind twice adds its handlers concurrently.
type lockedCache struct {
	*informertest.FakeInformers
	mu sync.Mutex
}

// GetInformer implements cache.Cache.
func (c *lockedCache) GetInformer(ctx context.Context, o client.Object, opts ...cache.InformerGetOption) (cache.Informer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	informer, err := c.FakeInformers.GetInformer(ctx, o, opts...)
	return &lockedInformer{Informer: informer, mu: &c.mu}, err
}

type lockedInformer struct {
	cache.Informer
	mu *sync.Mutex
}

// AddEventHandlerWithOptions implements cache.Informer.
func (i *lockedInformer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.Informer.AddEventHandlerWithOptions(h, o)
}

// GetClient returns the client of the controllers.
func (s *Stage) GetClient() client.Client { return s.client }

// GetScheme returns the scheme of the client.
func (s *Stage) GetScheme() *runtime.Scheme { return s.client.Scheme() }

// GetFieldIndexer returns an indexer that does nothing.
func (s *Stage) GetFieldIndexer() client.FieldIndexer { return s.Informers }

// GetHTTPClient returns the default client. Controllers do not use it.
func (s *Stage) GetHTTPClient() *http.Client { return http.DefaultClient }

// GetLogger returns a logger that drops everything.
func (s *Stage) GetLogger() logr.Logger { return logr.Discard() }

// GetControllerOptions allows several tests to make controllers of the same name.
func (s *Stage) GetControllerOptions() config.Controller {
	return config.Controller{SkipNameValidation: new(true)}
}

// Add adds a controller for Run.
func (s *Stage) Add(r manager.Runnable) error {
	s.runnables = append(s.runnables, r)
	return nil
}

// Run runs the controllers until the test ends.
func (s *Stage) Run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	for _, r := range s.runnables {
		go func() { stopped <- r.Start(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range s.runnables {
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		}
	})
}
