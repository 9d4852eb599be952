// Package gang decides what is in the PodGroup of pods that have none of their own
// (docs/sources.md, V1 to V9): how many must run together, what they need at the least, their queue
// and their priority. Which owner has the PodGroup is domain/ownership's to say.
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

// Name is the name of the PodGroup of an owner.
func Name(owner types.UID) string { return scheduling.PodGroupNamePrefix + string(owner) }

// OwnerOf is the UID of the owner whose PodGroup has the name, or "".
func OwnerOf(name string) types.UID {
	uid, found := strings.CutPrefix(name, scheduling.PodGroupNamePrefix)
	if !found {
		return ""
	}
	return types.UID(uid)
}

// Pod is what a PodGroup takes from the pods of one template.
type Pod struct {
	// Annotations are those of Annotations.
	Annotations map[string]string
	// Labels are those of Labels.
	Labels map[string]string
	// PriorityClassName is the pod's.
	PriorityClassName string
	// Usage is what one pod counts against a quota.
	Usage corev1.ResourceList
}

// PodGroup is what a PodGroup is to hold. What is empty is left to its default.
type PodGroup struct {
	MinMember         int32
	MinResources      corev1.ResourceList
	Queue             string
	PriorityClassName string
	NetworkTopology   *scheduling.NetworkTopologySpec
	Annotations       map[string]string
	Labels            map[string]string
	// Problems say which annotations could not be used, and what was taken instead.
	Problems []string
}

// Want computes a PodGroup. newest is a pod of the newest template; owners are the
// annotations of its owners, from the pod's controller up to the one that has the
// PodGroup; members is how many pods that one has at the most, nil if that is not known.
func Want(newest Pod, owners []map[string]string, members *int32) PodGroup {
	w := PodGroup{PriorityClassName: newest.PriorityClassName, Annotations: map[string]string{}, Labels: newest.Labels}
	says := append([]map[string]string{newest.Annotations}, owners...)
	w.MinMember = w.minMember(nearest(says, scheduling.MinMemberAnnotation), members)
	w.MinResources = times(newest.Usage, int64(w.MinMember))
	if queue := nearest(says, scheduling.QueueNameAnnotation); queue != "" {
		if len(validation.IsDNS1123Subdomain(queue)) > 0 {
			w.problem("%s is %.63q, which is no name of a queue: the default queue is used", scheduling.QueueNameAnnotation, queue)
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
	// The two exclude each other: the nearest that says either counts, and of both the first.
	for _, annotations := range says {
		_, least := annotations[scheduling.JDBMinAvailableAnnotation]
		_, most := annotations[scheduling.JDBMaxUnavailableAnnotation]
		if least {
			delete(w.Annotations, scheduling.JDBMaxUnavailableAnnotation)
		} else if most {
			delete(w.Annotations, scheduling.JDBMinAvailableAnnotation)
		}
		if least || most {
			break
		}
	}
	w.NetworkTopology = w.topology(newest.Annotations)
	return w
}

// podKeys are the annotations of a pod that its PodGroup has too.
var podKeys = []string{
	scheduling.PreemptableKey, scheduling.CooldownTimeKey, scheduling.RevocableZoneAnnotation,
	scheduling.JDBMinAvailableAnnotation, scheduling.JDBMaxUnavailableAnnotation,
}

// nearest is the value of a key in the first that has it.
func nearest(says []map[string]string, key string) string {
	for _, annotations := range says {
		if value, ok := annotations[key]; ok {
			return value
		}
	}
	return ""
}

func (w *PodGroup) problem(format string, args ...any) {
	w.Problems = append(w.Problems, fmt.Sprintf(format, args...))
}

// minMember is at least 1, and no more than there are pods: more would never come.
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

// Annotations keeps of an object's annotations those that have a say in PodGroups; nil
// if there are none.
func Annotations(all map[string]string) map[string]string {
	return keep(all, func(key string) bool {
		return key == scheduling.MinMemberAnnotation || key == scheduling.QueueNameAnnotation || strings.HasPrefix(key, scheduling.InheritedPrefix)
	})
}

// DependentsFirst tells whether an object is being deleted in the foreground: the garbage
// collector deletes whatever it owns before it, new objects too.
func DependentsFirst(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
}

// Orphans tells whether an object is being deleted without what it owns: the garbage
// collector takes the object out of the owners of each.
func Orphans(obj metav1.Object) bool {
	return obj.GetDeletionTimestamp() != nil && slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
}

// Labels keeps of a pod's labels those that its PodGroup has too; nil if there are none.
func Labels(all map[string]string) map[string]string {
	return keep(all, func(key string) bool { return key == scheduling.PreemptableKey || key == scheduling.CooldownTimeKey })
}

func keep(all map[string]string, wanted func(string) bool) (kept map[string]string) {
	for key, value := range all {
		if wanted(key) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[strings.Clone(key)] = strings.Clone(value)
		}
	}
	return kept
}
