package usage

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/governance"
)

const (
	// interval is the time between the beginnings of two rounds, and firstInterval while there are no rates yet: a
	// kubelet may answer twice with the same measurement.
	interval, firstInterval = 15 * time.Second, 5 * time.Second
	// firstRounds is after how many rounds a node without a rate is not waited for any more, and failedRounds if no node
	// can be read.
	firstRounds, failedRounds = 6, 2
	// wantedFor is how long nodes are read after somebody has asked.
	wantedFor = 3 * time.Minute
	// keepFor is how old a measurement may be that is shown.
	keepFor = 90 * time.Second
	// readTime bounds the reading of one node, maxReads those at a time, and maxNodes the nodes that are read.
	readTime, maxReads, maxNodes = 5 * time.Second, 16, governance.MaxItems
	// maxNamed bounds the nodes that a message names.
	maxNamed = 3
)

// source is where nodes are read: see cluster.
type source interface {
	// node returns what the API server of the pod has of a node.
	node(ctx context.Context, name string) (*nodeInfo, error)
	// pods returns the labels of the pods that are bound to a node.
	pods(ctx context.Context, node string) (map[types.NamespacedName]map[string]string, error)
	// text returns the lines, as keep does, that the kubelet at the hub's address answers.
	text(ctx context.Context, address string) ([]byte, error)
}

type nodeInfo struct {
	address string // of its hub
	labels  map[string]string
}

// nodeUsage is what is known of a node. It is never changed: each reading makes a new one.
type nodeUsage struct {
	labels map[string]string
	read   time.Time
	node   series
	pods   map[types.NamespacedName]*podUsage
}

type podUsage struct {
	labels     map[string]string
	containers map[string]series
}

// collector reads the nodes of the pool while somebody asks for them. It is safe for concurrent use.
type collector struct {
	source source
	names  func() ([]string, error)
	log    logr.Logger

	asked chan struct{}
	// turn is held by whoever has an object or a text in memory, decoded: that of one node at a time.
	turn chan struct{}

	mu    sync.Mutex
	last  time.Time // when somebody has asked
	nodes map[string]*nodeUsage
	// rounds have been read since somebody asks. isSettled: each node that answers has a rate, or was waited for.
	rounds    int
	isSettled bool
	problem   error // of the last round
}

func newCollector(s source, names func() ([]string, error), log logr.Logger) *collector {
	return &collector{source: s, names: names, log: log, asked: make(chan struct{}, 1), turn: make(chan struct{}, 1), nodes: map[string]*nodeUsage{}}
}

// notYet is the error while there are no rates. If isSoon, it is worth asking again.
type notYet struct {
	isSoon bool
	cause  error
}

func (e *notYet) Error() string {
	if e.isSoon || e.cause == nil {
		return "nodes are read since somebody asks, and usage is the difference of two readings: ask again in 15 s"
	}
	return fmt.Sprintf("no node of the pool can be read: %v", e.cause)
}

// ask returns what is known of the nodes, by their names, and lets them be read for some minutes.
func (c *collector) ask(now time.Time) (map[string]*nodeUsage, error) {
	c.mu.Lock()
	c.last = now
	nodes, settled, soon, problem := maps.Clone(c.nodes), c.isSettled, c.rounds < firstRounds, c.problem
	c.mu.Unlock()
	select {
	case c.asked <- struct{}{}:
	default:
	}
	if settled {
		for _, n := range nodes {
			if n.node.isShown(now) {
				return nodes, nil
			}
		}
	}
	return nil, &notYet{isSoon: soon && !settled, cause: problem}
}

// run reads the nodes while somebody asks, until ctx is done.
func (c *collector) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.asked:
		}
		for c.isWanted(time.Now()) && ctx.Err() == nil {
			next := time.Now().Add(firstInterval)
			if c.round(ctx) {
				next = next.Add(interval - firstInterval)
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(next)):
			}
		}
	}
}

// isWanted reports whether somebody has asked lately. If not, what is known is dropped.
func (c *collector) isWanted(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.last) <= wantedFor {
		return true
	}
	c.nodes, c.rounds, c.isSettled, c.problem = map[string]*nodeUsage{}, 0, false, nil
	return false
}

// round reads all nodes, and reports whether there are rates now, or will be none.
func (c *collector) round(ctx context.Context) bool {
	names, err := c.names()
	if err == nil && len(names) > maxNodes {
		err = fmt.Errorf("the pool has %d nodes, more than %d", len(names), maxNodes)
	}
	if err != nil {
		return c.settle(nil, fmt.Errorf("reading the nodes of the pool: %w", err))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	c.mu.Lock()
	maps.DeleteFunc(c.nodes, func(name string, _ *nodeUsage) bool { _, is := slices.BinarySearch(names, name); return !is })
	c.mu.Unlock()
	problems := make([]error, len(names))
	places := make(chan struct{}, maxReads)
	var reads sync.WaitGroup
	for i, name := range names {
		places <- struct{}{}
		reads.Go(func() {
			defer func() { <-places }()
			if problems[i] = c.read(ctx, name); problems[i] != nil {
				c.log.V(2).Info("The usage of a node cannot be read", "node", name, "reason", problems[i].Error())
			}
		})
	}
	reads.Wait()
	var read []string
	var texts []string
	for i, name := range names {
		if problems[i] == nil {
			read = append(read, name)
		} else {
			texts = append(texts, name+": "+problems[i].Error())
		}
	}
	if len(texts) > maxNamed {
		texts = append(texts[:maxNamed], fmt.Sprintf("and %d more", len(texts)-maxNamed))
	}
	if len(texts) > 0 {
		err = errors.New(strings.Join(texts, "; "))
	}
	return c.settle(read, err)
}

// settle ends a round in which these nodes were read.
func (c *collector) settle(read []string, problem error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rounds++
	c.problem = problem
	have := len(read) > 0
	for _, name := range read {
		have = have && c.nodes[name] != nil && c.nodes[name].node.measured
	}
	c.isSettled = c.isSettled || have || c.rounds >= firstRounds || len(read) == 0 && c.rounds >= failedRounds
	return c.isSettled
}

// read reads one node.
func (c *collector) read(ctx context.Context, name string) (err error) {
	defer func() {
		if p := recover(); p != nil { // what a kubelet sends ends no more than its own reading
			err = fmt.Errorf("reading panicked: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var info *nodeInfo
	if err := c.inTurn(ctx, func() (err error) {
		info, err = c.source.node(ctx, name)
		return err
	}); err != nil {
		return err
	}
	lines, err := c.source.text(ctx, info.address)
	if err != nil {
		return err
	}
	return c.inTurn(ctx, func() error {
		now := time.Now()
		s, err := parse(lines, now)
		if err != nil {
			return err
		}
		bound, err := c.source.pods(ctx, name)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.nodes[name] = c.nodes[name].next(info.labels, s, bound, now)
		return nil
	})
}

func (c *collector) inTurn(ctx context.Context, do func() error) error {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("waiting for the readings of other nodes: %w", ctx.Err())
	}
	defer func() { <-c.turn }()
	return do()
}

// next returns the usage after one more reading. Of a pod that is not bound to the node nothing is taken: a hub can
// say what it wants, but of its own pods only.
func (n *nodeUsage) next(labels map[string]string, s *sample, bound map[types.NamespacedName]map[string]string, now time.Time) *nodeUsage {
	if n == nil {
		n = &nodeUsage{}
	}
	is := &nodeUsage{labels: labels, read: now, pods: map[types.NamespacedName]*podUsage{}}
	if s.node != nil {
		is.node = n.node.next(*s.node, now)
	}
	for c, p := range s.containers {
		podLabels, isBound := bound[c.pod]
		if !isBound {
			continue
		}
		if is.pods[c.pod] == nil {
			is.pods[c.pod] = &podUsage{labels: podLabels, containers: map[string]series{}}
		}
		var was series
		if pod := n.pods[c.pod]; pod != nil {
			was = pod.containers[c.name]
		}
		is.pods[c.pod].containers[c.name] = was.next(p, now)
	}
	return is
}
