package leadership

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// maxStatuses bounds the statuses of all nodes, in bytes.
const maxStatuses = 64 << 20

// Sessions are when which nodes were heard last, and what those report that do not reach the cloud. They are not safe for
// concurrent use.
type Sessions struct {
	began time.Time
	heard map[string]heard
	bytes int64 // of all statuses
}

type heard struct {
	at        time.Time
	isRefused bool
	// report is what the node has reported last, and reported when that was another one than before; nil if it reports
	// nothing. statuses are those with digest, and size is theirs, in bytes.
	report   *governance.Report
	reported time.Time
	statuses *governance.Statuses
	digest   string
	size     int64
}

// NewSessions returns those of a coordinator that begins now.
func NewSessions(now time.Time) *Sessions { return &Sessions{began: now, heard: map[string]heard{}} }

// Beat notes a beat of a node, and tells whether the statuses of its report are missing. A report counts from when it was
// another one than the last.
func (s *Sessions) Beat(node string, b *governance.Beat, now time.Time) (needsStatuses bool) {
	before := s.heard[node]
	after := heard{at: now, isRefused: b.IsRefused, report: b.Report, reported: now}
	if b.Report == nil {
		s.bytes -= before.size
	} else {
		after.statuses, after.digest, after.size = before.statuses, before.digest, before.size
		if before.report != nil && before.report.Renewed.Equal(&b.Report.Renewed) {
			after.reported = before.reported
		}
	}
	s.heard[node] = after
	return b.Report != nil && b.Report.Digest != after.digest
}

// Put notes the statuses of a node, with their size in bytes. It returns false if there is no room for them.
func (s *Sessions) Put(node string, statuses *governance.Statuses, size int64) bool {
	h := s.heard[node]
	if h.report == nil {
		return true // it reaches the cloud again
	}
	if s.bytes+size-h.size > maxStatuses {
		return false
	}
	s.bytes += size - h.size
	h.statuses, h.digest, h.size = statuses, statuses.Digest(), size
	s.heard[node] = h
	return true
}

// Reports returns the reports that may be forwarded, by node.
func (s *Sessions) Reports(now time.Time) map[string]governance.Report {
	var all map[string]governance.Report
	for node, h := range s.heard {
		if h.report == nil || now.Sub(h.reported) >= governance.ReportFor {
			continue
		}
		if all == nil {
			all = map[string]governance.Report{}
		}
		all[node] = governance.Report{Renewed: h.report.Renewed, Digest: h.digest}
	}
	return all
}

// Statuses returns those of a node; nil if there are none.
func (s *Sessions) Statuses(node string) *governance.Statuses { return s.heard[node].statuses }

// State returns how the pool with these nodes is; nil before each hub had the time to come. A node that is new has that time,
// too.
func (s *Sessions) State(pool sets.Set[string], now time.Time) *governance.PoolState {
	maps.DeleteFunc(s.heard, func(node string, h heard) bool {
		if !pool.Has(node) {
			s.bytes -= h.size
		}
		return !pool.Has(node)
	})
	var outside, refused []string
	for node := range pool {
		last, known := s.heard[node]
		if !known {
			if last.at = now; now.Sub(s.began) < governance.OutsideAfter {
				last.at = s.began // when the state is known, so is whether it is outside
			}
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
