package workload

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

func uidsOf(requests []request) (uids []types.UID) {
	for _, request := range requests {
		uids = append(uids, request.uid)
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func TestChangesOfOwnersThatEnqueue(t *testing.T) {
	owner := func(options ...build.Option) *ownership.Object {
		return build.Owner(build.Deployment("web", options...))
	}
	edited := func(change func(*ownership.Object), options ...build.Option) *ownership.Object {
		o := owner(options...)
		change(o)
		return o
	}
	requires, overrides := build.Requires("p", ""), build.Requires("", "o")
	generation := func(o *ownership.Object) { o.Generation++ }
	restarting := func(o *ownership.Object) { o.Restarting = true }
	stopped := func(o *ownership.Object) { o.OverridesStopped = true }
	tests := map[string]struct {
		old, new *ownership.Object
		want     bool
	}{
		"created without policy labels":             {nil, owner(), false},
		"created with a required label":             {nil, owner(requires), true},
		"created with a binding label only":         {nil, owner(bindingLabels("p", "")), true},
		"created as a Job that is to be resumed":    {nil, edited(restarting), true},
		"a label is added":                          {owner(), owner(requires), true},
		"a label is removed":                        {owner(requires), owner(), true},
		"a missing policy is ignored from now on":   {owner(requires), owner(requires, ignore), true},
		"its overrides are stopped":                 {owner(overrides), edited(stopped, overrides), true},
		"it is scaled, without an OverridePolicy":   {owner(requires), edited(generation, requires, build.Replicas(7)), false},
		"its template changes with OverridePolicy":  {owner(overrides), edited(generation, overrides), true},
		"its Job is suspended to recreate its pods": {owner(), edited(restarting), true},
		"its Job is resumed":                        {edited(restarting), owner(), false},
		"nothing changes":                           {owner(requires), owner(requires), false},
		"deleted with policy labels":                {owner(requires), nil, true},
		"deleted without policy labels":             {owner(), nil, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var want []types.UID
			if tc.want {
				want = []types.UID{"web"}
			}
			if diff := cmp.Diff(want, uidsOf(requestsForOwner(tc.old, tc.new))); diff != "" {
				t.Errorf("wrong requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChangesOfPodsThatEnqueue has the Deployment web, which requires both policies, its
// ReplicaSet web-1, and the Deployment plain with the ReplicaSet plain-1 without policies.
func TestChangesOfPodsThatEnqueue(t *testing.T) {
	web, plain := build.Deployment("web", build.Requires("p", "o")), build.Deployment("plain")
	set, plainSet := build.ReplicaSet("web-1", build.OwnedBy(web)), build.ReplicaSet("plain-1", build.OwnedBy(plain))
	pod := func(options ...build.Option) *seats.Pod { return seats.Slim(build.Pod("pod", options...)) }
	mine, others := build.OwnedBy(set), build.OwnedBy(plainSet)
	lost := seats.Slim(overridden("pod"))
	tests := map[string]struct {
		old, new *seats.Pod
		want     []types.UID
	}{
		"created at the gate":                     {nil, pod(mine, build.Gated()), []types.UID{"web"}},
		"unschedulable":                           {pod(mine), pod(mine, build.Unschedulable()), []types.UID{"web"}},
		"waits for kube-scheduler":                {nil, pod(mine), nil},
		"at the gate without policies":            {nil, pod(others, build.Gated()), []types.UID{"plain-1"}},
		"unschedulable without policies":          {nil, pod(others, build.Unschedulable()), nil},
		"at the gate without an owner":            {nil, pod(build.Gated()), []types.UID{"pod"}},
		"got a node":                              {pod(mine, build.Gated()), pod(mine, build.On("n")), nil},
		"deleted":                                 {pod(mine, build.Gated()), nil, nil},
		"given up by the ReplicaSet":              {pod(mine), lost, []types.UID{"web"}},
		"given up before, and unchanged by that":  {lost, lost, nil},
		"given up before, and deleted since then": {lost, nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, web, set, plain, plainSet)
			if diff := cmp.Diff(tc.want, uidsOf(s.requestsForPod(tc.old, tc.new))); diff != "" {
				t.Errorf("wrong requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChangesOfPoliciesThatEnqueue(t *testing.T) {
	web := build.Deployment("web", build.Requires("p", ""))
	set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Requires("", "o"))
	s := newSite(t, web, set, build.Deployment("other", build.Requires("q", "")))
	tests := map[string]struct {
		kind owners.PolicyKind
		name string
		want []types.UID
	}{
		"a PropagationPolicy, whose groups overrides are tried in": {owners.Propagation, "p", []types.UID{"web", "web-1"}},
		"a PropagationPolicy of a workload without overrides":      {owners.Propagation, "q", []types.UID{"other"}},
		"an OverridePolicy":                  {owners.Override, "o", []types.UID{"web-1"}},
		"a policy that no workload requires": {owners.Propagation, "o", nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, uidsOf(s.requestsForPolicy(tc.kind, build.PropagationPolicy(tc.name)))); diff != "" {
				t.Errorf("wrong requests (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStartEnqueuesLabelledAndGatedObjects: the start enqueues the objects with policy labels and
// the owners of gated pods.
func TestStartEnqueuesLabelledAndGatedObjects(t *testing.T) {
	s := newSite(t, build.Deployment("web", build.Requires("p", "")), build.Deployment("plain"), build.Pod("gated", build.Gated()), build.Pod("other"))
	if diff := cmp.Diff([]types.UID{"gated", "web"}, uidsOf(s.all())); diff != "" {
		t.Errorf("wrong requests (-want +got):\n%s", diff)
	}
}
