package e2e

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	capacity "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestCapacityDrain is scenario 14: a PodDisruptionBudget blocks a drain for a minute.
// Pods whose eviction is refused still count, so that none is created in their place;
// when they may leave, their successors are on-demand.
func TestCapacityDrain(t *testing.T) {
	tier.All(t, "waits until nodes are drained one after the other: 1.5 min")
	f := trio.fixture(t)
	f.classes(2, 1)
	f.create(split("app", 4, "2"))
	f.eventuallyDivided("app", 2, 2)
	all := intstr.FromInt32(4)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: f.ns},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &all, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "app"}}},
	}
	f.create(budget)
	f.eventually(patience, "the budget is in force", func() error {
		b, err := f.kube.PolicyV1().PodDisruptionBudgets(f.ns).Get(f.ctx, "app", metav1.GetOptions{})
		if err != nil || b.Status.ExpectedPods != 4 {
			return fmt.Errorf("it is not: %w", err)
		}
		return nil
	})
	drained := ""
	for _, pod := range f.pods("app") {
		if strings.HasPrefix(pod.Spec.NodeName, "on-demand") {
			drained = pod.Spec.NodeName
		}
	}
	f.cordon(true, drained)
	drain := func() (left int, err error) {
		for _, pod := range f.pods("app") {
			if pod.Spec.NodeName != drained {
				continue
			}
			left++
			err = f.kube.PolicyV1().Evictions(f.ns).Evict(f.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: pod.Name}})
		}
		return left, err
	}
	deleted := f.watchDeletions("app")
	f.always(time.Minute, "nothing changes", func() error {
		if _, err := drain(); !apierrors.IsTooManyRequests(err) {
			return fmt.Errorf("the eviction is answered: %w", err)
		}
		return f.divided("app", 2, 2)
	})
	if n := deleted(); n != 0 {
		t.Errorf("%d pods were deleted", n)
	}
	if err := f.client.Delete(f.ctx, budget); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "the node is empty", func() error {
		if left, err := drain(); left > 0 {
			return fmt.Errorf("%d pods are there (%w)", left, err)
		}
		return nil
	})
	f.eventuallyDivided("app", 2, 2)
}

// TestCapacityDryRuns is scenario 15: a thousand dry runs take no seat.
func TestCapacityDryRuns(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	f.create(split("app", 3, "1"))
	f.eventuallyDivided("app", 1, 2)
	sets, err := f.kube.AppsV1().ReplicaSets(f.ns).List(f.ctx, metav1.ListOptions{LabelSelector: "app=app"})
	if err != nil || len(sets.Items) != 1 {
		t.Fatalf("there are %d ReplicaSets (%v)", len(sets.Items), err)
	}
	set := &sets.Items[0]
	const callers = 8
	each := 125
	if testing.Short() {
		each = 12
	}
	var running sync.WaitGroup
	answers := make(chan error, callers*each)
	for range callers {
		running.Go(func() {
			for range each {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: f.ns, GenerateName: "app-", Labels: set.Spec.Template.Labels,
						OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))},
					},
					Spec: *set.Spec.Template.Spec.DeepCopy(),
				}
				err := f.client.Create(f.ctx, pod, client.DryRunAll)
				// A fourth pod is spot, or waits: its owner does not create it.
				if class := pod.Labels[gm.CapacityClassLabel]; err == nil && class == "on-demand" {
					err = fmt.Errorf("a dry run shows class %q: that seat is taken", class)
				}
				answers <- err
			}
		})
	}
	running.Wait()
	close(answers)
	for err := range answers {
		if err != nil {
			t.Fatal(err)
		}
	}
	f.eventually(patience, "no seat is reserved without a pod", func() error { return f.noneReserved("deployment-app") })
	moved := f.watchMoved("app")
	// In one write: with the annotation alone, one of the three pods would be moved.
	f.patch(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: f.ns}}, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{gm.CapacityCountKey: "2"}}, "spec": map[string]any{"replicas": 6},
	})
	f.eventually(patience, "exact afterwards", func() error { return f.divided("app", 2, 4) })
	moved()
}

// TestCapacityReinvocation is scenario 16: another webhook adds a container after
// Atoll's, so that the API server calls Atoll's webhook again for the same pod. The pod
// takes one seat, and Atoll's changes are applied once.
func TestCapacityReinvocation(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	asked := 0
	var mu sync.Mutex
	injector := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		asked++
		mu.Unlock()
		kind := admissionv1.PatchTypeJSONPatch
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: &kind,
			Patch: []byte(`[{"op": "add", "path": "/spec/containers/-", "value": {"name": "sidecar", "image": "sidecar:1"}}]`),
		}
		review.Request = nil
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(injector.Close)
	none, every := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Ignore
	config := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "zz-" + f.ns}, // after Atoll's webhook
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "sidecar.e2e.example.com", SideEffects: &none, FailurePolicy: &every, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL: &injector.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: injector.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: f.ns}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}
	if err := f.client.Create(f.ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Delete(context.Background(), config) })
	probe := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, GenerateName: "probe-"}, Spec: deployment("probe", 1, "").Spec.Template.Spec}
	f.eventually(patience, "the other webhook is in force", func() error {
		pod := probe.DeepCopy()
		if err := f.client.Create(f.ctx, pod, client.DryRunAll); err != nil {
			return err
		}
		if len(pod.Spec.Containers) != 2 {
			return errors.New("nothing is added")
		}
		return nil
	})
	f.create(split("app", 20, "6"))
	f.eventuallyDivided("app", 6, 14)
	for _, pod := range f.pods("app") {
		if len(pod.Spec.Containers) != 2 {
			t.Errorf("pod %s has %d containers", pod.Name, len(pod.Spec.Containers))
		}
		terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
		if len(terms) != 1 || len(terms[0].MatchExpressions) != 1 {
			t.Errorf("pod %s requires %+v of its node", pod.Name, terms)
		}
	}
	f.eventually(patience, "no seat is reserved without a pod", func() error { return f.noneReserved("deployment-app") })
	mu.Lock()
	defer mu.Unlock()
	if asked < 20 {
		t.Errorf("the other webhook was asked %d times", asked)
	}
}

// TestCapacityAllowsUnusualReplicaSetNames is scenario 27: a name of sixty characters, and a
// ReplicaSet that was created by hand and adopted by a Deployment, whose name has no hash
// or one of nine characters.
func TestCapacityAllowsUnusualReplicaSetNames(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	long := strings.Repeat("long-", 12)[:59] + "x"
	f.create(split(long, 5, "3"))
	for _, set := range []string{"hand-fd9dd69b6", "byhand"} {
		app := strings.TrimSuffix(set, "-fd9dd69b6")
		d := split(app, 4, "1")
		f.create(&appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: set, Labels: map[string]string{"app": app}},
			Spec:       appsv1.ReplicaSetSpec{Replicas: d.Spec.Replicas, Selector: d.Spec.Selector, Template: d.Spec.Template},
		})
		f.eventually(patience, "its pods run", func() error { return f.allReady(app, 4) })
		f.create(d)
		f.eventuallyDivided(app, 1, 3)
		f.scale(app, 8)
		f.eventuallyDivided(app, 1, 7)
		for _, pod := range f.pods(app) {
			if owner := metav1.GetControllerOf(&pod); owner == nil || owner.Name != set {
				t.Errorf("pod %s is owned by %v", pod.Name, owner)
			}
		}
	}
	f.eventuallyDivided(long, 3, 2)
}

// TestCapacityRecreatedWorkloadIsNew is scenario 29: a workload that is created again under its name
// is a new workload. Terminating pods of the previous one take no seat of it.
func TestCapacityRecreatedWorkloadIsNew(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	again := func(replicas int32, count string) *appsv1.Deployment {
		return split("app", replicas, count, func(d *appsv1.Deployment) { d.Spec.Template.Spec.TerminationGracePeriodSeconds = new(int64(5)) })
	}
	f.create(again(6, "4"))
	f.eventuallyDivided("app", 4, 2)
	for _, count := range []int{2, 5, 1} {
		d := again(7, fmt.Sprint(count))
		d.Namespace = f.ns
		f.eventually(patience, "the last one is gone", func() error {
			return f.client.Delete(f.ctx, d.DeepCopy(), client.PropagationPolicy(metav1.DeletePropagationBackground))
		})
		f.eventually(patience, "it is made again", func() error {
			d.ResourceVersion = ""
			return client.IgnoreAlreadyExists(f.client.Create(f.ctx, d))
		})
		f.eventually(patience, "the new one is exact", func() error {
			onDemand, spot := 0, 0
			for _, pod := range f.pods("app") {
				if f.topOf(&pod) != d.UID {
					continue
				}
				switch {
				case !podReady(&pod):
				case strings.HasPrefix(pod.Spec.NodeName, "on-demand"):
					onDemand++
				default:
					spot++
				}
			}
			if onDemand != count || spot != 7-count {
				return fmt.Errorf("%d on-demand and %d spot, want %d and %d", onDemand, spot, count, 7-count)
			}
			return nil
		})
	}
}

// topOf returns the UID of the Deployment above a pod.
func (f *fixture) topOf(pod *corev1.Pod) types.UID {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return ""
	}
	set, err := f.kube.AppsV1().ReplicaSets(f.ns).Get(f.ctx, owner.Name, metav1.GetOptions{})
	if err != nil || set.UID != owner.UID {
		return ""
	}
	if top := metav1.GetControllerOf(set); top != nil {
		return top.UID
	}
	return ""
}

// TestCapacityLeaderKilledWhileItMoves is scenario 32: the leader is killed while it
// moves pods, and the next leader continues. At most one pod is missing at a time, and
// none is evicted twice.
func TestCapacityLeaderKilledWhileItMoves(t *testing.T) {
	f := trio.fixture(t)
	f.classes(2, 2)
	f.create(split("app", 12, "0"))
	f.eventuallyDivided("app", 0, 12)
	availability, past := f.watchAvailability("app", 12), f.watchPast("app")
	f.annotate("app", map[string]any{gm.CapacityCountKey: "12"})
	f.eventually(patience, "some have moved", func() error {
		if n := f.byClass(f.pods("app"))["on-demand"]; n < 3 {
			return fmt.Errorf("%d are on-demand", n)
		}
		return nil
	})
	restart := f.killForNow(f.leader())
	f.eventuallyDivided("app", 12, 0)
	restart()
	// The API server creates a pod without the webhook if the leader is killed while it answers.
	worst, deleted := availability()
	if most := 12 + past(); worst < 11 || deleted < 12 || deleted > most {
		t.Errorf("%d of 12 were available at the worst moment, %d were deleted, want 11 and 12 to %d", worst, deleted, most)
	}
}

// TestCapacityReappliedWorkloadKeepsItsPods: a workload that is applied again, changed or not, keeps its
// pods, and they count.
func TestCapacityReappliedWorkloadKeepsItsPods(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	f.create(split("app", 4, "3"))
	f.eventuallyDivided("app", 3, 1)
	moved := f.watchMoved("app")
	for i := range 5 {
		f.annotate("app", map[string]any{"applied": fmt.Sprint(i)})
		f.scale("app", 5+i)
		f.eventuallyDivided("app", 3, 2+i)
	}
	moved()
}

// TestCapacityPodStaysWithItsVolume: the volume of a StatefulSet's pod is on a node of
// the class that the pod should leave. The pod stays, and the CapacitySplit has the
// reason. Its successor stays too: it runs on the node of the volume.
func TestCapacityPodStaysWithItsVolume(t *testing.T) {
	tier.All(t, "watches for 12 s that nothing changes, twice")
	f := trio.fixture(t)
	f.classes(1, 1)
	f.localVolumes("data", "spot-0")
	set := splitSet("db", 1, 0, "0")
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: new(f.ns), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
	}}}
	set.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	f.create(set)
	f.eventuallyDivided("db", 0, 1)
	uid := func() types.UID {
		if pods := f.pods("db"); len(pods) == 1 {
			return pods[0].UID
		}
		return ""
	}
	stays := func(says string) {
		t.Helper()
		pod := uid()
		f.eventually(patience, "the status reports it", func() error { return f.splitSays("statefulset-db", says) })
		f.always(12*time.Second, "it stays", func() error { // longer than it takes until somebody looks again
			if now := uid(); now != pod {
				return fmt.Errorf("the pod is %q, want %q", now, pod)
			}
			return f.divided("db", 0, 1)
		})
	}
	f.countOfSet("db", "1")
	stays(capacity.ReasonNoRoom)
	f.deleteOn("spot-0", "db", 1)
	f.eventuallyDivided("db", 0, 1)
	stays(capacity.ReasonPinned)
	f.countOfSet("db", "0")
	f.eventually(patience, "all is well", func() error { return f.splitSays("statefulset-db", capacity.ReasonSatisfied) })
}

// TestCapacityPodsCountWithoutTheirLabels: labels and annotations of the class are removed from pods
// by hand. The pods count as before and none is recreated. Their node affinity then
// counts as their owner's, so other pods are moved when the count changes. Successors
// have the labels and annotations again.
func TestCapacityPodsCountWithoutTheirLabels(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	f.create(split("app", 6, "3"))
	f.eventuallyDivided("app", 3, 3)
	deleted := f.watchDeletions("app")
	bare := map[string]string{} // names of pods, by class
	for _, pod := range f.pods("app") {
		class := pod.Labels[gm.CapacityClassLabel]
		if bare[class] != "" {
			continue
		}
		bare[class] = pod.Name
		f.patch(&pod, map[string]any{"metadata": map[string]any{
			"labels": map[string]any{gm.CapacityClassLabel: nil},
			"annotations": map[string]any{
				gm.CapacityReasonAnnotation: nil, gm.SeatAnnotation: nil, gm.AdmittedAnnotation: nil, gm.DeletionCostAnnotation: nil, corev1.PodDeletionCost: nil,
			},
		}})
	}
	f.always(3*time.Second, "nothing changes", func() error {
		return errors.Join(f.divided("app", 3, 3), f.splitSays("deployment-app", capacity.ReasonSatisfied))
	})
	if n := deleted(); n > 0 {
		t.Errorf("%d pods were deleted", n)
	}
	for _, count := range []int{1, 5} {
		f.annotate("app", map[string]any{gm.CapacityCountKey: fmt.Sprint(count)})
		f.eventuallyDivided("app", count, 6-count)
		for class, name := range bare {
			if pod, err := f.kube.CoreV1().Pods(f.ns).Get(f.ctx, name, metav1.GetOptions{}); err != nil || !strings.HasPrefix(pod.Spec.NodeName, class) {
				t.Errorf("with a count of %d the %s pod without stamps is gone or moved: %v", count, class, err)
			}
		}
	}
	f.annotate("app", map[string]any{gm.CapacityCountKey: "6"})
	f.eventually(patience, "the status names the pod that stays", func() error {
		return errors.Join(f.divided("app", 5, 1), f.splitSays("deployment-app", capacity.ReasonPinned))
	})
	for _, name := range bare {
		if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	f.eventuallyDivided("app", 6, 0)
	for _, pod := range f.pods("app") {
		if pod.Labels[gm.CapacityClassLabel] != "on-demand" || pod.Annotations[corev1.PodDeletionCost] != "100" {
			t.Errorf("pod %s has labels %v and annotations %v", pod.Name, pod.Labels, pod.Annotations)
		}
	}
}

// TestCapacityEndedPodsDoNotCount is scenarios 30 and 31: on-demand pods that have failed,
// and those that take long to terminate, do not count. Other pods are on-demand in their
// place.
func TestCapacityEndedPodsDoNotCount(t *testing.T) {
	f := trio.fixture(t)
	f.classes(1, 1)
	f.create(split("app", 5, "3"))
	f.eventuallyDivided("app", 3, 2)
	moved := f.watchMoved("app")
	var onDemand []corev1.Pod
	for _, pod := range f.pods("app") {
		if pod.Labels[gm.CapacityClassLabel] == "on-demand" {
			onDemand = append(onDemand, pod)
		}
	}
	failed, stays := onDemand[0], onDemand[1]
	if err := f.client.Status().Patch(f.ctx, &failed, client.RawPatch(types.MergePatchType, []byte(`{"status": {"phase": "Failed", "reason": "Evicted"}}`))); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "another is in the place of the one that failed", func() error { return f.dividedWithout("app", failed.UID, 3, 2) })

	finalizers := func(list ...string) {
		f.patch(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: stays.Name}}, map[string]any{"metadata": map[string]any{"finalizers": list}})
	}
	finalizers("e2e.example.com/stays")
	let := sync.OnceFunc(func() { finalizers() })
	defer let()
	if err := f.kube.CoreV1().Pods(f.ns).Delete(f.ctx, stays.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "and in the place of the one that terminates", func() error { return f.dividedWithout("app", failed.UID, 3, 2) })
	if _, err := f.kube.CoreV1().Pods(f.ns).Get(f.ctx, stays.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the pod is to terminate still: %v", err)
	}
	let()
	f.eventually(patience, "all is well", func() error { return f.splitSays("deployment-app", capacity.ReasonSatisfied) })
	moved()
}

// dividedWithout is divided for all of a workload's pods except one.
func (f *fixture) dividedWithout(app string, but types.UID, onDemand, spot int) error {
	pods := slices.DeleteFunc(f.pods(app), func(pod corev1.Pod) bool { return pod.UID == but })
	return f.dividedOf(app, pods, onDemand, spot)
}

// TestCapacityRespectsPodAntiAffinity: by required anti-affinity a node has one pod of the
// workload. While every on-demand node has a pod of the workload, no pod is moved there,
// although there is room, and the CapacitySplit reports it; when one has none, pods move.
func TestCapacityRespectsPodAntiAffinity(t *testing.T) {
	tier.All(t, "watches for 12 s that nothing changes")
	f := trio.fixture(t)
	f.classes(1, 3)
	f.create(split("app", 3, "1", func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(0)), MaxUnavailable: new(intstr.FromInt32(1))}
		d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: d.Spec.Selector},
		}}}
	}))
	f.eventuallyDivided("app", 1, 2)
	deleted := f.watchDeletions("app")
	f.annotate("app", map[string]any{gm.CapacityCountKey: "2"})
	f.eventually(patience, "the status reports that no pod moves", func() error { return f.splitSays("deployment-app", capacity.ReasonNoRoom) })
	f.always(12*time.Second, "all run", func() error { return f.divided("app", 1, 2) }) // longer than it takes until somebody looks again
	if n := deleted(); n > 0 {
		t.Errorf("%d pods were deleted, whose successors find no node", n)
	}
	f.nodes(map[string]string{classLabel: "on-demand"}, "on-demand-1")
	f.eventuallyDivided("app", 2, 1)
	f.eventually(patience, "all is well", func() error { return f.splitSays("deployment-app", capacity.ReasonSatisfied) })
}
