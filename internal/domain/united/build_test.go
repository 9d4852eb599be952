package united

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func pods() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1"}}},
	}
}

// input describes a Deployment in pool a.
func input(modify ...func(*BuildInput)) BuildInput {
	r := BuildInput{
		Namespace: "ns", Owner: "web", Revision: "r1", Replicas: 3,
		Template: &apps.WorkloadTemplate{DeploymentTemplate: &apps.DeploymentTemplateSpec{Spec: appsv1.DeploymentSpec{Template: pods()}}},
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Pool:     &apps.Pool{Name: "a"},
	}
	for _, m := range modify {
		m(&r)
	}
	return r
}

func patch(text string) func(*BuildInput) {
	return func(r *BuildInput) { r.Pool.Patch = &runtime.RawExtension{Raw: []byte(text)} }
}

func build(t *testing.T, modify ...func(*BuildInput)) *appsv1.Deployment {
	t.Helper()
	w, err := Build(input(modify...))
	if err != nil {
		t.Fatal(err)
	}
	return w.(*appsv1.Deployment)
}

func TestBuildSetsPoolLabelsAndAnnotations(t *testing.T) {
	d := build(t, func(r *BuildInput) {
		r.Template.DeploymentTemplate.Labels = map[string]string{"tier": "front", gm.BindingPropagationPolicyLabel: "not-ours"}
		r.Template.DeploymentTemplate.Annotations = map[string]string{"note": "x", "deployment.kubernetes.io/revision": "7"}
	})
	wantLabels := map[string]string{
		"app": "web", "tier": "front", apps.PoolNameLabel: "a", apps.UnitedDeploymentLabel: "web", apps.RevisionLabel: "r1",
	}
	if diff := cmp.Diff(wantLabels, d.Labels); diff != "" {
		t.Errorf("wrong labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"app": "web", apps.PoolNameLabel: "a"}, d.Spec.Template.Labels); diff != "" {
		t.Errorf("wrong labels of pods (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"app": "web", apps.PoolNameLabel: "a"}, d.Spec.Selector.MatchLabels); diff != "" {
		t.Errorf("wrong selector (-want +got):\n%s", diff)
	}
	notes := slices.Sorted(maps.Keys(d.Annotations))
	if diff := cmp.Diff([]string{apps.PoolRevisionAnnotation, apps.TemplateKeysAnnotation, "note"}, notes); diff != "" {
		t.Errorf("wrong annotations (-want +got):\n%s", diff)
	}
	if *d.Spec.Replicas != 3 || d.Namespace != "ns" {
		t.Errorf("it is %+v", d)
	}
}

// TestBuildOfExpressionsOnly is A6: a selector without labels must not panic.
func TestBuildOfExpressionsOnly(t *testing.T) {
	d := build(t, func(r *BuildInput) {
		r.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	})
	if d.Spec.Selector.MatchLabels[apps.PoolNameLabel] != "a" || len(d.Spec.Selector.MatchExpressions) != 1 {
		t.Errorf("the selector is %+v", d.Spec.Selector)
	}
}

func TestBuildPlacesPods(t *testing.T) {
	on := func(key, value string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}}
	}
	term := func(expressions ...corev1.NodeSelectorRequirement) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: expressions}
	}
	field := corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{on("metadata.name", "n")}}
	byLabel := on(apps.NodePoolLabel, "a")
	for name, tc := range map[string]struct {
		pool     corev1.NodeSelectorTerm
		template []corev1.NodeSelectorTerm
		want     []corev1.NodeSelectorTerm
	}{
		"A7: an empty term is the NodePool's label": {want: []corev1.NodeSelectorTerm{term(byLabel)}},
		"a term":                       {pool: term(on("disk", "ssd")), want: []corev1.NodeSelectorTerm{term(on("disk", "ssd"))}},
		"a term of fields":             {pool: field, want: []corev1.NodeSelectorTerm{field}},
		"each of several is narrowed":  {template: []corev1.NodeSelectorTerm{term(on("x", "1")), term(on("y", "2"))}, want: []corev1.NodeSelectorTerm{term(on("x", "1"), byLabel), term(on("y", "2"), byLabel)}},
		"expressions and fields":       {pool: term(on("disk", "ssd")), template: []corev1.NodeSelectorTerm{field}, want: []corev1.NodeSelectorTerm{{MatchFields: field.MatchFields, MatchExpressions: []corev1.NodeSelectorRequirement{on("disk", "ssd")}}}},
		"an empty one matches nothing": {template: []corev1.NodeSelectorTerm{{}, term(on("x", "1"))}, want: []corev1.NodeSelectorTerm{{}, term(on("x", "1"), byLabel)}},
	} {
		t.Run(name, func(t *testing.T) {
			d := build(t, func(r *BuildInput) {
				r.Pool.NodeSelectorTerm = tc.pool
				if tc.template != nil {
					r.Template.DeploymentTemplate.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: tc.template},
					}}
				}
			})
			got := d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("wrong terms (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBuildTolerates(t *testing.T) {
	own := corev1.Toleration{Key: "own", Operator: corev1.TolerationOpExists}
	d := build(t, func(r *BuildInput) {
		r.Template.DeploymentTemplate.Spec.Template.Spec.Tolerations = []corev1.Toleration{own}
		r.Pool.Tolerations = []corev1.Toleration{own, {Key: "pool", Operator: corev1.TolerationOpExists}}
		r.Taints = []corev1.Taint{{Key: "site", Value: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "cut", Effect: corev1.TaintEffectNoExecute}}
	})
	want := []corev1.Toleration{
		own, {Key: "pool", Operator: corev1.TolerationOpExists},
		{Key: "site", Operator: corev1.TolerationOpEqual, Value: "a", Effect: corev1.TaintEffectNoSchedule},
		{Key: "cut", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
	}
	if diff := cmp.Diff(want, d.Spec.Template.Spec.Tolerations); diff != "" {
		t.Errorf("wrong tolerations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]corev1.Taint{{Key: "site", Value: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: "cut", Effect: corev1.TaintEffectNoExecute}}, TaintsOf(d)); diff != "" {
		t.Errorf("wrong memory of taints (-want +got):\n%s", diff)
	}
}

func TestBuildPatches(t *testing.T) {
	d := build(t, patch(`{"metadata":{"labels":{"site":"a"},"annotations":{"note":"x"}},"spec":{"minReadySeconds":5,"template":{"spec":{"containers":[{"name":"app","image":"nginx:2"},{"name":"more","image":"x"}]}}}}`))
	if d.Labels["site"] != "a" || d.Annotations["note"] != "x" || d.Spec.MinReadySeconds != 5 || len(d.Spec.Template.Spec.Containers) != 2 {
		t.Errorf("it is %+v", d)
	}
	if images := d.Spec.Template.Spec.Containers[0].Image + d.Spec.Template.Spec.Containers[1].Image; !strings.Contains(images, "nginx:2") {
		t.Errorf("images are %s", images)
	}
	for name, tc := range map[string]struct{ patch, want string }{
		"no object":          {`[]`, "is not an object"},
		"no JSON":            {`{`, "is not an object"},
		"a kind":             {`{"kind":"Pod"}`, "kind: only metadata and spec"},
		"a name":             {`{"metadata":{"name":"x"}}`, "metadata.name"},
		"owners":             {`{"metadata":{"ownerReferences":[]}}`, "metadata.ownerReferences"},
		"replicas":           {`{"spec":{"replicas":9}}`, "spec.replicas: set replicas of the pool"},
		"a selector":         {`{"spec":{"selector":{}}}`, "spec.selector"},
		"a partition":        {`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}}}}`, "partition"},
		"no field":           {`{"spec":{"template":{"spec":{"nodeSelektor":{}}}}}`, "nodeSelektor"},
		"a wrong type":       {`{"spec":{"minReadySeconds":"x"}}`, "minReadySeconds"},
		"a list without key": {`{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`, "name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Build(input(patch(tc.patch)))
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "topology.pools[a].patch") {
				t.Errorf("error is %v, want one about %q", err, tc.want)
			}
		})
	}
	if got, want := build(t, patch("")), build(t); !cmp.Equal(want, got) {
		t.Errorf("an empty patch changes the workload:\n%s", cmp.Diff(want, got))
	}
	if _, err := Build(input(patch(`{"spec":{"updateStrategy":{"rollingUpdate":1}}}`))); err == nil || strings.Contains(err.Error(), "partition") {
		t.Errorf("the error of a patch without a partition is %v", err)
	}
	_, err := Build(input(patch(`{"spec":{"template":{"metadata":{"labels":{"app":null}}}}}`), func(r *BuildInput) {
		r.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}
	}))
	if err == nil || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("a label that the selector needs was patched away: %v", err)
	}
}

func TestBuildOfNoTemplate(t *testing.T) {
	for _, template := range []*apps.WorkloadTemplate{nil, {}} {
		if _, err := Build(input(func(r *BuildInput) { r.Template = template })); err == nil {
			t.Error("something was made of nothing")
		}
	}
}

// TestPoolRevision: replicas and partition do not change it (A1), and a patch changes it
// for its pool only.
func TestPoolRevision(t *testing.T) {
	of := func(modify ...func(*BuildInput)) string {
		return build(t, modify...).Annotations[apps.PoolRevisionAnnotation]
	}
	if of() != of(func(r *BuildInput) { r.Replicas, r.Partition = 9, 1 }) {
		t.Error("scaling changes the PoolRevision")
	}
	for name, change := range map[string]func(*BuildInput){
		"a patch":    patch(`{"spec":{"minReadySeconds":5}}`),
		"a taint":    func(r *BuildInput) { r.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}} },
		"the image":  func(r *BuildInput) { r.Template.DeploymentTemplate.Spec.Template.Spec.Containers[0].Image = "other" },
		"a label":    func(r *BuildInput) { r.Template.DeploymentTemplate.Labels = map[string]string{"a": "b"} },
		"a revision": func(r *BuildInput) { r.Revision = "r2" },
	} {
		if of() == of(change) {
			t.Errorf("%s does not change the PoolRevision", name)
		}
	}
}

// TestBuildSharesNothing is A12: the workloads of two pools share no memory with each
// other or with the template.
func TestBuildSharesNothing(t *testing.T) {
	r := input(func(r *BuildInput) {
		r.Template.DeploymentTemplate.Labels = map[string]string{"a": "b"}
		r.Pool.NodeSelectorTerm.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: "k", Operator: corev1.NodeSelectorOpExists}}
	})
	before, err := json.Marshal(r.Template)
	if err != nil {
		t.Fatal(err)
	}
	first, err := Build(r)
	if err != nil {
		t.Fatal(err)
	}
	d := first.(*appsv1.Deployment)
	d.Labels["a"], d.Spec.Template.Labels["app"], d.Spec.Selector.MatchLabels["app"] = "changed", "changed", "changed"
	d.Spec.Template.Spec.Containers[0].Image = "changed"
	d.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key = "changed"
	after, err := json.Marshal(r.Template)
	if err != nil || string(before) != string(after) || r.Selector.MatchLabels["app"] != "web" || r.Pool.NodeSelectorTerm.MatchExpressions[0].Key != "k" {
		t.Errorf("the recipe changed: %s, %+v, %+v (error %v)", after, r.Selector, r.Pool, err)
	}
}

func TestOverlay(t *testing.T) {
	old := build(t, func(r *BuildInput) {
		r.Template.DeploymentTemplate.Labels = map[string]string{"leaves": "x", "tier": "front"}
	})
	old.Name, old.ResourceVersion = "web-a", "7"
	old.Labels["somebody-elses"], old.Annotations["deployment.kubernetes.io/revision"] = "stays", "3"
	want := build(t, func(r *BuildInput) { r.Template.DeploymentTemplate.Labels = map[string]string{"tier": "back"} })
	got := Overlay(old, want).(*appsv1.Deployment)
	if _, has := got.Labels["leaves"]; has || got.Labels["tier"] != "back" || got.Labels["somebody-elses"] != "stays" {
		t.Errorf("labels are %v", got.Labels)
	}
	if got.Annotations["deployment.kubernetes.io/revision"] != "3" || got.ResourceVersion != "7" || got.Name != "web-a" {
		t.Errorf("it is %+v", got.ObjectMeta)
	}
	if diff := cmp.Diff(want.Spec, got.Spec); diff != "" {
		t.Errorf("wrong spec (-want +got):\n%s", diff)
	}
	if old.Labels["leaves"] != "x" {
		t.Error("the live workload was changed")
	}
}

func TestWrittenHashIgnoresForeignKeys(t *testing.T) {
	of := func(change func(*appsv1.Deployment)) string {
		d := build(t, func(r *BuildInput) { r.Template.DeploymentTemplate.Labels = map[string]string{"tier": "front"} })
		change(d)
		sum, err := WrittenHash(d)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	base := of(func(*appsv1.Deployment) {})
	for name, change := range map[string]func(*appsv1.Deployment){
		"replicas":       func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(7)) },
		"an image":       func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "x" },
		"our label":      func(d *appsv1.Deployment) { d.Labels["tier"] = "x" },
		"the pool":       func(d *appsv1.Deployment) { delete(d.Labels, apps.PoolNameLabel) },
		"our annotation": func(d *appsv1.Deployment) { d.Annotations = nil },
		"the owner": func(d *appsv1.Deployment) {
			d.OwnerReferences = []metav1.OwnerReference{{UID: "u", Controller: new(true)}}
		},
	} {
		if of(change) == base {
			t.Errorf("%s is not seen", name)
		}
	}
	if of(func(d *appsv1.Deployment) {
		d.Labels["x"], d.Annotations["y"] = "others", "others"
		d.Status.Replicas, d.ResourceVersion, d.Generation = 3, "9", 4
	}) != base {
		t.Error("the hash depends on keys of others")
	}
}

func TestResizeOfAStatefulSet(t *testing.T) {
	s := &appsv1.StatefulSet{}
	Resize(s, 3, 0)
	if s.Spec.UpdateStrategy.RollingUpdate != nil || *s.Spec.Replicas != 3 {
		t.Errorf("it is %+v", s.Spec)
	}
	Resize(s, 3, 2)
	if got := ChildOf(s); got.Partition != 2 || got.Replicas != 3 {
		t.Errorf("it is %+v", got)
	}
	Resize(s, 3, 0)
	if got := ChildOf(s); got.Partition != 0 {
		t.Errorf("it is %+v", got)
	}
	s.Spec.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
	Resize(s, 3, 2)
	if s.Spec.UpdateStrategy.RollingUpdate != nil {
		t.Error("a StatefulSet that is updated by hand got a partition")
	}
}

func TestTolerates(t *testing.T) {
	evicting := corev1.Taint{Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute}
	for name, tc := range map[string]struct {
		toleration corev1.Toleration
		want       bool
	}{
		"everything":       {corev1.Toleration{Operator: corev1.TolerationOpExists}, true},
		"the key":          {corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists}, true},
		"the value":        {corev1.Toleration{Key: "k", Value: "v"}, true},
		"the effect":       {corev1.Toleration{Key: "k", Operator: corev1.TolerationOpEqual, Value: "v", Effect: corev1.TaintEffectNoExecute}, true},
		"another value":    {corev1.Toleration{Key: "k", Value: "w"}, false},
		"another key":      {corev1.Toleration{Key: "l", Operator: corev1.TolerationOpExists}, false},
		"another effect":   {corev1.Toleration{Key: "k", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, false},
		"for a while":      {corev1.Toleration{Operator: corev1.TolerationOpExists, TolerationSeconds: new(int64(9))}, false},
		"a number compare": {corev1.Toleration{Key: "k", Operator: "Lt", Value: "9"}, false},
	} {
		if got := Tolerates([]corev1.Toleration{tc.toleration}, []corev1.Taint{evicting}); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if !Tolerates(nil, nil) || Tolerates(nil, []corev1.Taint{evicting}) {
		t.Error("no toleration tolerates no taint")
	}
}
