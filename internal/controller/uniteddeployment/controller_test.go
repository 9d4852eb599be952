package uniteddeployment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

var deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}

// TestFiftyPassesAtRestWriteNothing is scenario 43 and A2, with six pools, messages that
// list several of them, and a manager that has just started.
func TestFiftyPassesAtRestWriteNothing(t *testing.T) {
	s := newSite(t, web("f", "e", "d", "c", "b", "a")) // no NodePool at all
	s.rest()
	restarted := &Reconciler{Client: s.Client, Live: s.Live, Recorder: s.Recorder, Clock: s.Clock}
	for i := range 50 {
		if i == 25 {
			s.Reconciler = restarted
		}
		if result, err := s.pass(); err != nil || result.RequeueAfter != 0 {
			t.Fatalf("it comes back after %s, error %v", result.RequeueAfter, err)
		}
	}
	if len(s.writes) > 0 {
		t.Errorf("it wrote %v", s.writes)
	}
	if got := s.condition(apps.PoolProvisioned); got != "False, NodePoolMissing" {
		t.Errorf("PoolProvisioned is %s", got)
	}
}

// TestStatusNamesARefusedPool is scenario 44 and A3: the status is written although a
// pool fails, names the pool, and no longer names it when the pool works.
func TestStatusNamesARefusedPool(t *testing.T) {
	s := newUnited(t, "a", "b", "c")
	s.refuse = func(write string) error {
		if write == "create *v1.Deployment web-b" {
			return apierrors.NewForbidden(deployments, "web-b", errors.New("exceeded quota"))
		}
		return nil
	}
	if _, err := s.pass(); err == nil {
		t.Error("the failure is not retried with backoff")
	}
	if names := slices.Sorted(maps.Keys(s.images())); !slices.Equal(names, []string{"web-a", "web-c"}) {
		t.Errorf("there are %v", names)
	}
	if got := s.condition(apps.PoolFailure); got != "True, Refused" || s.ud().Status.ObservedGeneration != 1 {
		t.Errorf("PoolFailure is %s, status %+v", got, s.ud().Status)
	}
	if got := s.phases(); got != "[Updating Failed Updating]" {
		t.Errorf("phases are %s", got)
	}
	s.writes = nil
	if _, err := s.pass(); err == nil || len(s.writes) > 0 {
		t.Errorf("failing again, it wrote %v (error %v)", s.writes, err)
	}
	s.refuse = nil
	s.rest()
	if got := s.condition(apps.PoolFailure); got != "False, NoFailure" {
		t.Errorf("PoolFailure is %s", got)
	}
	warnings := 0
	for range len(s.events.Events) {
		if e := <-s.events.Events; strings.HasPrefix(e, "Warning") {
			warnings++
		}
	}
	if warnings != 1 {
		t.Errorf("there were %d warnings", warnings)
	}
}

// TestScalingWritesOneWorkload is A1.
func TestScalingWritesOneWorkload(t *testing.T) {
	s := newUnited(t, "a", "b", "c")
	s.rest()
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[1].Replicas.IntVal = 3 })
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"update *v1.Deployment web-b", "patch status *v1alpha1.UnitedDeployment web"}, s.writes); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
}

// TestStaleCacheCreatesNoSecondWorkload is A4 and F9: a workload
// that the cache does not have is found by its name.
func TestStaleCacheCreatesNoSecondWorkload(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	s.hidden = []string{"web-a", "web-b"}
	for range 3 {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.deployments()); n != 2 {
		t.Errorf("there are %d Deployments", n)
	}
	for _, write := range s.writes {
		if strings.HasPrefix(write, "update") || strings.HasPrefix(write, "delete") {
			t.Errorf("it wrote %v", s.writes)
		}
	}
}

// TestATaintOfTheNodePoolIsTolerated is similar to A5: a new taint of a NodePool changes the
// workloads pool by pool without a new revision. A deleted NodePool changes nothing.
func TestATaintOfTheNodePoolIsTolerated(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	pool := &apps.NodePool{}
	if err := s.all.Get(t.Context(), client.ObjectKey{Name: "a"}, pool); err != nil {
		t.Fatal(err)
	}
	pool.Spec.Taints = []apps.NodePoolTaint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
	if err := s.all.Update(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if got := s.havingPool(t.Context(), pool); len(got) != 1 || got[0].Name != "web" {
		t.Errorf("it matters to %v", got)
	}
	s.rest()
	if a, b := s.deployment("web-a").Spec.Template.Spec.Tolerations, s.deployment("web-b").Spec.Template.Spec.Tolerations; len(a) != 1 || len(b) != 0 {
		t.Errorf("tolerations are %v and %v", a, b)
	}
	if err := s.all.Delete(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	s.writes = nil
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"patch status *v1alpha1.UnitedDeployment web"}, s.writes); diff != "" {
		t.Errorf("wrong writes (-want +got):\n%s", diff)
	}
	var list appsv1.ControllerRevisionList
	if err := s.all.List(t.Context(), &list); err != nil || len(list.Items) != 1 {
		t.Errorf("there are %d revisions (error %v)", len(list.Items), err)
	}
}

// TestAHandEditIsPutBack is A9, also for a pool that waits for its update.
func TestAHandEditIsPutBack(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.UpdateStrategy.Paused = true; release("nginx:2")(ud) })
	s.rest()
	want := s.deployment("web-b")
	d := want.DeepCopy()
	d.Spec.Template.Spec.Containers[0].Image = "by-hand"
	d.Spec.Replicas = new(int32(77))
	if err := s.all.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	s.rest()
	if diff := cmp.Diff(want.Spec, s.deployment("web-b").Spec); diff != "" {
		t.Errorf("it is not as before (-want +got):\n%s", diff)
	}
}

// TestObjectsBeyondTheCacheBudgetAreReadLive: workloads and revisions for which the cache has no room are
// read from the API server. Nothing is written at rest, and a change by hand is put back.
func TestObjectsBeyondTheCacheBudgetAreReadLive(t *testing.T) {
	s := newSite(t, append(nodePools("a", "b"), web("a", "b"))...)
	s.rest()
	s.leftOut, s.writes = true, nil
	for range 3 {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.writes) > 0 {
		t.Errorf("at rest it writes %v", s.writes)
	}
	edited := s.deployments()[0]
	edited.Spec.Template.Spec.Containers[0].Image = "nginx:edited"
	edited.Generation++
	if err := s.all.Update(t.Context(), &edited); err != nil {
		t.Fatal(err)
	}
	s.rest()
	if got := s.images()[edited.Name]; got != "nginx:1" {
		t.Errorf("the image is %s after a change by hand", got)
	}
	s.change(func(ud *apps.UnitedDeployment) {
		ud.Spec.WorkloadTemplate.DeploymentTemplate.Spec.Template.Spec.Containers[0].Image = "nginx:2"
	})
	s.rest()
	for name, image := range s.images() {
		if image != "nginx:2" {
			t.Errorf("%s has the image %s after a rollout", name, image)
		}
	}
	if n := len(s.deployments()); n != 2 {
		t.Errorf("there are %d workloads for two pools", n)
	}
}

// TestPodsThatAreRefusedAreAFailure: also of a pool that is only scaled.
func TestPodsThatAreRefusedAreAFailure(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[0].Replicas.IntVal = 5 })
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	d := s.deployment("web-a")
	d.Status.ObservedGeneration = d.Generation
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "exceeded quota: pods"}}
	if err := s.all.Status().Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	if got := s.condition(apps.PoolFailure); got != "True, PodsRefused" || s.phases() != "[Failed Ready]" {
		t.Errorf("PoolFailure is %s, phases %s", got, s.phases())
	}
	s.roll()
	s.rest()
	if got := s.condition(apps.PoolFailure); got != "False, NoFailure" {
		t.Errorf("PoolFailure is %s", got)
	}
}

func TestConflictsAreNoFailures(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	s.change(release("nginx:2"))
	s.refuse = func(write string) error {
		if strings.HasPrefix(write, "update *v1.Deployment") {
			return apierrors.NewConflict(deployments, "web-a", errors.New("changed"))
		}
		return nil
	}
	result, err := s.pass()
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > time.Second {
		t.Errorf("it comes back after %s, error %v", result.RequeueAfter, err)
	}
	if got := s.condition(apps.PoolFailure); got != "False, NoFailure" {
		t.Errorf("PoolFailure is %s", got)
	}
}

// TestStatusIsNotWrittenOverANewerOne: the status decides which pool is updated next, so a
// pass over a stale version is repeated.
func TestStatusIsNotWrittenOverANewerOne(t *testing.T) {
	s := newUnited(t, "a")
	s.rest()
	s.change(release("nginx:2"))
	s.refuse = func(write string) error {
		if write == "update *v1.Deployment web-a" { // in the middle of the pass
			s.change(func(ud *apps.UnitedDeployment) { ud.Labels = map[string]string{"a": "b"} })
		}
		return nil
	}
	result, err := s.pass()
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("it comes back after %s, error %v", result.RequeueAfter, err)
	}
	s.refuse = nil
	s.rest()
	if got := s.condition(apps.PoolUpdated); got != "True, Updated" {
		t.Errorf("PoolUpdated is %s", got)
	}
}

// TestProgressIsReportedAtAPace: counts that change all the time are written once a second, with
// the last values at the end. A failure is written at once.
func TestProgressIsReportedAtAPace(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	s.clock.Step(time.Minute)
	s.writes = nil
	ready := func(n int32) (after time.Duration) {
		d := s.deployment("web-a")
		d.Status.ReadyReplicas = n
		if err := s.all.Status().Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		result, err := s.pass()
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	var after time.Duration
	for n := range int32(20) {
		after = ready(n)
	}
	if len(s.writes) != statusBurst || after <= 0 || after > statusEvery {
		t.Errorf("20 changes made %d writes, and the pass comes back after %s", len(s.writes), after)
	}
	s.clock.Step(after)
	ready(20)
	if n := s.ud().Status.ReadyReplicas; n != 21 {
		t.Errorf("%d pods are reported as Ready, want 21", n)
	}
	ready(19)
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.Topology.Pools[0].Replicas.IntVal = 5 })
	s.refuse = func(write string) error {
		if write == "update *v1.Deployment web-a" {
			return errors.New("refused")
		}
		return nil
	}
	if _, err := s.pass(); err == nil || s.condition(apps.PoolFailure) != "True, Refused" {
		t.Errorf("PoolFailure is %s, error %v", s.condition(apps.PoolFailure), err)
	}
}

// TestNoProgressInTimeIsAFailure: at the deadline, and not before.
func TestNoProgressInTimeIsAFailure(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.rest()
	first := s.ud().Status.CurrentRevision
	s.change(func(ud *apps.UnitedDeployment) {
		release("broken")(ud)
		ud.Spec.UpdateStrategy.ProgressDeadlineSeconds = new(int32(60))
	})
	for range 3 {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		s.roll("web-a")
	}
	s.clock.Step(59 * time.Second)
	result, err := s.pass()
	if err != nil || result.RequeueAfter != time.Second || s.phases() != "[Updating Waiting]" {
		t.Errorf("it comes back after %s, error %v, phases %s", result.RequeueAfter, err, s.phases())
	}
	s.clock.Step(time.Second)
	if _, err := s.pass(); err != nil || s.phases() != "[Failed Held]" {
		t.Errorf("phases are %s, error %v", s.phases(), err)
	}
	if got := s.condition(apps.PoolFailure); got != "True, ProgressDeadlineExceeded" {
		t.Errorf("PoolFailure is %s", got)
	}
	if got := s.condition(apps.PoolUpdated); got != "False, Stopped" {
		t.Errorf("PoolUpdated is %s", got)
	}
	if diff := cmp.Diff(map[string]string{"web-a": "broken", "web-b": "nginx:1"}, s.images()); diff != "" {
		t.Errorf("wrong images (-want +got):\n%s", diff)
	}
	s.change(func(ud *apps.UnitedDeployment) {
		ud.Annotations = map[string]string{apps.RollbackToAnnotation: apps.RollbackToPrevious}
	})
	s.rest()
	if ud := s.ud(); ud.Status.CurrentRevision != first || len(ud.Annotations) > 0 {
		t.Errorf("it is at %s, annotations %v", ud.Status.CurrentRevision, ud.Annotations)
	}
	if diff := cmp.Diff(map[string]string{"web-a": "nginx:1", "web-b": "nginx:1"}, s.images()); diff != "" {
		t.Errorf("wrong images (-want +got):\n%s", diff)
	}
}

// TestRolloutSurvivesAKillAtEveryWrite is F7: the manager dies before, or right after, each
// write of a rollout in which one pool is added and one is removed. The next process
// reaches the same result.
func TestRolloutSurvivesAKillAtEveryWrite(t *testing.T) {
	play := func(t *testing.T, killAt int, after bool) (images map[string]string, total int, revisions int) {
		s := newUnited(t, "a", "b", "c", "d")
		s.rest()
		s.change(func(ud *apps.UnitedDeployment) {
			release("nginx:2")(ud)
			pools := ud.Spec.Topology.Pools
			ud.Spec.Topology.Pools = []apps.Pool{pools[0], pools[2], {Name: "e", Replicas: pools[1].Replicas}}
		})
		died := errors.New("killed")
		dead := false
		s.refuse = func(string) error {
			if dead {
				return died
			}
			total++
			if total == killAt {
				dead = true
				if !after {
					return died
				}
			}
			return nil
		}
		for range 30 {
			s.writes = nil
			_, err := s.pass()
			if dead {
				dead = false // the next one starts
				s.Reconciler = &Reconciler{Client: s.Client, Live: s.Live, Recorder: s.Recorder, Clock: s.Clock}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !s.roll() && len(s.writes) == 0 {
				break
			}
		}
		var list appsv1.ControllerRevisionList
		if err := s.all.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		if got := s.condition(apps.PoolUpdated) + s.condition(apps.PoolProvisioned); got != "True, UpdatedFalse, NodePoolMissing" {
			t.Errorf("killed at write %d (after it: %t), conditions are %s", killAt, after, got)
		}
		return s.images(), total, len(list.Items)
	}
	want, total, revisions := play(t, 0, false)
	if diff := cmp.Diff(map[string]string{"web-a": "nginx:2", "web-c": "nginx:2", "web-e": "nginx:2"}, want); diff != "" || total < 8 || revisions != 2 {
		t.Fatalf("without, %d writes made %d revisions and (-want +got):\n%s", total, revisions, diff)
	}
	for at := 1; at <= total; at++ {
		for _, after := range []bool{false, true} {
			if testing.Short() && after != (at%2 == 0) {
				continue
			}
			got, _, n := play(t, at, after)
			if diff := cmp.Diff(want, got); diff != "" || n != revisions {
				t.Errorf("killed at write %d (after it: %t): %d revisions, (-want +got):\n%s", at, after, n, diff)
			}
		}
	}
}

// TestChildrenAreWrittenInGrowingBatches: the first alone, because it may be refused, then as many
// again as before at the same time, up to maxAtOnce. A refusal begins anew.
func TestChildrenAreWrittenInGrowingBatches(t *testing.T) {
	var pools []string
	for i := range 70 {
		pools = append(pools, fmt.Sprintf("p-%02d", i))
	}
	s := newUnited(t, pools...)
	batches, refused := [][]string{{}}, false
	sizes := []int{1, 2, 4, 8, 1, 2, 4, 8, maxAtOnce, maxAtOnce, 8}
	full := make(chan struct{})
	s.Reconciler.Client = interceptor.NewClient(s.Reconciler.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if _, isChild := o.(*appsv1.Deployment); !isChild {
				return c.Create(ctx, o, opts...)
			}
			s.mu.Lock()
			at := len(batches) - 1
			batches[at] = append(batches[at], o.GetName())
			refuse := at == 3 && !refused
			refused = refused || refuse
			mine := full
			if at < len(sizes) && len(batches[at]) == sizes[at] { // all of the batch are here
				batches, full = append(batches, []string{}), make(chan struct{})
				close(mine)
			}
			s.mu.Unlock()
			select {
			case <-mine:
			case <-time.After(time.Minute):
				return errors.New("the others of the batch do not come")
			}
			if refuse {
				return apierrors.NewForbidden(deployments, o.GetName(), errors.New("quota"))
			}
			return c.Create(ctx, o, opts...)
		},
	})
	if _, err := s.pass(); err == nil {
		t.Error("the refusal is no error")
	}
	if len(batches) != len(sizes)+1 || len(s.images()) != len(pools)-1 {
		t.Errorf("%d children after batches %v, want all but one", len(s.images()), batches)
	}
}

// TestRolloutSurvivesFailingWrites is F8: half of the writes of a rollout fail, with different
// errors. The rollout takes longer and ends the same.
func TestRolloutSurvivesFailingWrites(t *testing.T) {
	for seed := range uint64(3) {
		s := newUnited(t, "a", "b", "c")
		chance := rand.New(rand.NewPCG(seed, 0))
		answers := []error{
			apierrors.NewConflict(deployments, "x", errors.New("changed")), apierrors.NewTooManyRequests("slow down", 1),
			apierrors.NewInternalError(errors.New("etcd")), apierrors.NewTimeoutError("slow", 1), errors.New("connection reset"),
		}
		s.refuse = func(string) error {
			if chance.IntN(2) == 0 {
				return answers[chance.IntN(len(answers))]
			}
			return nil
		}
		for i := range 4 {
			s.change(release(fmt.Sprint(i)))
			for range 25 {
				_, _ = s.pass() // what fails is retried
				s.roll()
			}
		}
		s.refuse = nil
		s.rest()
		if want := map[string]string{"web-a": "3", "web-b": "3", "web-c": "3"}; !maps.Equal(s.images(), want) || s.condition(apps.PoolUpdated) != "True, Updated" {
			t.Errorf("seed %d: images are %v, PoolUpdated is %s", seed, s.images(), s.condition(apps.PoolUpdated))
		}
		if got := s.condition(apps.PoolFailure); got != "False, NoFailure" {
			t.Errorf("seed %d: PoolFailure is %s", seed, got)
		}
	}
}

// TestDeletingUnitedDeploymentWritesNothing: orphaned workloads stay orphaned.
func TestDeletingUnitedDeploymentWritesNothing(t *testing.T) {
	ud := web("a")
	build.Deleting("orphan")(ud)
	s := newSite(t, ud)
	if _, err := s.pass(); err != nil || len(s.writes) > 0 {
		t.Errorf("it wrote %v, error %v", s.writes, err)
	}
}

// TestForeignWorkloadsAreNotWritten: workloads with another owner or another selector are not
// written.
func TestForeignWorkloadsAreNotWritten(t *testing.T) {
	labels := map[string]string{"app": "web", apps.PoolNameLabel: "a"}
	owned := build.Deployment("web-a", build.OwnedBy(build.Deployment("other")))
	owned.Labels, owned.Spec.Selector = labels, &metav1.LabelSelector{MatchLabels: labels}
	alike := build.Deployment("web-b", build.Label(apps.PoolNameLabel, "b"), build.Label("app", "web"))
	alike.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	s := newSite(t, append(nodePools("a", "b"), web("a", "b"), owned, alike)...)
	s.rest()
	if got := len(s.deployments()); got != 4 {
		t.Errorf("there are %d Deployments", got)
	}
	for _, o := range []*appsv1.Deployment{owned, alike} {
		if got := s.deployment(o.Name); len(got.OwnerReferences) != len(o.OwnerReferences) || len(got.Spec.Template.Spec.Containers) > 0 {
			t.Errorf("%s was touched: %+v", o.Name, got)
		}
	}
	for _, p := range s.ud().Status.Pools {
		if !strings.HasPrefix(p.Workload, "web-"+p.Name+"-") {
			t.Errorf("pool %s has %s", p.Name, p.Workload)
		}
	}
}

// TestTakenWorkloadNamesAreReported: the condition names the pool, and no workload of others is written.
func TestTakenWorkloadNamesAreReported(t *testing.T) {
	fresh := newUnited(t, "a")
	fresh.refuse = func(write string) error {
		name, ok := strings.CutPrefix(write, "create *v1.Deployment ")
		if !ok {
			return nil
		}
		err := fresh.all.Create(t.Context(), build.Deployment(name, build.UID("other")))
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		return nil
	}
	if _, err := fresh.pass(); err == nil {
		t.Error("it is not retried")
	}
	if got := fresh.condition(apps.PoolFailure); got != "True, NameTaken" {
		t.Errorf("PoolFailure is %s", got)
	}
}

// TestHashCollision is scenario 56: a revision with the name exists and stays.
func TestHashCollision(t *testing.T) {
	first := newUnited(t, "a")
	first.rest()
	name := first.ud().Status.UpdateRevision
	other := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: name}, Data: runtime.RawExtension{Raw: []byte(`{"a":"b"}`)},
	}
	s := newSite(t, append(nodePools("a"), web("a"), other)...)
	s.rest()
	status := s.ud().Status
	if status.CollisionCount == nil || *status.CollisionCount != 1 || status.CurrentRevision == name {
		t.Errorf("status is %+v", status)
	}
}

// TestHistory is scenarios 54 and 55: old revisions are deleted unless a pool has them, and
// an old template gets its old revision with a new number.
func TestHistory(t *testing.T) {
	s := newUnited(t, "a", "b")
	s.change(func(ud *apps.UnitedDeployment) { ud.Spec.RevisionHistoryLimit = new(int32(2)) })
	s.rest()
	for i := range 5 {
		s.change(release(fmt.Sprint(i)))
		s.rest()
	}
	names := func() (names []string, numbers map[string]int64) {
		var list appsv1.ControllerRevisionList
		if err := s.all.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		numbers = map[string]int64{}
		for _, r := range list.Items {
			names = append(names, r.Name)
			numbers[r.Name] = r.Revision
		}
		return names, numbers
	}
	before, numbers := names()
	if len(before) != 3 || numbers[s.ud().Status.CurrentRevision] != 6 {
		t.Fatalf("revisions are %v, current is %s", numbers, s.ud().Status.CurrentRevision)
	}
	s.change(release("5"))
	for s.ud().Status.CurrentRevision != s.ud().Status.UpdateRevision || s.images()["web-b"] != "5" {
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		s.roll()
	}
	// Revisions are trimmed in the same pass in which the update revision becomes current.
	if left, _ := names(); len(left) != 3 {
		t.Errorf("%v are left", left)
	}
	before, _ = names()
	s.change(release("4"))
	s.rest()
	after, numbers := names()
	if !slices.Equal(slices.Sorted(slices.Values(before)), slices.Sorted(slices.Values(after))) || numbers[s.ud().Status.CurrentRevision] != 8 {
		t.Errorf("revisions were %v and are %v", before, numbers)
	}
	s.change(func(ud *apps.UnitedDeployment) {
		ud.Spec.RevisionHistoryLimit = new(int32(0))
		ud.Spec.UpdateStrategy.Paused = true
		release("6")(ud)
	})
	s.rest()
	if left, _ := names(); len(left) != 2 {
		t.Errorf("with pools at an old one, %v are left", left)
	}
}

// TestAdoptedWorkloadsAreUpdatedPoolByPool: adopted workloads are available, so a new template is
// rolled out to them pool by pool.
func TestAdoptedWorkloadsAreUpdatedPoolByPool(t *testing.T) {
	first := newUnited(t, "a", "b", "c")
	first.rest()
	objects := nodePools("a", "b", "c")
	for _, d := range first.deployments() {
		d.OwnerReferences, d.ResourceVersion = nil, ""
		objects = append(objects, &d)
	}
	ud := web("a", "b", "c")
	ud.UID = "another"
	release("nginx:2")(ud)
	s := newSite(t, append(objects, ud)...)
	updating := 0
	for range 20 {
		s.writes = nil
		if _, err := s.pass(); err != nil {
			t.Fatal(err)
		}
		changed := 0
		for _, d := range s.deployments() {
			if d.Spec.Template.Spec.Containers[0].Image == "nginx:2" && d.Status.ObservedGeneration != d.Generation {
				changed++
			}
		}
		updating = max(updating, changed)
		s.roll()
	}
	if want := map[string]string{"web-a": "nginx:2", "web-b": "nginx:2", "web-c": "nginx:2"}; updating != 1 || !maps.Equal(s.images(), want) {
		t.Errorf("%d pools were updated at once, images are %v", updating, s.images())
	}
}

// TestOnDeleteStatefulSetGetsNoPartition: a StatefulSet that is updated OnDelete has no partition, and
// the controller does not try to write one in each pass.
func TestOnDeleteStatefulSetGetsNoPartition(t *testing.T) {
	ud := web("a")
	template := ud.Spec.WorkloadTemplate.DeploymentTemplate.Spec.Template
	ud.Spec.WorkloadTemplate = apps.WorkloadTemplate{StatefulSetTemplate: &apps.StatefulSetTemplateSpec{Spec: appsv1.StatefulSetSpec{
		Template: template, UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
	}}}
	ud.Spec.Topology.Pools[0].Partition = new(int32(2))
	s := newSite(t, append(nodePools("a"), ud)...)
	s.rest()
	for range 3 {
		if _, err := s.pass(); err != nil || len(s.writes) > 0 {
			t.Fatalf("it wrote %v, error %v", s.writes, err)
		}
	}
}
