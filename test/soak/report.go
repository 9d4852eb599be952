package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// report counts what happened, and prints it. It is safe for concurrent use.
type report struct {
	began time.Time

	mu  sync.Mutex
	out io.Writer
	// bad is the number of violations.
	bad int
	// cuts, away, hubs, kubelets, answers and checks count links that were cut and for how long, hubs and
	// kubelets that were killed, lists without the cloud that were compared, and checks of everything.
	cuts, hubs, kubelets, answers, checks int
	away                                  time.Duration
}

// count changes the counters.
func (r *report) count(change func(*report)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// say prints a line with its time.
func (r *report) say(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.out, "%8s  %s\n", time.Since(r.began).Round(time.Second), fmt.Sprintf(format, args...))
}

// violations prints what is wrong, and counts it.
func (r *report) violations(lines []string) {
	for _, line := range lines {
		r.count(func(r *report) { r.bad++ })
		r.say("VIOLATION: %s", line)
	}
}

// failures returns the number of violations.
func (r *report) failures() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bad
}

// summary says in one line what happened so far.
func (g *rig) summary() string {
	events, through, lists, breaks := 0, 0, 0, 0
	for _, c := range g.collections {
		c.truth.mu.Lock()
		events += c.truth.events
		c.truth.mu.Unlock()
		for _, f := range c.others {
			f.mu.Lock()
			through, lists, breaks = through+f.events, lists+f.lists, breaks+f.breaks
			f.mu.Unlock()
		}
	}
	running := g.lives.running()
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%d cuts, %s in all; %d hubs and %d kubelets killed; %d events, %d through hubs in watches that broke %d times, %d lists again; %d lists without the cloud; %d pods run; %d checks, %d violations",
		g.cuts, g.away.Round(time.Second), g.hubs, g.kubelets, events, through, breaks, lists, g.answers, running, g.checks, g.bad)
}

// eachMinute prints the summary until ctx is done.
func (g *rig) eachMinute(ctx context.Context) {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			g.say("%s", g.summary())
		}
	}
}
