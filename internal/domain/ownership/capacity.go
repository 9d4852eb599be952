package ownership

import (
	"cmp"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Capacity has the values of the three keys about on-demand and spot nodes on one object. ""
// means that the key is absent. Values are not checked; package capacity parses them.
type Capacity struct{ Switch, Count, OnEmpty string }

// CapacityOf reads the three keys. An annotation takes precedence over a label.
func CapacityOf(annotations, labels map[string]string) Capacity {
	if len(annotations)+len(labels) == 0 {
		return Capacity{}
	}
	return Capacity{
		Switch: cut(cmp.Or(annotations[gm.CapacitySwitchKey], labels[gm.CapacitySwitchKey])),
		Count:  cut(cmp.Or(annotations[gm.CapacityCountKey], labels[gm.CapacityCountKey])),

		OnEmpty: cut(cmp.Or(annotations[gm.CapacityOnEmptyKey], labels[gm.CapacityOnEmptyKey])),
	}
}

// maxValue bounds the values of the three keys, in bytes. No valid value is as long.
const maxValue = 64

// cut returns the beginning of a value. It is copied, so that the rest is not kept in memory.
func cut(value string) string {
	if len(value) <= maxValue {
		return value
	}
	return strings.Clone(value[:maxValue])
}

// CapacityWorkload finds the workload whose pods are divided over capacity classes, in a
// chain without the pod. It is the topmost owner that has a number of replicas. If the direct
// owner is a StatefulSet it is the StatefulSet, because ordinals count within one.
//
// The result is nil for pods that are not interchangeable: those of Jobs and DaemonSets, and
// pods without an owner or with one that has no number of replicas.
func CapacityWorkload(owners []*Object) (workload *Object) {
	if len(owners) > 0 && owners[0].IsStatefulSet() {
		return owners[0]
	}
	for _, o := range owners {
		switch o.Kind {
		case "Job", "CronJob", "DaemonSet", "Pod":
			return nil
		}
		if o.Replicas != nil {
			workload = o
		}
	}
	if len(owners) > 0 && owners[0].Replicas == nil {
		return nil
	}
	return workload
}

// IsStatefulSet reports whether the object is a StatefulSet of the API group apps.
func (o *Object) IsStatefulSet() bool { return o.Kind == "StatefulSet" && o.Group == "apps" }
