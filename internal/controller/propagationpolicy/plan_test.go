package propagationpolicy

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
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// spreadOf makes a spread of weights over groups of which some have no node.
func spreadOf(policy *gm.PropagationPolicy, without ...string) placement.Spread {
	spread, err := placement.New(policy.Spec, func(group string) bool { return !slices.Contains(without, group) }, "app")
	if err != nil {
		panic(err)
	}
	return spread
}

// threeToTwo divides five pods into three in hz and two in bj.
func threeToTwo(without ...string) placement.Spread {
	return spreadOf(build.PropagationPolicy("p", build.Weight(3, "hz"), build.Weight(2, "bj")), without...)
}

// cohort makes the pods of one revision: in each group as many Ready pods as
// its name is repeated; "-" is a pod that waits.
func cohort(revision string, groups ...string) seats.CohortView {
	c := seats.CohortView{Cohort: seats.Cohort{Owner: "rs", Revision: revision}}
	for i, group := range groups {
		pod := build.Pod(fmt.Sprintf("%s-%d", revision, i), build.Created(time.Unix(int64(i), 0)))
		view := seats.SeatView{Group: group}
		if group != "-" {
			build.On("node-" + group + fmt.Sprint(i))(pod)
			build.Running(0)(pod)
			view.Seated = true
		} else {
			view.Group = ""
		}
		view.Pod = seats.Slim(pod)
		c.Pods = append(c.Pods, view)
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

// seen is a Deployment of five pods that may be moved anywhere.
func seen(change ...func(*observed)) observed {
	o := observed{
		app: build.Owner(build.Deployment("web", build.Replicas(5))), replicas: 5, spread: threeToTwo(),
		evictable: true, divided: true, balanced: true, mode: gm.ReschedulingEvict,
		canTake: func(string, *seats.Pod) (bool, fit.Reason) { return true, fit.Fits },
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func pods(cohorts ...seats.CohortView) func(*observed) {
	return func(o *observed) { o.cohorts = cohorts }
}

func notReady(pods ...int) func(*observed) {
	return func(o *observed) {
		for _, i := range pods {
			o.cohorts[0].Pods[i].Ready = false
		}
	}
}

func names(pods []*seats.Pod) []string {
	var out []string
	for _, pod := range pods {
		out = append(out, pod.Name)
	}
	return out
}

func TestPlanFor(t *testing.T) {
	roomIn := func(groups ...string) func(*observed) {
		return func(o *observed) {
			o.canTake = func(group string, _ *seats.Pod) (bool, fit.Reason) { return slices.Contains(groups, group), fit.NoRoom }
		}
	}
	ranges := func(replicas int, rules ...build.Option) func(*observed) {
		return func(o *observed) { o.spread, o.replicas = spreadOf(build.PropagationPolicy("p", rules...)), replicas }
	}
	moving := func(o *observed) { o.balanced = false }
	away := func(groups ...string) func(*observed) {
		return func(o *observed) {
			o.spread = o.spread.WithoutAway(func(group string) bool { return slices.Contains(groups, group) })
		}
	}
	exact := append(times(3, "hz"), times(2, "bj")...)
	twoAndThree := append(times(2, "hz"), times(3, "bj")...)

	tests := map[string]struct {
		observed observed
		evict    []string
		reason   string
		waiting  int32
		silent   bool // no message is wanted
		says     string
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
			observed: seen(pods(cohort("r", twoAndThree...)), func(o *observed) { o.cohorts[0].Pods[3].DeletionCost = -5 }),
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
			says:   `on loan: NodeGroup "hz" can take none`,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1, OnLoan: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"of all surplus groups the one with most comes first": {
			observed: seen(pods(cohort("r", "", "", "sh", "hz", "bj"))), reason: gm.ReasonConverging, evict: []string{"r-1", "r-0", "r-2"},
			groups: []gm.GroupSpread{
				{Name: "", Current: 2, Ready: 2, Surplus: 2}, {Name: "bj", Desired: 2, Current: 1, Ready: 1},
				{Name: "hz", Desired: 3, Current: 1, Ready: 1}, {Name: "sh", Current: 1, Ready: 1, Surplus: 1},
			},
		},
		"mode OnRollout leaves running pods alone": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(o *observed) { o.mode = gm.ReschedulingOnRollout }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"mode Never leaves running pods alone": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(o *observed) { o.mode = gm.ReschedulingNever }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"pods that would not come back elsewhere are not moved": {
			observed: seen(pods(cohort("r", twoAndThree...)), func(o *observed) { o.evictable = false }), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 2, Ready: 2}},
		},
		"the pods of a DaemonSet are wanted where they are": {
			observed: seen(pods(cohort("r", "hz", "sh")), func(o *observed) { o.divided = false }), reason: gm.ReasonSatisfied,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz", Desired: 1, Current: 1, Ready: 1}, {Name: "sh", Desired: 1, Current: 1, Ready: 1}},
		},
		"those that wait outside of the groups hold up its rollout": {
			observed: seen(pods(cohort("r", "hz", "-")), func(o *observed) { o.divided = false }), reason: gm.ReasonPodsWaiting, waiting: 1,
			says:   "give the DaemonSet node affinity on " + gm.NodeGroupLabel,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz", Desired: 1, Current: 1, Ready: 1}},
		},
		"a pod outside of all groups is not on loan, though nobody has room for it": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "")), roomIn("bj")), reason: gm.ReasonNoFeasibleTarget,
			says: `surplus and stay: NodeGroup "hz" can take none`,
			groups: []gm.GroupSpread{
				{Name: "", Current: 1, Ready: 1, Surplus: 1},
				{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 2, Ready: 2},
			},
		},
		"a rollout that stands still: each revision is balanced on its own": {
			observed: seen(pods(cohort("old", times(3, "bj")...), cohort("new", "bj", "bj"))),
			reason:   gm.ReasonConverging, evict: []string{"old-2", "old-1", "new-1"}, says: "surplus pods are being moved",
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 5, Ready: 5, Surplus: 3}, {Name: "hz", Desired: 3}},
		},
		"a rollout that stands still, and is exact": {
			observed: seen(pods(cohort("old", "hz", "hz", "bj"), cohort("new", "hz", "bj"))), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 3}},
		},
		"a group that is away gives its share to the others: its pods leave": {
			observed: seen(pods(cohort("r", exact...)), notReady(3, 4), away("bj")), reason: gm.ReasonConverging, evict: []string{"r-4", "r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Current: 2, Surplus: 2}, {Name: "hz", Desired: 5, Current: 3, Ready: 3}},
		},
		"pods that have no successor before the node is back stay in a group that is away": {
			observed: seen(pods(cohort("r", exact...)), notReady(3, 4), away("bj"), func(o *observed) { o.sticky = true }),
			reason:   gm.ReasonNoFeasibleTarget,
			groups:   []gm.GroupSpread{{Name: "bj", Current: 2, Surplus: 2}, {Name: "hz", Desired: 5, Current: 3, Ready: 3}},
		},
		"a group that is away is named once its share is divided": {
			observed: seen(pods(cohort("r", times(5, "hz")...)), away("bj")), reason: gm.ReasonGroupsAway, says: `"bj"`,
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
			says:   `pods wait for a node: NodeGroup "hz"`,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 4, Ready: 4}, {Name: "hz", Desired: 3}},
		},
		"waiting pods fill what is lacking: nothing leaves for them": {
			observed: seen(pods(cohort("r", "hz", "bj", "bj", "-", "-"))), reason: gm.ReasonPodsWaiting, waiting: 2,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 1, Ready: 1}},
		},
		"what is surplus leaves although others wait": {
			observed: seen(pods(cohort("r", "hz", "bj", "bj", "bj", "-"))), reason: gm.ReasonPodsWaiting, waiting: 1, evict: []string{"r-3"},
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 3, Ready: 3, Surplus: 1}, {Name: "hz", Desired: 3, Current: 1, Ready: 1}},
		},
		"a seat that is reserved is taken: nobody leaves for it": {
			observed: seen(pods(cohort("r", "hz", "hz", "bj", "bj", "-")), func(o *observed) {
				o.cohorts[0].Pods[4].Seated, o.cohorts[0].Pods[4].Group = true, "hz"
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
		"no pod at all": {
			observed: seen(), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2}, {Name: "hz", Desired: 3}},
		},
		"no pod at all, and none wanted": {
			observed: seen(func(o *observed) { o.replicas = 0 }), reason: gm.ReasonSatisfied, silent: true,
			groups: []gm.GroupSpread{{Name: "bj"}, {Name: "hz"}},
		},
		"a group that is missing leaves its share to the others, and is named": {
			observed: seen(pods(cohort("r", times(5, "hz")...)), func(o *observed) { o.spread = threeToTwo("bj") }),
			reason:   gm.ReasonGroupsMissing,
			groups:   []gm.GroupSpread{{Name: "hz", Desired: 5, Current: 5, Ready: 5}},
		},
		"all groups are missing: pods stay where they are": {
			observed: seen(pods(cohort("r", "sh", "")), func(o *observed) { o.spread = threeToTwo("hz", "bj") }),
			reason:   gm.ReasonGroupsMissing,
			groups:   []gm.GroupSpread{{Name: "", Current: 1, Ready: 1, Surplus: 1}, {Name: "sh", Current: 1, Ready: 1, Surplus: 1}},
		},
		"a pod that is not Ready is waited for": {
			observed: seen(pods(cohort("r", exact...)), notReady(0)), reason: gm.ReasonConverging,
			groups: []gm.GroupSpread{{Name: "bj", Desired: 2, Current: 2, Ready: 2}, {Name: "hz", Desired: 3, Current: 3, Ready: 2}},
		},
		"more pods than all ranges hold wait": {
			observed: seen(pods(cohort("r", "hz", "bj", "-")), ranges(3, atMost("hz", 1), atMost("bj", 1))),
			reason:   gm.ReasonPodsWaiting, waiting: 1, says: "the policy gives none of them more",
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
			p := planFor(tc.observed)
			if diff := cmp.Diff(tc.evict, names(p.evict)); diff != "" {
				t.Errorf("wrong pods leave (-want +got):\n%s", diff)
			}
			if p.reason != tc.reason {
				t.Errorf("reason is %s, want %s", p.reason, tc.reason)
			}
			if diff := cmp.Diff(tc.groups, p.spread.Groups); diff != "" {
				t.Errorf("wrong groups (-want +got):\n%s", diff)
			}
			if p.spread.Waiting != tc.waiting {
				t.Errorf("%d wait, want %d", p.spread.Waiting, tc.waiting)
			}
			if (p.spread.Message == "") != tc.silent || !strings.Contains(p.spread.Message, tc.says) {
				t.Errorf("message is %q", p.spread.Message)
			}
			if want := (gm.AppReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}); p.spread.Ref != want {
				t.Errorf("the workload is called %+v", p.spread.Ref)
			}
		})
	}
}

// numbers finds digits that do not count the names that a list leaves out.
var numbers = regexp.MustCompile(`(^|[^0-9])[0-9]`)

// openSeats are the seats of the only revision that groups lack, beyond the
// pods that have none yet.
func openSeats(o observed) int {
	total, seated := max(len(o.cohorts[0].Pods), o.replicas), map[string]int{}
	open := -total
	for _, pod := range o.cohorts[0].Pods {
		if pod.Seated {
			seated[pod.Group]++
			open++
		}
	}
	for i, n := range o.spread.Divide(total) {
		open += max(n-seated[o.spread.Groups()[i]], 0)
	}
	return open
}

// TestPlansAreSound looks at any situation of one workload.
func TestPlansAreSound(t *testing.T) {
	known := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		var rules []build.Option
		byWeights := rapid.Bool().Draw(t, "by weights")
		for _, group := range known {
			n := rapid.IntRange(0, 5).Draw(t, "weight or bound")
			if byWeights {
				rules = append(rules, build.Weight(int64(n), group))
			} else {
				rules = append(rules, atMost(group, n))
			}
		}
		full := rapid.SliceOfDistinct(rapid.SampledFrom(known), rapid.ID).Draw(t, "full groups")
		o := seen(func(o *observed) {
			o.spread = spreadOf(build.PropagationPolicy("p", rules...), rapid.SliceOfDistinct(rapid.SampledFrom(known), rapid.ID).Draw(t, "missing groups")...)
			o.replicas = rapid.IntRange(0, 20).Draw(t, "replicas")
			o.evictable = rapid.IntRange(0, 4).Draw(t, "evictable") > 0
			o.divided = rapid.IntRange(0, 4).Draw(t, "divided") > 0
			o.mode = rapid.SampledFrom([]gm.ReschedulingMode{gm.ReschedulingEvict, gm.ReschedulingEvict, gm.ReschedulingNever}).Draw(t, "mode")
			o.canTake = func(group string, _ *seats.Pod) (bool, fit.Reason) { return !slices.Contains(full, group), fit.Tainted }
			for i := range rapid.IntRange(0, 2).Draw(t, "revisions") {
				o.balanced = i == 0 || rapid.Bool().Draw(t, "stands still")
				o.cohorts = append(o.cohorts, cohort(fmt.Sprint("r", i), rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", "", "-"}), 1, 20).Draw(t, "pods")...))
			}
		})
		p := planFor(o)

		surplus := int32(0)
		for _, g := range p.spread.Groups {
			surplus += g.Surplus
			if g.OnLoan > g.Surplus || g.OnLoan > g.Current {
				t.Fatalf("%d pods are on loan in %q, of %d that are surplus and %d that run there", g.OnLoan, g.Name, g.Surplus, g.Current)
			}
			if g.OnLoan > 0 && (!o.evictable || !o.balanced || o.mode != gm.ReschedulingEvict || o.spread.Index(g.Name) < 0) {
				t.Fatalf("pods are on loan in %q, and nobody would move them", g.Name)
			}
		}
		if int32(len(p.evict)) > surplus {
			t.Fatalf("%d pods leave, %d are surplus", len(p.evict), surplus)
		}
		if len(p.evict) > 0 && (!o.evictable || !o.divided || o.mode != gm.ReschedulingEvict || !o.balanced) {
			t.Fatalf("%v leave and may not", names(p.evict))
		}
		if len(p.evict) > 0 && len(o.cohorts) == 1 {
			if open := openSeats(o); len(p.evict) > open {
				t.Fatalf("%d pods leave for %d seats that nobody is there to take", len(p.evict), open)
			}
		}
		twice, left := map[types.UID]bool{}, []map[string]int{{}, {}}
		in := func(c seats.CohortView, group string) (n int) {
			for _, view := range c.Pods {
				if view.Seated && view.Group == group {
					n++
				}
			}
			return n
		}
		for _, pod := range p.evict {
			group, share, of := "", 0, 0
			for i, c := range o.cohorts {
				for _, view := range c.Pods {
					if view.UID == pod.UID {
						group, of = view.Group, i
					}
				}
			}
			c := o.cohorts[of]
			if i := o.spread.Index(group); i >= 0 {
				_, division := o.divide(c)
				share = division[i]
			}
			left[of][group]++
			if in(c, group)-left[of][group] < share {
				t.Fatalf("a pod leaves %q, which has no more than its share of %d", group, share)
			}
			if pod.Node == "" || twice[pod.UID] {
				t.Fatalf("pod %s leaves that waits, or twice", pod.Name)
			}
			twice[pod.UID] = true
			open := slices.ContainsFunc(o.spread.Groups(), func(g string) bool { return g != group && !slices.Contains(full, g) })
			if !open {
				t.Fatalf("pod %s leaves, and no other group has room", pod.Name)
			}
		}
		if _, known := severity[p.reason]; !known {
			t.Fatalf("reason %q has no place among the others", p.reason)
		}
		counted := regexp.MustCompile(` and [0-9]+ more`).ReplaceAllString(p.spread.Message, "")
		if numbers.MatchString(counted) {
			t.Fatalf("message %q holds a number that moves", p.spread.Message)
		}
		if p.reason != gm.ReasonSatisfied && p.spread.Message == "" {
			t.Fatalf("reason %s without a word", p.reason)
		}
		again := planFor(o)
		if diff := cmp.Diff(names(p.evict), names(again.evict)); diff != "" || p.reason != again.reason || !cmp.Equal(p.spread, again.spread) {
			t.Fatalf("planned twice, the plans differ:\n%s", diff)
		}
	})
}

// TestAppliedAgainAndAgainPlansEndAtTheDivision evicts some pods of each plan,
// in its order, and puts what comes back where the division wants the next.
func TestAppliedAgainAndAgainPlansEndAtTheDivision(t *testing.T) {
	known := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		var weights []build.Option
		for _, group := range known {
			weights = append(weights, build.Weight(rapid.Int64Range(0, 5).Draw(t, "weight"), group))
		}
		o := seen(func(o *observed) {
			o.spread = spreadOf(build.PropagationPolicy("p", weights...))
			at := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "d", ""}), 1, 20).Draw(t, "pods")
			o.replicas, o.cohorts = len(at), []seats.CohortView{cohort("r", at...)}
		})
		want := o.spread.Divide(o.replicas)
		groups := func() []string {
			var at []string
			for _, view := range o.cohorts[0].Pods {
				at = append(at, view.Group)
			}
			return at
		}
		moved := 0
		for {
			p := planFor(o)
			if len(p.evict) == 0 {
				break
			}
			at := groups()
			leaving := names(p.evict[:rapid.IntRange(1, len(p.evict)).Draw(t, "at once")])
			left := slices.DeleteFunc(slices.Clone(o.cohorts[0].Pods), func(v seats.SeatView) bool { return slices.Contains(leaving, v.Name) })
			at = at[:0]
			for _, view := range left {
				at = append(at, view.Group)
			}
			for range leaving {
				current := make([]int, len(want))
				for i, group := range o.spread.Groups() {
					for _, g := range at {
						if g == group {
							current[i]++
						}
					}
				}
				at = append(at, o.spread.Groups()[o.spread.Next(want, current, nil)])
			}
			o.cohorts = []seats.CohortView{cohort("r", at...)}
			if moved += len(leaving); moved > o.replicas {
				t.Fatalf("%d moves for %d pods: some pod moved twice", moved, o.replicas)
			}
		}
		got := make([]int, len(want))
		for i, group := range o.spread.Groups() {
			got[i] = strings.Count(strings.Join(groups(), " "), group)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("ended elsewhere (-want +got):\n%s", diff)
		}
		if p := planFor(o); p.reason != gm.ReasonSatisfied || p.spread.Message != "" {
			t.Fatalf("ended with %s: %s", p.reason, p.spread.Message)
		}
	})
}
