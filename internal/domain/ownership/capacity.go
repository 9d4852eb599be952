package ownership

import (
	"cmp"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Capacity is what an object says about on-demand and spot nodes: the
// values of the three keys. Empty is absent.
type Capacity struct{ Switch, Count, OnEmpty string }

// CapacityOf reads the keys, of each the annotation before the label.
func CapacityOf(annotations, labels map[string]string) Capacity {
	if len(annotations)+len(labels) == 0 {
		return Capacity{}
	}
	return Capacity{
		Switch: cmp.Or(annotations[gm.CapacitySwitchKey], labels[gm.CapacitySwitchKey]),
		Count:  cmp.Or(annotations[gm.CapacityCountKey], labels[gm.CapacityCountKey]),

		OnEmpty: cmp.Or(annotations[gm.CapacityOnEmptyKey], labels[gm.CapacityOnEmptyKey]),
	}
}

// CapacityWorkload picks, from a chain without the pod, the workload whose pods
// are divided over classes of capacity: the topmost owner that says how many pods
// it wants, but a StatefulSet speaks for itself, whatever made it. It is nil for
// pods whose owners do not make each as good as any other: those of Jobs and
// DaemonSets, and pods without an owner.
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

// IsStatefulSet tells whether the object is one of Kubernetes' own.
func (o *Object) IsStatefulSet() bool { return o.Kind == "StatefulSet" && o.Group == "apps" }
