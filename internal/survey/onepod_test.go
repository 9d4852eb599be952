package survey

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	testingclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// tight is a model of a workload whose pods need a node each. The ledger and the decisions
// are the real ones; the workload's controller, kube-scheduler and the kubelets are played.
// Its clock stands still, so a rollout that waits for any time never ends.
type tight struct {
	t       *rapid.T
	ledger  *seats.Ledger
	spread  placement.Spread
	demand  *fit.Demand
	n       int
	pods    []*seats.Pod // as last observed; those that terminate are on their node
	created int
	log     []string
}

func newTight(t *rapid.T, spare int) *tight {
	m := &tight{t: t, ledger: seats.NewLedger(testingclock.NewFakeClock(time.Unix(1_000_000, 0)))}
	m.n = rapid.IntRange(1, 12).Draw(t, "replicas")
	var groups []string
	var weights []build.Option
	ranges := rapid.Bool().Draw(t, "by ranges")
	for i := range rapid.IntRange(2, 4).Draw(t, "groups") {
		groups = append(groups, fmt.Sprint("g", i))
		if ranges {
			weights = append(weights, atMost(groups[i], rapid.IntRange((m.n+1)/2, m.n).Draw(t, "max")))
		} else {
			weights = append(weights, build.Weight(rapid.Int64Range(1, 3).Draw(t, "weight"), groups[i]))
		}
	}
	m.demand = &fit.Demand{Requests: fit.Amounts{{Name: "pods", Value: 1}}, Ports: []fit.Port{{Protocol: "TCP", Number: 80}}}
	if rapid.Bool().Draw(t, "kept apart by anti-affinity") {
		m.demand = &fit.Demand{Requests: m.demand.Requests, Apart: []fit.Apart{{Key: "kubernetes.io/hostname"}}}
	}
	var err error
	if m.spread, err = placement.New(build.PropagationPolicy("p", weights...).Spec, nil, types.UID(rapid.StringN(1, 3, 3).Draw(t, "uid"))); err != nil {
		t.Fatal(err)
	}
	nodes := m.spread.Divide(m.n)
	for range spare {
		nodes[rapid.IntRange(0, len(nodes)-1).Draw(t, "group with a spare node")]++
	}
	for i, group := range m.spread.Groups() {
		for j := range nodes[i] {
			name := fmt.Sprint(group, "-", j)
			m.ledger.ObserveNode(seats.Node{
				Name: name, Group: group, Open: true, Ready: true,
				Offer: fit.Node{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name}, Allocatable: fit.Amounts{{Name: "pods", Value: 110}}},
			})
			m.logf("node %s", name)
		}
	}
	return m
}

func (m *tight) logf(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

func (m *tight) fail(format string, args ...any) {
	m.t.Fatalf(format+"\n%s", append(args, strings.Join(m.log, "\n"))...)
}

// workloadOwners are those of two revisions of a Deployment, or the one of a StatefulSet.
var workloadOwners = []types.UID{"rs-old", "rs-new", "set"}

// create creates a pod as the webhook lets it through.
func (m *tight) create(owner types.UID, revision string) {
	token := types.UID(fmt.Sprint("token-", m.created))
	group, why := m.ledger.Take(seats.Request{
		Pod: token, Cohort: seats.Cohort{Owner: owner, Revision: revision}, Total: m.n, Spread: m.spread, Workload: workloadOwners,
		Check: fit.NewCheck(m.demand, nil),
	}, false)
	if why != seats.Seated {
		m.fail("no seat for a pod of %s: %s", revision, why)
	}
	kind := "ReplicaSet"
	if owner == "set" {
		kind = "StatefulSet"
	}
	pod := &seats.Pod{
		UID: types.UID(fmt.Sprint("pod-", m.created)), Name: fmt.Sprint("pod-", m.created), Revision: revision,
		Controller: &ownership.Reference{UID: owner}, GroupStamp: group, Seat: token, Active: true, Demand: m.demand,
		Created: time.Unix(int64(m.created), 0), HasCost: true, OwnCost: true,
		DeletionCost: m.spread.SeatCost(group, m.ledger.SeatNumber(token), m.n),
	}
	pod.Controller.Kind = kind
	m.created++
	m.pods = append(m.pods, pod)
	m.see(pod)
	m.logf("%s of %s is created in %s, cost %d", pod.Name, revision, group, pod.DeletionCost)
}

func (m *tight) see(pod *seats.Pod) {
	seen := *pod
	m.ledger.Observe(&seen)
}

// delete makes a pod terminate; one without a node is gone at once.
func (m *tight) delete(pod *seats.Pod) {
	pod.Active = false
	m.see(pod)
	m.logf("%s of %s leaves %s", pod.Name, pod.Revision, pod.GroupStamp)
	if pod.Node == "" {
		m.forget(pod)
	}
}

func (m *tight) forget(pod *seats.Pod) {
	m.ledger.Forget(pod.UID)
	m.pods = slices.DeleteFunc(m.pods, func(other *seats.Pod) bool { return other == pod })
}

// of returns the active pods of a revision.
func (m *tight) of(revision string) (pods []*seats.Pod) {
	for _, pod := range m.pods {
		if pod.Active && pod.Revision == revision {
			pods = append(pods, pod)
		}
	}
	return pods
}

func ready(pods []*seats.Pod) (n int) {
	for _, pod := range pods {
		if pod.Ready {
			n++
		}
	}
	return n
}

// run lets terminating pods go, and kube-scheduler and the kubelets start what has a node.
func (m *tight) run() (changed bool) {
	for _, pod := range slices.Clone(m.pods) {
		if !pod.Active {
			m.forget(pod)
			changed = true
		}
	}
	for _, pod := range m.pods {
		if pod.Node != "" {
			continue
		}
		pod.Unschedulable = true
		for i := range 24 {
			name := fmt.Sprint(pod.GroupStamp, "-", i)
			if m.ledger.NodeGroup(name) == pod.GroupStamp && !slices.ContainsFunc(m.pods, func(other *seats.Pod) bool { return other.Node == name }) {
				pod.Node, pod.Ready, pod.Unschedulable, changed = name, true, false, true
				m.logf("%s of %s runs on %s", pod.Name, pod.Revision, name)
				break
			}
		}
		m.see(pod)
	}
	return changed
}

// observed is the workload as a pass sees it.
func (m *tight) observed(balanced bool) *rebalance.Workload {
	w := &rebalance.Workload{
		Spread: m.spread, Replicas: m.n, Evictable: true, Divided: true, Balanced: balanced, Complete: true, Mode: gm.ReschedulingEvict, Further: further,
	}
	places := m.ledger.Places(workloadOwners...)
	w.CanTake = func(group string, pod *rebalance.Pod) (bool, rebalance.Obstacle) {
		can, why := places.Take(group, m.ledger.Pod(pod.UID), nil)
		return can, obstacle(why)
	}
	views := m.ledger.View(workloadOwners)
	w.Cohorts = cohortsOf(views, func(uid types.UID) bool { return uid != "set" })
	return w
}

// pass is a pass of the controller while the rollout goes on.
func (m *tight) pass() (changed bool) {
	w := m.observed(false)
	if len(w.Cohorts) < 2 {
		p := rebalance.NewPlan(m.observed(true))
		for _, pod := range m.pods {
			if len(p.Evict) > 0 && pod.UID == p.Evict[0].UID {
				m.delete(pod)
				return true
			}
		}
		return false
	}
	for i := range w.Cohorts {
		for j := range w.Cohorts[i].Pods {
			pod := m.ledger.Pod(w.Cohorts[i].Pods[j].UID)
			if pod.Node == "" && pod.Unschedulable && w.BehindOthers(&w.Cohorts[i], pod.GroupStamp) && w.CanBorrow(&w.Cohorts[i], &w.Cohorts[i].Pods[j]) {
				m.ledger.Avoid(pod, pod.GroupStamp, workloadOwners...)
				m.delete(m.pods[slices.IndexFunc(m.pods, func(other *seats.Pod) bool { return other.UID == pod.UID })])
				return true
			}
		}
	}
	return changed
}

// shrink deletes pods as a ReplicaSet does.
func (m *tight) shrink(revision string, n int) {
	pods := m.of(revision)
	candidates := make([]placement.Candidate, len(pods))
	for i, pod := range pods {
		candidates[i] = placement.Candidate{UID: pod.UID, Node: pod.Node, Ready: pod.Ready, Bound: pod.Node != "", DeletionCost: pod.DeletionCost, Created: pod.Created}
	}
	for _, i := range placement.Victims(candidates)[:n] {
		m.delete(pods[i])
	}
}

// rollOut plays a Deployment from revision old to revision new.
func (m *tight) rollOut(surge, unavailable int) {
	for range m.n {
		m.create("rs-old", "old")
	}
	m.run()
	old, wanted := m.n, 0
	for step := 0; ; step++ {
		m.logf("- step %d", step)
		changed := m.pass()
		if wanted < m.n && old+wanted < m.n+surge {
			wanted, changed = min(m.n, m.n+surge-old), true
		} else if less := min(old, ready(m.of("old"))+ready(m.of("new"))-(m.n-unavailable), old+wanted-(m.n-unavailable)-(wanted-ready(m.of("new")))); less > 0 {
			old, changed = old-less, true
			m.shrink("old", less)
		}
		for len(m.of("new")) < wanted {
			m.create("rs-new", "new")
			changed = true
		}
		changed = m.run() || changed
		if old == 0 && ready(m.of("new")) == m.n {
			break
		}
		if !changed || step > 20*m.n+100 {
			m.fail("the rollout stands still, or goes round in circles")
		}
	}
	m.settle(surge)
}

// replace plays a StatefulSet that updates its pods one by one, down to a partition.
func (m *tight) replace(partition int) {
	for range m.n {
		m.create("set", "old")
	}
	m.run()
	for i := m.n - 1; i >= partition; i-- {
		m.delete(m.of("old")[i])
		m.run()
		m.create("set", "new")
		m.run()
		for range 10 {
			m.pass()
			if len(m.of("old"))+len(m.of("new")) < m.n {
				m.create("set", "new")
			}
			m.run()
		}
		if ready(m.of("new")) != m.n-i {
			m.fail("the update waits")
		}
	}
	m.settle(0)
}

// settle moves what is left to move, and checks that the end is exact and that no more than
// surge pods were moved.
func (m *tight) settle(surge int) {
	moved := 0
	for {
		m.run()
		w := m.observed(true)
		p := rebalance.NewPlan(w)
		if len(p.Evict) == 0 {
			break
		}
		if moved++; moved > m.n {
			m.fail("more than %d moves", m.n)
		}
		pod := m.pods[slices.IndexFunc(m.pods, func(other *seats.Pod) bool { return other.UID == p.Evict[0].UID })]
		m.delete(pod)
		m.create(pod.Owner(), pod.Revision)
		m.run()
	}
	got := map[string]int{}
	for _, pod := range m.pods {
		got[m.ledger.NodeGroup(pod.Node)]++
	}
	for i, n := range m.spread.Divide(m.n) {
		if group := m.spread.Groups()[i]; got[group] != n {
			m.fail("%d pods in %s, want %d", got[group], group, n)
		}
	}
	if moved > surge { // surge pods may have found room beyond the share of their group only
		m.fail("%d pods were moved after the rollout", moved)
	}
}

// TestRolloutsWithOnePodANodeWaitForNoTimeOut: with nodes for one pod each, no rollout waits
// for a time, and each ends exact.
func TestRolloutsWithOnePodANodeWaitForNoTimeOut(t *testing.T) {
	t.Run("a Deployment", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			surge := rapid.IntRange(0, 3).Draw(t, "maxSurge")
			unavailable := rapid.IntRange(0, 3).Draw(t, "maxUnavailable")
			spare := rapid.IntRange(0, 3).Draw(t, "spare nodes")
			if unavailable == 0 {
				surge, spare = max(1, surge), max(1, spare)
			}
			m := newTight(t, spare)
			m.rollOut(surge, unavailable)
		})
	})
	t.Run("a Deployment that is recreated", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			m := newTight(t, 0)
			for range m.n {
				m.create("rs-old", "old")
			}
			m.run()
			m.shrink("old", m.n)
			m.run()
			for range m.n {
				m.create("rs-new", "new")
			}
			m.run()
			if ready(m.of("new")) != m.n {
				m.fail("pods wait")
			}
			m.settle(0)
		})
	})
	t.Run("a StatefulSet", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			m := newTight(t, rapid.IntRange(0, 1).Draw(t, "spare nodes"))
			m.replace(rapid.IntRange(0, m.n).Draw(t, "partition"))
		})
	})
}

func atMost(group string, n int) build.Option {
	return build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = append(p.Spec.NumRange, gm.NodeGroupNumRange{NodeGroupNames: []string{group}, Max: new(intstr.FromInt(n))})
	})
}
