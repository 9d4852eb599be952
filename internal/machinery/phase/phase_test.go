package phase

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
)

func TestRunCombinesErrors(t *testing.T) {
	broken, worse := errors.New("broken"), errors.New("worse")
	conflict := fmt.Errorf("writing: %w", apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "a", broken))
	tests := map[string]struct {
		reports []error
		want    time.Duration
		// failures are the errors that the result must wrap, others those that it must not.
		failures, others []error
	}{
		"nothing failed":                       {reports: []error{nil, nil}},
		"a plain error is retried":             {reports: []error{broken, nil}, failures: []error{broken}},
		"two plain errors are one":             {reports: []error{broken, worse}, failures: []error{broken, worse}},
		"a terminal error is not":              {reports: []error{Terminal("Invalid", broken)}, others: []error{broken}},
		"nor if it is wrapped":                 {reports: []error{fmt.Errorf("reading: %w", Terminal("Invalid", broken))}, others: []error{broken}},
		"a wait requeues without an error":     {reports: []error{Wait("room", time.Minute)}, want: time.Minute},
		"a wait may be wrapped":                {reports: []error{fmt.Errorf("moving: %w", Wait("room", time.Minute))}, want: time.Minute},
		"the shortest of several waits counts": {reports: []error{Wait("a", time.Hour), Wait("b", time.Minute), Wait("c", time.Hour)}, want: time.Minute},
		"a wait of 0 requeues":                 {reports: []error{Wait("a", 0)}, want: time.Millisecond},
		"a negative wait requeues":             {reports: []error{Wait("a", -time.Hour)}, want: time.Millisecond},
		"a conflict requeues without an error": {reports: []error{conflict}, want: 50 * time.Millisecond},
		"a conflict before a wait is shorter":  {reports: []error{conflict, Wait("a", time.Hour)}, want: 50 * time.Millisecond},
		"a conflict after a wait is shorter":   {reports: []error{Wait("a", time.Hour), conflict}, want: 50 * time.Millisecond},
		"a plain error beside a terminal error": {
			reports: []error{Terminal("Invalid", worse), broken}, failures: []error{broken}, others: []error{worse},
		},
		"each of joined errors is handled on its own": {
			reports:  []error{errors.Join(Wait("a", time.Minute), Terminal("Invalid", worse), conflict, broken, nil)},
			failures: []error{broken}, others: []error{worse},
		},
		"joined errors may be joined again": {
			reports:  []error{errors.Join(errors.Join(Wait("a", time.Minute), errors.Join(broken)), worse)},
			failures: []error{broken, worse},
		},
		"joined errors without a plain one are no error": {
			reports: []error{errors.Join(Wait("a", time.Minute), Terminal("Invalid", worse), conflict)}, want: 50 * time.Millisecond, others: []error{worse},
		},
		"joined waits alone are no error": {
			reports: []error{errors.Join(Wait("a", time.Hour), Wait("b", time.Minute))}, want: time.Minute,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var phases []Func[struct{}]
			for _, report := range tc.reports {
				phases = append(phases, func(context.Context, struct{}) error { return report })
			}
			result, err := Run(t.Context(), struct{}{}, phases...)
			if diff := cmp.Diff(ctrl.Result{RequeueAfter: tc.want}, result); diff != "" { // with an error controller-runtime sets the delay
				t.Errorf("wrong result (-want +got):\n%s", diff)
			}
			if (err != nil) != (len(tc.failures) > 0) {
				t.Errorf("error is %v, want one: %t", err, len(tc.failures) > 0)
			}
			for _, failure := range tc.failures {
				if !errors.Is(err, failure) {
					t.Errorf("error %v does not wrap %q", err, failure)
				}
			}
			for _, other := range tc.others {
				if errors.Is(err, other) {
					t.Errorf("error %v wraps %q, which must not be retried", err, other)
				}
			}
		})
	}
}

func TestAFailedPhaseDoesNotHideTheOnesAfterIt(t *testing.T) {
	var ran []string
	phase := func(name string, err error) Func[*[]string] {
		return func(_ context.Context, ran *[]string) error {
			*ran = append(*ran, name)
			return err
		}
	}
	_, err := Run(t.Context(), &ran, phase("one", errors.New("broken")), phase("two", Terminal("Invalid", errors.New("x"))), phase("three", nil))
	if err == nil {
		t.Error("the failure is lost")
	}
	if diff := cmp.Diff([]string{"one", "two", "three"}, ran); diff != "" {
		t.Errorf("wrong phases ran (-want +got):\n%s", diff)
	}
}

func TestTerminalKeepsItsCause(t *testing.T) {
	cause := errors.New("cause")
	if !errors.Is(Terminal("Invalid", cause), cause) {
		t.Error("the cause is lost")
	}
}
