package rebalance

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// spreadOf returns the spread of a policy. The groups in without have no node.
func spreadOf(policy *gm.PropagationPolicy, without ...string) placement.Spread {
	spread, err := placement.New(policy.Spec, func(group string) bool { return !slices.Contains(without, group) }, "web")
	if err != nil {
		panic(err)
	}
	return spread
}

// threeToTwo divides five pods into three in hz and two in bj.
func threeToTwo(without ...string) placement.Spread {
	return spreadOf(build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj")), without...)
}

// cohort returns the pods of one revision: one in each of the groups, Ready and the
// oldest first. "-" is a pod that waits, "" one on a node of no group.
func cohort(revision string, groups ...string) Cohort {
	c := Cohort{CohortKey: CohortKey{Owner: "rs", Revision: revision}}
	for i, group := range groups {
		name := fmt.Sprintf("%s-%d", revision, i)
		pod := Pod{Candidate: placement.Candidate{UID: types.UID(name), Created: time.Unix(int64(i), 0)}, Name: name}
		if group != "-" {
			pod.Node, pod.Bound, pod.Ready, pod.Available = fmt.Sprint("node-", group, i), true, true, true
			pod.Group, pod.Seated = group, true
		}
		c.Pods = append(c.Pods, pod)
	}
	return c
}

// atMost bounds the pods of a group.
func atMost(group string, n int) build.Option {
	return build.With(func(p *gm.PropagationPolicy) {
		p.Spec.NumRange = append(p.Spec.NumRange, gm.NodeGroupNumRange{NodeGroupNames: []string{group}, Max: new(intstr.FromInt(n))})
	})
}

func times(n int, group string) []string { return slices.Repeat([]string{group}, n) }

// noRoom and tainted are obstacles. Of two obstacles the first one counts.
var noRoom, tainted = Obstacle{Reason: "it is full"}, Obstacle{Reason: "it is tainted"}

// seen returns a Deployment of five pods that may be moved to any group.
func seen(change ...func(*Workload)) Workload {
	w := Workload{
		Ref: gm.WorkloadReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}, Replicas: 5, Spread: threeToTwo(),
		Evictable: true, Divided: true, Balanced: true, Mode: gm.ReschedulingEvict,
		CanTake: func(string, *Pod) (bool, Obstacle) { return true, Obstacle{} },
		Further: func(a, _ Obstacle) Obstacle { return a },
	}
	for _, c := range change {
		c(&w)
	}
	return w
}

func pods(cohorts ...Cohort) func(*Workload) {
	return func(w *Workload) { w.Cohorts = cohorts }
}

func notReady(pods ...int) func(*Workload) {
	return func(w *Workload) {
		for _, i := range pods {
			w.Cohorts[0].Pods[i].Ready = false
		}
	}
}

func names(pods []*Pod) []string {
	var out []string
	for _, pod := range pods {
		out = append(out, pod.Name)
	}
	return out
}

func TestNewPlan(t *testing.T) {
	roomIn := func(groups ...string) func(*Workload) {
		return func(w *Workload) {
			w.CanTake = func(group string, _ *Pod) (bool, Obstacle) { return slices.Contains(groups, group), noRoom }
		}
	}
	ranges := func(replicas int, rules ...build.Option) func(*Workload) {
		return func(w *Workload) { w.Spread, w.Replicas = spreadOf(build.PropagationPolicy("p", rules...)), replicas }
	}
	moving := func(w *Workload) { w.Balanced = false }
	away := func(groups ...string) func(*Workload) {
		return func(w *Workload) {
			w.Spread = w.Spread.WithoutAway(func(group string) bool { return slices.Contains(groups, group) })
		}
	}
	exact := append(times(3, "hz"), times(2, "bj")...)
	twoAndThree := append(times(2, "hz"), times(3, "bj")...)

	tests := map[string]struct {
		observed Workload
		evict    []string
		reason   string
		waiting  int32
		silent   bool // no message is wanted
		message  string
		groups   []gm.GroupSpread
	}{
		"exact": {
			observed: seen(pods(cohort("r", exact...))), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 3}},
		},
		"one too many in bj and one too few in hz: the youngest of bj leaves": {
			observed: seen(pods(cohort("r", twoAndThree...))), reason: gm.ReasonConverging, evict: []string{"r-4"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"a pod that is not Ready leaves before one that is": {
			observed: seen(pods(cohort("r", twoAndThree...)), notReady(2)), reason: gm.ReasonConverging, evict: []string{"r-2"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 2, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"a pod of lower deletion cost leaves first": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) { w.Cohorts[0].Pods[3].DeletionCost = -5 }),
			reason:   gm.ReasonConverging, evict: []string{"r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods outside of all groups leave": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", ""))), reason: gm.ReasonConverging, evict: []string{"r-4"},
			groups: []gm.GroupSpread{
				{Name: "", Current: 1, Ready: 1, Surplus: 1},
				{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2},
			},
		},
		"pods in a group of another policy leave": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "sh"))), reason: gm.ReasonConverging, evict: []string{"r-4"},
			groups: []gm.GroupSpread{
				{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2},
				{Name: "sh", Current: 1, Ready: 1, Surplus: 1},
			},
		},
		"nothing leaves while no group that lacks pods has room": {
			observed: seen(pods(cohort("r", twoAndThree...)), roomIn("bj")), reason: gm.ReasonNoFeasibleTarget,
			message: `surplus and stay: NodeGroup "hz" can take none`,
			groups:  []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1, OnLoan: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"of all surplus groups the one with most comes first": {
			observed: seen(pods(cohort("r", "", "", "sh", "hz", "bj"))), reason: gm.ReasonConverging, evict: []string{"r-1", "r-0", "r-2"},
			groups: []gm.GroupSpread{
				{Name: "", Current: 2, Ready: 2, Surplus: 2}, {Name: "bj", Desired: 2, Current: 1, Ready: 1},
				{Name: "hz", Desired: 3, Current: 1, Ready: 1}, {Name: "sh", Current: 1, Ready: 1, Surplus: 1},
			},
		},
		"mode OnRollout leaves running pods alone": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) { w.Mode = gm.ReschedulingOnRollout }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"mode Never leaves running pods alone": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) { w.Mode = gm.ReschedulingNever }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods that would not come back elsewhere are not moved": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) { w.Evictable = false }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"the pods of a DaemonSet are wanted where they are": {
			observed: seen(pods(cohort("r", "hz", "sh")), func(w *Workload) { w.Divided = false }), reason: gm.ReasonSatisfied,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz", Desired: 1, Current: 1, Ready: 1}, {Name: "sh", Desired: 1, Current: 1, Ready: 1}},
		},
		"those that wait outside of the groups hold up its rollout": {
			observed: seen(pods(cohort("r", "hz", "-")), func(w *Workload) { w.Divided = false }), reason: gm.ReasonPodsWaiting, waiting: 1,
			message: "give the DaemonSet node affinity on " + gm.NodeGroupLabel,
			groups:  []gm.GroupSpread{{Name: "bj"}, {Name: "hz", Desired: 1, Current: 1, Ready: 1}},
		},
		"a pod outside of all groups is not on loan, though no group has room for it": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "")), roomIn("bj")), reason: gm.ReasonNoFeasibleTarget,
			message: `surplus and stay: NodeGroup "hz" can take none`,
			groups: []gm.GroupSpread{
				{Name: "", Current: 1, Ready: 1, Surplus: 1},
				{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2},
			},
		},
		"a rollout that stands still: pods beyond the share of their own revision leave first": {
			observed: seen(pods(cohort("old", times(3, "bj")...), cohort("new", "bj", "bj"))),
			reason:   gm.ReasonConverging, evict: []string{"new-1", "old-2", "old-1"}, message: "surplus pods are being moved",
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 5, Ready: 5, Surplus: 3}, {Name: "hz", Desired: 3}},
		},
		"a rollout that stands still, and is exact, though its revisions are not": {
			observed: seen(pods(cohort("old", "hz", "hz", "hz"), cohort("new", "bj", "bj"))), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 3}},
		},
		"a rollout that stands still, and is exact in each revision": {
			observed: seen(pods(cohort("old", "hz", "hz", "bj"), cohort("new", "hz", "bj"))), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 3}},
		},
		"a group that is away gives its share to the others: its pods leave": {
			observed: seen(pods(cohort("r", exact...)), notReady(3, 4), away("bj")), reason: gm.ReasonConverging, evict: []string{"r-4", "r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Current: 2, Surplus: 2}, {Name: "hz", Desired: 5, Current: 3, Ready: 3}},
		},
		"pods that have no successor before the node is back stay in a group that is away": {
			observed: seen(pods(cohort("r", exact...)), notReady(3, 4), away("bj"), func(w *Workload) { w.Sticky = true }),
			reason:   gm.ReasonNoFeasibleTarget,
			groups:   []gm.GroupSpread{{Name: "bj", Current: 2, Surplus: 2}, {Name: "hz", Desired: 5, Current: 3, Ready: 3}},
		},
		"a group that is away is named once its share is divided": {
			observed: seen(pods(cohort("r", times(5, "hz")...)), away("bj")), reason: gm.ReasonNodeGroupsAway, message: `"bj"`,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz", Desired: 5, Current: 5, Ready: 5}},
		},
		"a group that is back gets its share back": {
			observed: seen(pods(cohort("r", times(5, "hz")...))), reason: gm.ReasonConverging, evict: []string{"r-4", "r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2}, {Name: "hz", Desired: 3, Current: 5, Ready: 5, Surplus: 2}},
		},
		"two revisions at once: nothing leaves": {
			observed: seen(pods(cohort("old", times(3, "bj")...), cohort("new", "bj", "bj")), moving), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 5, Ready: 5}, {Name: "hz", Desired: 3}},
		},
		"two revisions at once, and pods that wait": {
			observed: seen(pods(cohort("old", times(3, "bj")...), cohort("new", "bj", "-")), moving), reason: gm.ReasonConverging, waiting: 1,
			message: `pods wait for a node: NodeGroup "hz"`,
			groups:  []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 4, Ready: 4}, {Name: "hz", Desired: 3}},
		},
		"waiting pods fill what is lacking: nothing leaves for them": {
			observed: seen(pods(cohort("r", "hz", "bj", "bj", "-", "-"))), reason: gm.ReasonPodsWaiting, waiting: 2,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 1, Ready: 1}},
		},
		"what is surplus leaves although others wait": {
			observed: seen(pods(cohort("r", "hz", "bj", "bj", "bj", "-"))), reason: gm.ReasonPodsWaiting, waiting: 1, evict: []string{"r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 1, Ready: 1}},
		},
		"a seat that is reserved is taken: no pod leaves for it": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "-")), func(w *Workload) {
				w.Cohorts[0].Pods[4].Seated, w.Cohorts[0].Pods[4].Group = true, "hz"
			}),
			reason: gm.ReasonPodsWaiting, waiting: 1,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"a seat that is reserved in a group that has its share: it may still be given up": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "-")), func(w *Workload) {
				w.Cohorts[0].Pods[4].Seated, w.Cohorts[0].Pods[4].Group = true, "bj"
			}),
			reason: gm.ReasonPodsWaiting, waiting: 1,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods that are not there yet count as wanted": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj"))), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 1, Ready: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods that are not there yet take seats as well: only what is beyond them leaves": {
			observed: seen(pods(cohort("r", times(3, "bj")...))), reason: gm.ReasonConverging, evict: []string{"r-2"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3}},
		},
		"pods that are pinned wait for a node of their own group": {
			observed: seen(pods(cohort("r", "hz", "hz", "hz", "-", "bj")), func(w *Workload) {
				w.Cohorts[0].Pods[3].Seated, w.Cohorts[0].Pods[3].Pinned, w.Cohorts[0].Pods[3].Group = true, true, "bj"
				w.Cohorts[0].Pods[0].Node, w.Cohorts[0].Pods[0].Ready, w.Cohorts[0].Pods[0].Seated = "", false, false // lacks in hz, and has a gate
				w.Cohorts[0].Pods[0].OtherGate = "example.com/other"
			}),
			reason: gm.ReasonPodsWaiting, waiting: 2,
			message: `pods wait at scheduling gates of other programs, which have to remove them: "example.com/other"; pods wait for a node: NodeGroup "bj"`,
			groups:  []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 1, Ready: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"a pod whose own node selector keeps it is not on loan": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) {
				w.CanTake = func(string, *Pod) (bool, Obstacle) {
					return false, Obstacle{Reason: "no open node matches", Unwanted: true}
				}
			}),
			reason: gm.ReasonNoFeasibleTarget, message: `pods are surplus and stay: NodeGroup "hz" can take none: no open node matches`,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods whose owner names their node are not moved, and the others are": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(w *Workload) {
				for i := range 4 {
					w.Cohorts[0].Pods[i+1].NamesNode = true
				}
			}),
			reason: gm.ReasonNoFeasibleTarget, message: "the template of some names their node (spec.nodeName)",
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods on nodes that were deleted are nowhere": {
			observed: seen(pods(cohort("r", "", "", "", "bj", "bj")), func(w *Workload) {
				for i := range 3 {
					w.Cohorts[0].Pods[i].Lost = true
				}
			}),
			reason: gm.ReasonConverging, message: "pods are on nodes that were deleted", evict: []string{"r-2", "r-1", "r-0"},
			groups: []gm.GroupSpread{
				{Name: "", Current: 3, Ready: 3, Surplus: 3}, {Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3},
			},
		},
		"no pod at all": {
			observed: seen(), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2}, {Name: "hz", Desired: 3}},
		},
		"no pod at all, and none wanted": {
			observed: seen(func(w *Workload) { w.Replicas = 0 }), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz"}},
		},
		"a group that is missing leaves its share to the others, and is named": {
			observed: seen(pods(cohort("r", times(5, "hz")...)), func(w *Workload) { w.Spread = threeToTwo("bj") }),
			reason:   gm.ReasonNodeGroupsMissing,
			groups:   []gm.GroupSpread{{Name: "hz", Desired: 5, Current: 5, Ready: 5}},
		},
		"a group that is missing is named beside another problem": {
			observed: seen(pods(cohort("r", times(5, "sh")...)), roomIn("sh"), func(w *Workload) { w.Spread = threeToTwo("bj") }),
			reason:   gm.ReasonNoFeasibleTarget, message: `NodeGroup "hz" can take none: it is full; NodeGroups are left out, because they do not exist or have no node: "bj"`,
			groups: []gm.GroupSpread{{Name: "hz", Desired: 5}, {Name: "sh", Current: 5, Ready: 5, Surplus: 5}},
		},
		"all groups are missing: pods stay where they are": {
			observed: seen(pods(cohort("r", "sh", "")), func(w *Workload) { w.Spread = threeToTwo("hz", "bj") }),
			reason:   gm.ReasonNodeGroupsMissing,
			groups:   []gm.GroupSpread{{Name: "", Current: 1, Ready: 1, Surplus: 1}, {Name: "sh", Current: 1, Ready: 1, Surplus: 1}},
		},
		"a pod that is not Ready is waited for": {
			observed: seen(pods(cohort("r", exact...)), notReady(0)), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 2}},
		},
		"more pods than all ranges hold wait": {
			observed: seen(pods(cohort("r", "hz", "bj", "-")), ranges(3, atMost("hz", 1), atMost("bj", 1))),
			reason:   gm.ReasonPodsWaiting, waiting: 1, message: "the policy gives none of them more",
			groups: []gm.GroupSpread{{Name: "bj", Desired: 1, Current: 1, Ready: 1}, {Name: "hz", Desired: 1, Current: 1, Ready: 1}},
		},
		"a pod that waits takes the only open seat: nothing leaves for it": {
			observed: seen(pods(cohort("r", "bj", "bj", "-")), ranges(3, atMost("hz", 1), atMost("bj", 1))),
			reason:   gm.ReasonPodsWaiting, waiting: 1,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 1, Current: 2, Ready: 2, Surplus: 1}, {Name: "hz", Desired: 1}},
		},
		"a pod that is not there yet takes the only open seat: nothing leaves for it": {
			observed: seen(pods(cohort("r", "bj", "bj")), ranges(3, atMost("hz", 1), atMost("bj", 1))),
			reason:   gm.ReasonConverging,
			groups:   []gm.GroupSpread{{Name: "bj", Desired: 1, Current: 2, Ready: 2, Surplus: 1}, {Name: "hz", Desired: 1}},
		},
		"of two open seats a pod that waits takes one: one leaves for the other": {
			observed: seen(pods(cohort("r", "bj", "bj", "bj", "-")), ranges(4, atMost("hz", 2), atMost("bj", 1))),
			reason:   gm.ReasonPodsWaiting, waiting: 1, evict: []string{"r-2"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 1, Current: 3, Ready: 3, Surplus: 2}, {Name: "hz", Desired: 2}},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := NewPlan(&tc.observed)
			if diff := cmp.Diff(tc.evict, names(p.Evict)); diff != "" {
				t.Errorf("wrong pods leave (-want +got):\n%s", diff)
			}
			if p.Reason != tc.reason {
				t.Errorf("reason is %s, want %s", p.Reason, tc.reason)
			}
			if diff := cmp.Diff(tc.groups, p.Spread.Groups); diff != "" {
				t.Errorf("wrong groups (-want +got):\n%s", diff)
			}
			if p.Spread.Waiting != tc.waiting {
				t.Errorf("%d wait, want %d", p.Spread.Waiting, tc.waiting)
			}
			if (p.Spread.Message == "") != tc.silent || !strings.Contains(p.Spread.Message, tc.message) {
				t.Errorf("message is %q", p.Spread.Message)
			}
			if want := (gm.WorkloadReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}); p.Spread.Ref != want {
				t.Errorf("the workload is called %+v", p.Spread.Ref)
			}
		})
	}
}

// numbers finds digits that do not count the names that a list leaves out.
var numbers = regexp.MustCompile(`(^|[^0-9])[0-9]`)

// openSeats returns the number of seats that groups lack, beyond the pods that have none yet.
func openSeats(w *Workload) int {
	all, seated := 0, map[string]int{}
	open := 0
	for _, c := range w.Cohorts {
		all += len(c.Pods)
		for _, pod := range c.Pods {
			if pod.Seated {
				seated[pod.Group]++
				open++
			}
		}
	}
	total := max(all, w.Replicas)
	open -= total
	for i, n := range w.Spread.Divide(total) {
		open += max(n-seated[w.Spread.Groups()[i]], 0)
	}
	return open
}

// TestPlansAreSound checks what must hold for the plan of any workload.
func TestPlansAreSound(t *testing.T) {
	groups := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		var rules []build.Option
		byWeights := rapid.Bool().Draw(t, "by weights")
		for _, group := range groups {
			n := rapid.IntRange(0, 5).Draw(t, "weight or bound")
			if byWeights {
				rules = append(rules, build.Weight(int64(n), group))
			} else {
				rules = append(rules, atMost(group, n))
			}
		}
		full := rapid.SliceOfDistinct(rapid.SampledFrom(groups), rapid.ID).Draw(t, "full groups")
		w := seen(func(w *Workload) {
			w.Spread = spreadOf(build.PropagationPolicy("p", rules...), rapid.SliceOfDistinct(rapid.SampledFrom(groups), rapid.ID).Draw(t, "missing groups")...)
			w.Replicas = rapid.IntRange(0, 20).Draw(t, "replicas")
			w.Evictable = rapid.IntRange(0, 4).Draw(t, "evictable") > 0
			w.Divided = rapid.IntRange(0, 4).Draw(t, "divided") > 0
			w.Mode = rapid.SampledFrom([]gm.ReschedulingMode{gm.ReschedulingEvict, gm.ReschedulingEvict, gm.ReschedulingNever}).Draw(t, "mode")
			w.CanTake = func(group string, _ *Pod) (bool, Obstacle) { return !slices.Contains(full, group), tainted }
			for i := range rapid.IntRange(0, 2).Draw(t, "revisions") {
				w.Balanced = i == 0 || rapid.Bool().Draw(t, "stands still")
				w.Cohorts = append(w.Cohorts, cohort(fmt.Sprint("r", i), rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "", "-"}), 1, 20).Draw(t, "pods")...))
			}
		})
		p := NewPlan(&w)

		surplus := int32(0)
		for _, g := range p.Spread.Groups {
			surplus += g.Surplus
			if g.OnLoan > g.Surplus || g.OnLoan > g.Current {
				t.Fatalf("%d pods are on loan in %q, of %d that are surplus and %d that run there", g.OnLoan, g.Name, g.Surplus, g.Current)
			}
			if g.OnLoan > 0 && (!w.Evictable || !w.Balanced || w.Mode != gm.ReschedulingEvict || w.Spread.Index(g.Name) < 0) {
				t.Fatalf("pods are on loan in %q, and they are not movable", g.Name)
			}
		}
		if int32(len(p.Evict)) > surplus {
			t.Fatalf("%d pods leave, %d are surplus", len(p.Evict), surplus)
		}
		if len(p.Evict) > 0 && (!w.Evictable || !w.Divided || w.Mode != gm.ReschedulingEvict || !w.Balanced) {
			t.Fatalf("%v leave and may not", names(p.Evict))
		}
		if len(p.Evict) > 0 {
			if open := openSeats(&w); len(p.Evict) > open {
				t.Fatalf("%d pods leave for %d open seats", len(p.Evict), open)
			}
		}
		twice, left := map[types.UID]bool{}, map[string]int{}
		in := func(group string) (n int) {
			for _, c := range w.Cohorts {
				for _, other := range c.Pods {
					if other.Seated && other.Group == group {
						n++
					}
				}
			}
			return n
		}
		for _, pod := range p.Evict {
			group, share := pod.Group, 0
			if i := w.Spread.Index(group); i >= 0 {
				share = w.desired()[i]
			}
			left[group]++
			if in(group)-left[group] < share {
				t.Fatalf("a pod leaves %q, which has no more than its share of %d", group, share)
			}
			if pod.Node == "" || twice[pod.UID] {
				t.Fatalf("pod %s leaves that waits, or twice", pod.Name)
			}
			twice[pod.UID] = true
			open := slices.ContainsFunc(w.Spread.Groups(), func(g string) bool { return g != group && !slices.Contains(full, g) })
			if !open {
				t.Fatalf("pod %s leaves, and no other group has room", pod.Name)
			}
		}
		if _, ok := severities[p.Reason]; !ok {
			t.Fatalf("reason %q has no severity", p.Reason)
		}
		counted := regexp.MustCompile(` and [0-9]+ more`).ReplaceAllString(p.Spread.Message, "")
		if numbers.MatchString(counted) {
			t.Fatalf("message %q holds a number that changes", p.Spread.Message)
		}
		if p.Reason != gm.ReasonSatisfied && p.Spread.Message == "" {
			t.Fatalf("reason %s without a message", p.Reason)
		}
		again := NewPlan(&w)
		if diff := cmp.Diff(names(p.Evict), names(again.Evict)); diff != "" || p.Reason != again.Reason || !cmp.Equal(p.Spread, again.Spread) {
			t.Fatalf("planned twice, the plans differ:\n%s", diff)
		}
	})
}

// TestRepeatedPlansReachTheDivision evicts some pods of each plan,
// in its order, and puts each successor into the group whose turn it is.
func TestRepeatedPlansReachTheDivision(t *testing.T) {
	groups := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		var weights []build.Option
		for _, group := range groups {
			weights = append(weights, build.Weight(rapid.Int64Range(0, 5).Draw(t, "weight"), group))
		}
		w := seen(func(w *Workload) {
			w.Spread = spreadOf(build.PropagationPolicy("p", weights...))
			at := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", ""}), 1, 20).Draw(t, "pods")
			w.Replicas, w.Cohorts = len(at), []Cohort{cohort("r", at...)}
		})
		want := w.Spread.Divide(w.Replicas)
		groupsOfPods := func() []string {
			var at []string
			for _, other := range w.Cohorts[0].Pods {
				at = append(at, other.Group)
			}
			return at
		}
		moved := 0
		for {
			p := NewPlan(&w)
			if len(p.Evict) == 0 {
				break
			}
			at := groupsOfPods()
			leaving := names(p.Evict[:rapid.IntRange(1, len(p.Evict)).Draw(t, "at once")])
			left := slices.DeleteFunc(slices.Clone(w.Cohorts[0].Pods), func(v Pod) bool { return slices.Contains(leaving, v.Name) })
			at = at[:0]
			for _, other := range left {
				at = append(at, other.Group)
			}
			for range leaving {
				current := make([]int, len(want))
				for i, group := range w.Spread.Groups() {
					for _, g := range at {
						if g == group {
							current[i]++
						}
					}
				}
				at = append(at, w.Spread.Groups()[w.Spread.Next(want, current, nil)])
			}
			w.Cohorts = []Cohort{cohort("r", at...)}
			if moved += len(leaving); moved > w.Replicas {
				t.Fatalf("%d moves for %d pods: some pod moved twice", moved, w.Replicas)
			}
		}
		got := make([]int, len(want))
		for i, group := range w.Spread.Groups() {
			got[i] = strings.Count(strings.Join(groupsOfPods(), " "), group)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("ended elsewhere (-want +got):\n%s", diff)
		}
		if p := NewPlan(&w); p.Reason != gm.ReasonSatisfied || p.Spread.Message != "" {
			t.Fatalf("ended with %s: %s", p.Reason, p.Spread.Message)
		}
	})
}

// TestPlanEvictsNoMoreThanRoomAllows: hz lacks three pods and has room for one.
func TestPlanEvictsNoMoreThanRoomAllows(t *testing.T) {
	left := 1
	w := seen(pods(cohort("r", times(5, "bj")...)), func(w *Workload) {
		w.CanTake = func(string, *Pod) (bool, Obstacle) {
			left--
			return left >= 0, noRoom
		}
	})
	if p := NewPlan(&w); len(p.Evict) != 1 {
		t.Errorf("%v leave, and there is room for one", names(p.Evict))
	}
}

// TestPodsStayWithTheirVolumes: hz lacks three pods, and the volumes of some pods of bj
// cannot be used there.
func TestPodsStayWithTheirVolumes(t *testing.T) {
	tests := map[string]struct {
		obstacle Obstacle
		// pods are those that have the obstacle.
		pods    []string
		evict   []string
		message string
		onLoan  int32
	}{
		"a pod that is tied stays, and others leave": {
			Obstacle{Reason: "no volume", OutOfReach: true}, []string{"r-4", "r-2"}, []string{"r-3", "r-1", "r-0"},
			`surplus pods are being moved, but for some: pods "r-2", "r-4" are tied to NodeGroup "bj" by their volumes`, 0,
		},
		"all are tied": {
			Obstacle{Reason: "no volume", OutOfReach: true}, []string{"r-0", "r-1", "r-2", "r-3", "r-4"}, nil,
			`pods are surplus and stay: pods "r-0", "r-1", "r-2" and 2 more are tied to NodeGroup "bj" by their volumes`, 0,
		},
		"volumes that are not read yet": {
			Obstacle{Reason: "not read", Unread: true}, []string{"r-0", "r-1", "r-2", "r-3", "r-4"}, nil,
			`pods are surplus and stay: NodeGroup "hz" can take none: not read`, 0,
		},
		"another obstacle: the pods are on loan": {
			noRoom, []string{"r-0", "r-1", "r-2", "r-3", "r-4"}, nil, `pods are surplus and stay: NodeGroup "hz" can take none: it is full`, 3,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := seen(pods(cohort("r", times(5, "bj")...)), func(w *Workload) {
				w.CanTake = func(_ string, pod *Pod) (bool, Obstacle) {
					return !slices.Contains(tc.pods, pod.Name), tc.obstacle
				}
			})
			p := NewPlan(&w)
			if diff := cmp.Diff(tc.evict, names(p.Evict)); diff != "" {
				t.Errorf("wrong pods leave (-want +got):\n%s", diff)
			}
			if p.Spread.Message != tc.message {
				t.Errorf("message is %q, want %q", p.Spread.Message, tc.message)
			}
			if got := p.Spread.Groups[0].OnLoan; got != tc.onLoan {
				t.Errorf("%d pods are on loan, want %d", got, tc.onLoan)
			}
		})
	}
}

// TestCanBorrow: pod r-2 waits; hz and bj may have two pods each.
func TestCanBorrow(t *testing.T) {
	tests := map[string]struct {
		groups []string
		full   []string
		want   bool
	}{
		"another group may have more":        {groups: []string{"hz", "hz", "-"}, want: true},
		"and is full":                        {groups: []string{"hz", "hz", "-"}, full: []string{"bj"}},
		"every group has its most":           {groups: []string{"hz", "bj", "-", "bj", "hz"}},
		"only the pod's group may have more": {groups: []string{"bj", "bj", "-"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := seen(pods(cohort("r", tc.groups...)), func(w *Workload) {
				w.Spread = spreadOf(build.PropagationPolicy("p", atMost("hz", 2), atMost("bj", 2)))
				w.CanTake = func(group string, _ *Pod) (bool, Obstacle) { return !slices.Contains(tc.full, group), noRoom }
			})
			pod := &w.Cohorts[0].Pods[2]
			pod.Group, pod.Seated, pod.Pinned = "hz", true, true
			if got := w.CanBorrow(&w.Cohorts[0], pod); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}
