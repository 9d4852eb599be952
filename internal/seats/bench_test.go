package seats

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// BenchmarkSlim measures what an event of a pod costs.
func BenchmarkSlim(b *testing.B) {
	pod := decoded(b, build.Pod("web-7d4b9c6f58-00001", build.OwnedBy(build.ReplicaSet("web-7d4b9c6f58")), build.Bound("policy", ""),
		needs(map[corev1.ResourceName]string{"cpu": "100m", "memory": "128Mi"}), build.On("node"), build.Running(0)))
	for b.Loop() {
		Slim(pod)
	}
}

// BenchmarkDisrupt and BenchmarkCanTake measure calls that hold the ledger's mutex.
func BenchmarkDisrupt(b *testing.B) {
	for _, pods := range []int{100, 10_000} {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			l, owners := crowd(pods)
			for b.Loop() {
				l.Disrupt("p0", owners, pods, 1)
				l.Undisrupt("p0")
			}
		})
	}
}

func BenchmarkCanTake(b *testing.B) {
	for _, pods := range []int{100, 10_000} {
		b.Run(fmt.Sprint("pods=", pods), func(b *testing.B) {
			l, _ := crowd(pods)
			other := podIn("other", "node-b")
			other.Demand = needing(2000) // fits nowhere
			for b.Loop() {
				l.CanTake("a", other)
			}
		})
	}
}

// crowd returns a ledger with one workload on 10 nodes, and the owner of its pods.
func crowd(pods int) (*Ledger, []types.UID) {
	l := NewLedger(testingclock.NewFakePassiveClock(time.Unix(1_000_000, 0)))
	for i := range 10 {
		l.ObserveNode(openNode(fmt.Sprint("node-", i), "a"))
	}
	for i := range pods {
		l.Observe(podIn(fmt.Sprint("p", i), fmt.Sprint("node-", i%10)))
	}
	return l, []types.UID{"rs"}
}
