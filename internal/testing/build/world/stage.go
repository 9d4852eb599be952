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

// Stage is a manager that runs controllers beside informers that bring what a
// test gives them.
type Stage struct {
	ctrl.Manager
	Informers *informertest.FakeInformers
	cache     lockedCache
	client    client.Client
	runnables []manager.Runnable
}

// NewStage makes a stage for controllers that use the client.
func NewStage(c client.Client) *Stage {
	informers := &informertest.FakeInformers{Scheme: c.Scheme()}
	return &Stage{Informers: informers, cache: lockedCache{FakeInformers: informers}, client: c}
}

// GetCache is the informers.
func (s *Stage) GetCache() cache.Cache { return &s.cache }

// Update brings the change of an object to the handlers that controllers have
// added by now. Call it again until its effect is seen: a controller that has just
// been started may not have added its handlers.
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

// lockedCache lets a controller watch one kind twice: it adds its handlers side by
// side, and fake informers are not made for that.
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

// GetClient is the client of the controllers.
func (s *Stage) GetClient() client.Client { return s.client }

// GetScheme is the client's.
func (s *Stage) GetScheme() *runtime.Scheme { return s.client.Scheme() }

// GetFieldIndexer indexes nothing.
func (s *Stage) GetFieldIndexer() client.FieldIndexer { return s.Informers }

// GetHTTPClient is for nobody.
func (s *Stage) GetHTTPClient() *http.Client { return http.DefaultClient }

// GetLogger says nothing.
func (s *Stage) GetLogger() logr.Logger { return logr.Discard() }

// GetControllerOptions lets two tests make a controller of one name.
func (s *Stage) GetControllerOptions() config.Controller {
	return config.Controller{SkipNameValidation: new(true)}
}

// Add takes a controller to run.
func (s *Stage) Add(r manager.Runnable) error {
	s.runnables = append(s.runnables, r)
	return nil
}

// Run runs the controllers until the test ends.
func (s *Stage) Run(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for _, r := range s.runnables {
		go func() { ended <- r.Start(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		for range s.runnables {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}
