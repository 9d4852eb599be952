package connectivity

import (
	"fmt"
	"strings"
	"time"
)

// Record is what is kept about a node on the Node itself, so that a manager that starts goes on from there.
type Record struct {
	// State is Direct for a node without a record.
	State State
	// Since is when the node came into the state, in whole seconds; zero for a node that was never in another one.
	Since time.Time
	// Reason is why; "" for a node that was never in another state.
	Reason string
	// Silent is for how long the node was silent at least, and Observed for how much of that its pool was observed. A
	// manager that starts adds to them if the node's Lease is still as it was: else a manager that often restarts
	// would never come to the end of a silence. 0 if the node is heard.
	Silent, Observed time.Duration
	// Beat is the renewTime of the node's Lease at that silence, as text without spaces. It is only compared.
	Beat string
}

// String returns the value of Annotation, such as
// "Delegated since=2026-03-01T10:00:00Z reason=DelegatedByPool silent=25s observed=15s beat=2026-03-01T10:04:31.000000Z";
// "" if there is nothing to keep.
func (r Record) String() string {
	if r.State == Direct && r.Since.IsZero() && r.Silent == 0 {
		return ""
	}
	text := string(r.State)
	if !r.Since.IsZero() {
		text += " since=" + r.Since.UTC().Format(time.RFC3339) + " reason=" + r.Reason
	}
	if r.Silent > 0 {
		text += fmt.Sprintf(" silent=%s observed=%s beat=%s", r.Silent, r.Observed, r.Beat)
	}
	return text
}

// Parse reads what String wrote. A text that cannot be read, because somebody has edited it, is that of a node that is
// Direct and was heard just now: this only delays what is concluded.
func Parse(text string) Record {
	r, ok := parse(text)
	if !ok {
		return Record{State: Direct}
	}
	return r
}

func parse(text string) (r Record, ok bool) {
	state, rest, _ := strings.Cut(text, " ")
	r.State = State(state)
	for _, field := range strings.Fields(rest) {
		key, value, _ := strings.Cut(field, "=")
		var err error
		switch key {
		case "since":
			r.Since, err = time.Parse(time.RFC3339, value)
		case "reason":
			r.Reason = value
		case "silent":
			r.Silent, err = time.ParseDuration(value)
		case "observed":
			r.Observed, err = time.ParseDuration(value)
		case "beat":
			r.Beat = value
		}
		if err != nil {
			return Record{}, false
		}
	}
	if r.Silent < 0 || r.Observed < 0 || r.Reason != "" && messages[r.Reason] == "" {
		return Record{}, false
	}
	switch r.State {
	case Direct:
		return r, true
	case Delegated, Unobserved, Frozen, Lost, Released:
		return r, !r.Since.IsZero() && r.Reason != ""
	}
	return Record{}, false
}
