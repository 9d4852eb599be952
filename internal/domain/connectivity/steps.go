package connectivity

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// settle is how long the taints must be gone before pods get their own tolerations back: with tolerations of 0 s
	// they would be deleted by a taint that is about to be lifted.
	settle = 60 * time.Second
	// settleLimit ends the wait for a node that is back and whose kubelet says that it is not Ready.
	settleLimit = 300 * time.Second
)

// Observed is a node as it is, and what was concluded about it.
type Observed struct {
	// Record is the one of the Decision.
	Record Record
	Node   *corev1.Node
	// Pods are all that are bound to the node.
	Pods []*corev1.Pod
	// TaintsGone is since when this manager has seen the node without taints (HasTaints); zero if it has one.
	TaintsGone time.Time
	Now        time.Time
}

// Step is one thing to do. All of a step must be done before the next one begins.
type Step struct {
	// Note says what it is, for people.
	Note string
	// Node and Pods are objects as they should be; Node is nil if the step is about pods. IsStatus: what changes is
	// their status, else labels, annotations and tolerations. They are copies of what was observed: each is written with
	// its resourceVersion.
	Node     *corev1.Node
	Pods     []*corev1.Pod
	IsStatus bool
	// IsWait: no later step is begun before Until, unless the node changes before.
	IsWait bool
	Until  time.Time
}

// Steps returns what is left to do until the node and its pods are as its state wants them, in order. It reads only
// what was observed, so that a controller that does one step, or one write, and is started again, comes to the same end.
//
//	Delegated, Unobserved   mark with label · tolerations without limit · the node's Ready Unknown · pods' Ready put back
//	Frozen                  mark · tolerations without limit · Ready handed back to Kubernetes
//	Lost                    mark · pods' Ready False · their own tolerations: the clock starts · Ready with the reason
//	Direct                  wait for the kubelet and for the taints to go · their own tolerations · no label, no mark
//	Released                as Direct if the node is Ready, else as Lost, with Ready handed back; then no mark
//
// Tolerations come before Ready, which makes kube-controller-manager taint the node. Of the pods, those that would be
// evicted first come first.
func Steps(o *Observed) []Step {
	s := steps{o: o}
	switch state := o.Record.State; {
	case state.isForwarded():
		s.mark(o.Record.String(), true)
		s.tolerations("tolerations without limit", WithoutLimit)
		s.ready("Ready is Unknown", unknown(o.Node, ReasonDelegated, messages[ReasonDelegated], o.Now))
		s.podsReady("put back Ready, which kube-controller-manager had made False", PutBackReady)
	case state == Frozen:
		s.mark(o.Record.String(), false)
		s.tolerations("tolerations without limit", WithoutLimit)
		s.ready("hand back Ready", handBack(o.Node, o.Now))
	case state == Lost:
		s.mark(o.Record.String(), false)
		s.podsReady("pods are not Ready", NotReady)
		s.tolerations("their own tolerations", WithOwnLimit)
		s.ready("Ready says why", unknown(o.Node, o.Record.Reason, messages[o.Record.Reason], o.Now))
	case state == Released && !IsReady(o.Node):
		s.release()
	default:
		s.settle()
	}
	return s.list
}

type steps struct {
	o    *Observed
	list []Step
}

// release has the steps of a node that is not Ready, and of which nothing of ours is to be left.
func (s *steps) release() {
	undo := steps{o: s.o}
	undo.podsReady("pods are not Ready", NotReady)
	undo.tolerations("their own tolerations", WithOwnLimit)
	undo.ready("hand back Ready", handBack(s.o.Node, s.o.Now))
	if len(undo.list) > 0 {
		s.mark(s.o.Record.String(), hasOurLabel(s.o.Node))
	}
	s.list = append(s.list, undo.list...)
	s.mark("", false)
}

// settle has the steps of a node that is back.
func (s *steps) settle() {
	record, rest := s.o.Record, Record{State: Direct}
	if record.State == Direct {
		// What remains to be kept once all is undone: a silence.
		rest.Silent, rest.Observed, rest.Beat = record.Silent, record.Observed, record.Beat
	}
	restored := steps{o: s.o}
	restored.tolerations("their own tolerations", WithOwnLimit)
	if len(restored.list) > 0 || hasOurLabel(s.o.Node) || isReadyOurs(s.o.Node) {
		if record.Since.IsZero() { // Somebody has removed the record, or made it unreadable.
			record.Since, record.Reason = s.o.Now.Truncate(time.Second), ReasonHeard
		}
		s.mark(record.String(), hasOurLabel(s.o.Node))
		s.awaitTaints(record.Since)
	}
	s.list = append(s.list, restored.list...)
	s.ready("hand back Ready", handBack(s.o.Node, s.o.Now))
	s.mark(rest.String(), false)
}

// awaitTaints waits until both taints have been gone for a while, counted from when the node was back at the earliest:
// the taints may come after that, because of a Ready that we wrote before.
func (s *steps) awaitTaints(since time.Time) {
	until := since.Add(settleLimit)
	if s.o.TaintsGone.IsZero() && IsReady(s.o.Node) { // kube-controller-manager is away: it lifts them when it is back
		until = s.o.Now.Add(settle)
	}
	if gone := latest(s.o.TaintsGone, since).Add(settle); !s.o.TaintsGone.IsZero() && IsReady(s.o.Node) && gone.Before(until) {
		until = gone
	}
	if until.After(s.o.Now) {
		s.list = append(s.list, Step{Note: "wait until the kubelet has written Ready and the taints are gone for 60 s", IsWait: true, Until: until})
	}
}

// mark writes the record and the label, in one write. "" is no record.
func (s *steps) mark(text string, isLabelled bool) {
	node := s.o.Node.DeepCopy()
	_, hasLabel := node.Labels[ExcludeLabel]
	before, hasMark := node.Annotations[Annotation]
	note := "mark"
	if text == "" {
		note = "remove the mark"
	}
	switch {
	case isLabelled && !hasLabel:
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[ExcludeLabel] = LabelValue
		note += ", put on the label"
	case !isLabelled && hasOurLabel(node):
		delete(node.Labels, ExcludeLabel)
		note += ", take off the label"
	case before == text && hasMark == (text != ""):
		return
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[Annotation] = text
	if text == "" {
		delete(node.Annotations, Annotation)
	}
	s.list = append(s.list, Step{Note: note, Node: node})
}

func (s *steps) ready(note string, node *corev1.Node) {
	if node != nil {
		s.list = append(s.list, Step{Note: note, Node: node, IsStatus: true})
	}
}

func (s *steps) tolerations(note string, change func(*corev1.Pod) *corev1.Pod) {
	s.pods(Step{Note: note}, change)
}

func (s *steps) podsReady(note string, change func(*corev1.Pod, time.Time) *corev1.Pod) {
	s.pods(Step{Note: note, IsStatus: true}, func(pod *corev1.Pod) *corev1.Pod { return change(pod, s.o.Now) })
}

func (s *steps) pods(step Step, change func(*corev1.Pod) *corev1.Pod) {
	for _, pod := range shortestFirst(s.o.Pods) {
		if changed := change(pod); changed != nil {
			step.Pods = append(step.Pods, changed)
		}
	}
	if len(step.Pods) > 0 {
		s.list = append(s.list, step)
	}
}

func hasOurLabel(node *corev1.Node) bool { return node.Labels[ExcludeLabel] == LabelValue }
