package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/test/relay"
)

const (
	// shortCut and longCut are the longest times of a cut that a hub may not notice, and of one that it
	// does; noticed is the shortest of these.
	shortCut, noticed, longCut = 4 * time.Second, 15 * time.Second, 35 * time.Second
	// calm is the time between two faults.
	calm = 3 * time.Second
)

// run runs the soak.
func run(ctx context.Context, o options, out io.Writer) (err error) {
	r := &report{began: time.Now(), out: out}
	r.say("seed %d, for %s; make soak FOR=%s SEED=%d makes the same faults", o.seed, o.length, o.length, o.seed)
	g, err := newRig(ctx, o, io.Discard, r)
	if g != nil {
		defer func() { err = errors.Join(err, g.close()) }()
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel(nil)
	if err := g.follow(ctx, &group); err != nil {
		return err
	}
	load := newLoad(g.client, o.seed, nodeNames(o.nodes), g.lives)
	group.Go(func() {
		if err := load.run(ctx); err != nil {
			cancel(err)
		}
	})
	group.Go(func() { g.eachMinute(ctx) })
	if err := g.check(ctx); err != nil {
		return err
	}
	g.say("all is there: %s", g.summary())
	random := rand.New(rand.NewPCG(o.seed, 1))
	for end := time.Now().Add(o.length); time.Now().Before(end); {
		err := g.fault(ctx, random)
		if err == nil {
			err = g.check(ctx)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		pause(ctx, calm)
	}
	g.say("end: %s", g.summary())
	if n := g.failures(); n > 0 {
		return fmt.Errorf("%d violations; the seed was %d", n, o.seed)
	}
	return nil
}

// fault makes one fault of a random kind at random nodes, and ends it.
func (g *rig) fault(ctx context.Context, random *rand.Rand) error {
	places := chosen(random, g.places)
	switch kind := random.IntN(10); {
	case kind < 5:
		return g.cut(ctx, random, places)
	case kind < 6:
		return g.flap(ctx, random, places)
	case kind < 8:
		return g.killHubs(ctx, places)
	default:
		return g.killKubelets(ctx, places)
	}
}

// chosen returns one or more of the places.
func chosen[P any](random *rand.Rand, all []P) (some []P) {
	for _, i := range random.Perm(len(all))[:1+random.IntN(len(all))] {
		some = append(some, all[i])
	}
	return some
}

// between returns a duration by chance.
func between(random *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(random.Int64N(int64(most-least)))
}

// cutStates are the ways in which a link can be cut.
var cutStates = []relay.State{relay.Silent, relay.Refused}

// cut cuts links for longer than it takes a hub to notice. Meanwhile hubs and kubelets are killed.
func (g *rig) cut(ctx context.Context, random *rand.Rand, places []*place) error {
	began, length := time.Now(), between(random, noticed, longCut)
	state := cutStates[random.IntN(len(cutStates))]
	hub, kubelet := random.IntN(2) == 0, random.IntN(2) == 0
	g.set(places, state)
	defer func() {
		g.set(places, relay.Whole)
		g.count(func(r *report) {
			r.cuts, r.away = r.cuts+len(places), r.away+time.Duration(len(places))*time.Since(began)
		})
	}()
	if err := g.askOffline(ctx, places); err != nil {
		return err
	}
	if kubelet {
		if err := g.killKubelets(ctx, places); err != nil {
			return err
		}
	}
	if hub {
		if err := g.killHubs(ctx, places); err != nil {
			return err
		}
		if err := g.askOffline(ctx, places); err != nil { // it has lost nothing
			return err
		}
	}
	pause(ctx, time.Until(began.Add(length)))
	return g.askOffline(ctx, places)
}

// flap cuts links some times, each time for so short a time that the cloud does not count as away.
func (g *rig) flap(ctx context.Context, random *rand.Rand, places []*place) error {
	for range 1 + random.IntN(4) {
		length := between(random, shortCut/8, shortCut)
		g.set(places, cutStates[random.IntN(len(cutStates))])
		pause(ctx, length)
		g.set(places, relay.Whole)
		g.count(func(r *report) { r.cuts, r.away = r.cuts+len(places), r.away+time.Duration(len(places))*length })
		pause(ctx, between(random, 0, shortCut))
	}
	return nil
}

func (g *rig) set(places []*place, s relay.State) {
	for _, p := range places {
		p.link.Set(s)
	}
}

func (g *rig) killHubs(ctx context.Context, places []*place) error {
	for _, p := range places {
		if err := g.cluster.Restart(ctx, p.hub.Name); err != nil {
			return err
		}
		g.count(func(r *report) { r.hubs++ })
	}
	return nil
}

func (g *rig) killKubelets(ctx context.Context, places []*place) error {
	for _, p := range places {
		g.lives.restart(p.node, time.Now())
		if err := g.cluster.Restart(ctx, p.node); err != nil {
			return err
		}
		g.count(func(r *report) { r.kubelets++ })
	}
	return nil
}

// askOffline waits until the hubs of places answer from their caches, and notes what they answer to
// each follower.
func (g *rig) askOffline(ctx context.Context, places []*place) error {
	for _, p := range places {
		err := g.eventually(ctx, "the hub of "+p.node+" answers from its cache", func(ctx context.Context) error {
			_, _, cached, err := p.pods.read(ctx)
			if err == nil && !cached {
				err = errors.New("it answers from the cloud")
			}
			return err
		})
		if err != nil {
			return err
		}
		for _, c := range g.collections {
			for _, f := range c.others {
				if !strings.HasSuffix(f.name, " "+p.node) {
					continue
				}
				floor, _ := f.at()
				got, version, cached, err := f.read(ctx)
				if err != nil {
					g.violations([]string{fmt.Sprintf("%s, without the cloud: %v", f.name, err)})
					continue
				}
				if !cached {
					return fmt.Errorf("%s: the link is cut, and the answer is not from the cache", f.name)
				}
				c.answers = append(c.answers, answer{f.name, got, version, floor})
				g.count(func(r *report) { r.answers++ })
			}
		}
	}
	return nil
}

// check waits until all followers are where the API server is, and compares what they got.
func (g *rig) check(ctx context.Context) error {
	g.count(func(r *report) { r.checks++ })
	for _, c := range g.collections {
		mark, err := g.mark(ctx, c)
		if err != nil {
			return err
		}
		for _, f := range append([]*follower{c.truth}, c.others...) {
			err := g.eventually(ctx, fmt.Sprintf("%s have come up to version %d", f.name, mark), func(context.Context) error {
				if version, err := f.at(); version < mark {
					return errors.Join(fmt.Errorf("they are at %d", version), err)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		wrong, err := c.check(mark)
		g.violations(wrong)
		if err != nil {
			return err
		}
	}
	return g.settled(ctx)
}

// mark changes an object of a collection, and returns its version.
func (g *rig) mark(ctx context.Context, c *collection) (uint64, error) {
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"mark":"%d"}}}`, time.Now().UnixNano())
	var changed metav1.Object
	var err error
	if node, is := strings.CutPrefix(c.name, "pods of "); is {
		changed, err = g.client.CoreV1().Pods(namespace).Patch(ctx, keeper(node, 0), types.MergePatchType, patch, metav1.PatchOptions{})
	} else {
		changed, err = g.client.CoreV1().ConfigMaps(namespace).Patch(ctx, marker, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("changing an object: %w", err)
	}
	return strconv.ParseUint(changed.GetResourceVersion(), 10, 64)
}

// settled waits until each pod that stays runs, and each that was deleted a while ago is gone.
func (g *rig) settled(ctx context.Context) error {
	now := time.Now()
	return g.eventually(ctx, "pods run that stay, and are gone that were deleted", func(ctx context.Context) error {
		pods, err := g.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			switch pod := &pods.Items[i]; {
			case pod.CreationTimestamp.After(now): // it may still start
			case pod.DeletionTimestamp != nil && pod.DeletionTimestamp.Time.Before(now):
				return fmt.Errorf("pod %s was deleted and is still there", pod.Name)
			case pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodRunning:
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
}
