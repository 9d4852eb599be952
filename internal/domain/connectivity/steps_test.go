package connectivity

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func seconds(n int64) *int64 { return &n }

func toleration(key string, operator corev1.TolerationOperator, effect corev1.TaintEffect, s *int64) corev1.Toleration {
	return corev1.Toleration{Key: key, Operator: operator, Effect: effect, TolerationSeconds: s}
}

const (
	exists    = corev1.TolerationOpExists
	noExecute = corev1.TaintEffectNoExecute
)

func TestTolerations(t *testing.T) {
	notReady, unreachable := corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	for name, tc := range map[string]struct {
		before, kept, after []corev1.Toleration
	}{
		"the default": {
			[]corev1.Toleration{toleration(notReady, exists, noExecute, seconds(300)), toleration(unreachable, exists, noExecute, seconds(300))},
			[]corev1.Toleration{toleration(notReady, exists, noExecute, nil), toleration(unreachable, exists, noExecute, nil)},
			[]corev1.Toleration{toleration(notReady, exists, noExecute, seconds(300)), toleration(unreachable, exists, noExecute, seconds(300))},
		},
		"none": {
			nil,
			[]corev1.Toleration{toleration(notReady, exists, noExecute, nil), toleration(unreachable, exists, noExecute, nil)},
			[]corev1.Toleration{toleration(notReady, exists, noExecute, seconds(0)), toleration(unreachable, exists, noExecute, seconds(0))},
		},
		"of one taint, by equality": {
			[]corev1.Toleration{toleration(unreachable, corev1.TolerationOpEqual, noExecute, seconds(0))},
			[]corev1.Toleration{toleration(unreachable, corev1.TolerationOpEqual, noExecute, nil), toleration(notReady, exists, noExecute, nil)},
			[]corev1.Toleration{toleration(unreachable, corev1.TolerationOpEqual, noExecute, seconds(0)), toleration(notReady, exists, noExecute, seconds(0))},
		},
		"of all taints, with seconds": {
			[]corev1.Toleration{toleration("", exists, noExecute, seconds(60))},
			[]corev1.Toleration{toleration("", exists, noExecute, nil)},
			[]corev1.Toleration{toleration("", exists, noExecute, seconds(60))},
		},
		"without limit and with seconds": {
			[]corev1.Toleration{toleration(notReady, exists, noExecute, nil), toleration(notReady, exists, noExecute, seconds(5)), toleration("", exists, "", nil)},
			[]corev1.Toleration{toleration(notReady, exists, noExecute, nil), toleration(notReady, exists, noExecute, nil), toleration("", exists, "", nil)},
			[]corev1.Toleration{toleration(notReady, exists, noExecute, nil), toleration(notReady, exists, noExecute, seconds(5)), toleration("", exists, "", nil)},
		},
		"of other taints": {
			[]corev1.Toleration{toleration("mine", exists, noExecute, seconds(5)), toleration(notReady, exists, corev1.TaintEffectNoSchedule, nil), {Key: notReady, Value: "x", Effect: noExecute}},
			[]corev1.Toleration{toleration("mine", exists, noExecute, seconds(5)), toleration(notReady, exists, corev1.TaintEffectNoSchedule, nil), {Key: notReady, Value: "x", Effect: noExecute}, toleration(notReady, exists, noExecute, nil), toleration(unreachable, exists, noExecute, nil)},
			[]corev1.Toleration{toleration("mine", exists, noExecute, seconds(5)), toleration(notReady, exists, corev1.TaintEffectNoSchedule, nil), {Key: notReady, Value: "x", Effect: noExecute}, toleration(notReady, exists, noExecute, seconds(0)), toleration(unreachable, exists, noExecute, seconds(0))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pod := runningPod("p")
			pod.Spec.Tolerations = tc.before
			kept := WithoutLimit(pod)
			checkTolerations(t, pod, kept)
			if diff := cmp.Diff(tc.kept, kept.Spec.Tolerations); diff != "" {
				t.Error(diff)
			}
			if WithoutLimit(kept) != nil {
				t.Error("done again, it is changed again")
			}
			after := WithOwnLimit(kept)
			checkTolerations(t, kept, after)
			if diff := cmp.Diff(tc.after, after.Spec.Tolerations); diff != "" {
				t.Error(diff)
			}
			if _, ok := after.Annotations[TolerationsAnnotation]; ok || WithOwnLimit(after) != nil {
				t.Error("the annotation is left")
			}
			if diff := cmp.Diff(after, WithOwnLimit(WithoutLimit(after)), cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Annotations" }, cmp.Ignore())); diff != "" {
				t.Errorf("a second time: %s", diff)
			}
		})
	}
}

func TestTolerationsChangedMeanwhile(t *testing.T) {
	kept := WithoutLimit(runningPod("p", tolerating(300)))
	kept.Spec.Tolerations[0].TolerationSeconds = seconds(20)
	kept.Spec.Tolerations = append(kept.Spec.Tolerations, toleration("", exists, noExecute, seconds(7)))
	own := WithOwnLimit(WithoutLimit(kept))
	for i, want := range []int64{20, 300, 7} {
		if got := own.Spec.Tolerations[i].TolerationSeconds; got == nil || *got != want {
			t.Errorf("toleration %d has other seconds than %d: %v", i, want, own.Spec.Tolerations[i])
		}
	}
	if got := *WithOwnLimit(kept).Spec.Tolerations[0].TolerationSeconds; got != 20 {
		t.Errorf("20 s become %d s, which would not move an eviction that is scheduled", got)
	}
	kept = WithoutLimit(runningPod("p", tolerating(300)))
	kept.Annotations[TolerationsAnnotation] = "garbage"
	if own := WithOwnLimit(kept); own.Spec.Tolerations[0].TolerationSeconds != nil || len(own.Annotations) > 0 {
		t.Errorf("with an annotation that cannot be read: %v", own)
	}
	kept = runningPod("p", func(pod *corev1.Pod) { pod.Spec.Tolerations = []corev1.Toleration{toleration("", exists, "", nil)} })
	kept.Annotations = map[string]string{TolerationsAnnotation: `[{"operator":"Exists","tolerationSeconds":5}]`}
	if own := WithOwnLimit(kept); own.Spec.Tolerations[0].TolerationSeconds != nil {
		t.Errorf("somebody's annotation gives seconds to a toleration that may have none, so that the pod cannot be written: %v", own)
	}
}

func TestPodsThatAreLeftAlone(t *testing.T) {
	deleted := metav1.NewTime(start)
	for name, change := range map[string]func(*corev1.Pod){
		"of a DaemonSet":          ownedBy("DaemonSet"),
		"a static pod":            func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} },
		"succeeded":               func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":                  func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"never started":           func(p *corev1.Pod) { p.Status.StartTime = nil },
		"being deleted":           func(p *corev1.Pod) { p.DeletionTimestamp = &deleted },
		"tolerates for ever":      unlimited(),
		"a coordinator":           func(p *corev1.Pod) { p.Namespace = coordinators },
		"of a ReplicaSet, kept":   ownedBy("ReplicaSet"),
		"without an owner, kept ": func(*corev1.Pod) {},
	} {
		if got, want := WithoutLimit(runningPod("p", change)) != nil, strings.Contains(name, "kept"); got != want {
			t.Errorf("a pod that is %s: changed %t", name, got)
		}
	}
}

func TestPodsReady(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	type status = corev1.ConditionStatus
	for name, tc := range map[string]struct {
		ready, containers, gate status
		phase                   corev1.PodPhase
		putBack, takeAway       bool
	}{
		"Ready":                      {yes, yes, "", corev1.PodRunning, false, true},
		"made not Ready by the node": {no, yes, "", corev1.PodRunning, true, false},
		"made not Ready by the node, with a gate":  {no, yes, yes, corev1.PodRunning, true, false},
		"a gate is not met":                        {no, yes, no, corev1.PodRunning, false, false},
		"a container is not Ready":                 {no, no, "", corev1.PodRunning, false, false},
		"over":                                     {no, yes, "", corev1.PodSucceeded, false, false},
		"nothing is known of its containers":       {no, "", "", corev1.PodPending, false, false},
		"never had a condition, and is not Ready ": {"", "", "", corev1.PodPending, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{Phase: tc.phase}}
			for kind, value := range map[corev1.PodConditionType]status{corev1.PodReady: tc.ready, corev1.ContainersReady: tc.containers, "gate": tc.gate} {
				if value != "" {
					pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: kind, Status: value, Reason: "R"})
				}
			}
			if tc.gate != "" {
				pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "gate"}}
			}
			want := pod.DeepCopy()
			for i := range want.Status.Conditions {
				if c := &want.Status.Conditions[i]; c.Type == corev1.PodReady {
					c.Status, c.LastTransitionTime = map[bool]status{true: yes, false: no}[tc.putBack], metav1.NewTime(start)
				}
			}
			for what, got := range map[*corev1.Pod]bool{PutBackReady(pod, start): tc.putBack, NotReady(pod, start): tc.takeAway} {
				if (what != nil) != got {
					t.Errorf("changed %t, want %t", what != nil, got)
				}
				if diff := cmp.Diff(want, what); got && diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestNodeReady(t *testing.T) {
	node := readyNode("n")
	got := unknown(node, ReasonDelegated, "m", start.Add(time.Hour))
	want := node.DeepCopy()
	c := readyOf(want)
	c.Status, c.Reason, c.Message, c.LastTransitionTime = corev1.ConditionUnknown, ReasonDelegated, "m", metav1.NewTime(start.Add(time.Hour))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	back := handBack(got, start.Add(2*time.Hour))
	c.Reason, c.Message = "NodeStatusUnknown", "Kubelet stopped posting node status."
	if diff := cmp.Diff(want, back); diff != "" {
		t.Error(diff)
	}
	if unknown(got, ReasonDelegated, "m", start) != nil || handBack(back, start) != nil || handBack(node, start) != nil || unknown(&corev1.Node{}, ReasonDelegated, "m", start) != nil {
		t.Error("a Node is changed that is as it should be")
	}
}

// TestSteps: which steps a node and its pods get in each state. The pods are those of newWorld.
func TestSteps(t *testing.T) {
	in := func(state State, reason string) Record { return Record{State: state, Since: start, Reason: reason} }
	tainted := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: noExecute}}
	}
	away := func(reason string) func(*corev1.Node) {
		return func(n *corev1.Node) { *n = *unknown(n, reason, "", start) }
	}
	marked := func(r Record) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Annotations, n.Labels = map[string]string{Annotation: r.String()}, map[string]string{ExcludeLabel: LabelValue}
		}
	}
	theirs := func(n *corev1.Node) { n.Labels = map[string]string{ExcludeLabel: "true"} }
	delegated := in(Delegated, ReasonDelegated)
	const wait = "wait until the kubelet has written Ready and the taints are gone for 60 s"
	for name, tc := range map[string]struct {
		record Record
		node   []func(*corev1.Node)
		kept   bool // the tolerations are without limit
		down   bool // pods are not Ready
		gone   time.Duration
		after  time.Duration // since the state began
		want   string
		until  time.Duration
	}{
		"Direct, never anything else":            {record: Record{State: Direct}},
		"Direct, silent":                         {record: Record{State: Direct, Silent: 15 * time.Second}, want: "mark"},
		"Delegated":                              {record: delegated, want: "mark, put on the label · tolerations without limit: quick web · Ready is Unknown"},
		"Delegated, marked":                      {record: delegated, node: []func(*corev1.Node){marked(delegated)}, want: "tolerations without limit: quick web · Ready is Unknown"},
		"Delegated, with tolerations":            {record: delegated, node: []func(*corev1.Node){marked(delegated)}, kept: true, want: "Ready is Unknown"},
		"Delegated, all done":                    {record: delegated, node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated), tainted}, kept: true},
		"Delegated, KCM was restarted":           {record: delegated, node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated)}, kept: true, down: true, want: "put back Ready, which kube-controller-manager had made False: daemon ever quick web"},
		"Delegated, with a label of others":      {record: delegated, node: []func(*corev1.Node){theirs}, kept: true, want: "mark · Ready is Unknown"},
		"Direct, with a label of others":         {record: Record{State: Direct}, node: []func(*corev1.Node){theirs}},
		"Frozen, with a label of others":         {record: in(Frozen, ReasonFrozen), node: []func(*corev1.Node){theirs}, kept: true, want: "mark"},
		"Delegated, after Lost":                  {record: delegated, node: []func(*corev1.Node){marked(delegated), away(ReasonLost)}, kept: true, down: true, want: "Ready is Unknown · put back Ready, which kube-controller-manager had made False: daemon ever quick web"},
		"Unobserved":                             {record: in(Unobserved, ReasonUnobserved), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated)}, kept: true, want: "mark"},
		"Frozen":                                 {record: in(Frozen, ReasonFrozen), want: "mark · tolerations without limit: quick web"},
		"Frozen, after Delegated":                {record: in(Frozen, ReasonFrozen), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated)}, kept: true, want: "mark, take off the label · hand back Ready"},
		"Frozen, KCM has marked pods":            {record: in(Frozen, ReasonFrozen), node: []func(*corev1.Node){marked(delegated)}, kept: true, down: true, want: "mark, take off the label"},
		"Lost":                                   {record: in(Lost, ReasonLost), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated)}, kept: true, want: "mark, take off the label · pods are not Ready: daemon ever quick web · their own tolerations: daemon ever quick web · Ready says why"},
		"Lost, and all was done by KCM":          {record: in(Lost, ReasonLost), node: []func(*corev1.Node){away("NodeStatusUnknown")}, down: true, want: "mark · Ready says why"},
		"Direct again":                           {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated), tainted}, kept: true, want: "mark · " + wait + " · their own tolerations · hand back Ready · remove the mark, take off the label", until: 300 * time.Second},
		"Direct again, the kubelet is Ready":     {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard)), tainted}, kept: true, after: 10 * time.Second, want: wait + " · their own tolerations · remove the mark, take off the label", until: 70 * time.Second},
		"Direct again, and KCM is away":          {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard)), tainted}, kept: true, after: time.Hour, want: wait + " · their own tolerations · remove the mark, take off the label", until: time.Hour + time.Minute},
		"Direct again, the taints are gone":      {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard))}, kept: true, gone: 59 * time.Second, after: 70 * time.Second, want: wait + " · their own tolerations · remove the mark, take off the label", until: 71 * time.Second},
		"Direct again, before there were taints": {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard))}, kept: true, gone: 900 * time.Second, after: 59 * time.Second, want: wait + " · their own tolerations · remove the mark, take off the label", until: 60 * time.Second},
		"Direct again, 60 s after the taints":    {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard))}, kept: true, gone: 60 * time.Second, after: 70 * time.Second, want: "their own tolerations · remove the mark, take off the label"},
		"Direct again, the kubelet is not Ready": {record: in(Direct, ReasonHeard), node: []func(*corev1.Node){marked(in(Direct, ReasonHeard)), away("x"), tainted}, kept: true, after: 300 * time.Second, want: "their own tolerations · remove the mark, take off the label"},
		"Direct, the mark was edited":            {record: Parse("x"), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated), tainted}, kept: true, want: "mark · " + wait + " · their own tolerations · hand back Ready · remove the mark, take off the label", until: 300 * time.Second},
		"Released":                               {record: in(Released, ReasonReleased), node: []func(*corev1.Node){marked(delegated), away(ReasonDelegated), tainted}, kept: true, want: "mark · pods are not Ready: daemon ever quick web · their own tolerations · hand back Ready · remove the mark, take off the label"},
		"Released, and the node is Ready":        {record: in(Released, ReasonReleased), node: []func(*corev1.Node){marked(delegated)}, kept: true, gone: 900 * time.Second, want: "mark · " + wait + " · their own tolerations · remove the mark, take off the label", until: 60 * time.Second},
		"Released, all done":                     {record: in(Released, ReasonReleased), node: []func(*corev1.Node){away("NodeStatusUnknown")}, down: true},
		"Released, only the mark is left":        {record: in(Released, ReasonReleased), node: []func(*corev1.Node){away("NodeStatusUnknown"), marked(delegated)}, down: true, want: "remove the mark, take off the label"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newWorld(t, "n").nodes["n"]
			for _, change := range tc.node {
				change(m.node)
			}
			now := start.Add(tc.after)
			o := &Observed{Record: tc.record, Node: m.node, Now: now}
			if tc.gone > 0 {
				o.TaintsGone = now.Add(-tc.gone)
			}
			for _, pod := range slices.Collect(maps.Values(m.pods)) {
				if kept := WithoutLimit(pod); tc.kept && kept != nil {
					pod = kept
				}
				if no := NotReady(pod, start); tc.down && no != nil {
					pod = no
				}
				o.Pods = append(o.Pods, pod)
			}
			var got []string
			for _, step := range Steps(o) {
				note := step.Note
				for i, pod := range step.Pods {
					note += map[bool]string{true: ": ", false: " "}[i == 0] + pod.Name
				}
				if step.IsWait && !step.Until.Equal(start.Add(tc.until)) {
					t.Errorf("it waits until %s, want %s", step.Until.Sub(start), tc.until)
				}
				if step.IsStatus && step.Node != nil && !cmp.Equal(step.Node.ObjectMeta, m.node.ObjectMeta) || !step.IsStatus && step.Node != nil && !cmp.Equal(step.Node.Status, m.node.Status) {
					t.Errorf("%q changes what it does not say", note)
				}
				got = append(got, note)
			}
			want := strings.ReplaceAll(tc.want, "their own tolerations: daemon ever quick web", "their own tolerations")
			want = strings.ReplaceAll(want, "their own tolerations", "their own tolerations: quick web")
			if diff := cmp.Diff(want, strings.Join(got, " · ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestShortestFirst: the pods that would be evicted first come first.
func TestShortestFirst(t *testing.T) {
	o := &Observed{Record: Record{State: Frozen, Since: start, Reason: ReasonFrozen}, Node: readyNode("n"), Now: start}
	o.Pods = append(o.Pods, []*corev1.Pod{
		runningPod("b-300", tolerating(300)), runningPod("a-300", tolerating(300)), runningPod("5", tolerating(5)), runningPod("none"),
		runningPod("60", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{toleration("", exists, noExecute, seconds(60))}
		}),
		runningPod("one", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{toleration(corev1.TaintNodeNotReady, exists, noExecute, seconds(900))}
		}),
	}...)
	var got []string
	for _, pod := range Steps(o)[1].Pods {
		got = append(got, pod.Name)
	}
	if diff := cmp.Diff([]string{"none", "one", "5", "60", "a-300", "b-300"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestAnyOutageEndsClean: whatever happens, with one write for each node and second and a manager that restarts at any
// time, no pod is evicted before it is due, and in the end nothing of ours is left.
func TestAnyOutageEndsClean(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, "n1", "n2", "n3")
		w.oneWrite = rapid.Bool().Draw(t, "one write at a time")
		w.run(30 * time.Second)
		for range rapid.IntRange(1, 12).Draw(t, "changes") {
			m := w.nodes[rapid.SampledFrom(w.names()).Draw(t, "node")]
			switch rapid.SampledFrom([]string{"cut", "cut", "all cut", "dies", "apart", "coordinator", "restart", "restart"}).Draw(t, "change") {
			case "cut":
				m.isCut = !m.isCut
			case "all cut":
				for _, m := range w.nodes {
					m.isCut = true
				}
			case "dies":
				m.isDead = !m.isDead
			case "apart":
				m.isApart = !m.isApart
			case "coordinator":
				w.coordinator = rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "its node")
				w.pool.HasCoordinator = w.coordinator != ""
			case "restart":
				w.restart()
			}
			w.run(time.Duration(rapid.SampledFrom([]int{1, 2, 3, 5, 20, 60, 200}).Draw(t, "seconds")) * time.Second)
		}
		if rapid.Bool().Draw(t, "without a coordinator") {
			w.coordinator, w.pool.HasCoordinator = "", false
		} else {
			for _, m := range w.nodes {
				m.isCut, m.isDead, m.isApart = false, false, false
			}
		}
		w.run(7 * time.Minute)
		for name, m := range w.nodes {
			_, hasMark := m.node.Annotations[Annotation]
			_, hasLabel := m.node.Labels[ExcludeLabel]
			if hasMark || hasLabel || isReadyOurs(m.node) {
				t.Fatalf("%s is left with %v %v %v\n%s", name, m.node.Annotations, m.node.Labels, m.node.Status.Conditions, w.log.String())
			}
			for _, pod := range m.pods {
				if want := map[string]int64{"web": 300}[pod.Name]; len(pod.Annotations) > 0 || (pod.Name == "web" || pod.Name == "quick") && len(pod.Spec.Tolerations) > 0 && tolerance(pod) != want {
					raw, err := json.Marshal(pod)
					t.Fatalf("%s of %s: %s %v\n%s", pod.Name, name, raw, err, w.log.String())
				}
			}
		}
	})
}
