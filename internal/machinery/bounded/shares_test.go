package bounded

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func TestCallersAreIdentifiedByAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		a, b string
		same bool
	}{
		"ports do not count":                   {"10.0.0.1:1", "10.0.0.1:2", true},
		"addresses of IPv4 count":              {"10.0.0.1:1", "10.0.0.2:1", false},
		"IPv4 in IPv6":                         {"10.0.0.1:1", "[::ffff:10.0.0.1]:1", true},
		"a pod and its kubelet count, in IPv6": {"[2001:db8::1]:1", "[2001:db8::ffff:2]:1", false},
		"networks of IPv6 count":               {"[2001:db8::1]:1", "[2001:db8:0:1::1]:1", false},
		"zones do not count":                   {"[fe80::1%a]:1", "[fe80::1%b]:1", true},
		"what is no address":                   {"@", "", true},
		"what is no address is not one":        {"@", "10.0.0.1:1", false},
	} {
		t.Run(name, func(t *testing.T) {
			if same := CallerOf(tc.a) == CallerOf(tc.b); same != tc.same {
				t.Errorf("%s and %s: the same caller: %v", tc.a, tc.b, same)
			}
		})
	}
}

// TestSharesAreNeverExceeded, whoever takes and gives. A caller that holds little gets
// something as long as anything is left.
func TestSharesAreNeverExceeded(t *testing.T) {
	random := rand.New(rand.NewSource(1)) //nolint:gosec // a test
	for range 200 {
		total := 1 + random.Int63n(1000)
		s := NewShares(total)
		held := map[Caller]int64{}
		sum := int64(0)
		for range 300 {
			c := CallerOf(fmt.Sprintf("10.0.0.%d:1", random.Intn(20)))
			if n := random.Int63n(1 + total/3); random.Intn(3) > 0 {
				if may := held[c]+n <= total-total/4-sum-n || held[c]+n <= max(1, total/256) && sum+n <= total; s.Take(c, n) != may {
					t.Fatalf("with %d of %d free a caller with %d takes %d: want %v", total-sum, total, held[c], n, may)
				} else if may {
					held[c] += n
					sum += n
				}
			} else {
				s.Give(c, held[c])
				sum -= held[c]
				delete(held, c)
			}
			if s.Used() != sum || sum > total {
				t.Fatalf("%d of %d are used, want %d", s.Used(), total, sum)
			}
		}
	}
}

// TestAClaimWaitsForItsShare and not for claims of other callers.
func TestAClaimWaitsForItsShare(t *testing.T) {
	s := NewShares(100)
	a, b := CallerOf("10.0.0.1:1"), CallerOf("10.0.0.2:1")
	if !s.Wait(t.Context(), a, 37) {
		t.Fatal("the largest share is refused")
	}
	if s.Wait(t.Context(), a, 38) {
		t.Fatal("more than the largest share is granted")
	}
	granted := make(chan bool)
	go func() { granted <- s.Wait(t.Context(), a, 30) }()
	build.Eventually(t, "the claim waits", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.waiting.Len() == 1
	})
	if !s.Wait(t.Context(), b, 15) {
		t.Error("another caller waits for the first")
	}
	s.Give(b, 15)
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if s.Wait(late, a, 30) {
		t.Error("a claim is granted beyond the share")
	}
	s.Give(a, 37)
	if !<-granted {
		t.Error("the claim is not granted")
	}
	s.Give(a, 30)
	if s.Used() != 0 || s.waiting.Len() != 0 || len(s.held) != 0 {
		t.Errorf("%d are used, %d wait", s.Used(), s.waiting.Len())
	}
}
