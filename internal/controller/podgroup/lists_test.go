package podgroup

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/gangs"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestOneListServesManyPodGroupDeletions: 300 ReplicaSets that are scaled to 0 cost one list. A PodGroup that
// is due later costs another one. A list expires after listTrusted.
func TestOneListServesManyPodGroupDeletions(t *testing.T) {
	var l lists
	asked := 0
	list := func(context.Context, string) (sets.Set[string], error) {
		asked++
		return sets.New("podgroup-7"), nil
	}
	now := time.Unix(1_000_000, 0)
	named := func(name string, due time.Time) (bool, error) {
		return l.named(t.Context(), types.NamespacedName{Namespace: "ns", Name: name}, due, func() time.Time { return now }, list)
	}
	due := now
	for i := range 300 {
		name := fmt.Sprintf("podgroup-%d", i)
		if is, err := named(name, due); err != nil || is != (i == 7) {
			t.Errorf("%s is named: %t, %v", name, is, err)
		}
	}
	if asked != 1 {
		t.Errorf("%d lists, want one", asked)
	}
	now = now.Add(listRest / 2)
	if _, err := named("podgroup-0", now); err == nil || asked != 1 {
		t.Errorf("%d lists within listRest: %v", asked, err)
	}
	now = now.Add(listRest)
	if _, err := named("podgroup-0", now); err != nil || asked != 2 {
		t.Errorf("%d lists, want one more for the PodGroup that is due later: %v", asked, err)
	}
	now = now.Add(listTrusted)
	if _, err := named("podgroup-0", due); err != nil || asked != 3 {
		t.Errorf("%d lists, want one more after the last one expired: %v", asked, err)
	}
	now = now.Add(lag - time.Millisecond)
	if is, err := named("podgroup-7", now); err != nil || !is || asked != 3 {
		t.Errorf("%d lists, want none for a PodGroup that the last list named: %t, %v", asked, is, err)
	}
}

// TestPodCreatedBeforeCollectionKeepsItsPodGroup: a list from before does not count.
func TestPodCreatedBeforeCollectionKeepsItsPodGroup(t *testing.T) {
	s := newSite(t)
	a, b := build.Deployment("aa", build.Replicas(0)), build.Deployment("bb", build.Replicas(0))
	set := build.ReplicaSet("bb-1", build.OwnedBy(b))
	s.owners(a, b, set)
	for _, owner := range []build.Object{a, b} {
		uid := owner.GetUID()
		s.Store.PutGroup(&gangs.Group{
			ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name(uid), UID: "group-" + uid}, Ours: true, Now: &gang.Applied{}, Last: &gang.Applied{Owner: uid},
			Controller: &ownership.Reference{GroupVersionKind: build.Owner(owner).GroupVersionKind, Name: owner.GetName(), UID: uid},
		})
	}
	step := func(owner string, after time.Duration) {
		s.clock.Step(after)
		if err := s.pass(owner); err != nil {
			t.Fatal(err)
		}
	}
	step("aa", 0)
	step("bb", grace-time.Second)
	step("aa", time.Second) // is collected: there is a list from now on
	s.clock.Step(grace - time.Second - time.Millisecond)
	if _, err := s.Pods.CoreV1().Pods(build.Namespace).Create(t.Context(), memberOf("late", set, "bb"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	step("bb", time.Millisecond)
	var deleted []string
	for _, action := range s.objects.Actions() {
		if d, ok := action.(clienttesting.DeleteAction); ok {
			deleted = append(deleted, d.GetName())
		}
	}
	if diff := cmp.Diff([]string{gang.Name("aa")}, deleted); diff != "" {
		t.Errorf("deleted (-want +got):\n%s", diff)
	}
	if err := s.Pods.CoreV1().Pods(build.Namespace).Delete(t.Context(), "late", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	step("bb", lag)
	if n := len(s.objects.Actions()); s.objects.Actions()[n-1].GetVerb() != "delete" {
		t.Error("it is not collected after the pod was deleted")
	}
}

// deletions returns the number of delete requests for PodGroups.
func (s *site) deletions() (n int) {
	for _, action := range s.objects.Actions() {
		if action.GetVerb() == "delete" {
			n++
		}
	}
	return n
}

// TestPodGroupDeletionHasPreconditions: preconditions exclude other PodGroups of the name and later
// states.
func TestPodGroupDeletionHasPreconditions(t *testing.T) {
	s := newSite(t)
	s.Store.PutGroup(&gangs.Group{
		ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name("web"), UID: "group", ResourceVersion: "7"}, Ours: true, Now: &gang.Applied{}, Last: &gang.Applied{Owner: "web"},
	})
	for range 2 {
		if err := s.pass("web"); err != nil {
			t.Fatal(err)
		}
		s.clock.Step(grace)
	}
	if s.deletions() != 1 {
		t.Fatal("it is not deleted")
	}
	actions := s.objects.Actions()
	is := actions[len(actions)-1].(clienttesting.DeleteActionImpl).GetDeleteOptions().Preconditions
	if is == nil || ptr.Deref(is.UID, "") != "group" || ptr.Deref(is.ResourceVersion, "") != "7" {
		t.Errorf("the preconditions are %+v", is)
	}
}

// TestPodGroupsOfOtherSchedulersStay: Volcano created one for a live pod of a scheduler that is
// not in the store. The pod is searched less and less often. The PodGroup is deleted after
// the pod.
func TestPodGroupsOfOtherSchedulersStay(t *testing.T) {
	theirs := memberOf("a", build.Job("flow"), "flow", build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano-batch" }))
	s := newSite(t, theirs)
	lists, gone := 0, false
	s.Pods.(*fake.Clientset).PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		lists++
		list := &corev1.PodList{}
		if action.(clienttesting.ListAction).GetListRestrictions().Fields.Matches(fields.Set{"spec.schedulerName": theirs.Spec.SchedulerName}) && !gone {
			list.Items = append(list.Items, *theirs)
		}
		return true, list, nil
	})
	s.Store.PutGroup(&gangs.Group{
		ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name("flow"), UID: "group", ResourceVersion: "1"}, Now: &gang.Applied{}, Phase: "Running",
		Controller: &ownership.Reference{GroupVersionKind: schema.GroupVersionKind{Group: "argoproj.io", Version: "v1alpha1", Kind: "Workflow"}, Name: "flow", UID: "flow"},
	})
	for elapsed := time.Duration(0); elapsed < 24*time.Hour; elapsed += s.after {
		if err := s.pass("flow"); err != nil {
			t.Fatal(err)
		}
		if s.after <= 0 || s.after > listRare {
			t.Fatalf("it is reconciled again after %s", s.after)
		}
		s.clock.Step(s.after)
	}
	if s.deletions() > 0 {
		t.Fatal("it is deleted although a live pod names it")
	}
	if lists > 160 {
		t.Errorf("%d lists within a day, want about one in ten minutes", lists)
	}
	gone = true
	if err := s.pass("flow"); err != nil || s.deletions() != 1 {
		t.Errorf("it is not deleted after the pod: %v", err)
	}
}

// TestUnobservedPodOwnedByAPodKeepsItsPodGroup: the API server is asked for the owner, and
// for the pods that it owns.
func TestUnobservedPodOwnedByAPodKeepsItsPodGroup(t *testing.T) {
	driver := build.Pod("driver", build.Annotation(scheduling.GroupNameAnnotation, "podgroup-spark"), build.With(func(p *corev1.Pod) { p.Spec.SchedulerName = "volcano" }))
	s := newSite(t, driver, memberOf("exec", driver, "driver"))
	s.Store.PutPod(driver)
	s.Store.PutGroup(&gangs.Group{
		ObjectMeta: metav1.ObjectMeta{Namespace: build.Namespace, Name: gang.Name("driver"), UID: "group", ResourceVersion: "1"}, Ours: true,
		Now: &gang.Applied{}, Last: &gang.Applied{Owner: "driver"},
		Controller: &ownership.Reference{GroupVersionKind: build.Owner(driver).GroupVersionKind, Name: "driver", UID: "driver"},
	})
	for range 3 {
		if err := s.pass("driver"); err != nil {
			t.Fatal(err)
		}
		s.clock.Step(grace + lag)
	}
	if s.deletions() > 0 {
		t.Fatal("it is deleted although a live pod names it")
	}
}

// TestAListThatHangsHoldsUpItsNamespaceOnly: other passes in the namespace wait longer and
// longer.
func TestAListThatHangsHoldsUpItsNamespaceOnly(t *testing.T) {
	var l lists
	began, let, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	now := time.Unix(1_000_000, 0)
	named := func(namespace string, at time.Time, list func(context.Context, string) (sets.Set[string], error)) error {
		_, err := l.named(t.Context(), types.NamespacedName{Namespace: namespace, Name: "podgroup-1"}, now, func() time.Time { return at }, list)
		return err
	}
	go func() {
		defer close(ended)
		_ = named("hangs", now, func(context.Context, string) (sets.Set[string], error) {
			close(began)
			<-let
			return nil, errors.New("too late")
		})
	}()
	<-began
	answers := func(context.Context, string) (sets.Set[string], error) { return nil, nil }
	if err := named("other", now, answers); err != nil {
		t.Errorf("another namespace waits: %v", err)
	}
	for after, want := range map[time.Duration]time.Duration{0: retryRead, 300 * time.Millisecond: 300 * time.Millisecond, listTimeout: listRest} {
		result, err := phase.Run(t.Context(), 0, func(context.Context, int) error { return named("hangs", now.Add(after), answers) })
		if err != nil || result.RequeueAfter != want {
			t.Errorf("after %s the request is repeated after %s, want %s: %v", after, result.RequeueAfter, want, err)
		}
	}
	close(let)
	<-ended
	if err := named("hangs", now, answers); err != nil {
		t.Errorf("it waits for a list that has ended: %v", err)
	}
}
