package panics

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

// TestAPanicIsCaughtLoggedAndCounted: the log has the stack.
func TestAPanicIsCaughtLoggedAndCounted(t *testing.T) {
	var logged string
	c := New(funcr.New(func(_, args string) { logged += args }, funcr.Options{}))
	failed := errors.New("failed")
	if err := c.Do("work", func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("an error becomes %v", err)
	}
	if err := c.Do("work", func() error { panic(http.ErrAbortHandler) }); !errors.Is(err, http.ErrAbortHandler) || c.Caught() != 0 {
		t.Errorf("the end of an answer becomes %v, and is counted as %d", err, c.Caught())
	}
	if logged != "" {
		t.Errorf("logged is %s", logged)
	}
	err := c.Do("work", func() error { panic("it breaks") })
	if err == nil || !strings.Contains(err.Error(), "it breaks") || c.Caught() != 1 {
		t.Errorf("a panic becomes %v, and is counted as %d", err, c.Caught())
	}
	for _, want := range []string{`"what"="work"`, "it breaks", "TestAPanicIsCaughtLoggedAndCounted"} {
		if !strings.Contains(logged, want) {
			t.Errorf("%s is not in the log: %s", want, logged)
		}
	}
}

// TestBackgroundWorkRestartsAfterAPanic: background work restarts after a panic, and ends with its context.
func TestBackgroundWorkRestartsAfterAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(funcr.New(func(string, string) {}, funcr.Options{}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		times := 0
		c.Keep(ctx, "work", func(context.Context) {
			if times++; times < 4 {
				panic("it breaks")
			}
		})
		if times != 4 || c.Caught() != 3 || time.Since(began) != 7*time.Second {
			t.Errorf("it began %d times with %d panics in %s", times, c.Caught(), time.Since(began))
		}
		c.Keep(ctx, "work", func(context.Context) { panic("it always breaks") })
		if ctx.Err() == nil || c.Caught() > 150 {
			t.Errorf("%v, %d panics in an hour", ctx.Err(), c.Caught())
		}
	})
}

// TestNilCatcherPassesPanicsOn: a nil Catcher, as in tests, does not catch panics.
func TestNilCatcherPassesPanicsOn(t *testing.T) {
	defer func() {
		if v := recover(); v != "it breaks" {
			t.Errorf("seen is %v", v)
		}
	}()
	_ = (*Catcher)(nil).Do("work", func() error { panic("it breaks") })
}
