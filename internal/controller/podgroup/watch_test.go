package podgroup

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestChangesThatEnqueue has the Deployment web and its ReplicaSet web-1. A PodGroup exists
// for web. Of the pods of web-1, "named" names it and "unnamed" names none.
func TestChangesThatEnqueue(t *testing.T) {
	web := build.Deployment("web", build.Replicas(2))
	set := build.ReplicaSet("web-1", build.OwnedBy(web), build.Replicas(2))
	nameless := build.With(func(p *corev1.Pod) { p.Annotations = nil })
	ended := build.With(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
	move := ownership.Levels{MovePending: true}
	tests := map[string]struct {
		rules  ownership.Levels
		change func(s *site) enqueued
		pods   []string
		groups []string // by their owners
	}{
		"a pod without a PodGroup is created":          {ownership.Levels{}, forPod(nil, memberOf("pod", set, "", nameless)), []string{"pod"}, nil},
		"one that has ended":                           {ownership.Levels{}, forPod(nil, memberOf("pod", set, "", nameless, ended)), nil, nil},
		"a pod that names a PodGroup is created":       {ownership.Levels{}, forPod(nil, memberOf("pod", set, "web")), nil, []string{"web"}},
		"it may move, by the rules":                    {move, forPod(nil, memberOf("pod", set, "web")), []string{"pod"}, []string{"web"}},
		"it has a node, and may not move":              {move, forPod(nil, memberOf("pod", set, "web", build.On("n"))), nil, []string{"web"}},
		"a pod is deleted":                             {ownership.Levels{}, forPod(memberOf("pod", set, "web"), nil), nil, []string{"web"}},
		"a pod names another PodGroup than before":     {ownership.Levels{}, forPod(memberOf("pod", set, "web"), memberOf("pod", set, "web-1")), nil, []string{"web", "web-1"}},
		"a pod of the PodGroup of web-1 ends":          {ownership.Levels{}, forPod(nil, memberOf("pod", set, "web-1", ended)), nil, []string{"web", "web-1"}},
		"a generated PodGroup":                         {ownership.Levels{}, forGroup(gang.Name("web")), nil, []string{"web"}},
		"a PodGroup that a person made":                {ownership.Levels{}, forGroup("mine"), nil, nil},
		"the Deployment":                               {ownership.Levels{}, forOwner(web), []string{"unnamed"}, []string{"web"}},
		"its ReplicaSet":                               {ownership.Levels{}, forOwner(set), []string{"unnamed"}, []string{"web"}},
		"an owner that has no pods of gang schedulers": {ownership.Levels{}, forOwner(build.Deployment("other")), nil, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.Resolver.SetLevels(tc.rules, s.clock.Now())
			s.owners(web, set)
			s.Store.PutPod(memberOf("named", set, "web"))
			s.Store.PutPod(memberOf("unnamed", set, "", nameless))
			s.Store.PutGroup(&gangs.Group{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name("web")}})
			got := tc.change(s)
			if diff := cmp.Diff(tc.pods, namesOf(got.pods, "")); diff != "" {
				t.Errorf("wrong pods are enqueued (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.groups, namesOf(got.groups, gang.Name(""))); diff != "" {
				t.Errorf("wrong PodGroups are enqueued (-want +got):\n%s", diff)
			}
		})
	}
}

// forPod is a change of a pod; nil is none.
func forPod(old, new *corev1.Pod) func(s *site) enqueued {
	return func(s *site) enqueued {
		slim := func(pod *corev1.Pod) *gangs.Pod {
			if pod == nil {
				return nil
			}
			s.Store.PutPod(pod)
			return s.Store.Pod(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
		}
		return s.requestsForPod(slim(old), slim(new))
	}
}

func forGroup(name string) func(s *site) enqueued {
	return func(*site) enqueued {
		return requestsForGroup(&gangs.Group{ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: name}})
	}
}

func forOwner(o build.Object) func(s *site) enqueued {
	return func(s *site) enqueued { return s.requestsForOwner(build.Owner(o)) }
}

// namesOf are the names of keys without a prefix, sorted and each once.
func namesOf(keys []types.NamespacedName, prefix string) (names []string) {
	for _, key := range keys {
		names = append(names, strings.TrimPrefix(key.Name, prefix))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
