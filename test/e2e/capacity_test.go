package e2e

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/devcluster/atoll"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// fallbackAfter is how long a class has no node before pods fall back, in the cluster
// trio.
const fallbackAfter = 20 * time.Second

// trio is a cluster with three replicas of atoll-manager and a high rate limit of
// evictions.
var trio = lateCluster{options: atoll.Options{Replicas: 3, ManagerArgs: []string{
	"--evictions-per-second=20", "--capacity-fallback-after=" + fallbackAfter.String(),
}}}

const classLabel = "node.kubernetes.io/capacity"

// classes adds nodes of both classes, which are removed with the test.
func (f *fixture) classes(onDemand, spot int) {
	f.Helper()
	for class, n := range map[string]int{"on-demand": onDemand, "spot": spot} {
		for i := range n {
			f.nodes(map[string]string{classLabel: class}, fmt.Sprintf("%s-%d", class, i))
		}
	}
}

// split returns a Deployment with count on-demand pods.
func split(name string, replicas int32, count string, modify ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := deployment(name, replicas, "", modify...)
	d.Annotations = map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: count}
	return d
}

// byClass counts a workload's pods by the class of their nodes.
func (f *fixture) byClass(pods []corev1.Pod) map[string]int {
	f.Helper()
	counts := map[string]int{}
	for _, pod := range pods {
		class, _, _ := strings.Cut(pod.Spec.NodeName, "-0")
		if pod.Spec.NodeName != "" {
			class = strings.TrimRight(pod.Spec.NodeName, "-0123456789")
		}
		counts[class]++
	}
	return counts
}

// divided returns an error unless a workload has the given numbers of pods of each class,
// all Ready, and each with a seat of its own.
func (f *fixture) divided(app string, onDemand, spot int) error {
	return f.dividedOf(app, f.pods(app), onDemand, spot)
}

// dividedOf is divided for some of a workload's pods.
func (f *fixture) dividedOf(app string, pods []corev1.Pod, onDemand, spot int) error {
	if err := readyOf(app, pods, onDemand+spot); err != nil {
		return err
	}
	if got := f.byClass(pods); got["on-demand"] != onDemand || got["spot"] != spot {
		return fmt.Errorf("%s is divided %v, want %d and %d", app, got, onDemand, spot)
	}
	holders := map[string]string{}
	for _, pod := range pods {
		seat := pod.Annotations[gm.SeatAnnotation]
		if other := holders[seat]; seat != "" && other != "" {
			return fmt.Errorf("pods %s and %s have one seat", other, pod.Name)
		}
		holders[seat] = pod.Name
	}
	return nil
}

func (f *fixture) eventuallyDivided(app string, onDemand, spot int) {
	f.Helper()
	f.eventually(patience, fmt.Sprintf("%s has %d on-demand and %d spot pods", app, onDemand, spot), func() error { return f.divided(app, onDemand, spot) })
}

// annotate sets annotations of a workload's Deployment.
func (f *fixture) annotate(app string, annotations map[string]any) {
	f.Helper()
	f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: f.ns}}, map[string]any{"metadata": map[string]any{"annotations": annotations}})
}

// splitHas returns an error unless the CapacitySplit of a Deployment has the given
// numbers.
func (f *fixture) splitHas(app string, onDemand, spot int) error {
	f.Helper()
	var s capacity.CapacitySplit
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "deployment-" + app}, &s); err != nil {
		return err
	}
	if s.Status.OnDemand.Have != int32(onDemand) || s.Status.Spot.Have != int32(spot) {
		return fmt.Errorf("the CapacitySplit of %s counts %d on-demand and %d spot pods", app, s.Status.OnDemand.Have, s.Status.Spot.Have)
	}
	return nil
}

// noneReserved returns an error unless the CapacitySplit of a workload counts no reserved
// seat of a pod that was not observed.
func (f *fixture) noneReserved(name string) error {
	var s capacity.CapacitySplit
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: name}, &s); err != nil {
		return err
	}
	if s.Status.OnDemand.Reserved+s.Status.Spot.Reserved > 0 {
		return fmt.Errorf("the split says %+v", s.Status)
	}
	return nil
}

// splitSays returns an error unless the CapacitySplit of a workload has this reason.
func (f *fixture) splitSays(name, reason string) error {
	var s capacity.CapacitySplit
	if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: name}, &s); err != nil {
		return err
	}
	if len(s.Status.Conditions) != 1 || s.Status.Conditions[0].Reason != reason {
		return fmt.Errorf("the split says %+v, want %s", s.Status, reason)
	}
	return nil
}

// TestCapacityDivides has the four cases of docs/sources.md, C4, then scales the
// workload, and checks the CapacitySplit and the output for users.
func TestCapacityDivides(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	for app, tc := range map[string]struct {
		count          string
		onDemand, spot int
	}{
		"five": {"5", 5, 0}, "three": {"3", 3, 2}, "none": {"0", 0, 5}, "seven": {"7", 5, 0},
	} {
		f.create(split(app, 5, tc.count))
		f.eventuallyDivided(app, tc.onDemand, tc.spot)
	}
	all := split("all", 3, "0")
	delete(all.Annotations, gm.CapacityCountKey)
	f.create(all)
	f.eventuallyDivided("all", 3, 0)

	moved := f.watchMoved("three")
	f.scale("three", 8)
	f.eventuallyDivided("three", 3, 5)
	f.scale("three", 3)
	f.eventuallyDivided("three", 3, 0)
	f.scale("three", 2)
	f.eventuallyDivided("three", 2, 0)
	f.scale("three", 5)
	f.eventuallyDivided("three", 3, 2)
	moved()
	f.eventually(patience, "the CapacitySplit reports it", func() error { return f.splitSays("deployment-three", capacity.ReasonSatisfied) })
	f.eventually(patience, "people see that there are no spot pods", func() error {
		var shown unstructured.Unstructured
		shown.SetGroupVersionKind(capacity.GroupVersion.WithKind("CapacitySplit"))
		if err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "deployment-five"}, &shown); err != nil {
			return err
		}
		if have, found, err := unstructured.NestedInt64(shown.Object, "status", "spot", "have"); !found || have != 0 || err != nil {
			return fmt.Errorf("spot.have is %d, there: %t (%w)", have, found, err)
		}
		return nil
	})
	for _, pod := range f.pods("three") {
		class, cost := pod.Labels[gm.CapacityClassLabel], pod.Annotations[corev1.PodDeletionCost]
		if want := map[string]string{"on-demand": "100", "spot": "1"}[class]; cost != want || pod.Annotations[gm.CapacityReasonAnnotation] == "" {
			t.Errorf("a %s pod costs %q, want %q; annotations %v", class, cost, want, pod.Annotations)
		}
	}
	lost := f.pods("three")[0]
	if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, lost.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventuallyDivided("three", 3, 2)

	deleted := &capacity.CapacitySplit{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "deployment-three"}}
	if err := f.client.Delete(f.ctx, deleted); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "a deleted CapacitySplit is created again", func() error { return f.splitSays("deployment-three", capacity.ReasonSatisfied) })

	written := &capacity.CapacitySplit{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "deployment-three"}}
	junk := client.RawPatch(types.MergePatchType, []byte(`{"status": {"onDemand": {"have": 77, "reserved": 7}}}`))
	if err := f.client.Status().Patch(f.ctx, written, junk); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "a status written by hand is corrected", func() error { return errors.Join(f.splitHas("three", 3, 2), f.noneReserved("deployment-three")) })

	f.annotate("three", map[string]any{gm.CapacitySwitchKey: "false"})
	f.eventually(patience, "nothing is shown of it", func() error {
		err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "deployment-three"}, &capacity.CapacitySplit{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("there is a split: %w", err)
		}
		return nil
	})
}

// TestCapacityCountChanges: pods are moved one at a time, under the PodDisruptionBudget,
// and workloads that ran before are corrected.
func TestCapacityCountChanges(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	f.create(split("app", 6, "2"))
	one := intstr.FromInt32(1)
	f.create(&policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app"}},
	}})
	f.eventuallyDivided("app", 2, 4)
	availability := f.watchAvailability("app", 6)
	f.annotate("app", map[string]any{gm.CapacityCountKey: "5"})
	f.eventuallyDivided("app", 5, 1)
	f.annotate("app", map[string]any{gm.CapacityCountKey: "1"})
	f.eventuallyDivided("app", 1, 5)
	if n, _ := availability(); n < 5 {
		t.Errorf("only %d of 6 pods were there at a time", n)
	}

	f.create(deployment("before", 4, ""))
	f.eventually(patience, "it runs", func() error { return f.allReady("before", 4) })
	f.annotate("before", map[string]any{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: "1"})
	f.eventuallyDivided("before", 1, 3)
}

// bursts is how often TestCapacityBurst creates 500 pods.
var bursts = flag.Int("bursts", 2, "bursts of 500 pods in TestCapacityBurst")

// TestCapacityBurst is scenario 1, as often as -bursts says: 500 pods are created at once
// through three replicas, and exactly 50 are on-demand. At most as many pods are moved as
// were created without the webhook.
func TestCapacityBurst(t *testing.T) {
	tier.All(t, "500 pods again and again: minutes")
	f := trio.fixture(t)
	f.classes(1, 5)
	for i := range *bursts {
		app := fmt.Sprint("burst-", i)
		moved := f.watchMoved(app)
		f.create(split(app, 500, "50"))
		f.eventually(2*patience, "500 pods, exactly divided", func() error { return f.divided(app, 50, 450) })
		moved()
		if n := f.creationsRefused(); n > 0 {
			t.Errorf("%d creations were refused", n)
		}
		f.scale(app, 0)
		f.eventually(patience, "the pods go", func() error {
			if n := len(f.pods(app)); n != 0 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
	}
}

// watchMoved watches a workload: at most as many of its pods may be evicted as were
// created without the webhook. The returned function ends the watch and reports
// violations.
func (f *fixture) watchMoved(app string) (end func()) {
	f.Helper()
	evicted, past := f.watchEvictions(app), f.watchPast(app)
	return func() {
		f.Helper()
		n, went := evicted(), past()
		if n > went {
			f.Errorf("%d pods of %s were moved, %d went past the webhook", n, app, went)
		} else if went > 0 {
			f.Logf("%d pods of %s went past the webhook, %d were moved", went, app, n)
		}
	}
}

// watchPast counts a workload's pods that are created without the webhook, for example
// after its timeout.
func (f *fixture) watchPast(app string) func() int {
	f.Helper()
	past := map[types.UID]bool{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		if pod.Annotations[gm.AdmittedAnnotation] == "" {
			past[pod.UID] = true
		}
	})
	return func() int {
		w.stopAfter(app)
		return len(past)
	}
}

// TestCapacityReplicasKilled is scenario 2: a replica, and then the leader, is killed in
// the middle of a burst. At rest the numbers are exact, and after ten seconds no seat is
// reserved without a pod.
func TestCapacityReplicasKilled(t *testing.T) {
	tier.All(t, "500 pods while replicas are killed: minutes")
	f := trio.fixture(t)
	f.classes(1, 5)
	others := func() string {
		leader := f.leader()
		for i := range 3 {
			if name := atoll.ManagerReplica(i); name != leader {
				return name
			}
		}
		return ""
	}
	for app, victim := range map[string]func() string{"replica": others, "leader": f.leader} {
		killed := victim()
		f.create(split(app, 500, "50"))
		f.eventually(patience, "the burst is under way", func() error {
			if n := len(f.pods(app)); n < 60 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
		restart := f.killForNow(killed)
		f.eventually(3*patience, "500 pods, exactly divided", func() error { return f.divided(app, 50, 450) })
		restart()
		f.eventually(patience, "no seat is reserved without a pod", func() error {
			return errors.Join(f.noneReserved("deployment-"+app), f.splitHas(app, 50, 450))
		})
		if n := f.creationsRefused(); n > 0 {
			t.Errorf("%d creations were refused", n)
		}
		f.scale(app, 0)
	}
}

// TestCapacityRollouts is scenarios 4 and 18: rollouts with every mix of maxSurge
// and maxUnavailable end exact, and so do rollbacks and rollouts in the middle of
// another.
func TestCapacityRollouts(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	mixes := map[string][2]intstr.IntOrString{
		"whole": {intstr.FromString("100%"), intstr.FromInt32(0)}, "one": {intstr.FromInt32(1), intstr.FromInt32(0)},
		"without": {intstr.FromInt32(0), intstr.FromInt32(1)}, "both": {intstr.FromString("25%"), intstr.FromString("25%")},
		"half": {intstr.FromInt32(2), intstr.FromString("50%")},
	}
	for app, mix := range mixes {
		f.create(split(app, 5, "3", func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &mix[0], MaxUnavailable: &mix[1]}
		}))
	}
	each := func(what string, do func(app string)) {
		for app := range mixes {
			do(app)
		}
		for app := range mixes {
			f.eventually(2*patience, fmt.Sprint(app, " is exact ", what), func() error {
				if err := f.rolledOut(app); err != nil {
					return err
				}
				return f.divided(app, 3, 2)
			})
		}
	}
	each("at first", func(string) {})
	watched := map[string]func() (fewest, most int){}
	for app := range mixes {
		watched[app] = f.watchOnDemand(app, 3)
	}
	each("after a rollout", func(app string) { f.release(app, "nginx:1.28") })
	for app, onDemand := range watched {
		fewest, _ := onDemand()
		t.Logf("%s had %d on-demand pods that were Ready at the worst moment", app, fewest)
		if fewest == 0 && mixes[app][1] == intstr.FromInt32(0) {
			t.Errorf("%s had no on-demand pod that was Ready, and none was to be unavailable", app)
		}
	}
	each("after three at once", func(app string) {
		f.release(app, "nginx:1.29")
		f.release(app, "nginx:1.30")
		f.release(app, "nginx:1.28")
	})
}

func (f *fixture) release(app, image string) {
	f.Helper()
	f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: f.ns}}, map[string]any{"spec": map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{"image": image}},
	}}})
}

// rolledOut returns an error unless a Deployment's rollout is complete.
func (f *fixture) rolledOut(app string) error {
	d, err := f.kube.AppsV1().Deployments(f.ns).Get(f.ctx, app, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != *d.Spec.Replicas || d.Status.Replicas != *d.Spec.Replicas {
		return fmt.Errorf("%s: %+v", app, d.Status)
	}
	return nil
}

// TestCapacityStatefulSets is scenarios 20 and 21: the lowest ordinals are on-demand,
// whatever the first ordinal is.
func TestCapacityStatefulSets(t *testing.T) {
	tier.All(t, "200 pods one after the other: half a minute")
	f := trio.fixture(t)
	f.classes(2, 2)
	onDemand := func(app string, want ...string) func() error {
		return func() error {
			var got []string
			for _, pod := range f.pods(app) {
				if strings.HasPrefix(pod.Spec.NodeName, "on-demand") {
					got = append(got, strings.TrimPrefix(pod.Name, app+"-"))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				return fmt.Errorf("%v are on-demand, want %v", got, want)
			}
			return f.allReady(app, 6)
		}
	}
	f.create(splitSet("db", 6, 5, "2"))
	f.eventually(patience, "5 and 6 are on-demand", onDemand("db", "5", "6"))
	if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, "db-5", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "5 is again", onDemand("db", "5", "6"))
	before := map[string]types.UID{}
	for _, pod := range f.pods("db") {
		before[pod.Name] = pod.UID
	}
	f.countOfSet("db", "3")
	f.eventually(patience, "7 is too", onDemand("db", "5", "6", "7"))
	for _, pod := range f.pods("db") {
		if anew := pod.UID != before[pod.Name]; anew != (pod.Name == "db-7") {
			t.Errorf("%s was recreated: %t", pod.Name, anew)
		}
	}
	f.create(splitSet("many", 200, 0, "30"))
	f.eventually(2*patience, "30 of 200", func() error { return f.divided("many", 30, 170) })
}

// splitSet returns a StatefulSet with count on-demand pods, whose ordinals begin at
// start.
func splitSet(name string, replicas, start int32, count string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: count}},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Ordinals: &appsv1.StatefulSetOrdinals{Start: start}, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: deployment(name, 1, "").Spec.Template,
		},
	}
}

// countOfSet sets the number of on-demand pods of a StatefulSet.
func (f *fixture) countOfSet(name, count string) {
	f.Helper()
	f.patch(&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: f.ns}}, map[string]any{"metadata": map[string]any{"annotations": map[string]any{gm.CapacityCountKey: count}}})
}

// TestCapacityLeavesOthersAlone is scenarios 22 to 26: pods of workloads that did not opt
// in, and fields that users wrote, are not changed.
func TestCapacityLeavesOthersAlone(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	on := map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: "0"}
	off := deployment("off", 1, "")
	off.Annotations = map[string]string{gm.CapacitySwitchKey: "false", gm.CapacityCountKey: "1"}
	off.Spec.Template.Annotations = map[string]string{gm.CapacitySwitchKey: "true"}
	pods := template("job")
	f.create(
		off,
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "job", Annotations: on}, Spec: job(1, 1, pods)},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", Annotations: on}, Spec: appsv1.DaemonSetSpec{
			Selector: selecting("agent"), Template: restarted(template("agent")),
		}},
	)
	bare := restarted(template("bare"))
	f.create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Labels: bare.Labels, Annotations: on}, Spec: bare.Spec})
	for app, n := range map[string]int{"off": 1, "job": 1, "agent": 2, "bare": 1} {
		f.eventually(patience, "its pods are created", func() error {
			if now := len(f.pods(app)); now != n {
				return fmt.Errorf("%s has %d pods", app, now)
			}
			return nil
		})
		for _, pod := range f.pods(app) {
			a := pod.Spec.Affinity
			if pod.Labels[gm.CapacityClassLabel] != "" || app != "agent" && a != nil || pod.Annotations[corev1.PodDeletionCost] != "" || len(pod.Spec.SchedulingGates) > 0 {
				t.Errorf("a pod of %s was changed: %+v %+v", app, pod.ObjectMeta, a)
			}
		}
	}

	f.create(split("pinned", 2, "1", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.NodeSelector = map[string]string{classLabel: "spot"}
	}))
	f.eventuallyDivided("pinned", 0, 2)
	f.eventually(patience, "the split says why", func() error { return f.splitSays("deployment-pinned", capacity.ReasonPinned) })
	f.create(split("forged", 2, "1", func(d *appsv1.Deployment) {
		d.Spec.Template.Labels = map[string]string{"app": "forged", gm.CapacityClassLabel: "spot"}
		d.Spec.Template.Annotations = map[string]string{corev1.PodDeletionCost: "7", gm.SeatAnnotation: "forged"}
	}))
	f.eventuallyDivided("forged", 1, 1)
	for _, pod := range f.pods("forged") {
		if pod.Annotations[corev1.PodDeletionCost] != "7" || pod.Annotations[gm.SeatAnnotation] == "forged" {
			t.Errorf("the annotations are %v", pod.Annotations)
		}
	}

	// An owner that selects by Atoll's labels does not create pods without end.
	f.create(split("selects", 2, "0", func(d *appsv1.Deployment) {
		for _, key := range []string{gm.CapacityClassLabel, gm.NodeGroupLabel} {
			d.Spec.Template.Labels[key] = "on-demand" // and the selector: it is one map
		}
	}))
	f.eventuallyDivided("selects", 0, 2)

	for count, want := range map[string]string{"-1": "-1", "x": "x", "2147483648": "2147483648", "+1": "+1", "1.5": "1.5"} {
		err := f.client.Create(f.ctx, func() *appsv1.Deployment { d := split("bad", 1, count); d.Namespace = f.ns; return d }())
		if path := "metadata.annotations[" + gm.CapacityCountKey + "]: " + want; err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("count %q: error is %v, want %q in it", count, err, path)
		}
	}
	inTemplate := deployment("bad", 1, "")
	inTemplate.Namespace = f.ns
	inTemplate.Spec.Template.Annotations = map[string]string{gm.CapacitySwitchKey: "yes"}
	if err := f.client.Create(f.ctx, inTemplate); err == nil || !strings.Contains(err.Error(), "spec.template.metadata.annotations["+gm.CapacitySwitchKey+"]: yes must be true or false") {
		t.Errorf("error is %v", err)
	}
}

// TestCapacityWithoutNodesOfAClass is scenarios 9 and 10: successors of lost on-demand
// pods are on-demand; when all spot nodes are removed, their pods wait, and the
// CapacitySplit reports it.
func TestCapacityWithoutNodesOfAClass(t *testing.T) {
	tier.All(t, "deletes nodes, and waits for their pods: a minute")
	f := trio.fixture(t)
	f.classes(2, 2)
	f.create(split("app", 6, "3"))
	f.eventuallyDivided("app", 3, 3)
	for _, lost := range []string{"spot-0", "spot-1", "on-demand-0"} { // the successors of the others are on-demand again
		if err := f.kube.CoreV1().Nodes().Delete(f.ctx, lost, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually(patience, "spot pods wait", func() error {
		got := f.byClass(f.pods("app"))
		if got["on-demand"] != 3 || got[""] != 3 {
			return fmt.Errorf("divided %v", got)
		}
		return f.splitSays("deployment-app", capacity.ReasonNoNodes)
	})
	f.nodes(map[string]string{classLabel: "spot"}, "spot-9")
	f.eventuallyDivided("app", 3, 3)
	f.eventually(patience, "all is well", func() error { return f.splitSays("deployment-app", capacity.ReasonSatisfied) })
}

// TestCapacityQuota is scenario 3: a quota refuses pods after they got their class, and
// is raised later. In the end three pods are on-demand, and none was moved.
func TestCapacityQuota(t *testing.T) {
	tier.All(t, "waits for growing pauses of controllers: 20 s")
	f := trio.fixture(t)
	f.classes(2, 2)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}
	f.create(quota)
	f.eventually(patience, "the quota is in force", func() error {
		q, err := f.kube.CoreV1().ResourceQuotas(f.ns).Get(f.ctx, "pods", metav1.GetOptions{})
		if err != nil || len(q.Status.Hard) == 0 {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	f.create(split("app", 10, "3"))
	f.eventually(patience, "pods are refused again and again", func() error {
		if n := f.creationsRefused(); n < 10 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	moved := f.watchMoved("app")
	f.patch(quota, map[string]any{"spec": map[string]any{"hard": map[string]any{"pods": "100"}}})
	f.eventually(patience+time.Minute, "three are on-demand", func() error { return f.divided("app", 3, 7) })
	moved()
}

// creationsRefused counts refused creations of pods, by the events of their owners.
func (f *fixture) creationsRefused() (n int) {
	f.Helper()
	list, err := f.kube.EventsV1().Events(f.ns).List(f.ctx, metav1.ListOptions{FieldSelector: "reason=FailedCreate"})
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range list.Items {
		n++
		if e.Series != nil {
			n += int(e.Series.Count)
		}
		n += int(max(0, e.DeprecatedCount-1))
	}
	return n
}

// behindGates counts a workload's pods that have a scheduling gate.
func (f *fixture) behindGates(app string) (n int) {
	f.Helper()
	for _, pod := range f.pods(app) {
		if len(pod.Spec.SchedulingGates) > 0 {
			n++
		}
	}
	return n
}

// watchGated counts a workload's pods that wait at a scheduling gate at some time, until
// the returned function is called.
func (f *fixture) watchGated(app string) func() int {
	f.Helper()
	gated := map[types.UID]bool{}
	w := f.watchPods(metav1.ListOptions{LabelSelector: "app=" + app}, func(_ watch.EventType, pod *corev1.Pod) {
		if len(pod.Spec.SchedulingGates) > 0 {
			gated[pod.UID] = true
		}
	})
	return func() int {
		w.stopAfter(app)
		return len(gated)
	}
}

// TestCapacityFollowsNodes: pods whose node changes its class count in the new class, and
// the surplus there moves. A pod whose owner names its node is never moved. Waiting pods
// can use any node once their workload is not divided any more.
func TestCapacityFollowsNodes(t *testing.T) {
	tier.All(t, "watches for some time that nothing moves")
	f := trio.fixture(t)
	f.classes(2, 1)
	f.create(split("follows", 4, "2"))
	f.eventuallyDivided("follows", 2, 2)
	label := func(node, class string) {
		f.patch(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, map[string]any{"metadata": map[string]any{"labels": map[string]any{classLabel: class}}})
	}
	label("on-demand-1", "spot")
	f.eventually(patience, "two are on the on-demand node that is left", func() error {
		on := 0
		for _, pod := range f.pods("follows") {
			if pod.Spec.NodeName == "on-demand-0" && podReady(&pod) {
				on++
			}
		}
		if on != 2 || len(f.pods("follows")) != 4 {
			return fmt.Errorf("%d of %d pods are there", on, len(f.pods("follows")))
		}
		return f.splitHas("follows", 2, 2)
	})

	f.create(split("named", 2, "0", func(d *appsv1.Deployment) { d.Spec.Template.Spec.NodeName = "on-demand-0" }))
	f.eventually(patience, "they are where their owner wants them, and the status reports it", func() error {
		if err := f.allReady("named", 2); err != nil {
			return err
		}
		return f.splitSays("deployment-named", capacity.ReasonPinned)
	})
	evicted := f.watchEvictions("named")
	f.always(3*time.Second, "they stay", func() error { return f.allReady("named", 2) })
	if n := evicted(); n > 0 {
		t.Errorf("%d pods were moved from the node that their owner names", n)
	}

	f.cordon(true, "spot-0", "on-demand-1")
	f.create(split("waits", 1, "0"))
	f.eventually(patience, "a spot pod waits", func() error { return f.splitSays("deployment-waits", capacity.ReasonNoNodes) })
	f.eventually(patience, "kube-scheduler says so", func() error {
		if n := f.unschedulable("waits"); n != 1 {
			return fmt.Errorf("%d pods wait", n)
		}
		return nil
	})
	f.annotate("waits", map[string]any{gm.CapacitySwitchKey: "false"})
	f.eventually(patience, "it runs anywhere", func() error { return f.allReady("waits", 1) })

	if err := f.client.Delete(f.ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "follows"}}, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "nothing is shown of a workload that is gone", func() error {
		err := f.client.Get(f.ctx, types.NamespacedName{Namespace: f.ns, Name: "deployment-follows"}, &capacity.CapacitySplit{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("there is a split: %w", err)
		}
		return nil
	})
}

// TestCapacityInvalidValueStopsNoRollout: an invalid value that was stored before validation
// existed is copied to each new ReplicaSet, and stops no rollout.
func TestCapacityInvalidValueStopsNoRollout(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	junk := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Name: "junk", Namespace: f.ns, Annotations: map[string]string{gm.CapacitySwitchKey: "true", gm.CapacityCountKey: "half"},
	}}
	template := deployment("junk", 0, "")
	junk.Spec.Selector, junk.Spec.Template = template.Spec.Selector, template.Spec.Template
	dryRun := func() error { return f.client.Create(f.ctx, junk.DeepCopy(), client.DryRunAll) }
	f.eventually(patience, "the writer gets a warning", func() error {
		if err := dryRun(); err == nil || !strings.Contains(err.Error(), "must be a whole number") {
			return fmt.Errorf("the answer is %w", err)
		}
		return nil
	})
	junk.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "junk", UID: "junk", Controller: new(true)}}
	if err := dryRun(); err != nil {
		t.Errorf("the Deployment's controller cannot create a ReplicaSet: %v", err)
	}
}

// TestCapacityWithoutAWebhook is scenario 19: no replica runs, pods are created all the
// same, and are corrected when a replica is back, without any action of a person.
func TestCapacityWithoutAWebhook(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	restart := f.killForNow(atoll.ManagerReplica(0), atoll.ManagerReplica(1), atoll.ManagerReplica(2))
	f.create(split("alone", 10, "3"))
	f.eventually(patience, "pods run without us", func() error { return f.allReady("alone", 10) })
	restart()
	f.eventually(2*patience, "they are divided", func() error { return f.divided("alone", 3, 7) })
}
