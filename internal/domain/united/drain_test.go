package united

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// never is what says that no node is held.
func never(string) bool { return false }

// parsePods parses "p0 p1! p2- p3~ p4=": Ready, bound and not Ready, without a node, terminating, on a held node.
func parsePods(text string) []LeavingPod {
	var out []LeavingPod
	for field := range strings.FieldsSeq(text) {
		p := LeavingPod{Name: strings.TrimRight(field, "!-~="), Node: "node", Ready: true}
		switch field[len(field)-1] {
		case '!':
			p.Ready = false
		case '-':
			p.Ready, p.Node = false, ""
		case '~':
			p.Terminating = true
		case '=':
			p.Held = true
		}
		out = append(out, p)
	}
	return out
}

func deployment(replicas int32, modify ...func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web-a", UID: "d"}, Spec: appsv1.DeploymentSpec{Replicas: &replicas}}
	for _, m := range modify {
		m(d)
	}
	return d
}

func stateful(replicas int32, modify ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db", UID: "s"}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas}}
	for _, m := range modify {
		m(s)
	}
	return s
}

func gated() *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "agent", UID: "ds"}}
	Gate(d)
	return d
}

func TestNextDrainStep(t *testing.T) {
	inRollout := func(d *appsv1.Deployment) {
		d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: new(intstr.FromInt32(1))}
		d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1
	}
	for name, tc := range map[string]struct {
		w       Workload
		pods    string
		may     int32
		want    int32
		evicted string
		drained bool
	}{
		"one of three":                  {w: deployment(3), pods: "p0 p1 p2", may: 1, want: 3, evicted: "p0"},
		"the first by name":             {w: deployment(3), pods: "p2 p0 p1", may: 2, want: 3, evicted: "p0 p1"},
		"two of three":                  {w: deployment(3), pods: "p0 p1 p2", may: 2, want: 3, evicted: "p0 p1"},
		"none is allowed":               {w: deployment(3), pods: "p0 p1 p2", may: 0, want: 3},
		"one is terminating":            {w: deployment(2), pods: "p0~ p1 p2", may: 1, want: 2, evicted: "p1"},
		"evicted, replicas not lowered": {w: deployment(3), pods: "p0~ p1 p2 p3-", may: 1, want: 2},
		"its replacement is Ready before replicas are lowered": {w: deployment(2), pods: "p1 p2 p3", may: 1, want: 2},
		"a rollout that is over":                               {w: deployment(2, inRollout, func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 4 }), pods: "p1 p2 p3", may: 1, want: 2},
		"a rollout without surge":                              {w: deployment(2, inRollout, func(d *appsv1.Deployment) { d.Spec.Strategy.RollingUpdate = nil }), pods: "p1 p2 p3", may: 1, want: 2},
		"a rollout that surges":                                {w: deployment(2, inRollout), pods: "p1 p2 p3", may: 1, want: 2, evicted: "p1"},
		"pods that are not Ready":                              {w: deployment(3), pods: "p0 p1! p2-", may: 1, want: 1},
		"no pod is Ready":                                      {w: deployment(3), pods: "p0! p1! p2!", may: 1, want: 0},
		"the last pod":                                         {w: deployment(0), pods: "p2", may: 1, want: 0},
		"nothing is left":                                      {w: deployment(0), pods: "p2~", may: 1, want: 0, drained: true},
		"a Deployment that never had a pod":                    {w: deployment(3), may: 1, want: 0},

		"the highest ordinal":         {w: stateful(3), pods: "db-0 db-1 db-2", may: 1, want: 3, evicted: "db-2"},
		"downwards":                   {w: stateful(3), pods: "db-0 db-1 db-2", may: 2, want: 3, evicted: "db-2 db-1"},
		"the highest is not Ready":    {w: stateful(3), pods: "db-0 db-1 db-2!", may: 1, want: 2, evicted: "db-1"},
		"one below is not Ready":      {w: stateful(3), pods: "db-0 db-1! db-2", may: 3, want: 3, evicted: "db-2"},
		"the last is not allowed yet": {w: stateful(1), pods: "db-0", may: 0, want: 1},
		"the highest is terminating":  {w: stateful(3), pods: "db-0 db-1 db-2~", may: 0, want: 2},
		"ordinals that begin at five": {w: stateful(2, func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5} }), pods: "db-5 db-6", may: 1, want: 2, evicted: "db-6"},
		"a StatefulSet without pods":  {w: stateful(0), may: 1, want: 0, drained: true},

		"a gated DaemonSet":                 {w: gated(), pods: "a b! c- d", may: 2, evicted: "b a"},
		"those that are not Ready first":    {w: gated(), pods: "b! a", may: 1, evicted: "b"},
		"a DaemonSet that is not gated":     {w: &appsv1.DaemonSet{}, pods: "a", may: 2},
		"a gated DaemonSet whose pods wait": {w: gated(), pods: "a- b- c~", may: 1, drained: true},
		"a DaemonSet that runs on no node":  {w: &appsv1.DaemonSet{}, may: 1},
	} {
		t.Run(name, func(t *testing.T) {
			pods := parsePods(tc.pods)
			got := NextDrainStep(tc.w, pods, tc.may)
			var names []string
			for _, p := range got.Evict {
				names = append(names, p.Name)
			}
			if got.Replicas != tc.want || strings.Join(names, " ") != tc.evicted {
				t.Errorf("it lowers to %d and evicts %v, want %d and %q", got.Replicas, names, tc.want, tc.evicted)
			}
			if got := Drained(tc.w, pods); got != tc.drained {
				t.Errorf("drained is %t", got)
			}
		})
	}
}

func ordinal(name string) (n int32) {
	_, _ = fmt.Sscanf(name, "db-%d", &n)
	return n
}

// TestDrainsEnd simulates drains of workloads whose controllers act at any time, whose pods
// become Ready and not Ready, and whose disruption budget refuses evictions: no Ready pod
// is deleted without an eviction, and in the end no pod is left.
func TestDrainsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int32Range(0, 6).Draw(t, "replicas")
		isStateful := rapid.Bool().Draw(t, "stateful")
		var w Workload = deployment(n)
		if isStateful {
			w = stateful(n)
		}
		granted, made := map[string]bool{}, 0
		var pods []LeavingPod
		for i := range n {
			pods = append(pods, LeavingPod{Name: fmt.Sprintf("db-%d", i), Node: "node", Ready: true})
		}
		active := func() (out []*LeavingPod) {
			for i := range pods {
				if !pods[i].Terminating {
					out = append(out, &pods[i])
				}
			}
			return out
		}
		control := func() { // what the workload's own controller does
			now := active()
			if isStateful {
				for i := range pods {
					if ordinal(pods[i].Name) >= replicasOf(w) && !pods[i].Terminating {
						if pods[i].Ready {
							t.Fatalf("%s was Ready and not evicted: %+v", pods[i].Name, pods)
						}
						pods[i].Terminating = true
					}
				}
				for at := range replicasOf(w) {
					name := fmt.Sprintf("db-%d", at)
					if !slices.ContainsFunc(pods, func(p LeavingPod) bool { return p.Name == name }) {
						pods = append(pods, LeavingPod{Name: name})
					}
				}
				return
			}
			for ; int32(len(now)) > replicasOf(w); now = active() {
				slices.SortStableFunc(now, func(a, b *LeavingPod) int {
					switch {
					case a.Ready != b.Ready && b.Ready:
						return -1
					case a.Ready != b.Ready:
						return 1
					}
					return -strings.Compare(a.Name, b.Name) // the newest
				})
				if now[0].Ready && strings.HasPrefix(now[0].Name, "db-") {
					t.Fatalf("%s was Ready and not evicted: %+v", now[0].Name, pods)
				}
				now[0].Terminating = true
			}
			for range replicasOf(w) - int32(len(now)) {
				made++
				pods = append(pods, LeavingPod{Name: fmt.Sprintf("new-%03d", made)})
			}
		}
		step := func(refuse, cut bool) {
			now := NextDrainStep(w, pods, 1)
			ScaleDown(w, now.Replicas)
			for _, p := range now.Evict {
				if refuse {
					return
				}
				granted[p.Name] = true
				pods[slices.IndexFunc(pods, func(q LeavingPod) bool { return q.Name == p.Name && !q.Terminating })].Terminating = true
				if cut { // the process ends before it lowers
					control()
					return
				}
				control()
				ScaleDown(w, replicasOf(w)-1)
			}
		}
		for range rapid.IntRange(0, 40).Draw(t, "ticks") {
			switch rapid.IntRange(0, 4).Draw(t, "event") {
			case 0:
				control()
			case 1:
				step(rapid.Bool().Draw(t, "refused"), rapid.Bool().Draw(t, "cut off"))
			case 2:
				pods = slices.DeleteFunc(pods, func(p LeavingPod) bool { return p.Terminating })
			case 3:
				if now := active(); len(now) > 0 {
					p := now[rapid.IntRange(0, len(now)-1).Draw(t, "pod")]
					// One that was not Ready when replicas were lowered may become so before
					// its controller deletes it, which the caller cannot prevent.
					if !isStateful || ordinal(p.Name) < replicasOf(w) {
						p.Node, p.Ready = "node", true
					}
				}
			case 4:
				control()
				step(false, false)
			}
		}
		for range 60 {
			control()
			pods = slices.DeleteFunc(pods, func(p LeavingPod) bool { return p.Terminating })
			step(false, false)
		}
		control()
		if !Drained(w, pods) {
			t.Fatalf("it ends with %d replicas and %+v", replicasOf(w), pods)
		}
	})
}

// TestClaimsOfADrain: a StatefulSet whose policy keeps the claims when it is deleted also
// keeps them when it is drained.
func TestClaimsOfADrain(t *testing.T) {
	s := stateful(2, func(s *appsv1.StatefulSet) {
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		}
	})
	ScaleDown(s, 1)
	if p := s.Spec.PersistentVolumeClaimRetentionPolicy; p.WhenScaled != appsv1.RetainPersistentVolumeClaimRetentionPolicyType || *s.Spec.Replicas != 1 {
		t.Errorf("it is %+v", s.Spec)
	}
}

func TestMaxUnavailable(t *testing.T) {
	rolling := func(n intstr.IntOrString) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxUnavailable: &n}
		}
	}
	recreate := func(d *appsv1.Deployment) { d.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType }
	for name, tc := range map[string]struct {
		w        Workload
		of, want int32
	}{
		"a quarter":          {deployment(1), 9, 2},
		"never none":         {deployment(1, rolling(intstr.FromInt32(0))), 9, 1},
		"its maxUnavailable": {deployment(1, rolling(intstr.FromString("50%"))), 9, 4},
		"Recreate":           {deployment(1, recreate), 9, 9},
		"a StatefulSet":      {stateful(1), 9, 1},
		"a StatefulSet that may more": {stateful(1, func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: new(intstr.FromInt32(3))}
		}), 9, 3},
		"a DaemonSet": {gated(), 9, 1},
		"a DaemonSet that may more": {&appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: new(intstr.FromString("34%"))},
		}}}, 9, 3},
	} {
		if got := MaxUnavailable(tc.w, tc.of); got != tc.want {
			t.Errorf("%s: %d of %d, want %d", name, got, tc.of, tc.want)
		}
	}
}

func TestLeavingPods(t *testing.T) {
	controlledBy := func(kind, name string, uid types.UID, modify ...func(*corev1.Pod)) corev1.Pod {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name + "-x", Labels: map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "123"}}}
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: uid, Controller: new(true)}}
		for _, m := range modify {
			m(&pod)
		}
		return pod
	}
	now := time.Unix(1000, 0)
	going := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(now.Add(-ago))) }
	}
	pods := []corev1.Pod{
		controlledBy("ReplicaSet", "web-a-123", "rs"),
		controlledBy("ReplicaSet", "web-a-b-123", "rs"),
		controlledBy("StatefulSet", "web-a-123", "d"),
		controlledBy("ReplicaSet", "web-a-123", "rs", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }),
		controlledBy("ReplicaSet", "web-a-123", "rs", going(0)),
		controlledBy("ReplicaSet", "web-a-123", "rs", going(time.Minute)),
		{},
	}
	got := LeavingPods(deployment(1), pods, never, now)
	if len(got) != 3 || got[0].Terminating || !got[1].Terminating || got[1].Overdue || !got[2].Overdue {
		t.Errorf("they are %+v", got)
	}
	if got := LeavingPods(stateful(1), []corev1.Pod{controlledBy("StatefulSet", "db", "s"), controlledBy("StatefulSet", "db", "other")}, never, now); len(got) != 1 {
		t.Errorf("they are %+v", got)
	}
}

// TestFieldsThatOrderDrainEvictions covers the fields that decide the order of evictions.
func TestFieldsThatOrderDrainEvictions(t *testing.T) {
	pod := func(modify ...func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "db-0", UID: "p", OwnerReferences: []metav1.OwnerReference{{UID: "s", Controller: new(true)}}}}
		for _, m := range modify {
			m(&p)
		}
		return p
	}
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status})
		}
	}
	owners := func(refs ...metav1.OwnerReference) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.OwnerReferences = append(refs, p.OwnerReferences...) }
	}
	plain := LeavingPod{Name: "db-0", UID: "p"}
	for name, tc := range map[string]struct {
		pod  corev1.Pod
		want []LeavingPod
	}{
		"without a node":    {pod(), []LeavingPod{plain}},
		"on a held node":    {pod(func(p *corev1.Pod) { p.Spec.NodeName = "edge" }), []LeavingPod{{Name: "db-0", UID: "p", Node: "edge", Held: true, Ready: true}}},
		"on a node":         {pod(func(p *corev1.Pod) { p.Spec.NodeName = "n" }), []LeavingPod{{Name: "db-0", UID: "p", Node: "n"}}},
		"Ready":             {pod(condition(corev1.PodScheduled, corev1.ConditionTrue), condition(corev1.PodReady, corev1.ConditionTrue)), []LeavingPod{{Name: "db-0", UID: "p", Ready: true}}},
		"not Ready":         {pod(condition(corev1.PodScheduled, corev1.ConditionTrue), condition(corev1.PodReady, corev1.ConditionFalse)), []LeavingPod{plain}},
		"failed":            {pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), nil},
		"with other owners": {pod(owners(metav1.OwnerReference{UID: "a"}, metav1.OwnerReference{UID: "b", Controller: new(false)})), []LeavingPod{plain}},
		"of another, which the StatefulSet is an owner of too": {
			pod(func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{UID: "s", Controller: new(false)}, {UID: "other", Controller: new(true)}}
			}), nil,
		},
	} {
		if diff := cmp.Diff(tc.want, LeavingPods(stateful(1), []corev1.Pod{tc.pod}, func(node string) bool { return node == "edge" }, time.Unix(1000, 0))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
