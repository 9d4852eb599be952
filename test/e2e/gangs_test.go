package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/testing/tier"
)

// TestGangsDocument is docs/sources.md, V1 to V7: four cases with both its ConfigMaps.
func TestGangsDocument(t *testing.T) {
	for spelling, text := range bothConfigs {
		t.Run(spelling, func(t *testing.T) {
			f := gangs(t, text)

			// 1. A single pod that names a PodGroup.
			named := gangPod("named", "named", nil)
			named.Annotations[scheduling.GroupNameAnnotation] = "mine"
			// 2. One that names none.
			single := gangPod("single", "single", nil)
			// 3. A workflow whose step is a Job.
			flow := workflow("k8s-jobs")
			f.create(named, single, flow)
			job := &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: "pi-job", OwnerReferences: controlledBy(flow)},
				Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "pi"}},
					Spec:       gangPod("", "", nil).Spec,
				}},
			}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			// 4. A Deployment.
			web := deployment("deploy-with-volcano", 3, "", volcanos)
			f.create(job, web)

			f.eventually(patience, "each has its PodGroup", func() error {
				return errors.Join(f.ownedBy(single, job, web), f.named("single", 1, nil), f.named("pi", 1, job), f.named("deploy-with-volcano", 3, web))
			})
			if got := gangOf(&f.pods("named")[0]); got != "mine" {
				t.Errorf("the pod that names a PodGroup names %q", got)
			}
		})
	}
}

// TestGangsOnePodGroupThroughUpdates: after four updates of a Deployment there is one
// PodGroup, the same as before, which was Running all the time (volcano #2143, #1907,
// #1853).
func TestGangsOnePodGroupThroughUpdates(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	scheduler := &gangScheduler{f: f}
	scheduler.run()
	web := deployment("web", 4, "", volcanos)
	f.create(web)
	f.eventually(patience, "it runs", func() error { return f.allReady("web", 4) })
	uid := f.groups()[0].UID
	for i := range 4 {
		f.release("web", fmt.Sprintf("nginx:1.2%d", i))
		f.eventually(patience, "the update is rolled out", func() error { return f.rolledOut("web") })
		groups := f.groups()
		if len(groups) != 1 || groups[0].UID != uid || groups[0].Status.Phase != scheduling.PhaseRunning {
			t.Fatalf("after update %d there are %d PodGroups: %+v", i+1, len(groups), groups)
		}
	}
	f.eventually(patience, "it has its owner", func() error { return f.ownedBy(web) })
}

// TestGangsFromNoneToOneAndBack: every live pod has its PodGroup, however fast a
// workload goes from one pod to none and back (volcano #5972, #3374, #3563).
func TestGangsFromNoneToOneAndBack(t *testing.T) {
	tier.All(t, "repeats a race 200 times: 1.5 min")
	f := gangs(t, bothConfigs["podgroupLevel"])
	web := deployment("web", 1, "", volcanos)
	stateful := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}}, Spec: gangPod("", "", nil).Spec},
		},
	}
	f.create(web, stateful)
	for i := range 400 { // two hundred times
		n := int32(i % 2)
		for _, o := range []client.Object{&appsv1.Deployment{ObjectMeta: web.ObjectMeta}, &appsv1.StatefulSet{ObjectMeta: stateful.ObjectMeta}} {
			f.patch(o, map[string]any{"spec": map[string]any{"replicas": n}})
		}
	}
	f.eventually(patience, "both have their PodGroup", func() error {
		return errors.Join(f.named("web", 1, web), f.named("db", 1, stateful), f.ownedBy(web, stateful))
	})
	f.always(2*time.Second, "it stays", func() error { return f.ownedBy(web, stateful) })
	f.scale("web", 0)
	f.patch(stateful, map[string]any{"spec": map[string]any{"replicas": 0}})
	f.eventually(patience, "no pod needs them", func() error { return f.ownedBy() })
	f.scale("web", 1)
	f.eventually(patience, "it is made again", func() error { return errors.Join(f.named("web", 1, web), f.ownedBy(web)) })
}

// TestGangsRolloutOfAGang: two pods that must run together are replaced one by one
// (volcano #4739).
func TestGangsRolloutOfAGang(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	(&gangScheduler{f: f}).run()
	web := deployment("web", 2, "", volcanos, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{scheduling.MinMemberAnnotation: "2"}
		one, none := intstr.FromInt32(1), intstr.FromInt32(0)
		d.Spec.Strategy = appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &none}}
	})
	f.create(web)
	f.eventually(patience, "it runs", func() error { return f.allReady("web", 2) })
	if got := f.groups()[0].Spec.MinMember; got != 2 {
		t.Errorf("minMember is %d, want 2", got)
	}
	f.release("web", "nginx:1.28")
	f.eventually(patience, "the update is rolled out", func() error { return f.rolledOut("web") })
	f.eventually(patience, "one PodGroup", func() error { return f.ownedBy(web) })
}

// TestGangsLevels: along a chain of three owners the rules choose the owner at
// adjust-level, and the end of the chain if the level leads beyond it.
func TestGangsLevels(t *testing.T) {
	rule := func(kind, level string) string {
		return "podgroupLevel: [{apiversion: '*', kind: " + kind + ", adjust-level: " + level + "}]"
	}
	for name, tc := range map[string]struct {
		rules  string
		owner  string // the owner for the Job's pod; "" means the pod
		single string // the owner for the pod that the workflow owns
	}{
		"a workflow's job":                     {rule("workflow", "-1"), "job", ""},
		"two below the workflow is the pod":    {rule("workflow", "-2"), "", ""},
		"beyond the topmost is the topmost":    {rule("job", "3"), "flow", "flow"},
		"one above the job":                    {rule("job", "1"), "flow", "flow"},
		"no rule: the direct owner":            {rule("deployment", "0"), "job", "flow"},
		"no rule, Root: the topmost owner":     {"noMatch: Root", "flow", "flow"},
		"the nearest that matches, of several": {"podgroupLevel: [{apiversion: '*', kind: workflow, adjust-level: -2}, {apiversion: batch/v1, kind: job, adjust-level: 0}]", "job", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := gangs(t, tc.rules)
			flow := workflow("flow")
			f.create(flow)
			job := &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Name: "step", OwnerReferences: controlledBy(flow)},
				Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "step"}}, Spec: gangPod("", "", nil).Spec,
				}},
			}
			job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
			f.create(job, gangPod("single", "single", flow))
			owners := map[string]client.Object{"flow": flow, "job": job, "": nil}
			f.eventually(patience, "the pods are in the PodGroups", func() error {
				return errors.Join(f.named("step", 1, owners[tc.owner]), f.named("single", 1, owners[tc.single]))
			})
		})
	}
}

// TestGangsUserNamedPodGroupIsKept: a pod that names a PodGroup, by either key, gets no other,
// whether or not that PodGroup exists, and a restart of atoll-manager changes nothing.
func TestGangsUserNamedPodGroupIsKept(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	theirs := &scheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Spec: scheduling.PodGroupSpec{MinMember: 1}}
	looks := &scheduling.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "podgroup-of-mine"}}
	f.create(theirs, looks)
	make := func(name, key, group string) *appsv1.Deployment {
		return deployment(name, 1, "", volcanos, func(d *appsv1.Deployment) {
			d.Spec.Template.Annotations = map[string]string{key: group}
		})
	}
	f.create(
		make("a", scheduling.GroupNameAnnotation, "theirs"), make("b", scheduling.GroupNameAnnotation, "absent"),
		make("c", scheduling.VolcanoGroupNameAnnotation, "theirs"), make("d", scheduling.GroupNameAnnotation, "podgroup-absent"),
		make("e", scheduling.GroupNameAnnotation, "podgroup-of-mine"),
	)
	check := func() error {
		var names []string
		for _, g := range f.groups() {
			names = append(names, g.Name)
		}
		if len(names) != 2 || names[0] != "podgroup-of-mine" || names[1] != "theirs" {
			return fmt.Errorf("there are PodGroups %v", names)
		}
		for app, want := range map[string]string{"a": "theirs", "b": "absent", "c": "", "d": "podgroup-absent", "e": "podgroup-of-mine"} {
			pods := f.pods(app)
			if len(pods) != 1 {
				return fmt.Errorf("%s has %d pods", app, len(pods))
			}
			if got := gangOf(&pods[0]); got != want {
				return fmt.Errorf("the pod of %s names %q, want %q", app, got, want)
			}
		}
		return nil
	}
	f.eventually(patience, "the pods are there", check)
	began := time.Now()
	f.killForNow(f.leader())()
	f.leads(began)
	f.always(7*time.Second, "they stay theirs", check)
}

// TestGangsRulesReload: invalid rules change nothing and are reported; valid rules are in
// force within two seconds. Pods with a node keep their PodGroup, and the others change
// it if the rules allow it.
func TestGangsRulesReload(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	(&gangScheduler{f: f, admit: func(u *unstructured.Unstructured) bool { return u.GetAnnotations()["volcano.sh/hold"] == "" }}).run()
	web := deployment("web", 2, "", volcanos)
	held := deployment("held", 2, "", volcanos, func(d *appsv1.Deployment) { d.Annotations = map[string]string{"volcano.sh/hold": "true"} })
	f.create(web, held)
	f.eventually(patience, "one runs and one waits", func() error {
		return errors.Join(f.allReady("web", 2), f.named("held", 2, held), f.ownedBy(web, held))
	})

	f.editRules("podgroupLevel: [{kind: deployment")
	f.rulesEvent("PodGroupRulesRejected", "is not YAML")
	late := deployment("late", 1, "", volcanos)
	f.create(late)
	f.eventually(patience, "the rules before are in force", func() error { return f.named("late", 1, late) })
	began := time.Now()
	f.killForNow(f.leader())()
	f.leads(began)
	later := deployment("later", 1, "", volcanos)
	f.create(later)
	f.eventually(patience, "they are after a restart too", func() error { return f.named("later", 1, later) })
	f.eventually(patience, "all but one run", func() error { return errors.Join(f.allReady("late", 1), f.allReady("later", 1)) })

	text := "podgroupLevel: []\nmigrate: Pending\n"
	f.editRules(text)
	f.rulesAreKept(text)
	newer := deployment("newer", 1, "", volcanos)
	f.create(newer)
	rs := func(app string) client.Object {
		var list appsv1.ReplicaSetList
		if err := f.client.List(f.ctx, &list, client.InNamespace(f.ns), client.MatchingLabels{"app": app}); err != nil || len(list.Items) != 1 {
			f.Fatalf("%s has %d ReplicaSets: %v", app, len(list.Items), err)
		}
		return &list.Items[0]
	}
	f.eventually(patience, "the new rules are", func() error {
		if len(f.pods("newer")) == 0 {
			return errors.New("no pod yet")
		}
		return errors.Join(f.named("newer", 1, rs("newer")), f.named("held", 2, rs("held")), f.named("web", 2, web))
	})
	f.eventually(patience, "the PodGroup that was left is collected", func() error {
		return f.ownedBy(web, late, later, rs("newer"), rs("held"))
	})
}

// TestGangsTemplateChangeStaysInItsNamespace: the same StatefulSet in two namespaces; one template changes, and
// one PodGroup.
func TestGangsTemplateChangeStaysInItsNamespace(t *testing.T) {
	f, g := gangs(t, bothConfigs["podgroupLevel"]), ganged.fixture(t)
	set := func(f *fixture) *appsv1.StatefulSet {
		pod := gangPod("", "", nil).Spec
		pod.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
		s := &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "db"},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "db"}}, Spec: pod},
			},
		}
		f.create(s)
		return s
	}
	mine, theirs := set(f), set(g)
	f.eventually(patience, "both have one", func() error { return errors.Join(f.ownedBy(mine), g.ownedBy(theirs)) })
	before := g.groups()[0]
	(&gangScheduler{f: f}).run()
	f.patch(mine, map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": "app", "image": "nginx:1.28", "resources": map[string]any{"requests": map[string]any{"cpu": "300m"}}},
	}}}}})
	f.eventually(patience, "one follows", func() error {
		if got := f.groups()[0].Spec.MinResources[corev1.ResourceCPU]; got.String() != "300m" {
			return fmt.Errorf("minResources.cpu is %s", got.String())
		}
		return nil
	})
	if after := g.groups()[0]; after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the neighbour's PodGroup was written: %+v", after)
	}
}

// TestGangsFollowTheirWorkload: minMember follows its annotation and the number of pods,
// minResources the newest template. Meanwhile the scheduler updates whole objects all the
// time; neither its phases nor Atoll's fields are lost.
func TestGangsFollowTheirWorkload(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	scheduler := &gangScheduler{f: f, busy: true}
	stop := scheduler.run()
	web := deployment("web", 4, "", volcanos, func(d *appsv1.Deployment) {
		d.Annotations = map[string]string{scheduling.MinMemberAnnotation: "2", "volcano.sh/sla-waiting-time": "1h", scheduling.QueueNameAnnotation: "teams"}
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("100m")}
		d.Spec.Template.Spec.PriorityClassName = "system-cluster-critical"
	})
	f.create(web)
	f.eventually(patience, "it runs", func() error { return f.allReady("web", 4) })
	states := f.watchPodGroups()
	is := func(minMember int32, cpu string) func() error {
		return func() error {
			g := f.groups()[0]
			got := g.Spec.MinResources[corev1.ResourceCPU]
			if g.Spec.MinMember != minMember || got.Cmp(resource.MustParse(cpu)) != 0 {
				return fmt.Errorf("minMember is %d and minResources.cpu %s, want %d and %s", g.Spec.MinMember, got.String(), minMember, cpu)
			}
			return nil
		}
	}
	f.eventually(patience, "as it begins", is(2, "200m"))
	f.patch(web, map[string]any{"metadata": map[string]any{"annotations": map[string]any{scheduling.MinMemberAnnotation: "4"}}})
	f.eventually(patience, "the annotation counts", is(4, "400m"))
	f.scale("web", 1)
	f.eventually(patience, "no more than there are pods", is(1, "100m"))
	f.scale("web", 4)
	f.eventually(patience, "the annotation again", is(4, "400m"))
	f.patch(web, map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{
		map[string]any{"name": "app", "image": "nginx:1.28", "resources": map[string]any{"requests": map[string]any{"cpu": "250m"}}},
	}}}}})
	f.eventually(patience, "the newest template", is(4, "1"))
	f.patch(&scheduling.PodGroup{ObjectMeta: f.groups()[0].ObjectMeta}, map[string]any{"spec": map[string]any{"queue": "by-hand", "subGroupPolicy": []any{map[string]any{"name": "a"}}}})
	f.patch(web, map[string]any{"metadata": map[string]any{"annotations": map[string]any{scheduling.MinMemberAnnotation: "3", "volcano.sh/sla-waiting-time": nil}}})
	f.eventually(patience, "the annotation once more", is(3, "750m"))
	stop()
	g := f.groups()[0]
	if g.Spec.Queue != "by-hand" || len(g.Spec.SubGroupPolicy) != 1 || g.Spec.PriorityClassName != "system-cluster-critical" || g.Annotations["volcano.sh/sla-waiting-time"] != "" {
		t.Errorf("what people wrote by hand is lost, or what they took back is not: %+v", g)
	}
	for _, u := range states() {
		if phase, _, _ := unstructured.NestedString(u.Object, "status", "phase"); phase != string(scheduling.PhaseRunning) {
			t.Errorf("the phase went back to %q", phase)
		}
	}
	if len(scheduler.errs) > 0 {
		t.Errorf("the scheduler failed: %v", scheduler.errs[0])
	}
}

// TestGangsOrphans: a Deployment and a ReplicaSet are deleted without their pods; the
// PodGroup stays as long as the pods (volcano #4540).
func TestGangsOrphans(t *testing.T) {
	f := gangs(t, bothConfigs["podgroupLevel"])
	web := deployment("web", 2, "", volcanos)
	f.create(web)
	f.eventually(patience, "it has its PodGroup", func() error { return errors.Join(f.ownedBy(web), f.named("web", 2, web)) })
	uid := f.groups()[0].UID
	orphan := client.PropagationPolicy(metav1.DeletePropagationOrphan)
	if err := f.client.Delete(f.ctx, web, orphan); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "the Deployment is gone", func() error {
		if err := f.client.Get(f.ctx, client.ObjectKeyFromObject(web), web); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	if err := f.client.DeleteAllOf(f.ctx, &appsv1.ReplicaSet{}, client.InNamespace(f.ns), orphan); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "the pods have no owner", func() error {
		for _, pod := range f.pods("web") {
			if len(pod.OwnerReferences) > 0 {
				return fmt.Errorf("pod %s has an owner", pod.Name)
			}
		}
		return nil
	})
	f.always(7*time.Second, "the PodGroup stays for them", func() error {
		groups := f.groups()
		if len(groups) != 1 {
			return fmt.Errorf("there are %d", len(groups))
		}
		if is := groups[0]; is.UID != uid {
			return fmt.Errorf("it is another: %s was %s", is.UID, uid)
		}
		return nil
	})
	if err := f.client.DeleteAllOf(f.ctx, &corev1.Pod{}, client.InNamespace(f.ns), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	f.eventually(patience, "it is collected", func() error { return f.ownedBy() })
}
