package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/atoll-k8s/atoll/devcluster"
)

const (
	// field is the namespace of the scene of a node without a cloud, and gauge its DaemonSet. fieldNode
	// is the node.
	field, gauge, fieldNode = "field", "gauge", "field"
	// fieldGrace is how long the cloud waits for a node that is silent. Hollow kubelets renew their
	// Leases every 10 seconds.
	fieldGrace = 20 * time.Second
)

// offline shows a node that is cut off from the cloud, behind a hub.
var offline = scene{
	name: "offline", about: "a node behind a hub is cut off: its pod goes on, also when kubelet and hub are started again, and the return is clean",
	cluster: func() devcluster.Options {
		return devcluster.Options{
			RealNodes:     devcluster.RealNodesMissing() == nil,
			ComponentArgs: map[string][]string{devcluster.ControllerManager: {"--node-monitor-grace-period=" + fieldGrace.String(), "--node-monitor-period=1s"}},
		}
	},
	begin: (*stage).addEdge,
	acts: []act{{
		commands: [][]string{{"create", "namespace", field}, {"apply", "-n", field, "-f", "test/demo/testdata/offline.yaml"}},
		answers:  []answer{gaugeReady("1")},
	}, {
		about:   "the cloud is cut off",
		then:    (*stage).cutEdge,
		answers: []answer{nodeReady("Unknown")},
	}, {
		about:    "without the cloud",
		commands: [][]string{{"get", "node", fieldNode}},
		then:     (*stage).playOffline,
		answers:  []answer{nodeReady("Unknown")},
		verdict:  (*stage).judgeOffline,
	}, {
		about:   "the cloud is back",
		then:    (*stage).restoreEdge,
		answers: []answer{nodeReady("True"), gaugeReady("1")},
		verdict: (*stage).judgeReturn,
	}},
}

func nodeReady(want string) answer {
	return answer{about: "condition Ready of node " + fieldNode, want: want, args: []string{
		"get", "node", fieldNode, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`,
	}}
}

func gaugeReady(want string) answer {
	return answer{about: "ready pods of " + gauge, want: want, args: []string{"get", "-n", field, "daemonset", gauge, "-o", "jsonpath={.status.numberReady}"}}
}

// edge is a node behind a hub, on a link that can be cut.
type edge interface {
	// cut cuts the link to the cloud, or restores it.
	cut(ctx context.Context, cut bool) error
	// programs are those of the node that can be killed without harm to its pods, and restart kills
	// some of them with SIGKILL and starts them again.
	programs() []string
	restart(ctx context.Context, programs ...string) error
	// status is what atoll-hub status prints.
	status(ctx context.Context) (string, error)
	// ask asks the node, without the cloud, how the pod with this address is: the answer stays the same
	// as long as its container runs.
	ask(ctx context.Context, address string) (string, error)
	close()
}

// fieldState is what is known of the scene's node and pod.
type fieldState struct {
	edge edge
	// pod is the pod before the link was cut: its UID, address and restarts.
	pod, address string
	// answer is that of the pod then, and problems are what was different later.
	answer   string
	problems []string
}

// addEdge adds the node of the scene, a real one if this machine can have one.
func (s *stage) addEdge(ctx context.Context) (err error) {
	f := &fieldState{}
	if missing := devcluster.RealNodesMissing(); missing != nil {
		s.journal.add(note, "%v: so this node is a hollow kubelet, whose containers are pretended and end with it; it is not started again", missing)
		f.edge, err = newHollowEdge(ctx, s.cluster, s.journal)
	} else {
		s.journal.add(note, "adding a real node, with containerd, a kubelet and atoll-hub")
		f.edge, err = newRealEdge(ctx, s.cluster, s.journal)
	}
	if err != nil {
		return err
	}
	s.field = f
	return nil
}

// podOfField reads UID, restarts and address of the pod.
func (s *stage) podOfField(ctx context.Context) (pod, address string, err error) {
	out, err := s.ask(ctx, "get", "-n", field, "pods", "-l", "app="+gauge, "-o",
		"jsonpath={range .items[*]}{.metadata.uid} restarts:{.status.containerStatuses[0].restartCount} {.status.podIP}{end}")
	if err != nil {
		return "", "", err
	}
	i := strings.LastIndex(out, " ")
	if i < 0 {
		return "", "", fmt.Errorf("reading the pod of %s: it is %q", gauge, out)
	}
	return out[:i], out[i+1:], nil
}

// cutEdge cuts the link.
func (s *stage) cutEdge(ctx context.Context) (err error) {
	f := s.field
	if f.pod, f.address, err = s.podOfField(ctx); err != nil {
		return err
	}
	err = s.until(ctx, "the pod answers on its node", func() (err error) {
		f.answer, err = f.edge.ask(ctx, f.address)
		return err
	})
	if err != nil {
		return err
	}
	s.journal.add(note, "the pod is %s; its node answers: %q", f.pod, f.answer)
	s.journal.add(note, "cutting the link between node %s and the cloud", fieldNode)
	return f.edge.cut(ctx, true)
}

// playOffline starts the programs of the node again, and asks the pod each time.
func (s *stage) playOffline(ctx context.Context) error {
	f := s.field
	if err := s.showStatus(ctx); err != nil {
		return err
	}
	for _, programs := range restarts(f.edge.programs()) {
		what := "cut off"
		if len(programs) > 0 {
			what = "after kill -9 of " + strings.Join(programs, " and ")
			s.journal.add(note, "killing %s, and starting again", strings.Join(programs, " and "))
			if err := f.edge.restart(ctx, programs...); err != nil {
				return err
			}
		}
		got := ""
		err := s.until(ctx, what+", the node answers", func() (err error) {
			got, err = f.edge.ask(ctx, f.address)
			return err
		})
		if err != nil {
			return err
		}
		s.journal.add(change, "%s, the node answers: %q", what, got)
		if got != f.answer {
			f.problems = append(f.problems, fmt.Sprintf("%s, the node answers %q, before it was %q", what, got, f.answer))
		}
	}
	return s.showStatus(ctx) // a hub that was killed says the same
}

// showStatus shows what atoll-hub status prints, once it says that the cloud is away.
func (s *stage) showStatus(ctx context.Context) error {
	var status string
	err := s.until(ctx, "the hub says that the cloud is away", func() (err error) {
		if status, err = s.field.edge.status(ctx); err == nil && !strings.Contains(status, "cloud Offline") {
			err = errors.New("it says otherwise")
		}
		return err
	})
	if err != nil {
		return err
	}
	s.journal.add(command, "atoll-hub status")
	s.journal.add(output, "%s", shortStatus(status))
	return nil
}

// restarts are what is killed together, one after the other: nothing, each program, and all.
func restarts(programs []string) [][]string {
	all := [][]string{nil}
	for _, p := range programs {
		all = append(all, []string{p})
	}
	if len(programs) > 1 {
		all = append(all, programs)
	}
	return all
}

// shownRequests is the number of requests of the hub's status that are shown, besides those for pods.
const shownRequests = 4

var wideGap = regexp.MustCompile(` {2,}`)

// shortStatus shortens the hub's status: what it says of the cloud, the requests that were used last,
// and those for pods.
func shortStatus(status string) string {
	var out []string
	requests, more := -1, 0 // below the head of the table
	for line := range strings.Lines(status) {
		if requests >= 0 {
			requests++
			line = wideGap.ReplaceAllString(line, "  ") // its columns are as wide as the name of a token
		}
		if strings.HasPrefix(line, "CALLER") {
			requests = 0
			line = wideGap.ReplaceAllString(line, "  ")
		}
		if requests > shownRequests && !strings.Contains(line, "/api/v1/pods?") {
			more++
			continue
		}
		out = append(out, strings.TrimRight(line, "\n"))
	}
	if more > 0 {
		out = append(out, fmt.Sprintf("… and %d more", more))
	}
	return strings.Join(out, "\n")
}

func (s *stage) judgeOffline() (text string, failures []string) {
	return fmt.Sprintf("the node is not ready for the cloud, and the node answers as before, also after a restart of %s", strings.Join(s.field.edge.programs(), " and of ")), s.field.problems
}

// restoreEdge restores the link and reads the pod again, once the node is back.
func (s *stage) restoreEdge(ctx context.Context) error {
	f := s.field
	f.problems = nil
	s.journal.add(note, "restoring the link")
	if err := f.edge.cut(ctx, false); err != nil {
		return err
	}
	if _, err := s.awaitAnswers(ctx, []answer{nodeReady("True"), gaugeReady("1")}, sceneWithin); err != nil {
		return err
	}
	pod, address, err := s.podOfField(ctx)
	if err != nil {
		return err
	}
	s.journal.add(change, "the pod is %s", pod)
	if pod != f.pod || address != f.address {
		f.problems = append(f.problems, fmt.Sprintf("the pod was %s at %s and is %s at %s", f.pod, f.address, pod, address))
	}
	got, err := f.edge.ask(ctx, address)
	if err != nil || got != f.answer {
		f.problems = append(f.problems, fmt.Sprintf("the node answers %q, error %v, before it was %q", got, err, f.answer))
	}
	return nil
}

func (s *stage) judgeReturn() (text string, failures []string) {
	return "the same pod with the same container: " + s.field.pod, s.field.problems
}

// until calls a function until it succeeds.
func (s *stage) until(ctx context.Context, what string, is func() error) error {
	deadline := time.After(sceneWithin)
	for {
		last := is()
		if last == nil {
			return nil
		}
		select {
		case <-time.After(askEvery):
		case <-deadline:
			return fmt.Errorf("it is not so that %s: %w", what, last)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
