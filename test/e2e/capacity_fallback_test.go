package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestCapacityFallsBack: first one class has no node, then the other. Pods of workloads
// with Fallback wait for a time, and then run in the class that has nodes; new pods get
// that class at once. Running pods stay, and waiting pods of workloads without Fallback
// keep waiting. When the class has a node again its pods move back, one at a time, and no
// more than the count are on-demand.
func TestCapacityFallsBack(t *testing.T) {
	tier.All(t, "waits until pods fall back, and return: a minute")
	f := trio.fixture(t)
	f.classes(1, 1)
	falls, set, waits := split("falls", 4, "1"), splitSet("set", 2, 0, "1"), split("waits", 2, "1")
	falls.Annotations[gm.CapacityOnEmptyKey], set.Annotations[gm.CapacityOnEmptyKey] = gm.OnEmptyFallback, gm.OnEmptyFallback
	f.create(falls, set, waits)
	says := func(reason string) error {
		return errors.Join(f.splitSays("deployment-falls", reason), f.splitSays("statefulset-set", reason))
	}
	back := func(f *fixture, replicas int) {
		f.Helper()
		f.eventually(patience, "all are as they ask to be", func() error {
			return errors.Join(f.divided("falls", 1, replicas-1), f.divided("set", 1, 1), f.divided("waits", 1, 1), says(capacity.ReasonSatisfied))
		})
	}
	back(f, 4)

	f.part("no spot node", func(f *fixture) {
		began := time.Now()
		f.cordon(true, "spot-0")
		f.deleteOn("spot-0", "falls", 2)
		f.deleteOn("spot-0", "set", 1)
		f.deleteOn("spot-0", "waits", 1)
		f.eventually(patience, "their successors wait, and the status reports it", func() error {
			return errors.Join(f.dividedBut("falls", 1, 1, 2), f.dividedBut("set", 1, 0, 1), f.dividedBut("waits", 1, 0, 1), says(capacity.ReasonNoNodes))
		})
		f.eventually(patience, "they are on-demand, one that runs stays, and the status reports it", func() error {
			return errors.Join(f.divided("falls", 3, 1), f.divided("set", 2, 0), says(capacity.ReasonFellBack))
		})
		if waited := time.Since(began); waited < fallbackAfter {
			f.Errorf("they waited for %s, want %s at least", waited, fallbackAfter)
		}
		f.scale("falls", 5)
		f.eventuallyDivided("falls", 4, 1)
		f.eventually(patience, "those of the other workload wait", func() error {
			return errors.Join(f.dividedBut("waits", 1, 0, 1), f.splitSays("deployment-waits", capacity.ReasonNoNodes))
		})
		availability := f.watchAvailability("falls", 5)
		f.cordon(false, "spot-0")
		back(f, 5)
		if worst, moved := availability(); worst < 4 || moved != 3 {
			f.Errorf("%d of 5 were available at the worst moment, %d were moved, want 4 and 3", worst, moved)
		}
	})

	f.part("no on-demand node", func(f *fixture) {
		onDemand := f.watchOnDemand("falls", 1)
		f.cordon(true, "on-demand-0")
		f.deleteOn("on-demand-0", "falls", 1)
		f.deleteOn("on-demand-0", "set", 1)
		f.eventually(patience, "their successors wait, and the status reports it", func() error {
			return errors.Join(f.dividedBut("falls", 0, 4, 1), f.dividedBut("set", 0, 1, 1), says(capacity.ReasonNoNodes))
		})
		f.eventually(patience, "they are spot, and the status reports it", func() error {
			return errors.Join(f.divided("falls", 0, 5), f.divided("set", 0, 2), says(capacity.ReasonFellBack))
		})
		f.cordon(false, "on-demand-0")
		back(f, 5)
		if _, most := onDemand(); most > 1 {
			f.Errorf("%d pods were on-demand at a time, want 1 at most", most)
		}
	})
}

// dividedBut returns an error unless the given numbers of a workload's pods have a node
// of each class, and no node.
func (f *fixture) dividedBut(app string, onDemand, spot, waiting int) error {
	if got := f.byClass(f.pods(app)); got["on-demand"] != onDemand || got["spot"] != spot || got[""] != waiting {
		return fmt.Errorf("%s is divided %v, want %d, %d and %d that wait", app, got, onDemand, spot, waiting)
	}
	return nil
}

// deleteOn deletes n of a workload's pods on a node.
func (f *fixture) deleteOn(node, app string, n int) {
	f.Helper()
	for _, pod := range f.pods(app) {
		if n == 0 || pod.Spec.NodeName != node {
			continue
		}
		if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			f.Fatal(err)
		}
		n--
	}
	if n > 0 {
		f.Fatalf("node %s has %d pods of %s too few", node, n, app)
	}
}

// watchOnDemand follows a workload's pods until the returned function is called, which
// returns the smallest number of Ready on-demand pods and the largest number of pods with
// the class at any moment. The argument is the number of on-demand pods that are Ready
// now.
func (f *fixture) watchOnDemand(app string, now int) func() (fewest, most int) {
	f.Helper()
	onDemand := map[types.UID]bool{} // whether it is Ready
	fewest, most, complete := now, 0, false
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(kind watch.EventType, pod *corev1.Pod) {
		delete(onDemand, pod.UID)
		if kind != watch.Deleted && pod.DeletionTimestamp == nil && pod.Labels[gm.CapacityClassLabel] == "on-demand" {
			onDemand[pod.UID] = podReady(pod)
		}
		ready := 0
		for _, is := range onDemand {
			if is {
				ready++
			}
		}
		if complete = complete || ready == now; complete {
			fewest = min(fewest, ready)
		}
		most = max(most, len(onDemand))
	})
	return func() (int, int) {
		w.stopAfter(app)
		return fewest, most
	}
}
