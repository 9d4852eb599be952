// Package phase runs the phases of a reconciler and turns what they report
// into a result. It knows no kind.
package phase

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kerrors "k8s.io/apimachinery/pkg/util/errors"
	ctrl "sigs.k8s.io/controller-runtime"
)

// Func is one phase. A failed phase does not hide the ones after it: one that
// needs what another observed checks it in the scope.
type Func[S any] func(ctx context.Context, scope S) error

// terminal is a failure that only a person can mend.
type terminal struct {
	reason string
	err    error
}

func (e *terminal) Error() string { return e.reason + ": " + e.err.Error() }
func (e *terminal) Unwrap() error { return e.err }

// Terminal marks a failure that trying again cannot mend. It is shown in
// conditions and not retried until something changes.
func Terminal(reason string, err error) error { return &terminal{reason, err} }

// wait is no failure: there is something to come back for.
type wait struct {
	reason string
	after  time.Duration
}

func (e *wait) Error() string { return fmt.Sprintf("waiting: %s", e.reason) }

// Wait asks to be run again after a while, at least a millisecond.
func Wait(reason string, after time.Duration) error {
	return &wait{reason, max(after, time.Millisecond)}
}

// Run runs the phases in order and sums up: plain errors are retried with
// backoff, conflicts soon and silently (see Backoff), waits after the shortest
// time that any of them asked for.
func Run[S any](ctx context.Context, scope S, phases ...Func[S]) (ctrl.Result, error) {
	var failures []error
	var result ctrl.Result
	var reports []error
	for _, run := range phases {
		reports = append(reports, split(run(ctx, scope))...)
	}
	for _, err := range reports {
		var w *wait
		var t *terminal
		switch {
		case err == nil, errors.As(err, &t):
		case errors.As(err, &w):
			if result.RequeueAfter == 0 || w.after < result.RequeueAfter {
				result.RequeueAfter = w.after
			}
		case apierrors.IsConflict(err):
			if after := conflicted(ctx); result.RequeueAfter == 0 || after < result.RequeueAfter {
				result.RequeueAfter = after
			}
		default:
			failures = append(failures, err)
		}
	}
	if len(failures) > 0 {
		return ctrl.Result{}, kerrors.NewAggregate(failures) // the backoff decides when
	}
	return result, nil
}

// split takes errors apart that errors.Join put together: each means its own.
func split(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var parts []error
	for _, part := range joined.Unwrap() {
		parts = append(parts, split(part)...)
	}
	return parts
}
