package connectivity

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// taints are the keys of the NoExecute taints by which kube-controller-manager evicts from a node that is not Ready.
var taints = []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}

// HasTaints reports whether the node has one of the taints that evict from a node that is not Ready.
func HasTaints(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && slices.Contains(taints, t.Key)
	})
}

// matches reports whether a toleration is for one of the taints, by the rules of kube-controller-manager. The taints
// have no value, so that the operators Lt and Gt never match them.
func matches(t *corev1.Toleration, taint string) bool {
	if t.Effect != "" && t.Effect != corev1.TaintEffectNoExecute || t.Key != "" && t.Key != taint {
		return false
	}
	return t.Operator == corev1.TolerationOpExists || (t.Operator == "" || t.Operator == corev1.TolerationOpEqual) && t.Key != "" && t.Value == ""
}

func matchesAny(t *corev1.Toleration) bool {
	return slices.ContainsFunc(taints, func(taint string) bool { return matches(t, taint) })
}

// isKept reports whether the pod's tolerations are changed at all. DaemonSets' pods tolerate the taints for ever; the
// API server's copy of a static pod does not evict it; a pod that is over or being deleted has nothing to keep; one
// that the kubelet never took is better off elsewhere. A coordinator moves when its node is away.
func isKept(pod *corev1.Pod) bool {
	_, isMirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	owner := metav1.GetControllerOfNoCopy(pod)
	return !isMirror && (owner == nil || owner.Kind != "DaemonSet") && pod.Status.StartTime != nil && pod.DeletionTimestamp == nil &&
		!isOver(pod) && pod.Namespace != coordinators
}

// coordinators is the namespace of the pods of coordinators.
const coordinators = "atoll-pools"

func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// WithoutLimit returns the pod with tolerations of the taints that never end, and with TolerationsAnnotation, which has
// what they were; nil if nothing is to change. A taint that the pod does not tolerate gets a toleration, which was 0 s.
func WithoutLimit(pod *corev1.Pod) *corev1.Pod {
	if !isKept(pod) {
		return nil
	}
	kept, before, isChanged := pod.DeepCopy(), originals(pod), false
	var own []corev1.Toleration
	for i := range kept.Spec.Tolerations {
		t := &kept.Spec.Tolerations[i]
		if !matchesAny(t) {
			continue
		}
		original, found := before.take(t)
		if t.TolerationSeconds != nil || !found {
			// What is on the pod now is newer than what is noted.
			original = *t.DeepCopy()
		}
		own = append(own, original)
		isChanged = isChanged || t.TolerationSeconds != nil
		t.TolerationSeconds = nil
	}
	for _, taint := range taints {
		if !slices.ContainsFunc(kept.Spec.Tolerations, func(t corev1.Toleration) bool { return matches(&t, taint) }) {
			added := corev1.Toleration{Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
			kept.Spec.Tolerations = append(kept.Spec.Tolerations, added)
			added.TolerationSeconds = new(int64)
			own, isChanged = append(own, added), true
		}
	}
	if !isChanged {
		return nil
	}
	metav1.SetMetaDataAnnotation(&kept.ObjectMeta, TolerationsAnnotation, encode(own))
	return kept
}

// WithOwnLimit returns the pod with its own tolerations and without TolerationsAnnotation; nil if it has none. A
// toleration that was added cannot be removed from a pod: it stays with 0 s, which evicts as none would. One that
// somebody has changed meanwhile stays as it is. So no number becomes another number: that would not move an eviction
// that is scheduled. If the annotation cannot be read, the tolerations stay without limit.
func WithOwnLimit(pod *corev1.Pod) *corev1.Pod {
	if _, ok := pod.Annotations[TolerationsAnnotation]; !ok {
		return nil
	}
	own, before := pod.DeepCopy(), originals(pod)
	delete(own.Annotations, TolerationsAnnotation)
	for i := range own.Spec.Tolerations {
		t := &own.Spec.Tolerations[i]
		if original, found := before.take(t); found && t.TolerationSeconds == nil && t.Effect == corev1.TaintEffectNoExecute { // no other one may have seconds: somebody has written the annotation
			t.TolerationSeconds = original.TolerationSeconds
		}
	}
	return own
}

// noted are the tolerations in TolerationsAnnotation: all that match the taints, in the order of the pod.
type noted []corev1.Toleration

func originals(pod *corev1.Pod) noted {
	var list noted
	if err := json.Unmarshal([]byte(pod.Annotations[TolerationsAnnotation]), &list); err != nil {
		return nil
	}
	return list
}

// take removes and returns the first toleration that is like t but for its seconds.
func (n *noted) take(t *corev1.Toleration) (corev1.Toleration, bool) {
	i := slices.IndexFunc(*n, func(o corev1.Toleration) bool {
		return o.Key == t.Key && o.Operator == t.Operator && o.Value == t.Value && o.Effect == t.Effect
	})
	if i < 0 {
		return corev1.Toleration{}, false
	}
	original := (*n)[i]
	*n = slices.Delete(*n, i, i+1)
	return original, true
}

func encode(list []corev1.Toleration) string {
	raw, err := json.Marshal(list)
	if err != nil {
		panic(err) // Strings and numbers always encode.
	}
	return string(raw)
}

// tolerance returns after how many seconds the pod may be evicted from a node with the taints.
func tolerance(pod *corev1.Pod) int64 {
	shortest := int64(math.MaxInt64)
	for _, taint := range taints {
		tolerated := false
		for i := range pod.Spec.Tolerations {
			t := &pod.Spec.Tolerations[i]
			if matches(t, taint) {
				tolerated = true
				if t.TolerationSeconds != nil {
					shortest = min(shortest, max(0, *t.TolerationSeconds))
				}
			}
		}
		if !tolerated {
			return 0
		}
	}
	return shortest
}

// shortestFirst sorts pods, those first that would be evicted first.
func shortestFirst(pods []*corev1.Pod) []*corev1.Pod {
	return slices.SortedStableFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(cmp.Compare(tolerance(a), tolerance(b)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
