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

func TestRunSumsUp(t *testing.T) {
	broken, worse := errors.New("broken"), errors.New("worse")
	conflict := fmt.Errorf("writing: %w", apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "a", broken))
	tests := map[string]struct {
		reports []error
		want    time.Duration
		// failures are what the error is to stand for, others what it is not to.
		failures, others []error
	}{
		"nothing failed":                          {reports: []error{nil, nil}},
		"a plain error is retried":                {reports: []error{broken, nil}, failures: []error{broken}},
		"several plain errors are one":            {reports: []error{broken, worse}, failures: []error{broken, worse}},
		"what only a person can mend is not":      {reports: []error{Terminal("Invalid", broken)}, others: []error{broken}},
		"nor if somebody wrapped it":              {reports: []error{fmt.Errorf("reading: %w", Terminal("Invalid", broken))}, others: []error{broken}},
		"waiting comes back and fails nothing":    {reports: []error{Wait("room", time.Minute)}, want: time.Minute},
		"waiting may be wrapped":                  {reports: []error{fmt.Errorf("moving: %w", Wait("room", time.Minute))}, want: time.Minute},
		"of several waits the shortest counts":    {reports: []error{Wait("a", time.Hour), Wait("b", time.Minute), Wait("c", time.Hour)}, want: time.Minute},
		"a wait that is over comes back":          {reports: []error{Wait("a", 0)}, want: time.Millisecond},
		"a wait that was over long ago as well":   {reports: []error{Wait("a", -time.Hour)}, want: time.Millisecond},
		"a conflict comes back soon, silently":    {reports: []error{conflict}, want: 50 * time.Millisecond},
		"a conflict comes back before a wait":     {reports: []error{conflict, Wait("a", time.Hour)}, want: 50 * time.Millisecond},
		"a conflict after a wait comes back soon": {reports: []error{Wait("a", time.Hour), conflict}, want: 50 * time.Millisecond},
		"a failure beside what a person must mend": {
			reports: []error{Terminal("Invalid", worse), broken}, failures: []error{broken}, others: []error{worse},
		},
		"each of joined errors means its own": {
			reports:  []error{errors.Join(Wait("a", time.Minute), Terminal("Invalid", worse), conflict, broken, nil)},
			failures: []error{broken}, others: []error{worse},
		},
		"joined errors may be joined again": {
			reports:  []error{errors.Join(errors.Join(Wait("a", time.Minute), errors.Join(broken)), worse)},
			failures: []error{broken, worse},
		},
		"joined errors without a failure among them are none": {
			reports: []error{errors.Join(Wait("a", time.Minute), Terminal("Invalid", worse), conflict)}, want: 50 * time.Millisecond, others: []error{worse},
		},
		"joined waits alone are no failure": {
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
			if diff := cmp.Diff(ctrl.Result{RequeueAfter: tc.want}, result); diff != "" { // beside an error the backoff decides
				t.Errorf("wrong result (-want +got):\n%s", diff)
			}
			if (err != nil) != (len(tc.failures) > 0) {
				t.Errorf("error is %v, want one: %t", err, len(tc.failures) > 0)
			}
			for _, failure := range tc.failures {
				if !errors.Is(err, failure) {
					t.Errorf("error %v does not stand for %q", err, failure)
				}
			}
			for _, other := range tc.others {
				if errors.Is(err, other) {
					t.Errorf("error %v stands for %q, which is not to be retried", err, other)
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
