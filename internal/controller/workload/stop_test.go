package workload

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// newWatchedSite is a site whose reconciler counts the pods that were given up.
func newWatchedSite(t *testing.T, objects ...build.Object) *site {
	t.Helper()
	s := newSite(t, objects...)
	s.World.Ledger.OnChange(s.givenUp.note)
	return s
}

// overridden returns a pod that was created for the ReplicaSet web-1 with overrides.
func overridden(name string, options ...build.Option) *corev1.Pod {
	return build.Pod(name, append([]build.Option{build.Annotation(gm.CreatedForAnnotation, "web-1")}, options...)...)
}

func (s *site) pass() {
	s.t.Helper()
	s.labelled, s.woken = nil, nil
	if _, err := s.Reconcile(s.t.Context(), request{"web"}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) stopped() bool {
	return s.deployment("web").Annotations[gm.OverridesStoppedAnnotation] != ""
}

// TestAWorkloadThatMakesPodsWithoutEndGetsNoMoreOverrides: overrides of a Deployment with 2
// replicas are stopped at the 13th pod that its ReplicaSet has given up. They stay stopped
// until a person removes the annotation.
func TestAWorkloadThatMakesPodsWithoutEndGetsNoMoreOverrides(t *testing.T) {
	s := newWatchedSite(t, append(web(build.Bound("p", "o"), build.Replicas(2)), policy, override)...)
	made := 0
	for ; made < 100 && !s.stopped(); made++ {
		s.World.Add(t, overridden(fmt.Sprint("lost-", made)))
		s.pass()
	}
	if made != 13 {
		t.Errorf("stopped after %d pods, want 13", made)
	}
	if s.deployment("web").Labels[gm.BindingOverridePolicyLabel] != "" {
		t.Error("it is still bound")
	}
	select {
	case e := <-s.events.Events:
		if !strings.HasPrefix(e, "Warning OverridesStopped Its pods are not overridden any more: it gave up more than 2 pods") {
			t.Errorf("event is %s", e)
		}
	default:
		t.Error("there is no event")
	}
	s.see("web")
	if s.pass(); len(s.labelled) != 0 || len(s.events.Events) != 0 {
		t.Errorf("written again without a change: %s", s.labelled)
	}
	s.generation(2, func(d *appsv1.Deployment) { delete(d.Annotations, gm.OverridesStoppedAnnotation) })
	s.see("web")
	if s.pass(); !s.stopped() {
		t.Error("it gets overrides again while all the pods still exist")
	}
	for i := range made {
		s.World.See(overridden(fmt.Sprint("lost-", i), build.Deleting("")))
	}
	s.see("web")
	s.generation(3, func(d *appsv1.Deployment) { delete(d.Annotations, gm.OverridesStoppedAnnotation) })
	s.see("web")
	if s.pass(); s.stopped() || s.deployment("web").Labels[gm.BindingOverridePolicyLabel] != "o" {
		t.Error("it gets no overrides although a person removed the annotation")
	}
}

// TestEntriesOfADeletedWorkloadAreDropped: the entries of a deleted workload are dropped, even if
// its pods outlive it.
func TestEntriesOfADeletedWorkloadAreDropped(t *testing.T) {
	s := newWatchedSite(t, append(web(build.Bound("p", "o"), build.Replicas(2)), policy, override)...)
	s.World.Add(t, overridden("lost"))
	s.pass()
	if len(s.givenUp.wants) != 1 {
		t.Fatalf("entries are %v", s.givenUp.wants)
	}
	s.World.Walker.Drop("web")
	if s.pass(); len(s.givenUp.wants) != 0 {
		t.Errorf("entries of a deleted workload: %v", s.givenUp.wants)
	}
}

// TestNormalWorkloadChangesStopNoOverrides: rollouts, scaling up and down, crashes,
// pods that end, a person who changes the labels of all pods once, an owner that is
// deleted and orphans its pods.
func TestNormalWorkloadChangesStopNoOverrides(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	for round := range 30 {
		n := int32(1 + random.IntN(40))
		s := newWatchedSite(t, append(web(build.Bound("p", "o"), build.Replicas(n)), policy, override)...)
		deployment := s.deployment("web")
		var alive []*corev1.Pod
		revision, serial, takenOut := 1, 0, false
		for range 60 {
			set := func(name string, replicas int32) build.Object {
				return build.ReplicaSet(name, build.OwnedBy(deployment), build.Replicas(replicas))
			}
			current := fmt.Sprint("web-", revision)
			switch random.IntN(6) {
			case 0: // scaled, before its pods follow
				n = int32(random.IntN(60))
			case 1: // rolled out
				s.World.Walker.Put(build.Owner(set(current, 0)))
				revision++
				current = fmt.Sprint("web-", revision)
			case 2: // pods crash, end, are deleted
				for i, pod := range alive {
					if random.IntN(3) == 0 {
						alive[i] = pod.DeepCopy()
						alive[i].Status.Phase = corev1.PodFailed
						s.World.See(alive[i])
					}
				}
			case 3: // a person changes the labels of all of them, once
				if takenOut {
					break
				}
				takenOut = true
				kept := 0
				for i, pod := range alive { // by now the surplus pods are deleted
					if pod.OwnerReferences[0].Name == current && kept < int(n) {
						kept++
						continue
					}
					alive[i] = pod.DeepCopy()
					alive[i].Status.Phase = corev1.PodFailed
					s.World.See(alive[i])
				}
				for i, pod := range alive {
					alive[i] = pod.DeepCopy()
					alive[i].OwnerReferences = nil
					s.World.See(alive[i])
				}
			case 4: // an owner is being deleted and orphans its pods
				leaving := build.ReplicaSet(fmt.Sprint("web-", revision), build.OwnedBy(deployment), build.Replicas(n), build.Deleting("orphan"))
				s.World.Walker.Put(build.Owner(leaving))
				revision++
				current = fmt.Sprint("web-", revision)
			}
			s.World.Walker.Put(build.Owner(set(current, n)))
			for range random.IntN(int(n) + 1) {
				if controlled(alive, current) >= int(n) {
					break
				}
				serial++
				pod := build.Pod(fmt.Sprint("web-", revision, "-", serial), build.OwnedBy(set(current, n)),
					build.Annotation(gm.CreatedForAnnotation, current), build.Created(time.Unix(int64(serial), 0)))
				alive = append(alive, pod)
				s.World.See(pod)
			}
			if s.pass(); s.stopped() {
				t.Fatalf("round %d: stopped at %d replicas: %s", round, n, s.deployment("web").Annotations[gm.OverridesStoppedAnnotation])
			}
		}
	}
}

func controlled(pods []*corev1.Pod, owner string) int {
	n := 0
	for _, pod := range pods {
		if len(pod.OwnerReferences) > 0 && pod.OwnerReferences[0].Name == owner && pod.Status.Phase != corev1.PodFailed {
			n++
		}
	}
	return n
}
