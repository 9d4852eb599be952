// Package panics recovers from panics, so that a panic in one part does not end the hub, and with it the node's
// only connection to the cloud. It must not know what the parts do.
package panics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// againAfter is the time until Keep restarts work after a panic. It doubles up to maxAgain.
const againAfter, maxAgain = time.Second, 30 * time.Second

// Catcher recovers from panics, logs and counts them. It is safe for concurrent use. A nil Catcher does not
// recover, so that tests see panics.
type Catcher struct {
	log    logr.Logger
	caught atomic.Int64
}

// New returns a Catcher.
func New(log logr.Logger) *Catcher { return &Catcher{log: log} }

// Caught returns the number of recovered panics.
func (c *Catcher) Caught() int64 {
	if c == nil {
		return 0
	}
	return c.caught.Load()
}

// Do does some work, and returns a panic in it as an error. http.ErrAbortHandler, with which a handler aborts a
// response, is not counted, and is returned unchanged.
func (c *Catcher) Do(what string, work func() error) (err error) {
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if abort, is := v.(error); is && errors.Is(abort, http.ErrAbortHandler) {
			err = abort
			return
		}
		if c == nil {
			panic(v)
		}
		c.caught.Add(1)
		err = fmt.Errorf("panic: %v", v)
		c.log.Error(err, "Recovered from panic", "what", what, "stack", string(debug.Stack()))
	}()
	return work()
}

// Keep does work that runs until ctx is done. After a panic it restarts the work.
func (c *Catcher) Keep(ctx context.Context, what string, work func(context.Context)) {
	for pause := againAfter; ; pause = min(2*pause, maxAgain) {
		began := time.Now()
		if c.Do(what, func() error { work(ctx); return nil }) == nil {
			return
		}
		if time.Since(began) > maxAgain {
			pause = againAfter
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
