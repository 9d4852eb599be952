package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

func TestJudge(t *testing.T) {
	tests := map[string]struct {
		change func(*objects)
		want   []string // parts of the failures, in order
	}{
		"all as promised": {change: func(*objects) {}},
		"a pod in the wrong group": {
			func(o *objects) { o.pods[0].Spec.NodeName = "noded" },
			[]string{"hangzhou: 2 pods, wanted 3", "beijing: 3 pods, wanted 2", "beijing: images beijing.registry.io/nginx:1.27, hangzhou.registry.io"},
		},
		"an image that is not overridden": {
			func(o *objects) { o.pods[0] = buildPod("p3", "nodeb", "nginx:1.27") },
			[]string{"hangzhou: images hangzhou.registry.io/nginx:1.27, nginx:1.27, wanted hangzhou"},
		},
		"a container that does not run its image": {
			func(o *objects) { runs("nginx:1.27", 0)(o.pods[0]) }, []string{"hangzhou: 2 of 3 pods are Ready"},
		},
		"one pod too many, on its way out": {
			func(o *objects) { o.pods = append(o.pods, buildPod("p6", "", "x")) }, []string{"6 pods in all, wanted 5"},
		},
		"a policy that is not Ready": {
			func(o *objects) {
				o.override[0].Status.Conditions = condition(metav1.ConditionFalse, gm.ReasonConverging, 1)
			},
			[]string{"OverridePolicy nginx-overridepolicy: Ready=False Converging"},
		},
		"a policy that is not there": {func(o *objects) { o.override = nil }, []string{"1 policies, wanted 2"}},
		"a group that is not there": {
			func(o *objects) { o.groups = o.groups[:1] }, []string{"NodeGroup hangzhou does not exist"},
		},
		"a policy that wants something else": {
			func(o *objects) { o.propagation[0].Status.Apps[0].Groups[1].Desired = 4 },
			[]string{"hangzhou: the PropagationPolicy wants 4 pods, not 3"},
		},
		"nothing at all": {
			func(o *objects) { *o = objects{} },
			[]string{"NodeGroup hangzhou does not exist", "NodeGroup beijing does not exist", "0 pods in all", "0 policies"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			o := kept()
			test.change(&o)
			got := judge(compose(o), promised)
			if len(got) != len(test.want) {
				t.Fatalf("failures %q, want %q", got, test.want)
			}
			for i := range got {
				if !strings.Contains(got[i], test.want[i]) {
					t.Errorf("failure %q, want %q", got[i], test.want[i])
				}
			}
		})
	}
}

func TestJudgeAvailability(t *testing.T) {
	tests := map[string]struct {
		availability *availability
		fails        bool
	}{
		"one pod away at a time":  {&availability{wanted: 5, worst: 1}, false},
		"two pods away at a time": {&availability{wanted: 5, worst: 2}, true},
		"a watch that broke":      {&availability{wanted: 5, gaps: 1}, true},
		"nobody counted":          {nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := judgeAvailability(&picture{availability: test.availability}, 1); (len(got) > 0) != test.fails {
				t.Errorf("failures %q, want some = %t", got, test.fails)
			}
		})
	}
}

func TestClosingTable(t *testing.T) {
	p := compose(kept())
	p.availability = &availability{wanted: 5, worst: 1}
	o := &outcome{picture: p, first: 12 * time.Second, converged: 1500 * time.Millisecond, total: 14 * time.Second}
	want := `
GROUP      WANTED   IS   READY   IMAGES
hangzhou   3        3    3       hangzhou.registry.io/nginx:1.27
beijing    2        2    2       beijing.registry.io/nginx:1.27

PropagationPolicy nginx-propagationpolicy: Ready=True Satisfied
OverridePolicy nginx-overridepolicy: Ready=True Satisfied
Unavailable pods, counted after each change of any pod: never more than 1 of 5 at a time.
First picture after 12.0 s; as it is now 1.5 s after the labels, 14.0 s in total.
As the policies say.
`
	if got := closing(o); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	objects := kept()
	objects.groups, objects.pods = nil, []*corev1.Pod{}
	o = &outcome{picture: compose(objects), failures: []string{"this", "and that"}}
	got := closing(o)
	for _, part := range []string{"(none)     –        0    0", "NOT as the policies say:\n  - this\n  - and that\n"} {
		if !strings.Contains(strings.ReplaceAll(got, "(none)   –", "(none)     –"), part) {
			t.Errorf("%q is missing in\n%s", part, got)
		}
	}
}
