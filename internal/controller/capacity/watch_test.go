package capacity

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestChangesThatEnqueue has the Deployment web, which is divided and has no
// CapacitySplit, its ReplicaSet web-1, the Deployment other, which is not divided, and the
// Deployment shown, which is not divided any more and has a CapacitySplit.
func TestChangesThatEnqueue(t *testing.T) {
	web := build.Deployment("web", asks("1"), build.Replicas(2))
	set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(2))
	pod := func(options ...build.Option) *seats.Pod { return seats.Slim(build.Pod("pod", options...)) }
	tests := map[string]struct {
		change func(r *Reconciler) []request
		want   []types.UID
	}{
		"a divided Deployment":             {func(r *Reconciler) []request { return r.requestsFor("web") }, []types.UID{"web"}},
		"its ReplicaSet":                   {func(r *Reconciler) []request { return r.requestsFor("web-1") }, []types.UID{"web"}},
		"a Deployment that is not divided": {func(r *Reconciler) []request { return r.requestsFor("other") }, nil},
		"one that is divided no more":      {func(r *Reconciler) []request { return r.requestsFor("shown") }, []types.UID{"shown"}},
		"a deleted one with a CapacitySplit": {func(r *Reconciler) []request {
			r.Walker.Drop("shown")
			return r.requestsFor("shown")
		}, []types.UID{"shown"}},
		"a deleted one without a CapacitySplit": {func(r *Reconciler) []request {
			r.Walker.Drop("web")
			return r.requestsFor("web")
		}, nil},
		"a ReplicaSet with a CapacitySplit that was adopted": {func(r *Reconciler) []request {
			r.show("web-1", types.NamespacedName{})
			return r.requestsFor("web-1")
		}, []types.UID{"web", "web-1"}},

		"a pod of a divided Deployment": {func(r *Reconciler) []request { return r.requestsForPod(pod(build.OwnedBy(set))) }, []types.UID{"web"}},
		"a pod without a controller":    {func(r *Reconciler) []request { return r.requestsForPod(pod()) }, nil},

		"pods that change class with their node":  {func(r *Reconciler) []request { return r.requestsForClasses([]types.UID{"web-1", "other"}, false) }, []types.UID{"web"}},
		"a class that gets its first node":        {func(r *Reconciler) []request { return r.requestsForClasses(nil, true) }, []types.UID{"web"}},
		"the namespace of the workloads":          {func(r *Reconciler) []request { return r.requestsForNamespace(build.Namespace) }, []types.UID{"other", "shown", "web"}},
		"another namespace":                       {func(r *Reconciler) []request { return r.requestsForNamespace("elsewhere") }, nil},
		"a CapacitySplit":                         {func(*Reconciler) []request { return requestsForSplit(splitOf("web")) }, []types.UID{"web"}},
		"a CapacitySplit that lost its owner":     {func(*Reconciler) []request { return requestsForSplit(splitOf()) }, nil},
		"the start as leader, without any splits": {func(r *Reconciler) []request { return r.all() }, []types.UID{"web"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, web, set, build.Deployment("other"), build.Deployment("shown"))
			s.show("shown", types.NamespacedName{Namespace: build.Namespace, Name: "deployment-shown"})
			var got []types.UID
			for _, request := range tc.change(s.Reconciler) {
				got = append(got, request.uid)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tc.want, slices.Compact(got)); diff != "" {
				t.Errorf("wrong workloads are enqueued (-want +got):\n%s", diff)
			}
		})
	}
}

// splitOf is a CapacitySplit with these owners.
func splitOf(owners ...types.UID) *api.CapacitySplit {
	split := &api.CapacitySplit{}
	for _, uid := range owners {
		split.OwnerReferences = append(split.OwnerReferences, metav1.OwnerReference{UID: uid})
	}
	return split
}
