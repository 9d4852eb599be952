package connectivity

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var start = time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC)

const grace = 50 * time.Second

// world is a simulated cluster with one pool, in steps of a second. It has what matters here of kubelets, of the hubs
// and the coordinator of the pool, of kube-controller-manager, and a controller that does what Decide and Steps say.
type world struct {
	t     fataler
	log   strings.Builder
	now   time.Time
	nodes map[string]*machine
	// coordinator is the node of the coordinator; "" without.
	coordinator string
	apiAway     bool
	frozenLimit *time.Duration

	pool *Pool
	// gone is since when each node has no taint.
	gone map[string]time.Time
	// oneWrite: the controller does one write for each node and second.
	oneWrite bool
	writes   int
	// quiet: steps are not in the log.
	quiet bool
}

// fataler is *testing.T or *rapid.T.
type fataler interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// machine is a node as it is, and its objects in the API server.
type machine struct {
	isDead, isCut, isApart bool
	// cut is for how many seconds the node is cut off.
	cut   int
	phase int
	// due: a heartbeat is to be sent.
	due  bool
	beat string
	// moved is when the Lease last changed.
	moved time.Time
	node  *corev1.Node
	pods  map[string]*corev1.Pod
	// evict has when pods are deleted because of taints.
	evict map[string]time.Time
}

func newWorld(t fataler, names ...string) *world {
	w := &world{t: t, now: start, nodes: map[string]*machine{}, gone: map[string]time.Time{}, coordinator: names[0]}
	for i, name := range names {
		m := &machine{phase: 3 * i % 10, moved: start, node: readyNode(name), pods: map[string]*corev1.Pod{}, evict: map[string]time.Time{}}
		for _, pod := range []*corev1.Pod{
			runningPod("web", tolerating(300)), runningPod("quick"), runningPod("ever", unlimited()),
			runningPod("daemon", unlimited(), ownedBy("DaemonSet")),
		} {
			pod.Spec.NodeName = name
			m.pods[pod.Name] = pod
		}
		w.nodes[name] = m
	}
	w.restart()
	return w
}

func (w *world) names() []string { return slices.Sorted(maps.Keys(w.nodes)) }

func (w *world) logf(format string, args ...any) {
	fmt.Fprintf(&w.log, "%5s  %s\n", w.now.Sub(start).Truncate(time.Second).String(), fmt.Sprintf(format, args...))
}

// restart starts the manager: it knows what the API server has.
func (w *world) restart() {
	w.pool, w.gone = NewPool(grace, w.now), map[string]time.Time{}
	w.pool.HasCoordinator, w.pool.FrozenLimit = w.coordinator != "", w.frozenLimit
	for _, name := range w.names() {
		m := w.nodes[name]
		w.pool.Add(name, Parse(m.node.Annotations[Annotation]), m.beat, w.now)
	}
}

// leader is the hub that leads; "" for none.
func (w *world) leader() string {
	if c := w.nodes[w.coordinator]; c == nil || c.isDead {
		return ""
	}
	for _, name := range w.names() {
		if m := w.nodes[name]; !m.isDead && !m.isCut && !w.isApart(name) {
			return name
		}
	}
	return ""
}

// isApart reports whether the node does not reach the coordinator.
func (w *world) isApart(name string) bool {
	c := w.nodes[w.coordinator]
	return c == nil || c.isDead || (c.isApart || w.nodes[name].isApart) && name != w.coordinator
}

func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Second)
		w.tick()
	}
}

func (w *world) tick() {
	second := int(w.now.Sub(start) / time.Second)
	for _, name := range w.names() {
		m := w.nodes[name]
		m.cut++
		if !m.isCut {
			m.cut = 0
		}
		m.due = !m.isDead && (m.due || second%10 == m.phase)
		if m.due && !w.apiAway {
			w.heartbeat(name, m)
		}
	}
	if w.apiAway {
		w.control()
		return
	}
	if second%10 == 0 && w.leader() != "" {
		var inside []string
		for _, name := range w.names() {
			if !w.nodes[name].isDead && !w.isApart(name) {
				inside = append(inside, name)
			}
		}
		w.pool.Pulse(inside, w.now)
	}
	if second%5 == 0 {
		w.pool.Probe(w.now)
	}
	for _, name := range w.names() {
		w.kubernetes(name, w.nodes[name])
	}
	w.control()
	for _, name := range w.names() {
		w.evictions(name, w.nodes[name])
	}
}

// heartbeat is the kubelet and the hubs.
func (w *world) heartbeat(name string, m *machine) {
	switch {
	case !m.isCut:
		if !IsReady(m.node) {
			ready := readyOf(m.node)
			ready.Status, ready.Reason, ready.Message = corev1.ConditionTrue, "KubeletReady", ""
			w.logf("%s: the kubelet writes Ready", name)
		}
		for _, pod := range m.pods {
			if ready := setPodReady(pod, corev1.ConditionFalse, corev1.ConditionTrue, w.now); ready != nil {
				m.pods[pod.Name] = ready
			}
		}
	case m.cut <= 5 || w.leader() == "" || w.isApart(name): // A hub notices after 5 s that the cloud is away.
		return
	}
	m.due, m.moved, m.beat = false, w.now, w.now.Format(time.RFC3339)
	w.pool.Heartbeat(name, m.beat, m.isCut, w.now)
}

// kubernetes is kube-controller-manager's node lifecycle controller.
func (w *world) kubernetes(name string, m *machine) {
	ready := readyOf(m.node)
	if w.now.Sub(m.moved) >= grace && ready.Status == corev1.ConditionTrue {
		ready.Status, ready.Reason, ready.Message = corev1.ConditionUnknown, kubernetesReason, kubernetesMessage
		w.logf("%s: kube-controller-manager makes Ready Unknown, and its pods not Ready", name)
		for _, pod := range m.pods {
			if no := NotReady(pod, w.now); no != nil {
				m.pods[pod.Name] = no
			}
		}
	}
	m.node.Spec.Taints = nil
	if ready.Status != corev1.ConditionTrue {
		m.node.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
	}
}

// evictions is kube-controller-manager's taint eviction controller.
func (w *world) evictions(name string, m *machine) {
	for _, pod := range slices.Sorted(maps.Keys(m.pods)) {
		seconds := tolerance(m.pods[pod])
		due, isScheduled := m.evict[pod]
		state := Parse(m.node.Annotations[Annotation]).State
		switch {
		case !HasTaints(m.node) || seconds > 1<<40:
			delete(m.evict, pod)
			continue
		case !isScheduled || seconds == 0:
			due = w.now.Add(time.Duration(seconds) * time.Second)
			m.evict[pod] = due
			if (state == Direct || state.isHeld()) && w.now.Sub(m.moved) < grace && w.coordinator != "" {
				w.t.Fatalf("%s: the eviction of %s from %s begins, which is heard, and %s\n%s", w.now.Sub(start), pod, name, state, w.log.String())
			}
		}
		if !due.After(w.now) {
			w.logf("%s: the pod %s is evicted", name, pod)
			delete(m.pods, pod)
		}
	}
}

// control is the manager's controller.
func (w *world) control() {
	d := Decide(w.pool, w.now)
	if w.apiAway {
		if len(d.Verdicts) > 0 {
			w.t.Errorf("verdicts while the API server is away: %v", d.Verdicts)
		}
		return
	}
	for _, v := range d.Verdicts {
		if w.nodes[v.Node].node.Annotations[Annotation] == d.Records[v.Node].String() {
			continue
		}
		w.logf("%s: %s → %s, %s: %s", v.Node, v.From, v.To, v.Reason, v.Message)
	}
	for _, name := range w.names() {
		m := w.nodes[name]
		if HasTaints(m.node) {
			delete(w.gone, name)
		} else if _, ok := w.gone[name]; !ok {
			w.gone[name] = w.now
		}
		w.write(name, m, d.Records[name])
		w.pool.Nodes[name].Record = Parse(m.node.Annotations[Annotation])
	}
}

// write does the steps for a node, one write if oneWrite, else all that need not wait.
func (w *world) write(name string, m *machine, record Record) {
	done := ""
	for range 100 {
		steps := Steps(&Observed{Record: record, Node: m.node, Pods: slices.Collect(maps.Values(m.pods)), TaintsGone: w.gone[name], Now: w.now})
		if len(steps) == 0 || steps[0].IsWait {
			return
		}
		step := steps[0]
		w.writes++
		if step.Node != nil {
			m.node = step.Node
		}
		var pods []string
		for _, pod := range step.Pods {
			checkTolerations(w.t, m.pods[pod.Name], pod)
			m.pods[pod.Name] = pod
			pods = append(pods, pod.Name)
			if w.oneWrite {
				break
			}
		}
		note := step.Note
		if note == "mark" && m.node.Annotations[Annotation] != "" {
			note = "mark " + shortened(m.node.Annotations[Annotation])
		}
		if len(pods) > 0 {
			note += " (" + strings.Join(pods, ", ") + ")"
		}
		if !w.quiet {
			w.logf("  %s: %s", name, note)
		}
		if w.oneWrite {
			return
		}
		if note == done {
			w.t.Fatalf("%s: the step %q is done again", name, note)
		}
		done = note
	}
}

// shortened leaves out what is in the line before.
func shortened(record string) string {
	if r := Parse(record); r.Silent > 0 {
		return fmt.Sprintf("%s, silent for %s, observed for %s", r.State, r.Silent, r.Observed)
	}
	state, _, _ := strings.Cut(record, " ")
	return state
}

// checkTolerations is what the API server checks: tolerations are added, and only their seconds change.
func checkTolerations(t fataler, before, after *corev1.Pod) {
	t.Helper()
	for _, old := range before.Spec.Tolerations {
		if !slices.ContainsFunc(after.Spec.Tolerations, func(now corev1.Toleration) bool {
			return old.Key == now.Key && old.Operator == now.Operator && old.Value == now.Value && old.Effect == now.Effect
		}) {
			t.Errorf("the toleration %v is gone from %s", old, before.Name)
		}
	}
}

func readyNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.NewTime(start), LastTransitionTime: metav1.NewTime(start),
		}}},
	}
}

func runningPod(name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	began := metav1.NewTime(start)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &began, Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}},
	}
	for _, change := range changes {
		change(pod)
	}
	return pod
}

func tolerating(seconds int64) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		for _, taint := range taints {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
		}
	}
}

func unlimited() func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
	}
}

func ownedBy(kind string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		isController := true
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "owner", Controller: &isController}}
	}
}
