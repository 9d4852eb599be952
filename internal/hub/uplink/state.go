// Package uplink decides whether the cloud is reachable, by evidence: the outcome of each request
// and of its own questions. It holds the connections to the API servers.
package uplink

import "time"

// State is whether the cloud is reachable.
type State string

const (
	// Unknown is the state before there is any evidence. Requests are tried.
	Unknown State = "Unknown"
	// Online means that an API server answers.
	Online State = "Online"
	// Offline means that none does.
	Offline State = "Offline"
)

const (
	// downAfter is the number of failures in a row, and silence the time without an answer, after both
	// of which the cloud is not reachable: one connection that breaks is no evidence.
	downAfter, silence = 3, 5 * time.Second
	// upAfter is the number of answers in a row after which it is reachable again.
	upAfter = 2
)

// Evidence is what is known of the cloud. The zero value is no evidence.
type Evidence struct {
	State State
	// Since is when the state began.
	Since time.Time
	// Failures and Answers are in a row, up to now.
	Failures, Answers int
	// LastAnswer is when an API server last answered.
	LastAnswer time.Time
	// Returned is when the cloud was reachable again, or for the first time; zero if it never was.
	Returned time.Time
}

// next adds the outcome of a request, at a time that does not go back. silence is that of the
// constant, except in tests.
func next(e Evidence, answered bool, at time.Time, silence time.Duration) Evidence {
	if e.State == "" {
		e.State, e.Since, e.LastAnswer = Unknown, at, at
	}
	if answered {
		e.Failures, e.LastAnswer = 0, at
		e.Answers++
	} else {
		e.Answers = 0
		e.Failures++
	}
	switch {
	case answered && (e.State == Unknown || e.State == Offline && e.Answers >= upAfter):
		e.State, e.Since, e.Returned = Online, at, at
	case e.State != Offline && e.Failures >= downAfter && at.Sub(e.LastAnswer) >= silence:
		e.State, e.Since = Offline, at
	}
	return e
}
