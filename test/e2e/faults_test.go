package e2e

import (
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

// The tests of faults share a cluster in the form Isolated, which has the most parts that
// can fail. Its relays let a test disturb the requests and answers of atoll-manager.
// Leaders are replaced within seconds, so that processes can be killed often.

var faults = lateCluster{options: atoll.Options{Form: atoll.Isolated, ManagerArgs: []string{"--leader-elect-lease-duration=4s"}}, relayed: true}

// newFaultyFixture returns a fixture in the cluster of faults. At its start and end no
// relay has a fault and all processes run, except those that the test kills.
func newFaultyFixture(t *testing.T) *fixture {
	t.Helper()
	f := faults.fixture(t)
	t.Cleanup(func() {
		f.api.does(nil)
		f.extender.does(nil)
		f.webhooks.heal()
	})
	return f
}

// restless changes a policy so that it moves pods as soon as they are surplus.
func restless(p *gm.PropagationPolicy) *gm.PropagationPolicy {
	p.Spec.Rescheduling.StabilizationSeconds = new(int32)
	return p
}

// settled waits until a workload has the given spread and every pod of it is Ready.
func (f *fixture) settled(app string, want map[string]int) {
	f.Helper()
	total := 0
	for _, n := range want {
		total += n
	}
	f.eventually(2*patience, app+" is spread exactly and Ready", func() error {
		if err := f.spreadIs(app, want); err != nil {
			return err
		}
		return f.allReady(app, total)
	})
}

// forwarded forwards a request and withholds the answer.
func forwarded(r *http.Request, forward http.HandlerFunc) { forward(unheard{http.Header{}}, r) }

// unheard is a ResponseWriter whose answer is dropped.
type unheard struct{ header http.Header }

func (u unheard) Header() http.Header { return u.header }

func (unheard) WriteHeader(int) {}

func (unheard) Write(p []byte) (int, error) { return len(p), nil }

// rangesOf returns a PropagationPolicy from pairs of group and max.
func rangesOf(name string, pairs ...any) *gm.PropagationPolicy {
	p := &gm.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	p.Spec.PropagationStrategy = gm.NumRangePropagationStrategy
	for i := 0; i < len(pairs); i += 2 {
		p.Spec.NumRange = append(p.Spec.NumRange, gm.NodeGroupNumRange{
			NodeGroupNames: []string{pairs[i].(string)}, Max: new(intstr.FromInt32(int32(pairs[i+1].(int)))),
		})
	}
	return p
}
