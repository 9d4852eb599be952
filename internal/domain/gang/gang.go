// Package gang decides the content of the PodGroups that atoll-manager creates for gang
// schedulers (docs/sources.md, V1 to V9): how many pods must run together, the resources that
// they need at least, their queue and their priority.
//
// Want computes a PodGroup. Applied and Changes decide which of its keys are written, so that
// keys that users or the scheduler changed stay. Package ownership selects the owner of a
// PodGroup.
package gang

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// Name returns the name of an owner's PodGroup.
func Name(owner types.UID) string { return scheduling.PodGroupNamePrefix + string(owner) }

// OwnerOf returns the UID of the owner of a PodGroup, from the PodGroup's name; "" if
// atoll-manager does not use such a name.
func OwnerOf(name string) types.UID {
	uid, found := strings.CutPrefix(name, scheduling.PodGroupNamePrefix)
	if !found {
		return ""
	}
	return types.UID(uid)
}

// Pod is the part of a pod that its PodGroup depends on. It is the same for all pods of one
// template.
type Pod struct {
	// Annotations are the result of the function Annotations.
	Annotations map[string]string
	// Labels are the result of the function Labels.
	Labels map[string]string
	// PriorityClassName is the pod's spec.priorityClassName.
	PriorityClassName string
	// Usage is the result of UsageOf.
	Usage corev1.ResourceList
}

// PodGroup is the wanted content of a PodGroup. The scheduler's defaults apply to fields that
// are empty.
type PodGroup struct {
	MinMember         int32
	MinResources      corev1.ResourceList
	Queue             string
	PriorityClassName string
	NetworkTopology   *scheduling.NetworkTopologySpec
	Annotations       map[string]string
	Labels            map[string]string
	// Problems are messages about annotations that are invalid, with the value that is used
	// instead.
	Problems []string
}

// Want computes a PodGroup. newest is a pod of the newest template. owners are the
// annotations of its owners, from the pod's controller up to the owner of the PodGroup.
// members is the highest number of pods of that owner, nil if it is not known.
//
// For each annotation, the object nearest to the pod that has it counts.
func Want(newest Pod, owners []map[string]string, members *int32) PodGroup {
	w := PodGroup{PriorityClassName: newest.PriorityClassName, Annotations: map[string]string{}, Labels: newest.Labels}
	sources := append([]map[string]string{newest.Annotations}, owners...) // nearest first
	w.MinMember = w.minMember(nearest(sources, scheduling.MinMemberAnnotation), members)
	w.MinResources = times(newest.Usage, int64(w.MinMember))
	if queue := nearest(sources, scheduling.QueueNameAnnotation); queue != "" {
		if len(validation.IsDNS1123Subdomain(queue)) > 0 {
			w.problem("%s is %.63q, which is not a valid name of a queue: the default queue is used", scheduling.QueueNameAnnotation, queue)
		} else {
			w.Queue = queue
		}
	}
	for i := len(owners) - 1; i >= 0; i-- {
		for key, value := range owners[i] {
			if strings.HasPrefix(key, scheduling.InheritedPrefix) {
				w.Annotations[key] = value
			}
		}
	}
	for _, key := range podKeys {
		if value, ok := newest.Annotations[key]; ok {
			w.Annotations[key] = value
		}
	}
	// The annotations for minAvailable and maxUnavailable exclude each other. The nearest
	// object with either decides; if it has both, minAvailable counts.
	for _, annotations := range sources {
		_, hasMin := annotations[scheduling.JDBMinAvailableAnnotation]
		_, hasMax := annotations[scheduling.JDBMaxUnavailableAnnotation]
		if hasMin {
			delete(w.Annotations, scheduling.JDBMaxUnavailableAnnotation)
		} else if hasMax {
			delete(w.Annotations, scheduling.JDBMinAvailableAnnotation)
		}
		if hasMin || hasMax {
			break
		}
	}
	w.NetworkTopology = w.topology(newest.Annotations)
	return w
}

// podKeys are the annotations that a PodGroup takes from its pods.
var podKeys = []string{
	scheduling.PreemptableKey, scheduling.CooldownTimeKey, scheduling.RevocableZoneAnnotation,
	scheduling.JDBMinAvailableAnnotation, scheduling.JDBMaxUnavailableAnnotation,
}

// nearest returns the value of a key in the first source that has it, "" if none has.
func nearest(sources []map[string]string, key string) string {
	for _, annotations := range sources {
		if value, ok := annotations[key]; ok {
			return value
		}
	}
	return ""
}

func (w *PodGroup) problem(format string, args ...any) {
	w.Problems = append(w.Problems, fmt.Sprintf(format, args...))
}

// minMember parses the number of pods that must run together. It returns at least 1, and at
// most members: the scheduler would wait for more pods without end.
func (w *PodGroup) minMember(text string, members *int32) int32 {
	n := int64(1)
	if text != "" {
		var err error
		if n, err = strconv.ParseInt(text, 10, 32); err != nil || n < 0 {
			w.problem("%s is %.63q: it must be an integer from 0 to 2147483647; 1 is used", scheduling.MinMemberAnnotation, text)
			n = 1
		}
	}
	if members != nil {
		n = min(n, int64(*members))
	}
	return int32(max(n, 1))
}

// topology parses the annotations about the network topology, nil if there are none.
func (w *PodGroup) topology(annotations map[string]string) *scheduling.NetworkTopologySpec {
	mode, hasMode := annotations[scheduling.NetworkTopologyModeAnnotation]
	tier, hasTier := annotations[scheduling.NetworkTopologyHighestTierAnnotation]
	if !hasMode && !hasTier {
		return nil
	}
	out := &scheduling.NetworkTopologySpec{Mode: scheduling.NetworkTopologyHard}
	switch m := scheduling.NetworkTopologyMode(strings.ToLower(mode)); {
	case m == scheduling.NetworkTopologyHard || m == scheduling.NetworkTopologySoft:
		out.Mode = m
	case hasMode:
		w.problem("%s is %.63q: it must be hard or soft; hard is used", scheduling.NetworkTopologyModeAnnotation, mode)
	}
	if hasTier {
		n, err := strconv.ParseInt(tier, 10, 32)
		if err != nil || n < 0 {
			w.problem("%s is %.63q: it must be an integer of at least 0; no tier is set", scheduling.NetworkTopologyHighestTierAnnotation, tier)
		} else {
			out.HighestTierAllowed = new(int(n))
		}
	}
	return out
}

// Annotations returns those of an object's annotations that PodGroups use, nil if there are
// none.
func Annotations(all map[string]string) map[string]string {
	return filter(all, func(key string) bool {
		return key == scheduling.MinMemberAnnotation || key == scheduling.QueueNameAnnotation || strings.HasPrefix(key, scheduling.InheritedPrefix)
	})
}

// DependentsFirst reports whether an object is being deleted in the foreground. The garbage
// collector then deletes everything that the object owns before it, new objects too.
func DependentsFirst(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// Orphans reports whether an object is being deleted and what it owns stays. The garbage
// collector removes the object from the owner references of those.
func Orphans(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// Labels returns those of a pod's labels that its PodGroup gets too, nil if there are none.
func Labels(all map[string]string) map[string]string {
	return filter(all, func(key string) bool { return key == scheduling.PreemptableKey || key == scheduling.CooldownTimeKey })
}

// maxValue and maxKept bound what filter keeps of an object: the bytes of one value, and the
// number of keys. Users write both, and they are kept for every object.
const maxValue, maxKept = 512, 8

// filter copies the wanted keys, of too many the first ones in alphabetical order. It leaves
// out values that are too long. It clones the strings, because they may be substrings of a
// large decoded object that would stay in memory.
func filter(all map[string]string, wanted func(string) bool) (kept map[string]string) {
	var keys []string
	for key, value := range all {
		if wanted(key) && len(value) <= maxValue {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	slices.Sort(keys)
	kept = map[string]string{}
	for _, key := range keys[:min(len(keys), maxKept)] {
		kept[strings.Clone(key)] = strings.Clone(all[key])
	}
	return kept
}
