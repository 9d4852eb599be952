package invariants

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/intstr"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
)

// unitedWorkload returns the judged fields of a UnitedDeployment.
func unitedWorkload(o *apps.UnitedDeployment) Workload {
	w := workload("UnitedDeployment", o, o.Spec.Replicas)
	w.Total = 0
	for i := range o.Spec.Topology.Pools {
		p := &o.Spec.Topology.Pools[i]
		w.Pools += "/" + p.Name + "/"
		if p.Replicas != nil && p.Replicas.Type == intstr.Int {
			w.Total += int(p.Replicas.IntVal)
		}
	}
	switch {
	case o.Spec.WorkloadTemplate.Type() == apps.DaemonSetTemplateType:
		w.Total = -1
	case o.Spec.Replicas != nil && len(o.Spec.Topology.Pools) > 0:
		w.Total = int(*o.Spec.Replicas)
	}
	s := &o.Status
	w.Done = s.ObservedGeneration == o.Generation && meta.IsStatusConditionTrue(s.Conditions, apps.PoolProvisioned) &&
		meta.IsStatusConditionFalse(s.Conditions, apps.PoolFailure)
	return w
}

// checkSums checks I12 for replicas: when the status of a UnitedDeployment reports that
// every pool has its workload and none a failure, the workloads of its pools together
// have the replicas of its spec.
func (c *checker) checkSums() {
	for key, t := range c.timelines {
		if _, ok := key.(workloadKey); !ok {
			continue
		}
		for _, v := range t {
			if ud, ok := v.object.(Workload); ok && ud.Kind == "UnitedDeployment" && ud.Done && ud.Total >= 0 && !v.Gap {
				c.checkSum(ud, v.Stamp)
			}
		}
	}
}

func (c *checker) checkSum(ud Workload, s Stamp) {
	var keys []any
	for key, t := range c.timelines {
		if slices.ContainsFunc(t, func(v version) bool {
			w, ok := v.object.(Workload)
			return ok && w.Owner == ud.UID
		}) {
			keys = append(keys, key)
		}
	}
	sum := 0
	for _, rv := range c.moments(s.Seen.Add(-c.Lag), s.RV, keys...) {
		sum = 0
		for _, key := range keys {
			w, ok := c.timelines[key].at(rv).(Workload)
			if ok && w.Owner == ud.UID && strings.Contains(ud.Pools, "/"+w.Pool+"/") {
				sum += w.Replicas
			}
		}
		if sum == ud.Total {
			return
		}
	}
	c.violate("I12", s, ud.name(), nil, "says that its pools are as wanted: they have %d replicas together, and its spec says %d", sum, ud.Total)
}

// poolRemoved reports whether a pod's workload was created for a pool that its
// UnitedDeployment did not have any more at some moment between two times.
func (c *checker) poolRemoved(ancestries []ancestry, from, to time.Time) bool {
	for _, a := range ancestries {
		for _, o := range a.chain {
			if o.OwnerKind != "UnitedDeployment" {
				continue
			}
			if slices.ContainsFunc(c.workloads(from, to), func(ud Workload) bool {
				return ud.UID == o.Owner && !strings.Contains(ud.Pools, "/"+o.Pool+"/")
			}) {
				return true
			}
		}
	}
	return false
}
