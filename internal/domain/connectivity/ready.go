package connectivity

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What kube-controller-manager writes into the condition Ready of a Node that is silent.
const (
	kubernetesReason  = "NodeStatusUnknown"
	kubernetesMessage = "Kubelet stopped posting node status."
)

func readyOf(node *corev1.Node) *corev1.NodeCondition { return conditionOf(node, corev1.NodeReady) }

func conditionOf(node *corev1.Node, kind corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == kind {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}

// isReadyOurs reports whether Ready of the Node has a reason of ours.
func isReadyOurs(node *corev1.Node) bool {
	ready := readyOf(node)
	return ready != nil && messages[ready.Reason] != ""
}

// PodNotWritten is the type of a condition of a Node, and its reason: a pod of the node cannot be written, so that what was
// concluded about the node is carried out in part only. It is there as long as that is so.
const PodNotWritten = "AtollPodNotWritten"

// sayAgainAfter is after how long another message replaces that of the condition PodNotWritten.
const sayAgainAfter = time.Minute

// TellPodNotWritten returns the Node with the condition PodNotWritten and a message, and without the condition for ""; nil if
// it is so already, or had another message less than a minute ago.
func TellPodNotWritten(node *corev1.Node, message string, now time.Time) *corev1.Node {
	told := corev1.NodeCondition{Type: PodNotWritten, Status: corev1.ConditionTrue, Reason: PodNotWritten, LastTransitionTime: metav1.NewTime(now)}
	if before := conditionOf(node, PodNotWritten); before != nil {
		told = *before
	}
	if told.Message == message || message != "" && now.Sub(told.LastHeartbeatTime.Time) < sayAgainAfter {
		return nil
	}
	node = node.DeepCopy()
	node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == PodNotWritten })
	if told.Message, told.LastHeartbeatTime = message, metav1.NewTime(now); message != "" {
		node.Status.Conditions = append(node.Status.Conditions, told)
	}
	return node
}

// PostedAt returns when the kubelet of a node last wrote its status: nobody else changes that; zero for never.
func PostedAt(node *corev1.Node) time.Time {
	if ready := readyOf(node); ready != nil {
		return ready.LastHeartbeatTime.Time
	}
	return time.Time{}
}

// IsReady reports whether the node is Ready.
func IsReady(node *corev1.Node) bool {
	ready := readyOf(node)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// unknown returns the Node with Ready Unknown; nil if it is so already. lastHeartbeatTime stays: it is the kubelet's.
// A Node whose kubelet never wrote Ready is left alone.
func unknown(node *corev1.Node, reason, message string, now time.Time) *corev1.Node {
	ready := readyOf(node)
	if ready == nil || ready.Status == corev1.ConditionUnknown && ready.Reason == reason {
		return nil
	}
	changed := node.DeepCopy()
	ready = readyOf(changed)
	if ready.Status != corev1.ConditionUnknown {
		ready.LastTransitionTime = metav1.NewTime(now)
	}
	ready.Status, ready.Reason, ready.Message = corev1.ConditionUnknown, reason, message
	return changed
}

// handBack returns the Node with Ready as kube-controller-manager would have written it; nil if its reason is not ours.
func handBack(node *corev1.Node, now time.Time) *corev1.Node {
	if !isReadyOurs(node) {
		return nil
	}
	return unknown(node, kubernetesReason, kubernetesMessage, now)
}

// PutBackReady returns the pod with Ready True if nobody but kube-controller-manager has made it False: it changes
// Ready alone, and a kubelet writes it False only if a container or a readiness gate is not ready (docs/sources.md,
// N12). nil otherwise.
func PutBackReady(pod *corev1.Pod, now time.Time) *corev1.Pod {
	if isOver(pod) || podCondition(pod, corev1.ContainersReady) != corev1.ConditionTrue {
		return nil
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if podCondition(pod, gate.ConditionType) != corev1.ConditionTrue {
			return nil
		}
	}
	return setPodReady(pod, corev1.ConditionFalse, corev1.ConditionTrue, now)
}

// NotReady returns the pod with Ready False, as kube-controller-manager makes it when a node falls silent; nil if it is
// not True. It does not do so itself for a node whose Ready was Unknown before.
func NotReady(pod *corev1.Pod, now time.Time) *corev1.Pod {
	return setPodReady(pod, corev1.ConditionTrue, corev1.ConditionFalse, now)
}

func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return pod.Status.Conditions[i].Status
		}
	}
	return corev1.ConditionUnknown
}

func setPodReady(pod *corev1.Pod, from, to corev1.ConditionStatus, now time.Time) *corev1.Pod {
	if podCondition(pod, corev1.PodReady) != from {
		return nil
	}
	changed := pod.DeepCopy()
	for i := range changed.Status.Conditions {
		if c := &changed.Status.Conditions[i]; c.Type == corev1.PodReady {
			c.Status, c.LastTransitionTime = to, metav1.NewTime(now)
		}
	}
	return changed
}
