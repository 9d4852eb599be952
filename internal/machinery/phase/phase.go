// Package phase runs the phases of a reconciler and turns the errors that they return into
// a result for controller-runtime. It depends on no kind.
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

// Func is one phase. scope holds what the phases of one pass observe and decide, for the
// phases after them. Phases run after a failed phase too, so a phase must check in the
// scope that what it needs was observed.
type Func[S any] func(ctx context.Context, scope S) error

// terminal is an error that only a person can repair.
type terminal struct {
	reason string
	err    error
}

func (e *terminal) Error() string { return e.reason + ": " + e.err.Error() }
func (e *terminal) Unwrap() error { return e.err }

// Terminal marks an error that a retry cannot repair. Run does not retry it; the next
// change of an observed object runs the phases again. The caller shows it in a condition.
func Terminal(reason string, err error) error { return &terminal{reason, err} }

// wait is not a failure: it requests another pass.
type wait struct {
	reason string
	after  time.Duration
}

func (e *wait) Error() string { return fmt.Sprintf("waiting: %s", e.reason) }

// Wait requests another pass after a delay of at least a millisecond. reason says what
// the phase waits for, as a noun phrase.
func Wait(reason string, after time.Duration) error {
	return &wait{reason, max(after, time.Millisecond)}
}

// Run runs the phases in order and combines their errors into one result:
//
//   - plain errors: Run returns them, and controller-runtime retries with backoff.
//   - otherwise conflicts and waits: the request is requeued after the shortest of their
//     delays, and nothing is logged. Backoff sets the delay of conflicts.
//   - Terminal errors: no retry.
//
// A phase may return several errors with errors.Join; each is handled on its own.
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
		return ctrl.Result{}, kerrors.NewAggregate(failures) // controller-runtime's backoff sets the delay
	}
	return result, nil
}

// split returns the errors that errors.Join joined, at any depth.
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
