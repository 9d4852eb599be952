package main

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// kind of an entry decides where and how it is shown.
type kind int

const (
	note    kind = iota // what the demo does
	command             // a command line that a person could type
	output              // output of the command
	event               // an Event of the API server
	change              // a difference between two pictures; the picture shows it too
)

// entry is one line of what happened.
type entry struct {
	at   time.Duration // since the start
	kind kind
	text string
}

// line is the entry as plain text.
func (e entry) line() string {
	mark := map[kind]string{note: "#", command: "$", output: ">", event: "!", change: " "}[e.kind]
	return fmt.Sprintf("%6.1fs %s %s", e.at.Seconds(), mark, e.text)
}

// journal has all events so far, in order.
type journal struct {
	start time.Time

	mu       sync.Mutex // guards the fields below
	entries  []entry
	follower func(entry)
}

func newJournal(start time.Time) *journal { return &journal{start: start} }

// elapsed is the time since the start.
func (j *journal) elapsed() time.Duration { return time.Since(j.start) }

// add appends an entry for every line of the text that is not empty.
func (j *journal) add(k kind, format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for text := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		if text = strings.TrimRight(text, " \r"); text == "" {
			continue
		}
		e := entry{at: j.elapsed(), kind: k, text: text}
		j.entries = append(j.entries, e)
		if j.follower != nil {
			j.follower(e)
		}
	}
}

// follow calls the function for every further entry, one at a time.
func (j *journal) follow(f func(entry)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.follower = f
}

// all returns the entries so far.
func (j *journal) all() []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[:len(j.entries):len(j.entries)]
}

// Write implements the log of the devcluster: it adds a note for each line.
func (j *journal) Write(p []byte) (int, error) {
	j.add(note, "%s", p)
	return len(p), nil
}
