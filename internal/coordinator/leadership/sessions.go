package leadership

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// Sessions are when which nodes were heard last. They are not safe for concurrent use.
type Sessions struct {
	began time.Time
	heard map[string]heard
}

type heard struct {
	at        time.Time
	isRefused bool
}

// NewSessions returns those of a coordinator that begins now.
func NewSessions(now time.Time) *Sessions { return &Sessions{began: now, heard: map[string]heard{}} }

// Beat notes a beat of a node.
func (s *Sessions) Beat(node string, b *governance.Beat, now time.Time) {
	s.heard[node] = heard{now, b.IsRefused}
}

// State returns how the pool with these nodes is; nil before each hub had the time to come. A node that is new has that time,
// too.
func (s *Sessions) State(pool sets.Set[string], now time.Time) *governance.PoolState {
	maps.DeleteFunc(s.heard, func(node string, _ heard) bool { return !pool.Has(node) })
	var outside, refused []string
	for node := range pool {
		last, known := s.heard[node]
		if !known {
			last = heard{at: now}
			s.heard[node] = last
		}
		if now.Sub(last.at) >= governance.OutsideAfter {
			outside = append(outside, node)
		} else if last.isRefused {
			refused = append(refused, node)
		}
	}
	if now.Sub(s.began) < governance.OutsideAfter {
		return nil
	}
	return governance.NewPoolState(outside, refused)
}
