package uplink

import (
	"errors"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
)

// TestStateFollowsAnswersAndRepeatedFailures: every transition, and that nothing else changes the state.
func TestStateFollowsAnswersAndRepeatedFailures(t *testing.T) {
	type outcome struct {
		after    time.Duration
		answered bool
	}
	for name, tc := range map[string]struct {
		outcomes []outcome
		want     State
	}{
		"the first answer":                            {[]outcome{{0, true}}, Online},
		"one failure is no evidence":                  {[]outcome{{0, true}, {time.Hour, false}}, Online},
		"many failures within a moment are none":      {[]outcome{{0, true}, {1, false}, {1, false}, {1, false}, {1, false}}, Online},
		"failures over a time":                        {[]outcome{{0, true}, {2 * time.Second, false}, {2 * time.Second, false}, {time.Second, false}}, Offline},
		"two failures over a long time":               {[]outcome{{0, true}, {time.Hour, false}, {time.Hour, false}}, Online},
		"an answer between failures":                  {[]outcome{{0, true}, {3 * time.Second, false}, {3 * time.Second, false}, {0, true}, {time.Second, false}}, Online},
		"failures from the beginning":                 {[]outcome{{0, false}, {3 * time.Second, false}, {3 * time.Second, false}}, Offline},
		"a failure at the beginning":                  {[]outcome{{0, false}}, Unknown},
		"one answer after it was away":                {[]outcome{{0, false}, {3 * time.Second, false}, {3 * time.Second, false}, {0, true}}, Offline},
		"two answers after it was away":               {[]outcome{{0, false}, {3 * time.Second, false}, {3 * time.Second, false}, {0, true}, {0, true}}, Online},
		"two answers with a failure between them":     {[]outcome{{0, false}, {3 * time.Second, false}, {3 * time.Second, false}, {0, true}, {0, false}, {0, true}}, Offline},
		"an answer at the beginning, after a failure": {[]outcome{{0, false}, {0, true}}, Online},
	} {
		t.Run(name, func(t *testing.T) {
			at, e := time.Unix(1e9, 0), Evidence{}
			var since time.Time
			for _, o := range tc.outcomes {
				before := e.State
				at = at.Add(o.after)
				if e = next(e, o.answered, at, silence); e.State != before {
					since = at
				}
			}
			if e.State != tc.want || !e.Since.Equal(since) {
				t.Errorf("the state is %s since %s, want %s since %s", e.State, e.Since, tc.want, since)
			}
		})
	}
}

// TestFirstAnswerAfterAStartCountsAsAReturn: a hub that is started again during an outage does not know how long
// the outage was.
func TestFirstAnswerAfterAStartCountsAsAReturn(t *testing.T) {
	at := time.Unix(1e9, 0)
	e := next(Evidence{}, false, at, silence)
	if e = next(e, true, at.Add(time.Second), silence); !e.Returned.Equal(at.Add(time.Second)) {
		t.Errorf("after the first answer, the cloud is back since %s", e.Returned)
	}
	if e = next(e, true, at.Add(time.Minute), silence); !e.Returned.Equal(at.Add(time.Second)) {
		t.Errorf("after a second one, the cloud is back since %s", e.Returned)
	}
}

// TestWatchesReconnectSpreadOverTime: scenario 69. No request that waits for the cloud is sent at once, and all
// are sent within the configured time.
func TestWatchesReconnectSpreadOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hubs, watches, within = 20, 30, 10 * time.Second
		var mu sync.Mutex
		perSecond := make([]int, int(within/time.Second))
		var back sync.WaitGroup
		var all []*Uplink
		for range hubs {
			u := New(Options{Servers: []*url.URL{{}}, Return: within, Log: logr.Discard()})
			all = append(all, u)
			for range 6 {
				u.observe(0, 0, errors.New("no answer"))
				time.Sleep(time.Second) // no time passes: see testing/synctest
			}
			if e, _ := u.Evidence(); e.State != Offline {
				t.Fatalf("the state is %s", e.State)
			}
		}
		var began time.Time
		for _, u := range all {
			for range watches {
				back.Go(func() {
					if err := u.AwaitOnline(t.Context()); err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					perSecond[min(int(time.Since(began)/time.Second), len(perSecond)-1)]++
				})
			}
		}
		synctest.Wait()
		began = time.Now()
		for range 2 {
			for _, u := range all {
				u.observe(0, 0, nil)
			}
		}
		back.Wait()
		if d := time.Since(began); d > within {
			t.Errorf("the last is back after %s", d)
		}
		for second, n := range perSecond {
			if mean := hubs * watches / len(perSecond); n > 2*mean || n < mean/3 {
				t.Errorf("in second %d there are %d, the mean is %d: %v", second, n, mean, perSecond)
			}
		}
	})
}
