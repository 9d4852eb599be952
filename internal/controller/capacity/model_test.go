package capacity

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var steps = flag.Int("steps", 500_000, "length of the random walk")

// cluster is a small model of everything around the ledger: an API server, a watch that
// delivers changes in order and late, replicas of the webhook whose answers are used
// late, ReplicaSets, the gate, and the evictions of this package. Ledger and plan are the
// real ones. The tests choose what happens next.
type cluster struct {
	ledger *seats.Ledger
	clock  *testingclock.FakeClock
	asking []*modelPod // answered, and not created yet
	pods   []*modelPod // what the API server has, the oldest first
	events []modelPod  // what the watch has not shown
	sets   []*modelSet // the newest last
	// replicas, count, surge and unavailable are what the Deployment says.
	replicas, count, surge, unavailable int

	made    int // pods so far
	rolled  int // revisions so far
	evicted int // pods so far
	over    int // on-demand pods that are too many because the count was lowered
}

type modelSet struct {
	uid      types.UID
	replicas int
}

type modelPod struct {
	name  string
	set   types.UID
	class capacity.Class
	gated bool
	ready bool
	gone  bool
	past  bool // it was created without the webhook, and class is the one of its node
	born  time.Time
}

func newCluster(replicas, count int) *cluster {
	clock := testingclock.NewFakeClock(time.Unix(1_000_000, 0))
	return &cluster{
		ledger: newLedger(clock), clock: clock, replicas: replicas, count: count, rolled: 1,
		sets: []*modelSet{{uid: "set-1", replicas: replicas}},
	}
}

// newLedger returns a ledger with one node of each class, named like the class.
func newLedger(clock clock.PassiveClock) *seats.Ledger {
	classes, err := capacity.Presets()[capacity.DefaultPreset].Ready()
	utilruntime.Must(err)
	ledger := seats.NewLedger(clock)
	ledger.SetClasses(&classes)
	for _, class := range []capacity.Class{capacity.OnDemand, capacity.Spot} {
		ledger.ObserveNode(seats.SlimNode(build.Node(class.String(), build.Label("node.kubernetes.io/capacity", class.String()))))
	}
	return ledger
}

func (c *cluster) uids() (out []types.UID) {
	for _, s := range c.sets {
		out = append(out, s.uid)
	}
	return out
}

func (c *cluster) podsOf(set types.UID) (n int) {
	for _, p := range c.pods {
		if p.set == set {
			n++
		}
	}
	return n
}

func (c *cluster) askingOf(set types.UID) (n int) {
	for _, p := range c.asking {
		if p.set == set {
			n++
		}
	}
	return n
}

// lacks reports whether a ReplicaSet is about to create a pod.
func (c *cluster) lacks(s *modelSet) bool { return c.podsOf(s.uid)+c.askingOf(s.uid) < s.replicas }

func (c *cluster) onDemand() (n int) {
	for _, p := range c.pods {
		if p.class == capacity.OnDemand {
			n++
		}
	}
	return n
}

// given returns how many pods are on-demand because the ledger chose that.
func (c *cluster) given() (n int) {
	for _, p := range c.pods {
		if p.class == capacity.OnDemand && !p.past {
			n++
		}
	}
	return n
}

// passBy: a ReplicaSet creates a pod while no replica answers, and it may use any node.
func (c *cluster) passBy(s *modelSet, class capacity.Class) {
	c.made++
	p := &modelPod{name: fmt.Sprint("p", c.made), set: s.uid, born: c.clock.Now(), class: class, past: true, ready: true}
	c.pods = append(c.pods, p)
	c.events = append(c.events, *p)
}

func (c *cluster) request(uid types.UID, of *modelSet) seats.ClassRequest {
	r := seats.ClassRequest{
		Pod: uid, Namespace: "ns", Cohort: seats.Cohort{Owner: of.uid}, Total: of.replicas, Count: c.count, Surge: c.surge,
	}
	for _, s := range c.sets {
		if s != of {
			r.Siblings = append(r.Siblings, seats.Sibling{Owner: s.uid, Replicas: s.replicas})
		}
	}
	return r
}

func (c *cluster) set(uid types.UID) *modelSet {
	return c.sets[slices.IndexFunc(c.sets, func(s *modelSet) bool { return s.uid == uid })]
}

// ask: a ReplicaSet creates a pod, and a replica of the webhook answers.
func (c *cluster) ask(s *modelSet) {
	c.made++
	p := &modelPod{name: fmt.Sprint("p", c.made), set: s.uid, born: c.clock.Now()}
	p.class, _ = c.ledger.TakeClass(c.request(token(p), s), false)
	p.gated = p.class == capacity.None
	c.asking = append(c.asking, p)
}

func token(p *modelPod) types.UID { return types.UID("token-" + p.name) }

// create: the API server stores the pod.
func (c *cluster) create(i int) {
	p := c.asking[i]
	c.asking = slices.Delete(c.asking, i, i+1)
	c.pods = append(c.pods, p)
	c.events = append(c.events, *p)
}

// refuse: another admission webhook refuses the pod.
func (c *cluster) refuse(i int) {
	c.asking = slices.Delete(c.asking, i, i+1)
}

// remove: a pod terminates, for any cause.
func (c *cluster) remove(p *modelPod) {
	c.pods = slices.DeleteFunc(c.pods, func(o *modelPod) bool { return o == p })
	gone := *p
	gone.gone = true
	c.events = append(c.events, gone)
}

// show: the watch delivers the next event.
func (c *cluster) show() {
	e := c.events[0]
	c.events = c.events[1:]
	c.see(e)
}

func (c *cluster) see(p modelPod) {
	uid := types.UID(p.name)
	if p.gone {
		c.ledger.Forget(uid)
		return
	}
	pod := &seats.Pod{
		UID: uid, Namespace: "ns", Name: p.name, Controller: &ownership.Reference{GroupVersionKind: appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), UID: p.set},
		Seat: token(&p), Class: p.class, ClassStamp: p.class, Admitted: true, Active: true, Gated: p.gated, Ready: p.ready,
		Created: p.born, DeletionCost: cost(p.class),
	}
	if p.ready {
		pod.Node = p.class.String()
	}
	if p.past {
		pod.Seat, pod.Class, pod.ClassStamp, pod.Admitted, pod.DeletionCost = "", capacity.None, capacity.None, false, 0
	}
	c.ledger.Observe(pod)
}

func cost(class capacity.Class) int32 {
	if class == capacity.OnDemand {
		return 100
	}
	return 1
}

// settle: the leader gives a pod at the gate its class.
func (c *cluster) settle(p *modelPod, final bool) {
	r := c.request(types.UID(p.name), c.set(p.set))
	r.Final = final
	class, why := c.ledger.PlaceClass(r)
	if why != seats.Seated {
		return
	}
	p.class, p.gated = class, false
	c.events = append(c.events, *p)
}

// pass: reservations expire, and the ledger checks what became of pods that the watch did not
// deliver.
func (c *cluster) pass() {
	c.clock.Step(11 * time.Second)
	for _, overdue := range c.ledger.Overdue() {
		c.ledger.RecordLookup(overdue, func(uid types.UID) bool {
			return slices.ContainsFunc(c.pods, func(p *modelPod) bool {
				return token(p) == uid || types.UID(p.name) == uid && p.class != capacity.None
			})
		})
	}
}

// failover: another replica leads. It lists pods and holds no reservations.
func (c *cluster) failover() {
	c.ledger = newLedger(c.clock)
	for _, p := range c.pods {
		c.see(*p)
	}
	c.events = nil
}

func (c *cluster) observed() observed {
	o := observed{
		replicas: c.replicas, count: c.count, reserved: c.ledger.ReservedOfClass(c.uids()), open: [3]int{1, 1, 1},
		canTake: func(capacity.Class, *seats.Pod) (bool, fit.Reason) { return true, fit.Fits },
	}
	cohorts := c.ledger.View(c.uids())
	o.rollout = len(cohorts) > 1
	for _, v := range cohorts {
		o.pods = append(o.pods, v.Pods...)
	}
	return o
}

// recount changes the count. Pods that are on-demand already, or will be, stay until they are
// evicted.
func (c *cluster) recount(count int) {
	c.over = c.given() + c.coming()
	c.count = count
}

// coming is the number of on-demand pods that are about to be created.
func (c *cluster) coming() (n int) {
	for _, p := range c.asking {
		if p.class == capacity.OnDemand {
			n++
		}
	}
	return n
}

// roll makes a revision the newest one; "" stands for a new revision.
func (c *cluster) roll(to types.UID) {
	if to == "" {
		c.rolled++
		to = types.UID(fmt.Sprint("set-", c.rolled))
		c.sets = append(c.sets, &modelSet{uid: to})
	}
	s := c.set(to)
	c.sets = append(slices.DeleteFunc(c.sets, func(o *modelSet) bool { return o == s }), s)
}

// deploy is a step of the Deployment controller: it scales the ReplicaSets. It reports whether
// it changed anything.
func (c *cluster) deploy() bool {
	newest, old := c.sets[len(c.sets)-1], c.sets[:len(c.sets)-1]
	total, available := 0, 0
	for _, s := range c.sets {
		total += s.replicas
	}
	for _, p := range c.pods {
		if p.ready {
			available++
		}
	}
	if total == newest.replicas && newest.replicas != c.replicas {
		newest.replicas = c.replicas
		return true
	}
	if newest.replicas > c.replicas {
		newest.replicas = c.replicas
		return true
	}
	if room := min(c.replicas+c.surge-total, c.replicas-newest.replicas); room > 0 {
		newest.replicas += room
		return true
	}
	spare := available - (c.replicas - c.unavailable)
	for _, s := range old {
		broken := max(0, s.replicas-c.readyOf(s.uid)) // pods that are not Ready are deleted at once
		if n := min(s.replicas, max(broken, spare)); n > 0 && total-n >= c.replicas-c.unavailable-(c.replicas-newest.replicas) {
			s.replicas -= n
			return true
		}
	}
	return false
}

func (c *cluster) readyOf(set types.UID) (n int) {
	for _, p := range c.pods {
		if p.set == set && p.ready {
			n++
		}
	}
	return n
}

// correct is a pass of this package, with its evictions. It reports whether it evicted a pod.
func (c *cluster) correct() bool {
	o := c.observed()
	for _, pod := range planFor(o).evict {
		if !c.ledger.Disrupt(pod.UID, c.uids(), o.replicas, maxUnavailable) {
			return false
		}
		i := slices.IndexFunc(c.pods, func(p *modelPod) bool { return p.name == pod.Name })
		if i >= 0 {
			c.remove(c.pods[i])
			c.evicted++
			return true
		}
	}
	return false
}

// rest runs the model until nothing changes, and returns what is wrong then.
func (c *cluster) rest() error {
	for idle, busyFor := 0, 0; idle < 4; { // seats of pods that were refused lapse meanwhile
		if busyFor++; busyFor > 1000 {
			return errors.New("it does not come to rest")
		}
		busy := c.settleDown()
		if err := c.safe(); err != nil {
			return err
		}
		if busy {
			idle = 0
			continue
		}
		idle++
		c.pass()
	}
	want, _ := capacity.Divide(c.replicas, c.count)
	if len(c.pods) != c.replicas || c.onDemand() != want {
		return fmt.Errorf("at rest there are %d pods, %d of them on-demand, want %d and %d", len(c.pods), c.onDemand(), c.replicas, want)
	}
	if held := c.ledger.ReservedOfClass(c.uids()); held != [3]int{} {
		return fmt.Errorf("at rest %v seats are reserved without a pod", held)
	}
	c.sets = c.sets[len(c.sets)-1:]
	return nil
}

// settleDown runs every step that takes no time, and reports whether there were any.
func (c *cluster) settleDown() (busy bool) {
	busy = len(c.asking)+len(c.events) > 0
	for len(c.asking) > 0 {
		c.create(0)
	}
	for len(c.events) > 0 {
		c.show()
	}
	busy = c.deploy() || busy
	for _, s := range c.sets {
		for c.podsOf(s.uid) > s.replicas {
			c.remove(c.cheapest(s.uid))
			busy = true
		}
		if c.podsOf(s.uid) < s.replicas {
			c.ask(s)
			busy = true
		}
	}
	for _, p := range c.pods {
		switch {
		case p.gated:
			c.settle(p, c.clock.Since(p.born) > 15*time.Second)
			busy = busy || !p.gated
		case !p.ready:
			p.ready = true
			c.events = append(c.events, *p)
			busy = true
		}
	}
	return busy || c.correct()
}

// cheapest returns the pod that a ReplicaSet with surplus pods deletes.
func (c *cluster) cheapest(set types.UID) *modelPod {
	var of []*modelPod
	for _, p := range c.pods {
		if p.set == set {
			of = append(of, p)
		}
	}
	rank := func(p *modelPod) int32 {
		if !p.ready || p.past {
			return 0
		}
		return cost(p.class)
	}
	return slices.MinFunc(of, func(a, b *modelPod) int { return cmp.Compare(rank(a), rank(b)) })
}

func (c *cluster) safe() error {
	n := c.given()
	if n > max(c.count+c.surge, c.over) {
		return fmt.Errorf("%d pods are on-demand, with a count of %d and a surge of %d", n, c.count, c.surge)
	}
	c.over = min(c.over, n+c.coming())
	return nil
}

// key identifies the state of the model.
func (c *cluster) key(left budget) string {
	var b strings.Builder
	one := func(p modelPod) {
		fmt.Fprintf(&b, "%s%d%t%t%t ", p.name, p.class, p.gated, p.ready, p.gone)
	}
	for _, p := range c.asking {
		one(*p)
	}
	b.WriteByte('|')
	for _, p := range c.pods {
		one(*p)
	}
	b.WriteByte('|')
	for _, e := range c.events {
		one(e)
	}
	fmt.Fprint(&b, "|", c.sets[0].replicas, c.made, left, c.ledger.ReservedOfClass(c.uids()), c.clock.Now().Unix(), c.ledger.Overdue())
	for _, v := range c.ledger.View(c.uids()) {
		pods := map[string]string{}
		for _, p := range v.Pods {
			pods[p.Name] = fmt.Sprint(p.Class, p.Gated, p.Ready)
		}
		for _, name := range slices.Sorted(maps.Keys(pods)) {
			b.WriteString(name + pods[name])
		}
	}
	return b.String()
}

// budget is how often the limited steps may still happen.
type budget struct{ pods, refusals, removals, passes, failovers, scales int }

// moves returns all steps that may happen next.
func (c *cluster) moves(left *budget) (out []func()) {
	set := c.sets[0]
	if left.pods > 0 && len(c.asking) < 2 && c.lacks(set) {
		out = append(out, func() { left.pods--; c.ask(set) })
	}
	for i := range c.asking {
		out = append(out, func() { c.create(i) })
		if left.refusals > 0 {
			out = append(out, func() { left.refusals--; c.refuse(i) })
		}
	}
	if len(c.events) > 0 {
		out = append(out, c.show)
	}
	for _, p := range c.pods {
		if p.gated && c.ledger.Pod(types.UID(p.name)) != nil {
			out = append(out, func() { c.settle(p, false) })
		}
		if left.removals > 0 {
			out = append(out, func() { left.removals--; c.remove(p) })
		}
	}
	if len(c.asking) == 0 {
		if left.passes > 0 { // the watch may be behind by that much
			out = append(out, func() { left.passes--; c.pass() })
		}
		if left.failovers > 0 { // a new leader has waited for the Lease to expire
			out = append(out, func() { left.failovers--; c.failover() })
		}
	}
	if left.scales > 0 {
		out = append(out, func() { left.scales--; c.replicas = 3 - c.replicas; set.replicas = c.replicas })
	}
	if c.podsOf(set.uid) > set.replicas {
		out = append(out, func() { c.remove(c.cheapest(set.uid)) })
	}
	out = append(out, func() { c.correct() })
	return out
}

// TestEveryOrderOfStepsEndsExact runs every order of these steps: two replicas of the webhook answer
// for up to four pods, pods are created or refused, delivered by the watch, deleted,
// settled at the gate and evicted, time passes, another replica becomes the leader, and
// the workload is scaled. There are never more on-demand pods than the count, and from
// every state the model comes to rest with exact numbers. Without a change of the target
// and without a new leader that takes no eviction.
func TestEveryOrderOfStepsEndsExact(t *testing.T) {
	for _, tc := range []struct {
		name            string
		replicas, count int
		budget          budget
	}{
		{"refused", 2, 1, budget{pods: 4, refusals: 2, passes: 1}},
		{"refused of many", 4, 1, budget{pods: 4, refusals: 1}},
		{"deleted", 2, 1, budget{pods: 4, removals: 2, passes: 1}},
		{"another leads", 2, 1, budget{pods: 4, refusals: 1, removals: 1, failovers: 1}},
		{"scaled", 2, 1, budget{pods: 4, removals: 1, scales: 2}},
		{"all on-demand", 2, 2, budget{pods: 4, refusals: 1, removals: 1, passes: 1}},
		{"all spot", 2, 0, budget{pods: 3, refusals: 1, removals: 1, passes: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			known := map[string]bool{}
			replay := func(path []int) (*cluster, budget) {
				c, left := newCluster(tc.replicas, tc.count), tc.budget
				for _, i := range path {
					c.moves(&left)[i]()
				}
				return c, left
			}
			for paths := [][]int{nil}; len(paths) > 0; {
				path := paths[len(paths)-1]
				paths = paths[:len(paths)-1]
				c, left := replay(path)
				key := c.key(left)
				if known[key] {
					continue
				}
				known[key] = true
				if err := c.safe(); err != nil {
					t.Fatalf("after %v: %v", path, err)
				}
				for i := range c.moves(&left) {
					paths = append(paths, append(path[:len(path):len(path)], i))
				}
				if err := c.rest(); err != nil {
					t.Fatalf("after %v: %v", path, err)
				}
				if c.evicted > 0 && tc.budget.failovers+tc.budget.scales == 0 {
					t.Fatalf("after %v: a pod was evicted without need", path)
				}
			}
			t.Logf("%d states", len(known))
		})
	}
}

// TestRandomWalk runs random steps: it creates pods with and without the webhook, refuses,
// deletes, scales, rolls out and back, changes the count, delays the watch and changes the
// leader. -steps sets their number. There are never more on-demand pods than count and
// surge allow, and the model always comes to rest with exact numbers.
func TestRandomWalk(t *testing.T) {
	const seeds, leg = 200, 40
	legs := *steps / (seeds * leg)
	if testing.Short() {
		legs = max(1, legs/4)
	}
	for seed := range uint64(seeds) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		c := newCluster(rnd.IntN(12), rnd.IntN(12))
		c.surge = rnd.IntN(4)
		c.unavailable = rnd.IntN(3)
		if c.surge == 0 {
			c.unavailable = max(1, c.unavailable)
		}
		var trace []string
		for range legs {
			for range leg {
				moves, names := c.walk(rnd)
				i := rnd.IntN(len(moves))
				trace = append(trace, names[i])
				moves[i]()
				if err := c.safe(); err != nil {
					t.Fatalf("seed %d, after %v: %v", seed, trace[max(0, len(trace)-60):], err)
				}
			}
			trace = append(trace, "rest")
			if err := c.rest(); err != nil {
				t.Fatalf("seed %d, after %v: %v", seed, trace[max(0, len(trace)-60):], err)
			}
		}
	}
}

// walk returns all steps that may happen next, and their names.
func (c *cluster) walk(rnd *rand.Rand) (moves []func(), names []string) {
	add := func(name string, move func()) { moves, names = append(moves, move), append(names, name) }
	for _, s := range c.sets {
		if c.lacks(s) && len(c.asking) < 8 {
			add("ask", func() { c.ask(s) })
			add("ask", func() { c.ask(s) })
			if rnd.IntN(8) == 0 {
				class := []capacity.Class{capacity.OnDemand, capacity.Spot}[rnd.IntN(2)]
				add("pass by as "+class.String(), func() { c.passBy(s, class) })
			}
		}
		if c.podsOf(s.uid) > s.replicas {
			add("shrink", func() { c.remove(c.cheapest(s.uid)) })
		}
	}
	if n := len(c.asking); n > 0 {
		add("create", func() { c.create(rnd.IntN(n)) })
		add("create", func() { c.create(rnd.IntN(n)) })
		if rnd.IntN(4) == 0 {
			add("refuse", func() { c.refuse(rnd.IntN(n)) })
		}
	}
	if len(c.events) > 0 {
		add("show", c.show)
		add("show", c.show)
	}
	if n := len(c.pods); n > 0 {
		p := c.pods[rnd.IntN(n)]
		switch {
		case p.gated && c.ledger.Pod(types.UID(p.name)) != nil:
			add("settle "+p.name, func() { c.settle(p, false) })
		case !p.gated && !p.ready:
			add("ready", func() { p.ready = true; c.events = append(c.events, *p) })
		}
		if rnd.IntN(3) == 0 {
			add("delete "+p.name, func() { c.remove(p) })
		}
	}
	switch rnd.IntN(4) {
	case 0:
		add("deploy", func() { c.deploy() })
	case 1:
		add("correct", func() { c.correct() })
	}
	if rnd.IntN(5) == 0 {
		n := rnd.IntN(12)
		switch rnd.IntN(6) {
		case 0:
			add(fmt.Sprint("scale ", n), func() { c.replicas = n })
		case 1:
			add(fmt.Sprint("count ", n), func() { c.recount(n) })
		case 2:
			if len(c.sets) < 4 {
				add("roll", func() { c.roll("") })
			}
		case 3:
			to := c.sets[rnd.IntN(len(c.sets))].uid
			add("back to "+string(to), func() { c.roll(to) })
		case 4:
			if len(c.asking) == 0 {
				add("pass", c.pass)
			}
		case 5:
			if len(c.asking) == 0 {
				add("failover", c.failover)
			}
		}
	}
	if len(moves) == 0 {
		add("deploy", func() { c.deploy() })
	}
	return moves, names
}
