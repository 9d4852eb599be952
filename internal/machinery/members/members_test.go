package members

import (
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/testing/watched"
)

// TestAFailureThatMovesToAnotherGroupIsReportedInBoth: the group that the node was to join before must not name it
// any more.
func TestAFailureThatMovesToAnotherGroupIsReportedInBoth(t *testing.T) {
	source, q := &trigger.Source[ctrl.Request]{}, &watched.Queue{}
	if err := source.Start(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	m := &Members{Groups: source, Failures: &Failures{}}
	m.Failed(Failure{Node: "n", Why: "refused", To: "b"})
	q.Take()
	m.Failed(Failure{Node: "n", Why: "refused", To: "c"})
	if of := m.Failures.Of("b"); len(of) != 0 {
		t.Errorf("b has %v", of)
	}
	if got := q.Take(); got != "b c" {
		t.Errorf("enqueued: %q", got)
	}
}
