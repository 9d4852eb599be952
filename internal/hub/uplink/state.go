// Package uplink decides whether the cloud is reachable. The evidence is the outcome of each request and of its
// own probes. The package owns the connections to the API servers.
package uplink

import "time"

// State says whether the cloud is reachable.
type State string

const (
	// Unknown is the state before there is any evidence. Requests are sent.
	Unknown State = "Unknown"
	// Online means that an API server answers.
	Online State = "Online"
	// Offline means that no API server answers.
	Offline State = "Offline"
)

const (
	// downAfter is the number of failures in a row, and silence the least time without an answer, after which
	// the cloud is offline: one broken connection is not enough evidence.
	downAfter, silence = 3, 5 * time.Second
	// upAfter is the number of answers in a row after which the cloud is reachable again.
	upAfter = 2
)

// Evidence is the evidence about the cloud. The zero value means no evidence.
type Evidence struct {
	State State
	// Since is when the state began.
	Since time.Time
	// Failures and Answers are the numbers of failures and answers in a row, up to now. One of them is 0.
	Failures, Answers int
	// LastAnswer is when an API server last answered.
	LastAnswer time.Time
	// Returned is when the cloud last became reachable; zero if it never was.
	Returned time.Time
}

// next adds the outcome of a request. at must not be earlier than in previous calls. silence is the constant,
// except in tests.
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
