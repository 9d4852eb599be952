package seats

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// decoded returns the pod as a client decodes it: it shares no string with another pod.
func decoded(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	raw, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	out := &corev1.Pod{}
	if err := out.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	return out
}

// BenchmarkMemory measures the memory of a pod in the ledger.
func BenchmarkMemory(b *testing.B) {
	const pods = 10_000
	replicaSet := build.ReplicaSet("web-7d4b9c6f58")
	for b.Loop() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		ledger := NewLedger(testingclock.NewFakePassiveClock(time.Unix(0, 0)))
		for i := range pods {
			ledger.Observe(Slim(decoded(b, build.Pod(fmt.Sprintf("web-7d4b9c6f58-%05d", i), build.OwnedBy(replicaSet), build.Bound("policy", ""),
				build.Container("main", "registry.example.com/team/web:1.27"), build.On(fmt.Sprint("node-", i%1000))))))
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/pods, "B/pod")
		runtime.KeepAlive(ledger)
	}
}

// TestPodsWithSharedStringsStayIndependent: pods share memory, but each keeps its own content when
// others change.
func TestPodsWithSharedStringsStayIndependent(t *testing.T) {
	ledger := NewLedger(testingclock.NewFakePassiveClock(time.Unix(0, 0)))
	replicaSet := build.ReplicaSet("rs")
	pod := func(name, image string, options ...build.Option) *corev1.Pod {
		return decoded(t, build.Pod(name, append([]build.Option{build.OwnedBy(replicaSet), build.Container("c", image)}, options...)...))
	}
	pods := []*corev1.Pod{
		pod("a", "one"), pod("b", "one"), pod("c", "two"), pod("d", "one", build.Container("e", "three")), pod("f", "one"),
		pod("g", "one", build.Bound("p", ""), build.On("node")), pod("h", "one", build.Bound("p", ""), build.On("other")),
	}
	pods[4].Namespace = "elsewhere"
	for _, p := range pods {
		ledger.Observe(Slim(p))
	}
	for _, p := range pods {
		if diff := cmp.Diff(Slim(p), ledger.Pod(p.UID)); diff != "" {
			t.Errorf("pod %s changed (-want +got):\n%s", p.Name, diff)
		}
	}
	if a, b := ledger.Pod(pods[0].UID), ledger.Pod(pods[1].UID); a.Controller != b.Controller || &a.Containers[0] != &b.Containers[0] {
		t.Error("equal pods share nothing")
	}
}
