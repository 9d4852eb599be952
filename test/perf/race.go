package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster"
)

const (
	// slice is how long one side of a race runs before the other's turn: short compared
	// with changes in the speed of the machine, long compared with stopping and
	// continuing a process.
	slice = 1500 * time.Millisecond
	// finish is the time that requests of a stopped side get to complete.
	finish = 50 * time.Millisecond
	// catchUp is the time that a process beside a side gets to receive the events of the
	// time when it was stopped.
	catchUp = 400 * time.Millisecond
	// spare is the share of the pods that is not bound when the turns end: more than one
	// turn binds, so that no side runs out of pods.
	spare = 0.2
	// peerScheduler is the process of the second side.
	peerScheduler = "peer-scheduler"
)

// contender is one side of a race: a kube-scheduler of its own and the pods
// that name it.
type contender struct {
	name     string
	workload workload
	config   []byte
	// beside is a process that runs when this side has its turn, if any.
	beside string
}

// lane is a contender during a race. The process of its kube-scheduler, the scheduler's
// profile and the Deployment have the same name.
type lane struct {
	contender
	process string
	counter *counter
	// The result of its turns: pods bound, the time that it ran, the CPU time used.
	pods int
	took time.Duration
	used usage
}

// race lets two kube-schedulers bind their pods in turns of a second and a half: one is
// stopped (SIGSTOP) while the other runs. So both run under the same conditions of the
// machine, unlike two rounds a minute apart.
func (e *extenderBench) race(ctx context.Context, a, b contender) (p pair, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*stepWithin)
	defer cancel()
	left, right := &lane{contender: a, process: devcluster.Scheduler}, &lane{contender: b, process: peerScheduler}
	lanes := []*lane{left, right}
	created := map[string]map[types.UID]string{}
	for _, l := range lanes {
		l.workload.name = l.process
		if err := e.createPods(ctx, l.workload); err != nil {
			return p, err
		}
		if created[l.process], err = e.uids(ctx, l.workload); err != nil {
			return p, err
		}
		if l.config, err = serving(l.config, l.process); err != nil {
			return p, err
		}
	}
	// It would read all pods of a ReplicaSet for each pod that is bound, and use a sixth
	// of two cores for that.
	if err := e.cluster.Kill(ctx, devcluster.ControllerManager); err != nil {
		return p, err
	}
	if e.races++; e.races%2 == 0 {
		slices.Reverse(lanes) // the first side pays for cold caches and other state that has aged
	}
	err = errors.Join(e.takeTurns(ctx, lanes), e.cluster.Kill(ctx, left.process), e.cluster.RemoveProcess(ctx, right.process))
	if err != nil {
		return p, err
	}
	for _, l := range lanes {
		s, err := e.sampleOf(ctx, l, created[l.process])
		if err != nil {
			return p, err
		}
		if l == left {
			p.a = s
		} else {
			p.b = s
		}
	}
	if err := e.cluster.Restart(ctx, devcluster.ControllerManager); err != nil {
		return p, err
	}
	return p, e.deletePods(ctx, left.workload, right.workload)
}

// takeTurns lets each side warm up, then run in turns until one has few pods
// left, and then both to the end.
func (e *extenderBench) takeTurns(ctx context.Context, lanes []*lane) (err error) {
	defer func() {
		for _, l := range lanes {
			if l.counter != nil {
				l.counter.stop()
			}
		}
	}()
	for _, l := range lanes {
		if err := e.warmUp(ctx, l); err != nil {
			return err
		}
	}
	for max(lanes[0].counter.share(), lanes[1].counter.share()) < 1-spare {
		for _, l := range lanes {
			if err := e.turn(ctx, l); err != nil {
				return err
			}
		}
	}
	for _, l := range lanes {
		if err := e.goOn(ctx, l); err != nil {
			return err
		}
	}
	for _, l := range lanes {
		if _, err := l.counter.rate(ctx, e.scheduling); err != nil {
			return err
		}
	}
	return nil
}

// warmUp starts a side's kube-scheduler and stops it when it has bound some pods.
func (e *extenderBench) warmUp(ctx context.Context, l *lane) (err error) {
	if l.counter, err = startCounter(ctx, e.client, namespace, l.workload, e.options.pods); err != nil {
		return err
	}
	if l.process == devcluster.Scheduler {
		err = e.cluster.RestartScheduler(ctx, l.config)
	} else {
		err = e.cluster.StartScheduler(ctx, l.process, l.config)
	}
	if err != nil {
		return err
	}
	err = e.eventually(ctx, "the first pods to be bound", func(context.Context) (bool, error) { return l.counter.share() >= warmUp, nil })
	if err != nil {
		return err
	}
	return e.stop(ctx, l)
}

// stop stops a side and the process beside it, and goOn continues both.
func (e *extenderBench) stop(ctx context.Context, l *lane) error {
	return e.both(ctx, l, e.cluster.Pause)
}

func (e *extenderBench) goOn(ctx context.Context, l *lane) error {
	return e.both(ctx, l, e.cluster.Resume)
}

func (e *extenderBench) both(ctx context.Context, l *lane, do func(context.Context, string) error) error {
	if err := do(ctx, l.process); err != nil || l.beside == "" {
		return err
	}
	return do(ctx, l.beside)
}

// turn lets one side run for a slice of time.
func (e *extenderBench) turn(ctx context.Context, l *lane) error {
	if l.beside != "" {
		// Events of the other side's turn must be processed outside of this side's time.
		if err := e.cluster.Resume(ctx, l.beside); err != nil {
			return err
		}
		time.Sleep(catchUp)
	}
	before, err := usageOf(ctx, e.cluster)
	if err != nil {
		return err
	}
	bound, began := l.counter.count(), time.Now()
	if err := e.goOn(ctx, l); err != nil {
		return err
	}
	time.Sleep(slice)
	if err := e.stop(ctx, l); err != nil {
		return err
	}
	l.took += time.Since(began)
	time.Sleep(finish)
	after, err := usageOf(ctx, e.cluster)
	if err != nil {
		return err
	}
	l.pods += l.counter.count() - bound
	l.used = l.used.plus(after.since(before))
	return nil
}

// sampleOf returns the result of the turns of a side. It is an error unless its pods are
// exactly the created ones, all bound.
func (e *extenderBench) sampleOf(ctx context.Context, l *lane, created map[types.UID]string) (s sample, err error) {
	placed, err := e.uids(ctx, l.workload)
	if err != nil {
		return s, err
	}
	where := check(created, placed, e.pool, e.options.groups)
	if where.unbound+where.replaced > 0 {
		return s, fmt.Errorf("checking where pods are: %s", where)
	}
	s = sample{rate: float64(l.pods) / l.took.Seconds(), off: -1, strangers: l.used.strangers(), cpu: 1000 * l.used.cluster() / float64(l.pods)}
	if l.workload.policy != "" {
		s.off = where.off
	}
	s.facts = fmt.Sprintf("%s; %d pods in %.1f s, %s", where, l.pods, l.took.Seconds(), l.used)
	return s, nil
}

// serving returns a configuration of a kube-scheduler with the given name as its profile,
// and without leader election.
func serving(config []byte, name string) ([]byte, error) {
	fields := map[string]any{}
	if err := yaml.Unmarshal(config, &fields); err != nil {
		return nil, fmt.Errorf("decoding the scheduler's configuration: %w", err)
	}
	delete(fields, "leaderElection")
	fields["profiles"] = []any{map[string]any{"schedulerName": name}}
	out, err := yaml.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("encoding the scheduler's configuration: %w", err)
	}
	return out, nil
}
