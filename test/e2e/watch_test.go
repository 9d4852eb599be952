package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/test/invariants"
)

// lag is the maximum age of the state that atoll-manager decides by. Caches are behind by
// milliseconds, but on a busy machine a decision takes seconds to be written.
const lag = 5 * time.Second

// watcher checks all writes of a cluster against the invariants.
type watcher struct {
	environment
	recorder *invariants.Recorder

	mu sync.Mutex // guards the fields below
	// limits are the bounds for the check at the end.
	limits invariants.Limits
	// tests are the names of the tests, by namespace.
	tests map[string]string
}

// watchOver watches a cluster until [watcher.end].
func watchOver(e environment) (*watcher, error) {
	recorder, err := invariants.Record(context.Background(), e.client)
	if err != nil {
		return nil, fmt.Errorf("watching over all writes: %w", err)
	}
	return &watcher{
		environment: e, recorder: recorder, tests: map[string]string{},
		limits: invariants.Limits{Lag: lag, EvictionsPerMinute: int((60 + 10) * e.pace)}, // evictions of up to 10 s may be saved
	}, nil
}

func (w *watcher) owns(test, namespace string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tests[namespace] = test
}

// end returns the violations from the start until now.
func (w *watcher) end() error {
	history, err := w.recorder.Stop(context.Background())
	if err != nil {
		return fmt.Errorf("watching over all writes: %w", err)
	}
	log, err := os.Open(w.cluster.AuditLogPath())
	if err != nil {
		return fmt.Errorf("reading who wrote: %w", err)
	}
	defer func() { _ = log.Close() }()
	requests, err := invariants.ReadAudit(log, "system:serviceaccount:"+atoll.Namespace+":"+atoll.Manager)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	report := invariants.Check(history, requests, w.limits)
	fmt.Fprintf(os.Stderr, "invariants: %s\n", report.Summary())
	if report.Binds == 0 && len(w.tests) > 1 {
		return errors.New("watching over all writes: no binding was judged in the whole run")
	}
	err = report.Err()
	for _, v := range report.Violations {
		err = fmt.Errorf("%w\n%s broke %s in namespace %s", err, w.tests[v.Namespace], v.Invariant, v.Namespace)
	}
	return err
}

// breaks declares that this test breaks an invariant on purpose, in its own
// namespace and until the returned function is called or the run ends.
func (f *fixture) breaks(invariant, why string) (no func()) {
	f.watch.mu.Lock()
	defer f.watch.mu.Unlock()
	exceptions := &f.watch.limits.Exceptions
	i := len(*exceptions)
	*exceptions = append(*exceptions, invariants.Exception{Invariant: invariant, Namespace: f.ns, From: time.Now(), Why: why})
	return func() {
		f.watch.mu.Lock()
		defer f.watch.mu.Unlock()
		f.watch.limits.Exceptions[i].To = time.Now()
	}
}
