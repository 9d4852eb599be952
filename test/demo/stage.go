package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
)

const (
	namespace  = "default"
	deployment = "nginx"
	image      = "nginx:1.27"
	location   = "location"

	propagationPolicy = "nginx-propagationpolicy"
	overridePolicy    = "nginx-overridepolicy"
)

// places are the nodes of the example, in lower case as names of
// nodes are, and the number of pods that each place has before the policies.
var places = []struct {
	name  string
	nodes []string
	pods  int
}{
	{"hangzhou", []string{"nodea", "nodeb"}, 2},
	{"beijing", []string{"nodec", "noded", "nodee"}, 3},
}

// stage is the running demo: the cluster, and the observed state of it.
type stage struct {
	journal *journal
	state   *state

	mu         sync.Mutex // guards the fields below
	cluster    *devcluster.Cluster
	kubeconfig string
	// end is the outcome of the demo; nil until it has ended.
	end *outcome
	// rollouts are of the scene of pools.
	rollouts *rollouts
	// podGroups are the kinds of the owners of all PodGroups that were seen in the scene
	// of PodGroups.
	podGroups map[types.UID]string
	// field is of the scene of a node without a cloud; only the goroutine of the acts uses it.
	field *fieldState
	// reported is the last line about each object of a scene.
	reported map[string]string
	// curtain is how long the starting point is shown.
	curtain time.Duration
	// form is the one in which Atoll is installed.
	form atoll.Form
}

// perform runs the demo. The outcome is nil unless the last scene was played.
func (s *stage) perform(ctx context.Context) (*outcome, error) {
	sc, err := chosenScene()
	if err != nil {
		return nil, err
	}
	doc, err := findExample(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.start(ctx, sc); err != nil {
		return nil, err
	}
	if err := s.build(ctx, sc); err != nil {
		return nil, err
	}
	setup, cancel := context.WithTimeout(ctx, setupWithin)
	defer cancel()
	if err := s.runNginx(setup); err != nil {
		return nil, err
	}
	first := s.journal.elapsed()
	s.journal.add(note, "first picture after %.1f s: %s", first.Seconds(), s.state.picture().summary())
	select {
	case <-time.After(s.curtain):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.state.watchAvailability(wantedPods())
	if err := s.applyExample(setup, doc); err != nil {
		return nil, err
	}
	end, err := s.awaitPromise(ctx, promised, maxUnavailable, wantedWithin)
	if err == nil {
		err = s.play(ctx, doc, sc, end)
	}
	if err != nil {
		return nil, err
	}
	end.first, end.total = first, s.journal.elapsed()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = end
	return end, nil
}

func wantedPods() int {
	n := 0
	for _, place := range places {
		n += place.pods
	}
	return n
}

// start starts the control plane; the first time on a machine this builds it.
func (s *stage) start(ctx context.Context, sc *scene) error {
	s.journal.add(note, "starting a cluster")
	var options devcluster.Options
	if sc != nil && sc.cluster != nil {
		options = sc.cluster()
	}
	options.Log = s.journal
	cluster, err := devcluster.Start(ctx, options)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.cluster, s.kubeconfig = cluster, cluster.KubeconfigPath()
	s.mu.Unlock()
	return s.state.watchCore(ctx, cluster.AdminConfig())
}

// strike stops the cluster, whatever the outcome of the demo.
func (s *stage) strike() error {
	s.mu.Lock()
	cluster := s.cluster
	s.mu.Unlock()
	if cluster == nil {
		return nil
	}
	s.state.stop()
	if s.field != nil {
		s.field.edge.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	if err := cluster.Stop(ctx); err != nil {
		return fmt.Errorf("stopping the cluster: %w", err)
	}
	return nil
}

// build adds the nodes and installs Atoll with what the scene needs, both at a time.
func (s *stage) build(ctx context.Context, sc *scene) error {
	options := atoll.Options{Form: s.form, Within: setupWithin, Log: s.journal}
	if sc != nil {
		options.Gangs = sc.gangs
	}
	if sc != nil && sc.coordinators {
		cloud := map[string]any{"servers": []string{s.cluster.AdminConfig().Host}}
		options.Values = map[string]any{"hub": map[string]any{"enabled": true, "config": map[string]any{"cloud": cloud}}}
		options = options.WithCoordinators()
	}
	var nodes []devcluster.NodeSpec
	for _, place := range places {
		for _, name := range place.nodes {
			nodes = append(nodes, devcluster.NodeSpec{Name: name, Labels: map[string]string{location: place.name}})
		}
	}
	s.journal.add(note, "adding %d nodes: hollow kubelets", len(nodes))
	joined := make(chan error, 1)
	go func() { joined <- s.cluster.AddHollowNodes(ctx, nodes...) }()
	_, err := atoll.Install(ctx, s.cluster, options)
	if err := errors.Join(err, <-joined); err != nil {
		return err
	}
	return s.state.watchAtoll(ctx)
}

// runNginx creates the starting point. Nodes are cordoned to steer the pods, so that the
// Deployment needs no node selector for it.
func (s *stage) runNginx(ctx context.Context) error {
	total := 0
	for i, place := range places {
		var others []string
		for j := range places {
			if j != i {
				others = append(others, places[j].nodes...)
			}
		}
		total += place.pods
		if err := s.kubectl(ctx, append([]string{"cordon"}, others...)...); err != nil {
			return err
		}
		grow := []string{"scale", "deployment", deployment, fmt.Sprintf("--replicas=%d", total)}
		if i == 0 {
			grow = []string{"create", "deployment", deployment, "--image=" + image, fmt.Sprintf("--replicas=%d", total)}
		}
		if err := s.kubectl(ctx, grow...); err != nil {
			return err
		}
		p, err := s.state.await(ctx, func(p *picture) bool { return p.ready() == total && p.pods() == total })
		if err != nil {
			return fmt.Errorf("waiting for %d pods of %s to be Ready (%s): %w", total, deployment, p.summary(), err)
		}
		if err := s.kubectl(ctx, append([]string{"uncordon"}, others...)...); err != nil {
			return err
		}
	}
	return nil
}

// applyExample applies the example's YAML and labels the Deployment.
func (s *stage) applyExample(ctx context.Context, doc *example) error {
	for _, file := range append(append([]string{}, doc.groups...), doc.policies...) {
		if err := s.kubectlIn(ctx, doc.dir, "apply", "-f", file); err != nil {
			return err
		}
	}
	return s.kubectl(ctx, "label", "deployment", deployment,
		gm.RequiredPropagationPolicyLabel+"="+propagationPolicy,
		gm.RequiredOverridePolicyLabel+"="+overridePolicy)
}

// awaitPromise waits until the promises are kept, or until the time is over, and returns
// the result.
func (s *stage) awaitPromise(ctx context.Context, promises []promise, unavailable int, within time.Duration) (*outcome, error) {
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	p, err := s.state.await(bounded, func(p *picture) bool { return len(judge(p, promises)) == 0 })
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	end := &outcome{picture: p, converged: time.Since(began), failures: judge(p, promises)}
	if err != nil {
		end.failures = append(end.failures, fmt.Sprintf("not as wanted within %s", within))
	}
	// Changes that a person makes to the cluster afterwards are not part of the demo.
	end.failures = append(end.failures, judgeAvailability(p, unavailable)...)
	return end, nil
}

// kubectl runs a command line as a person would type it.
func (s *stage) kubectl(ctx context.Context, args ...string) error {
	return s.kubectlIn(ctx, "", args...)
}

func (s *stage) kubectlIn(ctx context.Context, dir string, args ...string) error {
	s.journal.add(command, "kubectl %s", strings.Join(args, " "))
	out, err := s.run(ctx, dir, args...)
	s.journal.add(output, "%s", out)
	return err
}

// ask runs kubectl without a journal entry, and returns its output.
func (s *stage) ask(ctx context.Context, args ...string) (string, error) {
	out, err := s.run(ctx, "", args...)
	return strings.TrimSpace(out), err
}

func (s *stage) run(ctx context.Context, dir string, args ...string) (string, error) {
	cache := "--cache-dir=" + filepath.Join(s.cluster.Dir(), "kubectl-cache")
	cmd := exec.CommandContext(ctx, s.cluster.BinaryPath("kubectl"), append([]string{"--kubeconfig", s.kubeconfig, cache}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("running kubectl %s: %w: %s", args[0], err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// hints are lines for people who want to try more themselves.
func (s *stage) hints() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		return nil
	}
	kubectl := "kubectl"
	if _, err := exec.LookPath(kubectl); err != nil {
		kubectl = s.cluster.BinaryPath(kubectl)
	}
	return []string{
		"Try it, in another terminal (Ctrl-C here ends the demo):",
		"  export KUBECONFIG=" + s.kubeconfig,
		"  " + kubectl + " scale deployment " + deployment + " --replicas=10",
		"  bin/kubectl-atoll explain deployment/" + deployment,
		"  bin/kubectl-atoll status",
	}
}

// outcome returns the outcome of the demo, or nil.
func (s *stage) outcome() *outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.end
}
