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
	// slice is how long one side of a race runs before the other's turn: short
	// beside what makes a machine faster or slower, long beside stopping and
	// continuing a process.
	slice = 1500 * time.Millisecond
	// finish is how long what a stopped side has asked for may take to be done.
	finish = 50 * time.Millisecond
	// catchUp is how long what runs beside a side gets to see what happened
	// while it was stopped.
	catchUp = 400 * time.Millisecond
	// spare is the part of the pods that is left to bind when the turns end:
	// more than a turn takes, so that neither side runs dry.
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

// lane is a contender on its way. Its kube-scheduler's process, that one's
// profile and the Deployment all have one name.
type lane struct {
	contender
	process string
	counter *counter
	// What came of its turns: pods bound, the time that it ran, the CPU time used.
	pods int
	took time.Duration
	used usage
}

// race lets two kube-schedulers bind their pods in turns of a second and a
// half: one is stopped (SIGSTOP) while the other runs. Both meet the machine
// as it is in the same seconds, which two rounds a minute apart do not.
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
	// It would look at all pods of a ReplicaSet for each that is bound, and
	// take a sixth of two cores for that.
	if err := e.cluster.Kill(ctx, devcluster.ControllerManager); err != nil {
		return p, err
	}
	if e.races++; e.races%2 == 0 {
		slices.Reverse(lanes) // whoever is first pays for what grows cold or old
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

// stop stops a side, and goOn lets it go on, with what runs beside it.
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
		// What happened in the other side's turn is not to be seen at this one's cost.
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

// sampleOf is what the turns of a side came to. Its pods are those that were
// created, each bound, or it is an error.
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

// serving makes a configuration that of a kube-scheduler of a name, which pods
// choose it by and which leads without being elected.
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
