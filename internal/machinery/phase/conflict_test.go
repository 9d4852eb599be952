package phase

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestConflictsInARowWaitLongerAndLonger: otherwise a cache that is not updated would keep
// a worker busy all the time.
func TestConflictsInARowWaitLongerAndLonger(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "a", errors.New("changed"))
	var report error
	r := Backoff[string](reconcile.TypedFunc[string](func(ctx context.Context, _ string) (ctrl.Result, error) {
		return Run(ctx, struct{}{}, func(context.Context, struct{}) error { return report })
	}))
	expect := func(request string, is error, want time.Duration) {
		t.Helper()
		report = is
		result, err := r.Reconcile(t.Context(), request)
		if err != nil || result.RequeueAfter != want {
			t.Errorf("%s is requeued after %s with error %v, want %s and none", request, result.RequeueAfter, err, want)
		}
	}
	for _, ms := range []int{50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000} {
		expect("a", conflict, time.Duration(ms)*time.Millisecond)
	}
	expect("b", conflict, 50*time.Millisecond)
	expect("a", nil, 0)
	expect("a", conflict, 50*time.Millisecond)
	expect("a", errors.Join(conflict, Wait("x", time.Millisecond)), time.Millisecond)
	expect("a", errors.Join(Wait("x", time.Minute), conflict), 200*time.Millisecond)
	expect("a", Wait("x", time.Minute), time.Minute)
	expect("b", nil, 0)
	if left := r.(*backoff[string]).inARow; len(left) != 0 {
		t.Errorf("requests without a conflict have entries: %v", left)
	}
}
