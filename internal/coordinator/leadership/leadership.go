// Package leadership decides which hub of a pool leads, by their beats (docs/pools.md). At no time two of them do. It
// is pure: times are values, and they never go back. It must not know what the hub that leads does.
//
//	hub          sends a beat ├────────── leads for LeadFor ──────────┤
//	coordinator      └─► answers it ├─────── nobody else leads: LeadFor + LeadMargin ───────┤
//
// The coordinator cannot know when a beat was sent, but that was before it answers.
package leadership

import (
	"maps"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// heldFor is how long nobody else leads after an answer that lets a hub lead, and how long a hub that is silent counts
// as one that could lead.
const heldFor = governance.LeadFor + governance.LeadMargin

// Leadership is who leads. It is not safe for concurrent use.
type Leadership struct {
	// own is the node of the coordinator; "" if it is not known.
	own      string
	sessions map[string]*session
	// leader is the last node that leads, by the session and the number of its last beat, and held is until when
	// nobody else does. At the beginning it is the leader of an earlier process.
	leader string
	by     beat
	held   time.Time
}

type beat struct {
	session string
	number  uint64
}

// session is what is known of a hub that beats.
type session struct {
	id          string
	began, last time.Time
	hasCloud    bool
}

// New returns the leadership for the coordinator on a node; "" if that is not known. Whom an earlier process has let
// lead does so until it is over.
func New(own string, now time.Time) *Leadership {
	return &Leadership{own: own, sessions: map[string]*session{}, held: now.Add(heldFor)}
}

// Beat notes a beat of a node, and tells whether the node leads.
func (l *Leadership) Beat(node string, b *governance.Beat, now time.Time) (leads bool) {
	maps.DeleteFunc(l.sessions, func(_ string, s *session) bool { return now.Sub(s.last) >= heldFor })
	s := l.sessions[node]
	if s == nil || s.id != b.Session {
		s = &session{id: b.Session, began: now}
		l.sessions[node] = s
	}
	s.last, s.hasCloud = now, b.HasCloud
	isLeader := l.leads(node, now) && l.by.session == b.Session
	switch {
	case isLeader && b.Number <= l.by.number: // it was sent before one that has arrived, and nobody waits for the answer
		return false
	case isLeader && !b.HasCloud: // it has given up before it sent this
		l.leader, l.held = "", now
		return false
	case !b.HasCloud, !isLeader && (now.Before(l.held) || l.best() != node):
		return false
	}
	l.leader, l.by, l.held = node, beat{b.Session, b.Number}, now.Add(heldFor)
	return true
}

// IsLed reports whether some hub leads.
func (l *Leadership) IsLed(now time.Time) bool { return l.leader != "" && now.Before(l.held) }

// Leads reports whether a node is the one that may lead.
func (l *Leadership) Leads(node string, now time.Time) bool { return l.leads(node, now) }

func (l *Leadership) leads(node string, now time.Time) bool {
	return l.leader == node && node != "" && now.Before(l.held)
}

// best returns the node that comes first of those that could lead: that of the coordinator, which nobody is cut off
// from as long as the coordinator is there, or the one with the oldest session.
func (l *Leadership) best() (best string) {
	for node, s := range l.sessions {
		if !s.hasCloud {
			continue
		}
		if node == l.own {
			return node
		}
		first := l.sessions[best]
		if first == nil || s.began.Before(first.began) || s.began.Equal(first.began) && node < best {
			best = node
		}
	}
	return best
}
