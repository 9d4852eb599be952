package uplink

import (
	"testing"
	"time"
)

// TestStates: every transition, and that nothing else changes the state.
func TestStates(t *testing.T) {
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
