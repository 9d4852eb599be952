package world

import (
	"context"
	"net/http"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
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
	client    client.Client
	runnables []manager.Runnable
}

// NewStage makes a stage for controllers that use the client.
func NewStage(c client.Client) *Stage {
	return &Stage{Informers: &informertest.FakeInformers{Scheme: c.Scheme()}, client: c}
}

// GetCache is the informers.
func (s *Stage) GetCache() cache.Cache { return s.Informers }

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
