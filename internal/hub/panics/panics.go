// Package panics keeps a panic in one piece of work from ending the hub, and with it the node's only
// connection to the cloud. It must not know what the work is.
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

// againAfter is the time until work that is to go on begins again after a panic. It doubles up to maxAgain.
const againAfter, maxAgain = time.Second, 30 * time.Second

// Catcher catches panics, logs and counts them. It is safe for concurrent use. nil catches none, so that
// they are seen in tests.
type Catcher struct {
	log    logr.Logger
	caught atomic.Int64
}

// New returns a Catcher.
func New(log logr.Logger) *Catcher { return &Catcher{log: log} }

// Caught returns how many panics were caught.
func (c *Catcher) Caught() int64 {
	if c == nil {
		return 0
	}
	return c.caught.Load()
}

// Do does a piece of work, and returns a panic in it as an error. http.ErrAbortHandler, by which a
// handler ends an answer, is not counted, and is returned as it is.
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
		err = fmt.Errorf("a panic: %v", v)
		c.log.Error(err, "A piece of work is lost", "what", what, "stack", string(debug.Stack()))
	}()
	return work()
}

// Keep does work that goes on until ctx is done. After a panic it begins again.
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
