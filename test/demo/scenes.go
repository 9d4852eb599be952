package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/atoll-k8s/atoll/devcluster"
)

// scene is an additional part of the demo after the first example.
type scene struct {
	name, about string
	// begin, if set, runs before the acts.
	begin func(*stage, context.Context) error
	acts  []act
	// gangs installs Atoll with PodGroups.
	gangs bool
	// coordinators installs Atoll with coordinators, and with the rights that hubs need.
	coordinators bool
	// cluster, if set, returns the options of the scene's cluster.
	cluster func() devcluster.Options
}

// act is a list of commands and their expected results.
type act struct {
	// about names the act in the summary; "" means by its last command.
	about string
	// commands are arguments of kubectl, run in the root of the source.
	commands [][]string
	// then, if set, runs after the commands.
	then func(*stage, context.Context) error
	// promises are the expected pods of the groups afterwards.
	promises []promise
	// available is the number of pods that should be available all the time, and
	// unavailable how many of them may be missing at a time. With available 0 they are
	// not counted.
	available, unavailable int
	// answers are the expected outputs of kubectl afterwards.
	answers []answer
	// verdict, if set, returns a summary and the failures.
	verdict func(*stage) (string, []string)
}

// scenes are played with SCENE=name.
var scenes = []scene{{
	name: "rollout", about: "a rolling update with maxSurge 1 and maxUnavailable 0 completes, and ends as divided as it began",
	acts: []act{{
		commands: [][]string{
			{"patch", "deployment", deployment, "-p", `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":1,"maxUnavailable":0}}}}`},
			{"set", "image", "deployment/" + deployment, "nginx=nginx:1.28"},
		},
		promises: []promise{
			{group: "hangzhou", pods: 3, images: "hangzhou.registry.io/nginx:1.28"},
			{group: "beijing", pods: 2, images: "beijing.registry.io/nginx:1.28"},
		},
		available: 5, unavailable: 0,
	}},
}, {
	name: "scale", about: "from 5 pods to 50 and down to 7, exact each time; growth takes no pod from a group",
	acts: []act{{
		commands: [][]string{{"scale", "deployment", deployment, "--replicas=50"}},
		promises: []promise{
			{group: "hangzhou", pods: 30, images: promised[0].images},
			{group: "beijing", pods: 20, images: promised[1].images},
		},
		available: 5, unavailable: 0,
	}, {
		commands: [][]string{{"scale", "deployment", deployment, "--replicas=7"}},
		promises: []promise{
			{group: "hangzhou", pods: 4, images: promised[0].images},
			{group: "beijing", pods: 3, images: promised[1].images},
		},
		available: 7, unavailable: 0,
	}},
}, {
	name: "early", about: "arguments that differ by group: pods get their group and their arguments at creation",
	acts: []act{{
		commands: [][]string{{"apply", "-f", "examples/override-args-per-group.yaml"}},
		promises: []promise{
			{group: "hangzhou", pods: 3, images: promised[0].images, args: "--site=hangzhou"},
			{group: "beijing", pods: 2, images: promised[1].images, args: "--site=beijing"},
		},
		available: 5, unavailable: maxUnavailable,
	}},
}, pools, classes, together, offline, pool, governance}

// sceneWithin is the maximum time of one act.
const sceneWithin = 3 * time.Minute

// chosenScene returns the scene that SCENE names; nil without one.
func chosenScene() (*scene, error) {
	name := os.Getenv("SCENE")
	if name == "" {
		return nil, nil
	}
	i := slices.IndexFunc(scenes, func(s scene) bool { return s.name == name })
	if i < 0 {
		var names []string
		for _, s := range scenes {
			names = append(names, s.name)
		}
		return nil, fmt.Errorf("SCENE is %q: there are %s", name, strings.Join(names, ", "))
	}
	return &scenes[i], nil
}

// play plays a scene after the first example and adds its result to the outcome.
func (s *stage) play(ctx context.Context, doc *example, sc *scene, end *outcome) error {
	if sc == nil || len(end.failures) > 0 {
		return nil
	}
	s.journal.add(note, "scene %s: %s", sc.name, sc.about)
	if sc.begin != nil {
		if err := sc.begin(s, ctx); err != nil {
			return err
		}
	}
	for _, a := range sc.acts {
		if err := s.playAct(ctx, doc, &a, end); err != nil || len(end.failures) > 0 {
			return err
		}
	}
	return nil
}

func (s *stage) playAct(ctx context.Context, doc *example, a *act, end *outcome) error {
	if a.available > 0 {
		s.state.watchAvailability(a.available)
	}
	for _, command := range a.commands {
		if err := s.kubectlIn(ctx, doc.dir, command...); err != nil {
			return err
		}
	}
	if a.then != nil {
		if err := a.then(s, ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	failures, err := s.awaitAnswers(ctx, a.answers, sceneWithin)
	if err != nil {
		return err
	}
	end.failures = append(end.failures, failures...)
	how := []string{fmt.Sprintf("as wanted after %.1f s", time.Since(began).Seconds())}
	if len(a.promises) > 0 {
		next, err := s.awaitPromise(ctx, a.promises, a.unavailable, sceneWithin)
		if err != nil {
			return err
		}
		end.picture, end.failures = next.picture, append(end.failures, next.failures...)
		how = []string{
			fmt.Sprintf("as wanted after %.1f s", next.converged.Seconds()),
			fmt.Sprintf("never more than %d of %d unavailable at a time", next.picture.availability.worst, a.available),
		}
	}
	if a.verdict != nil {
		text, failures := a.verdict(s)
		how, end.failures = append(how, text), append(end.failures, failures...)
	}
	about := a.about
	if about == "" {
		about = "kubectl " + strings.Join(a.commands[len(a.commands)-1], " ")
	}
	end.scene = append(end.scene, fmt.Sprintf("%s: %s", about, strings.Join(how, "; ")))
	return nil
}
