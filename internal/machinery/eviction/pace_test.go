package eviction

import (
	"container/heap"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"golang.org/x/time/rate"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

// newPace returns a Pace with a clock, and no token at first.
func newPace(limit rate.Limit, burst int) (*Pace, *testingclock.FakePassiveClock) {
	clock := testingclock.NewFakePassiveClock(time.Unix(1_000_000, 0))
	p := NewPace(limit, burst)
	p.now, p.spare = clock.Now, 0
	return p, clock
}

// try is one workload that requests an eviction at a time.
type try struct {
	at        time.Duration
	namespace string
	order     int
}

// tries is a queue by time.
type tries []try

func (q tries) Len() int { return len(q) }
func (q tries) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q tries) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *tries) Push(x any)   { *q = append(*q, x.(try)) }
func (q *tries) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// simulate runs workloads that always want to evict another pod: at once when an eviction
// was granted, and after Retry when it was not. It returns when each namespace got its
// evictions.
func simulate(limit rate.Limit, workloads map[string]int, lasts time.Duration) map[string][]time.Duration {
	p, clock := newPace(limit, max(1, int(limit*10)))
	start := clock.Now()
	var q tries
	names := make([]string, 0, len(workloads))
	for namespace := range workloads {
		names = append(names, namespace)
	}
	slices.Sort(names)
	for _, namespace := range names {
		for i := range workloads[namespace] {
			heap.Push(&q, try{at: Retry * time.Duration(i) / time.Duration(workloads[namespace]), namespace: namespace, order: len(q)})
		}
	}
	granted := map[string][]time.Duration{}
	for q[0].at < lasts {
		next := heap.Pop(&q).(try)
		clock.SetTime(start.Add(next.at))
		if begins(p, next.namespace) {
			p.end(true)
			granted[next.namespace] = append(granted[next.namespace], next.at)
		} else {
			next.at += Retry
		}
		heap.Push(&q, next)
	}
	return granted
}

// TestOneNamespaceDelaysAnotherByTwiceAtMost: a namespace with a thousand workloads that
// never stop evicting beside one with a single workload. The workload gets its n-th
// eviction after at most twice the time that it would wait alone and the time of one token;
// it looks only every Retry.
func TestOneNamespaceDelaysAnotherByTwiceAtMost(t *testing.T) {
	for _, limit := range []rate.Limit{0.05, 0.2, 1, 20} {
		t.Run(fmt.Sprintf("%v evictions per second", limit), func(t *testing.T) {
			const lasts = 20 * time.Minute
			alone := simulate(limit, map[string]int{"small": 1}, lasts)["small"]
			beside := simulate(limit, map[string]int{"small": 1, "large": 1000}, lasts)
			token := time.Duration(float64(time.Second) / float64(limit))
			for n, at := range beside["small"] {
				if most := 2*alone[n] + token + Retry; at > most {
					t.Fatalf("eviction %d is after %s; alone it would be after %s, so %s at most is fair", n, at, alone[n], most)
				}
			}
			if got, want := len(beside["small"]), len(alone)/2-1-int(Retry.Seconds()*float64(limit)); got < want {
				t.Errorf("%d evictions in %s, %d alone", got, lasts, len(alone))
			}
			// What the small namespace does not use, the large one gets.
			all := len(beside["small"]) + len(beside["large"])
			if want := int(lasts.Seconds()*float64(limit)) - max(1, int(limit*10)) - 1; all < want {
				t.Errorf("%d evictions in %s, want at least %d", all, lasts, want)
			}
		})
	}
}

// TestShares: namespaces that want more than they get, get the same.
func TestShares(t *testing.T) {
	got := simulate(1, map[string]int{"a": 1, "b": 10, "c": 100, "d": 1000}, 20*time.Minute)
	for _, namespace := range []string{"a", "b", "c", "d"} {
		if n := len(got[namespace]); n < 280 || n > 310 {
			t.Errorf("namespace %s got %d of 1200 evictions, want a fourth", namespace, n)
		}
	}
}

// TestMoreNamespacesThanTokens: each of them gets its turn.
func TestMoreNamespacesThanTokens(t *testing.T) {
	workloads := map[string]int{}
	for i := range 50 {
		workloads[fmt.Sprint("ns-", i)] = 1 + i%3
	}
	got := simulate(1, workloads, 20*time.Minute)
	for namespace := range workloads {
		if n := len(got[namespace]); n < 22 || n > 26 {
			t.Errorf("namespace %s got %d of 1200 evictions, want 24", namespace, n)
		}
	}
}

// TestUnusedShareIsReturned: a namespace that stops requesting keeps no tokens,
// and is forgotten.
func TestUnusedShareIsReturned(t *testing.T) {
	p, clock := newPace(1, 10)
	for i := range 1000 {
		p.begin(fmt.Sprint("ns-", i))
	}
	if len(p.shares) != 1000 {
		t.Fatalf("%d namespaces have a share, want 1000", len(p.shares))
	}
	clock.SetTime(clock.Now().Add(Patience + time.Second))
	taken := 0
	for begins(p, "other") {
		p.end(true)
		taken++
	}
	if taken != 10 || len(p.shares) != 1 {
		t.Errorf("%d tokens could be taken, want 10; %d namespaces have a share", taken, len(p.shares))
	}
}

// TestUnclaimedTokensGoToAnyNamespace: a namespace that was never refused takes them at
// once.
func TestUnclaimedTokensGoToAnyNamespace(t *testing.T) {
	p, clock := newPace(1, 10)
	p.begin("waits")
	clock.SetTime(clock.Now().Add(Retry))
	if !begins(p, "waits") {
		t.Fatal("a token is kept from the only namespace that waits")
	}
	p.end(false) // refused by the API server
	for i := range 5 {
		if !begins(p, "waits") {
			t.Fatalf("only %d of 5 tokens could be taken", i)
		}
		p.end(true)
	}
	if begins(p, "waits") {
		t.Error("a token was taken twice")
	}
}

// TestPaceIsNeverExceeded: whatever namespaces request, and whatever the API server answers,
// no more evictions are granted than the limit allows.
func TestPaceIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]rate.Limit{0.05, 0.5, 1, 7}).Draw(t, "limit")
		burst := rapid.IntRange(0, 12).Draw(t, "burst")
		p, clock := newPace(limit, burst)
		start := clock.Now()
		granted, underWay := 0, 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"time", "begin", "begin", "granted", "refused"}).Draw(t, "step") {
			case "time":
				clock.SetTime(clock.Now().Add(time.Duration(rapid.IntRange(0, 20_000).Draw(t, "ms")) * time.Millisecond))
			case "begin":
				if begins(p, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace")) {
					underWay++
				}
			case "granted":
				if underWay > 0 {
					underWay--
					granted++
					p.end(true)
				}
			case "refused":
				if underWay > 0 {
					underWay--
					p.end(false)
				}
			}
			held := 0
			for _, s := range p.shares {
				held += s.held
			}
			if all := p.spare + float64(held+underWay); all > float64(burst+min(burst, 1))+1e-6 || p.spare < -1-1e-6 || underWay > burst+min(burst, 1) {
				t.Fatalf("%v spare, %d held and %d under way, with a burst of %d", p.spare, held, underWay, burst)
			}
			if most := clock.Now().Sub(start).Seconds() * float64(limit); float64(granted) > math.Ceil(most)+float64(burst)+1 {
				t.Fatalf("%d granted, at most %v are allowed", granted, most)
			}
		}
	})
}

// TestRefusedEvictionsKeepNoTokenFromAnotherNamespace: the tokens of a namespace whose
// PodDisruptionBudgets refuse everything are under way nearly all the time.
func TestRefusedEvictionsKeepNoTokenFromAnotherNamespace(t *testing.T) {
	p, clock := newPace(1, 3)
	p.spare = 3
	request := func() (requested int) {
		for begins(p, "refused") {
			requested++
		}
		return requested
	}
	under := request()
	if under != 3 {
		t.Fatalf("%d evictions are under way, want 3", under)
	}
	if begins(p, "other") {
		t.Fatal("a token was taken twice")
	}
	for range 100 {
		for range under {
			p.end(false)
		}
		under = request()
	}
	clock.SetTime(clock.Now().Add(Retry))
	if !begins(p, "other") {
		t.Error("evictions that are refused take the tokens of another namespace")
	}
}

// begins reports whether a namespace gets a token.
func begins(p *Pace, namespace string) bool {
	ok, _ := p.begin(namespace)
	return ok
}

// TestRefusedNamespaceWaitsTwiceAsLongAtMost: a namespace that needs four evictions when another one
// has used up the burst, and goes on requesting, has them after twice the time that it would
// need alone with as few tokens, and no more.
func TestRefusedNamespaceWaitsTwiceAsLongAtMost(t *testing.T) {
	need := func(crowd int) (seconds float64) {
		now := time.Unix(0, 0)
		p := NewPace(1, 10)
		p.now = func() time.Time { return now }
		for range 10 {
			begins(p, "crowd")
			p.end(true)
		}
		// The time at which each workload requests again.
		next := map[string][]time.Time{"crowd": make([]time.Time, crowd), "victim": make([]time.Time, 4)}
		for got := 0; got < 4 && now.Before(time.Unix(60, 0)); now = now.Add(10 * time.Millisecond) {
			for _, namespace := range []string{"crowd", "victim"} {
				for i, at := range next[namespace] {
					if now.Before(at) {
						continue
					}
					ok, again := p.begin(namespace)
					if again > Retry || !ok && again < minRetry {
						t.Fatalf("it shall come again after %s", again)
					}
					switch {
					case !ok:
						next[namespace][i] = now.Add(again)
					case namespace == "victim":
						got++
						next[namespace][i] = now.Add(time.Hour)
						p.end(true)
					default:
						p.end(true)
					}
				}
			}
		}
		return now.Sub(time.Unix(0, 0)).Seconds()
	}
	alone, beside := need(0), need(40)
	if alone > 5.5 || beside > 2*alone+0.5 {
		t.Errorf("alone it takes %.1f s, and beside a crowd %.1f s", alone, beside)
	}
}
