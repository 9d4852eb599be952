package invariants

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// run is a made-up run. Each write gets the next resourceVersion, a minute after the one
// before, so that every write is older than Limits.Lag at the next one, unless a test
// sets another time.
type run struct {
	h        *History
	rv       uint64
	at       time.Time
	pods     map[string]Pod
	requests []Request
	limits   Limits
}

// newRun has the groups a, b and c with one node each; node-x in no group;
// PropagationPolicy "policy", which gives a and b one pod each; and ReplicaSet "app",
// which wants two pods and is bound to the policy.
func newRun() *run {
	r := &run{h: NewHistory(), at: time.Unix(1e9, 0), pods: map[string]Pod{}, limits: Limits{Lag: 5 * time.Second}}
	for _, group := range []string{"a", "b", "c"} {
		r.node("node-"+group, group)
	}
	r.node("node-x", "")
	r.policy(1, gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{
		{NodeGroupNames: []string{"a"}, Weight: 1}, {NodeGroupNames: []string{"b"}, Weight: 1},
	}})
	r.app("policy", "policy", 2)
	return r
}

// tick returns the next resourceVersion, d later.
func (r *run) tick(d time.Duration) Stamp {
	r.rv++
	r.at = r.at.Add(d)
	return Stamp{RV: r.rv, Seen: r.at}
}

func (r *run) put(o Object) { r.h.Put(r.tick(time.Minute), o) }

func (r *run) node(name, group string) { r.put(Node{Name: name, Group: group}) }

func (r *run) policy(generation int64, spec gm.PropagationSpec) {
	r.put(PropagationPolicy{types.NamespacedName{Namespace: "ns", Name: "policy"}, "policy-uid", generation, &spec})
}

func (r *run) app(required, binding string, replicas int) {
	r.put(Workload{
		UID: "app-uid", Kind: "ReplicaSet", Namespace: "ns", Name: "app", Replicas: replicas,
		Policies: ownership.Policies{RequiredPropagation: required, BindingPropagation: binding},
	})
}

// set writes the last version of a pod, changed by modify.
func (r *run) set(name string, modify func(*Pod)) {
	pod, known := r.pods[name]
	if !known {
		pod = Pod{UID: types.UID(name), Namespace: "ns", Name: name, Owner: "app-uid", OwnerKind: "ReplicaSet", Revision: "1", Active: true}
		r.put(pod)
	}
	modify(&pod)
	r.pods[name] = pod
	r.put(pod)
}

func (r *run) bind(name, node string) { r.set(name, func(p *Pod) { p.Node = node }) }

// shrinking gives the ReplicaSet a Deployment, which is bound to the policy in its place. Both
// want some pods.
func (r *run) shrinking(deployment, replicaSet int) {
	r.put(Workload{
		UID: "dep-uid", Kind: "Deployment", Namespace: "ns", Name: "dep", Replicas: deployment,
		Policies: ownership.Policies{RequiredPropagation: "policy", BindingPropagation: "policy"},
	})
	r.put(Workload{UID: "app-uid", Kind: "ReplicaSet", Namespace: "ns", Name: "app", Replicas: replicaSet, Owner: "dep-uid", OwnerKind: "Deployment"})
}

// split adds a Deployment with a count and a surge, and two ReplicaSets of it.
func (r *run) split(count string, surge int) {
	r.put(Workload{UID: "split", Kind: "Deployment", Namespace: "ns", Name: "split", Count: count, Surge: surge, Replicas: 3})
	for _, name := range []string{"split-1", "split-2"} {
		r.put(Workload{UID: types.UID(name), Kind: "ReplicaSet", Namespace: "ns", Name: name, Owner: "split", OwnerKind: "Deployment"})
	}
}

// becomes sets the class of a pod of an owner.
func (r *run) becomes(name, owner, class string) {
	r.set(name, func(p *Pod) { p.Owner, p.Class = types.UID(owner), class })
}

// evict adds a successful eviction request.
func (r *run) evict(name string) {
	pod := r.pods[name]
	s := r.tick(time.Minute)
	r.requests = append(r.requests, Request{
		User: "manager", Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: name,
		Code: 201, Received: s.Seen, Answered: s.Seen,
	})
	r.h.Gone(s, pod)
}

// united adds a UnitedDeployment whose pools change from the first list to the second,
// and workloads of the pools a and b.
func (r *run) united(before, after string) {
	for _, pools := range []string{before, after} {
		r.put(Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: pools})
	}
	for _, pool := range []string{"a", "b"} {
		r.put(Workload{
			UID: types.UID(pool), Kind: "Deployment", Namespace: "ns", Name: "ud-" + pool, United: "ud", Pool: pool,
			Owner: "ud-uid", OwnerKind: "UnitedDeployment",
		})
	}
	r.tick(time.Minute)
}

func (r *run) child(pool string, replicas int) Workload {
	return Workload{
		UID: types.UID(pool), Kind: "Deployment", Namespace: "ns", Name: "ud-" + pool, United: "ud", Pool: pool,
		Owner: "ud-uid", OwnerKind: "UnitedDeployment", Replicas: replicas,
	}
}

// sized scales the workload of a pool.
func (r *run) sized(pool string, replicas int) { r.put(r.child(pool, replicas)) }

// deleteOf deletes the workload of a pool.
func (r *run) deleteOf(pool string) {
	r.requests = append(r.requests, Request{
		User: "manager", Verb: "delete", Resource: "deployments", Namespace: "ns", Name: "ud-" + pool, Code: 200, Received: r.at, Answered: r.at,
	})
}

func ranges(pairs ...any) gm.PropagationSpec {
	spec := gm.PropagationSpec{PropagationStrategy: gm.NumRangePropagationStrategy}
	for i := 0; i < len(pairs); i += 2 {
		spec.NumRange = append(spec.NumRange, gm.NodeGroupNumRange{
			NodeGroupNames: []string{pairs[i].(string)}, Max: new(intstr.Parse(pairs[i+1].(string))),
		})
	}
	return spec
}

// TestCheckDetectsEachViolation: each history breaks exactly the wanted invariant, or none.
func TestCheckDetectsEachViolation(t *testing.T) {
	tests := map[string]struct {
		history func(*run)
		// want are the invariant and a part of the reason, or "".
		want string
	}{
		"pods where the policy wants them": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-b")
		}, ""},
		"as many on-demand pods as may be": {func(r *run) {
			r.split("1", 1)
			r.becomes("1", "split-1", "on-demand")
			r.becomes("2", "split-2", "on-demand")
			r.becomes("3", "split-2", "spot")
			r.set("1", func(p *Pod) { p.Active = false })
			r.becomes("4", "split-2", "on-demand")
		}, ""},
		"an on-demand pod too many, of all revisions": {func(r *run) {
			r.split("1", 1)
			r.becomes("1", "split-1", "on-demand")
			r.becomes("2", "split-2", "on-demand")
			r.becomes("3", "split-2", "on-demand")
		}, "I1: is on-demand pod 3 of its workload, which may have 2"},
		"the count was lowered a moment ago": {func(r *run) {
			r.split("2", 0)
			r.becomes("1", "split-1", "on-demand")
			r.put(Pod{UID: "2", Namespace: "ns", Name: "2", Owner: "split-1", OwnerKind: "ReplicaSet", Active: true})
			r.h.Put(r.tick(time.Second), Workload{UID: "split", Kind: "Deployment", Namespace: "ns", Name: "split", Count: "1", Replicas: 3})
			r.h.Put(r.tick(time.Second), Pod{UID: "2", Namespace: "ns", Name: "2", Owner: "split-1", OwnerKind: "ReplicaSet", Active: true, Class: "on-demand"})
		}, ""},
		"the count was lowered, and pods that were on-demand stay": {func(r *run) {
			r.split("2", 0)
			r.becomes("1", "split-1", "on-demand")
			r.becomes("2", "split-1", "on-demand")
			r.split("1", 0)
			r.becomes("3", "split-1", "spot")
		}, ""},
		"an owner that selects by the label of the class": {func(r *run) {
			r.put(Workload{UID: "split", Kind: "Deployment", Namespace: "ns", Name: "split", Count: "0", Surge: 1, Replicas: 3, SelectsClass: true})
			r.becomes("1", "split-1", "on-demand")
			r.becomes("2", "split-1", "on-demand")
		}, ""},
		"a high ordinal is on-demand": {func(r *run) {
			r.put(Workload{UID: "set", Kind: "StatefulSet", Namespace: "ns", Name: "set", Count: "1", FirstOrdinal: 5})
			r.set("set-5", func(p *Pod) { p.Owner, p.OwnerKind, p.Class = "set", "StatefulSet", "on-demand" })
			r.set("set-6", func(p *Pod) { p.Owner, p.OwnerKind, p.Class = "set", "StatefulSet", "on-demand" })
		}, "I1: is on-demand, and not of the first ordinals"},
		"a pod is deleted": {func(r *run) {
			r.bind("1", "node-a")
			r.requests = append(r.requests, Request{User: "manager", Verb: "delete", Resource: "pods", Namespace: "ns", Name: "1", Code: 200, Received: r.at})
		}, "I2: by eviction only"},
		"a deletion of pods is refused": {func(r *run) {
			r.requests = append(r.requests, Request{User: "manager", Verb: "deletecollection", Resource: "pods", Namespace: "ns", Code: 403, Received: r.at})
		}, "I2: by eviction only"},
		"an owner of pods is deleted": {func(r *run) {
			r.requests = append(r.requests, Request{User: "manager", Verb: "delete", Resource: "replicasets", Namespace: "ns", Name: "app", Code: 200, Received: r.at})
		}, "I2: by eviction only"},
		"the workload of a pool that is gone is deleted": {func(r *run) {
			r.united("/a/", "/a/")
			r.deleteOf("b")
		}, ""},
		"the workload of a pool is deleted": {func(r *run) {
			r.united("/a/", "/a//b/")
			r.deleteOf("b")
		}, "I12: has the pool"},
		"the workload of a pool goes that has another": {func(r *run) {
			r.united("/a//b/", "/a//b/")
			r.put(Workload{UID: "twin", Kind: "Deployment", Namespace: "ns", Name: "twin", United: "ud", Pool: "b", Owner: "ud-uid", OwnerKind: "UnitedDeployment"})
			r.deleteOf("b")
		}, ""},
		"the pool was in the spec until a moment ago": {func(r *run) {
			r.united("/a//b/", "/a//b/")
			r.h.Put(r.tick(time.Second), Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: "/a/"})
			r.deleteOf("b")
		}, ""},
		"a workload that is another's is deleted": {func(r *run) {
			r.united("/a/", "/a/")
			r.put(Workload{UID: "theirs", Kind: "Deployment", Namespace: "ns", Name: "ud-c", United: "ud", Pool: "c", Owner: "other", OwnerKind: "Rollout"})
			r.deleteOf("c")
		}, "I2: by eviction only"},
		"pools have together what they are to have": {func(r *run) {
			r.united("/a//b/", "/a//b/")
			r.sized("a", 2)
			r.sized("b", 3)
			r.put(Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: "/a//b/", Total: 5, Done: true})
		}, ""},
		"a removed pool does not count": {func(r *run) {
			r.united("/a/", "/a/")
			r.sized("a", 2)
			r.sized("b", 3)
			r.put(Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: "/a/", Total: 2, Done: true})
		}, ""},
		"pools have together more than they are to have": {func(r *run) {
			r.united("/a//b/", "/a//b/")
			r.sized("a", 3)
			r.sized("b", 3)
			r.put(Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: "/a//b/", Total: 5, Done: true})
		}, "I12: 6 replicas together, and its spec says 5"},
		"the sum changed a moment ago": {func(r *run) {
			r.united("/a//b/", "/a//b/")
			r.sized("a", 3)
			r.sized("b", 3)
			r.h.Put(r.tick(time.Second), r.child("b", 77))
			r.h.Put(r.tick(time.Second), Workload{UID: "ud-uid", Kind: "UnitedDeployment", Namespace: "ns", Name: "ud", Pools: "/a//b/", Total: 6, Done: true})
		}, ""},
		"a pod of a removed pool is evicted": {func(r *run) {
			r.united("/a//b/", "/a/")
			r.put(Workload{UID: "rs", Kind: "ReplicaSet", Namespace: "ns", Name: "ud-b-1", Replicas: 1, Owner: "b", OwnerKind: "Deployment"})
			r.set("1", func(p *Pod) { p.Owner, p.Node = "rs", "node-a" })
			r.evict("1")
		}, ""},
		"a pod of a pool is evicted": {func(r *run) {
			r.united("/a//b/", "/a/")
			r.put(Workload{UID: "rs", Kind: "ReplicaSet", Namespace: "ns", Name: "ud-a-1", Replicas: 1, Owner: "a", OwnerKind: "Deployment"})
			r.set("1", func(p *Pod) { p.Owner, p.Node = "rs", "node-a" })
			r.evict("1")
		}, "I10: without a reason"},
		"an event is deleted": {func(r *run) {
			r.requests = append(r.requests, Request{User: "manager", Verb: "delete", Resource: "events", Namespace: "ns", Code: 200, Received: r.at})
		}, ""},
		"a pod gets a node of a group that the policy does not name": {func(r *run) {
			r.bind("1", "node-c")
		}, "I5: gives nothing"},
		"a pod gets a node without a group": {func(r *run) {
			r.bind("1", "node-x")
		}, "I5: gives nothing"},
		"a pinned pod gets a node that joins its group afterwards": {func(r *run) {
			r.set("1", func(p *Pod) { p.Group, p.Pinned = "a", true })
			r.node("node-new", "")
			r.bind("1", "node-new")
			r.node("node-new", "a")
		}, ""},
		"a pinned pod gets a node that joins another group": {func(r *run) {
			r.set("1", func(p *Pod) { p.Group, p.Pinned = "a", true })
			r.node("node-new", "")
			r.bind("1", "node-new")
			r.node("node-new", "c")
		}, "I5: gives nothing"},
		"a pod gets a node of a group of weight 0": {func(r *run) {
			r.policy(2, gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{
				{NodeGroupNames: []string{"a"}, Weight: 0}, {NodeGroupNames: []string{"b"}, Weight: 1},
			}})
			r.bind("1", "node-a")
		}, "I5: gives nothing"},
		"all weights are 0, which is all the same": {func(r *run) {
			r.policy(2, gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"A"}}}})
			r.bind("1", "node-a")
		}, ""},
		"a pod gets a node while its policy is not bound": {func(r *run) {
			r.app("policy", "", 2)
			r.bind("1", "node-a")
		}, "I5: was not bound"},
		"a pod gets a node while its workload is bound to another policy": {func(r *run) {
			r.app("policy", "another", 2)
			r.bind("1", "node-a")
		}, "I5: was not bound"},
		"the workload does not mind that its policy is missing": {func(r *run) {
			r.put(Workload{
				UID: "app-uid", Kind: "ReplicaSet", Namespace: "ns", Name: "app", Replicas: 2, IgnoreMissing: true,
				Policies: ownership.Policies{RequiredPropagation: "policy"},
			})
			r.bind("1", "node-x")
		}, ""},
		"a pod whose workload requires nothing": {func(r *run) {
			r.app("", "", 2)
			r.bind("1", "node-x")
		}, ""},
		"the node left its group a moment before": {func(r *run) {
			r.set("1", func(*Pod) {})
			r.h.Put(r.tick(time.Minute), Node{Name: "node-a"})
			pod := r.pods["1"]
			pod.Node = "node-a"
			r.h.Put(r.tick(time.Second), pod)
		}, ""},
		"the node left its group long before": {func(r *run) {
			r.node("node-a", "")
			r.bind("1", "node-a")
		}, "I5: gives nothing"},
		"the policy changed a moment before": {func(r *run) {
			r.set("1", func(*Pod) {})
			r.policy(2, gm.PropagationSpec{StaticWeight: []gm.StaticNodeGroupWeight{{NodeGroupNames: []string{"c"}, Weight: 1}}})
			pod := r.pods["1"]
			pod.Node = "node-a"
			r.h.Put(r.tick(time.Second), pod)
		}, ""},
		"a range is filled": {func(r *run) {
			r.policy(2, ranges("a", "1", "b", "50%"))
			r.bind("1", "node-a")
			r.bind("2", "node-b")
		}, ""},
		"the node left a group with a range a moment before": {func(r *run) {
			r.policy(2, ranges("a", "1", "b", "1"))
			r.set("1", func(*Pod) {})
			r.h.Put(r.tick(time.Minute), Node{Name: "node-a"})
			pod := r.pods["1"]
			pod.Node = "node-a"
			r.h.Put(r.tick(time.Second), pod)
		}, ""},
		"a range is filled beyond its max": {func(r *run) {
			r.policy(2, ranges("a", "1", "b", "1"))
			r.bind("1", "node-a")
			r.bind("2", "node-a")
		}, "I5: is pod 2 of its cohort in NodeGroup \"a\", which may have 1"},
		"a share of a half is filled beyond it": {func(r *run) {
			r.policy(2, ranges("a", "50%", "b", "50%"))
			r.bind("1", "node-a")
			r.bind("2", "node-a")
		}, "I5: which may have 1"},
		"a pod that has finished holds no seat": {func(r *run) {
			r.policy(2, ranges("a", "1"))
			r.bind("1", "node-a")
			r.set("1", func(p *Pod) { p.Active = false })
			r.bind("2", "node-a")
		}, ""},
		"another revision has its own seats": {func(r *run) {
			r.policy(2, ranges("a", "1"))
			r.bind("1", "node-a")
			r.put(Pod{UID: "2", Namespace: "ns", Name: "2", Owner: "app-uid", OwnerKind: "ReplicaSet", Revision: "2", Active: true})
			r.put(Pod{UID: "2", Namespace: "ns", Name: "2", Owner: "app-uid", OwnerKind: "ReplicaSet", Revision: "2", Active: true, Node: "node-a"})
		}, ""},
		"a surplus pod is evicted": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
		}, ""},
		"a pod that is no surplus is evicted": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-b")
			r.evict("2")
		}, "I10: without a reason"},
		"a pod is surplus when its workload shrinks, before its ReplicaSet does": {func(r *run) {
			r.shrinking(2, 4)
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
		}, ""},
		"a pod is no surplus before its workload shrinks": {func(r *run) {
			r.shrinking(4, 4)
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
		}, "I10: without a reason"},
		"one surplus pod is a reason for one eviction": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
			r.requests[0].Answered = r.at
			s := r.tick(time.Second) // as stale as a cache may be
			r.h.Gone(s, r.pods["1"])
			r.requests = append(r.requests, Request{
				User: "manager", Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: "1",
				Code: 201, Received: s.Seen, Answered: s.Seen,
			})
		}, "I10: without a reason"},
		"a pod is sent back to where it came from": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
			r.bind("3", "node-b")
			r.evict("3")
		}, "I10: without a reason"},
		"a pod is evicted twice": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.evict("2")
			r.requests = append(r.requests, r.requests[0])
		}, "I10: evicted twice"},
		"an eviction that was refused is asked for again": {func(r *run) {
			r.bind("1", "node-a")
			r.bind("2", "node-a")
			r.requests = append(r.requests, Request{User: "manager", Verb: "create", Resource: "pods", Subresource: "eviction", Namespace: "ns", Name: "2", Code: 429, Received: r.at, Answered: r.at})
			r.evict("2")
		}, ""},
		"a pod of another kind of owner is evicted from nowhere": {func(r *run) {
			r.set("1", func(p *Pod) { p.OwnerKind = "Sparkle" })
			r.evict("1")
		}, ""},
		"a pinned pod that finds no node is evicted": {func(r *run) {
			r.set("1", func(p *Pod) { p.Group, p.Pinned, p.Unschedulable = "a", true, true })
			r.evict("1")
		}, ""},
		"a pinned pod that waits is evicted": {func(r *run) {
			r.set("1", func(p *Pod) { p.Group, p.Pinned = "a", true })
			r.evict("1")
		}, "I10: without a reason"},
		"too many running pods within a minute": {func(r *run) {
			r.limits.EvictionsPerMinute = 1
			r.app("policy", "policy", 4)
			for _, name := range []string{"1", "2", "3", "4"} {
				r.bind(name, "node-a")
			}
			r.evict("3")
			r.evict("4")
			r.requests[1].Answered = r.requests[0].Answered.Add(time.Second)
		}, "I10: the 2th running pod"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRun()
			tc.history(r)
			report := Check(r.h, r.requests, r.limits)
			if tc.want == "" {
				if err := report.Err(); err != nil {
					t.Error(err)
				}
				return
			}
			invariant, why, _ := strings.Cut(tc.want, ": ")
			if len(report.Violations) != 1 || report.Violations[0].Invariant != invariant || !strings.Contains(report.Violations[0].Why, why) {
				t.Fatalf("violations are %v, want one of %s", report.Violations, tc.want)
			}
			if err := report.Err(); err == nil || !strings.Contains(err.Error(), report.Violations[0].Why) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}

// TestVersionsInAnyOrder: kinds are recorded concurrently, and a version that arrives
// late is judged as if it had arrived in time.
func TestVersionsInAnyOrder(t *testing.T) {
	pod := Pod{UID: "1", Namespace: "ns", Name: "1", Owner: "app-uid", OwnerKind: "ReplicaSet", Active: true}
	bound := pod
	bound.Node = "node-c"
	r := newRun()
	first, second := r.tick(time.Minute), r.tick(time.Minute)
	r.h.Put(second, bound)
	r.h.Put(first, pod)
	report := Check(r.h, nil, r.limits)
	if report.Binds != 1 || len(report.Violations) != 1 {
		t.Errorf("%s, want one binding and one violation", report.Summary())
	}
}

// TestWritesInAGapAreNotJudged: writes in a gap are counted and not judged.
func TestWritesInAGapAreNotJudged(t *testing.T) {
	r := newRun()
	r.set("1", func(*Pod) {})
	s := r.tick(time.Minute)
	s.Gap = true
	pod := r.pods["1"]
	pod.Node = "node-c"
	r.h.Put(s, pod)
	report := Check(r.h, nil, r.limits)
	if report.Binds != 0 || report.Unjudged != 1 || len(report.Violations) != 0 {
		t.Errorf("%s, want nothing judged", report.Summary())
	}
}

// TestExceptionsAreNarrow: an exception covers only its invariant, its namespace and its
// time.
func TestExceptionsAreNarrow(t *testing.T) {
	begin := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		exception Exception
		excepted  bool
	}{
		"that very one":     {Exception{Invariant: "I5", Namespace: "ns"}, true},
		"while it lasts":    {Exception{Invariant: "I5", Namespace: "ns", From: begin, To: begin.Add(time.Hour)}, true},
		"another invariant": {Exception{Invariant: "I10", Namespace: "ns"}, false},
		"another namespace": {Exception{Invariant: "I5", Namespace: "other"}, false},
		"not yet":           {Exception{Invariant: "I5", Namespace: "ns", From: begin.Add(time.Hour)}, false},
		"no more":           {Exception{Invariant: "I5", Namespace: "ns", To: begin}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRun()
			r.bind("1", "node-c")
			r.limits.Exceptions = []Exception{tc.exception}
			report := Check(r.h, nil, r.limits)
			if excepted := report.Excepted == 1 && len(report.Violations) == 0; excepted != tc.excepted {
				t.Errorf("%s, excepted is %v", report.Summary(), excepted)
			}
		})
	}
}

// TestViolationsShowTheirHistory: a violation shows the objects on which the decision
// depended, in order.
func TestViolationsShowTheirHistory(t *testing.T) {
	r := newRun()
	r.bind("1", "node-c")
	r.set("1", func(p *Pod) { p.Active = false })
	report := Check(r.h, nil, r.limits)
	if len(report.Violations) != 1 {
		t.Fatal(report.Summary())
	}
	text := strings.Join(report.Violations[0].Around, "\n")
	at := -1
	for _, want := range []string{`node node-c group="c"`, "PropagationPolicy policy generation 1 [a]:1 [b]:1", "ReplicaSet app", `pod 1 node=""`, `pod 1 node="node-c"`, "inactive"} {
		i := strings.Index(text, want)
		if i <= at {
			t.Fatalf("%q is not there in its place:\n%s", want, text)
		}
		at = i
	}
}

// TestReportsStayShort: the report of a run with very many violations is bounded.
func TestReportsStayShort(t *testing.T) {
	r := newRun()
	for i := range 100 {
		r.bind(fmt.Sprint(i), "node-c")
	}
	err := Check(r.h, nil, r.limits).Err()
	if err == nil || !strings.Contains(err.Error(), "and 70 more") || len(err.Error()) > 100_000 {
		t.Errorf("error is %d long", len(fmt.Sprint(err)))
	}
}
