package main

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func buildNode(name, place string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{location: place}},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
}

func buildPod(name, node, image string, modify ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "nginx", Image: image}}},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Name: "nginx", Image: image}},
		},
	}
	if node == "" {
		pod.Status = corev1.PodStatus{}
	}
	for _, m := range modify {
		m(pod)
	}
	return pod
}

func terminating(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.Now()) }

func runs(image string, restarts int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses[0].Image = image
		pod.Status.ContainerStatuses[0].RestartCount = restarts
	}
}

func condition(status metav1.ConditionStatus, reason string, generation int64) []metav1.Condition {
	return []metav1.Condition{{Type: gm.ConditionReady, Status: status, Reason: reason, ObservedGeneration: generation}}
}

// kept are the objects of a cluster in which all pods match the policies.
func kept() objects {
	const hangzhou, beijing = "hangzhou.registry.io/nginx:1.27", "beijing.registry.io/nginx:1.27"
	group := func(name string, nodes ...string) gm.NodeGroup {
		return gm.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: gm.NodeGroupStatus{ContainedNodes: nodes}}
	}
	return objects{
		nodes: []corev1.Node{
			buildNode("nodee", "beijing"), buildNode("nodea", "hangzhou"), buildNode("nodeb", "hangzhou"),
			buildNode("nodec", "beijing"), buildNode("noded", "beijing"),
		},
		groups: []gm.NodeGroup{group("beijing", "nodec", "noded", "nodee"), group("hangzhou", "nodea", "nodeb")},
		pods: []*corev1.Pod{
			buildPod("p3", "nodeb", hangzhou), buildPod("p1", "nodea", hangzhou), buildPod("p2", "nodea", hangzhou),
			buildPod("p4", "nodec", beijing), buildPod("p5", "nodee", beijing),
		},
		propagation: []gm.PropagationPolicy{{
			ObjectMeta: metav1.ObjectMeta{Name: propagationPolicy, Generation: 2},
			Status: gm.PropagationStatus{
				Conditions: condition(metav1.ConditionTrue, gm.ReasonSatisfied, 2),
				Apps: []gm.WorkloadSpread{{
					Ref:    gm.WorkloadReference{Kind: "Deployment", Name: deployment},
					Groups: []gm.GroupSpread{{Name: "beijing", Desired: 2}, {Name: "hangzhou", Desired: 3}},
				}},
			},
		}},
		override: []gm.OverridePolicy{{
			ObjectMeta: metav1.ObjectMeta{Name: overridePolicy, Generation: 1},
			Status:     gm.OverrideStatus{Conditions: condition(metav1.ConditionTrue, gm.ReasonSatisfied, 1)},
		}},
		deployment: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(5))}},
	}
}

func TestComposeSortsEverything(t *testing.T) {
	p := compose(kept())
	var got []string
	for _, group := range p.groups {
		got = append(got, group.name+" wants "+number(group.wanted))
		for _, node := range group.nodes {
			got = append(got, node.name)
			for _, pod := range node.pods {
				got = append(got, pod.name+" "+pod.condition)
			}
		}
	}
	want := []string{
		"hangzhou wants 3", "nodea", "p1 Ready", "p2 Ready", "nodeb", "p3 Ready",
		"beijing wants 2", "nodec", "p4 Ready", "noded", "nodee", "p5 Ready",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q, want\n%q", got, want)
	}
	if p.pods() != 5 || p.ready() != 5 || p.replicas != 5 {
		t.Errorf("%d pods, %d Ready, %d replicas, want 5 each", p.pods(), p.ready(), p.replicas)
	}
	if got, want := p.summary(), "5 pods: 3 in hangzhou, 2 in beijing; 5 Ready"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
}

func TestNodesOfNoGroupStandLast(t *testing.T) {
	o := kept()
	o.groups = o.groups[:1]
	p := compose(o)
	if len(p.groups) != 2 || p.groups[0].name != "beijing" || p.groups[1].name != "" {
		t.Errorf("groups %+v, want beijing and then none", p.groups)
	}
}

func TestOutdatedConditionIsShownAsUnknown(t *testing.T) {
	o := kept()
	o.propagation[0].Generation = 3
	if got := compose(o).policies[0]; got.status != "Unknown" || got.reason != "" {
		t.Errorf("policy %+v, want it unknown", got)
	}
}

func TestServes(t *testing.T) {
	tests := map[string]struct {
		pod       *corev1.Pod
		serves    bool
		condition string
	}{
		"a Ready pod":                             {buildPod("p", "n", "a"), true, "Ready"},
		"a pod without a node":                    {buildPod("p", "", "a"), false, "waits for a node"},
		"a pod that goes":                         {buildPod("p", "n", "a", terminating), false, "Terminating"},
		"a pod that does not run its new image":   {buildPod("p", "n", "b", runs("a", 0)), false, "Restarting"},
		"a pod that has restarted into its image": {buildPod("p", "n", "b", runs("b", 1)), true, "Ready"},
		"a pod that is not Ready": {buildPod("p", "n", "a", func(pod *corev1.Pod) {
			pod.Status.Conditions[0].Status = corev1.ConditionFalse
		}), false, "not Ready"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := viewPod(test.pod, nil)
			if v.ready != test.serves || v.condition != test.condition {
				t.Errorf("serves %t as %q, want %t as %q", v.ready, v.condition, test.serves, test.condition)
			}
		})
	}
}

func TestChangesOfThePictureAreDescribed(t *testing.T) {
	before := kept()
	before.groups = before.groups[:1]
	before.pods = []*corev1.Pod{
		buildPod("changes", "nodea", "old"), buildPod("goes", "nodec", "x"), buildPod("stays", "noded", "x"), buildPod("was", "nodee", "x"),
	}
	before.propagation[0].Status.Conditions = nil
	after := kept()
	after.pods = []*corev1.Pod{
		buildPod("changes", "nodea", "new", runs("old", 0)), buildPod("goes", "nodec", "x", terminating), buildPod("stays", "noded", "x"),
		buildPod("comes", "", "x"), buildPod("restarts", "nodea", "x", runs("x", 1)),
	}
	got := changes(compose(before), compose(after))
	want := []string{
		"NodeGroup hangzhou: nodea, nodeb",
		"PropagationPolicy nginx-propagationpolicy: Ready=True Satisfied",
		"pod changes: image old → new, Restarting",
		"pod comes: created, x, waits for a node",
		"pod goes: Terminating",
		"pod restarts: created, x, on nodea in hangzhou, Ready, restarted, 1 in all",
		"pod was: gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if again := changes(compose(after), compose(after)); len(again) > 0 {
		t.Errorf("nothing changed, and %q is reported", again)
	}
}

func TestAvailabilityCountsTheWorstMoment(t *testing.T) {
	a := newAvailability(3)
	for _, name := range []string{"a", "b", "c"} {
		a.begin(buildPod(name, "n", "x"))
	}
	steps := []struct {
		pod            *corev1.Pod
		gone           bool
		missing, worst int
	}{
		{pod: buildPod("a", "n", "x", terminating), missing: 1, worst: 1},
		{pod: buildPod("d", "", "x"), missing: 1, worst: 1},
		{pod: buildPod("d", "n", "x"), missing: 0, worst: 1},
		{pod: buildPod("a", "n", "x", terminating), gone: true, missing: 0, worst: 1},
		{pod: buildPod("b", "n", "y", runs("x", 0)), missing: 1, worst: 1},
		{pod: buildPod("c", "n", "y", runs("x", 0)), missing: 2, worst: 2},
		{pod: buildPod("b", "n", "y"), missing: 1, worst: 2},
		{pod: buildPod("c", "n", "y"), missing: 0, worst: 2},
		{pod: buildPod("e", "n", "y"), missing: 0, worst: 2}, // one more than wanted
	}
	for i, step := range steps {
		a.observe(step.pod, step.gone)
		if a.missing != step.missing || a.worst != step.worst {
			t.Errorf("after step %d: %d missing, %d at worst, want %d and %d", i, a.missing, a.worst, step.missing, step.worst)
		}
	}
}

func TestClusterEventsAreDescribed(t *testing.T) {
	regarding := corev1.ObjectReference{Kind: "Deployment", Name: "nginx"}
	tests := map[string]struct {
		event eventsv1.Event
		want  string
	}{
		"an eviction of Atoll's": {
			eventsv1.Event{Reason: "SurplusPodEvicted", Note: "Evicted pod p", Regarding: regarding},
			"SurplusPodEvicted deployment/nginx: Evicted pod p",
		},
		"whatever else Atoll says": {
			eventsv1.Event{Reason: "New", Note: "n", ReportingController: "atoll-manager", Regarding: regarding}, "New deployment/nginx: n",
		},
		"a warning": {
			eventsv1.Event{Reason: "FailedScheduling", Type: corev1.EventTypeWarning, Note: "n", Regarding: regarding},
			"FailedScheduling deployment/nginx: n",
		},
		"what happens all the time": {eventsv1.Event{Reason: "Pulled", Type: corev1.EventTypeNormal, Regarding: regarding}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := textOfEvent(&test.event)
			if got != test.want || ok != (test.want != "") {
				t.Errorf("got %q, %t, want %q", got, ok, test.want)
			}
		})
	}
}
