package invariants

import (
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// checkClasses checks I1.
func (c *checker) checkClasses() {
	pods := map[types.UID][]any{} // by workload
	for _, key := range c.pods {
		if pod, ok := c.timelines[key].last().(Pod); ok && pod.Owner != "" {
			pods[c.topOf(pod.Owner)] = append(pods[c.topOf(pod.Owner)], key)
		}
	}
	for workload, keys := range pods {
		for _, key := range keys {
			c.checkClass(workload, keys, c.timelines[key])
		}
	}
}

// topOf returns the workload that owns an owner of pods, or that owner itself.
func (c *checker) topOf(owner types.UID) types.UID {
	if w, ok := c.timelines[workloadKey(owner)].last().(Workload); ok && w.Owner != "" {
		return w.Owner
	}
	return owner
}

// checkClass judges the moment at which a pod became on-demand.
func (c *checker) checkClass(workload types.UID, all []any, t timeline) {
	for i := range t {
		pod, ok := t[i].object.(Pod)
		if !ok || pod.Class != onDemand {
			continue
		}
		if before, ok := t[:i].last().(Pod); ok && before.Class == onDemand || i == 0 && t[i].RV <= c.First {
			return
		}
		if t[i].Gap {
			c.report.Unjudged++
			return
		}
		c.judgeClass(workload, all, pod, t[i].Stamp)
		return
	}
}

func (c *checker) judgeClass(workload types.UID, all []any, pod Pod, s Stamp) {
	most, ordinal, known := 0, false, false
	for _, rv := range c.moments(s.Seen.Add(-c.Lag), s.RV, workloadKey(workload)) {
		w, ok := get[Workload](c.History, workloadKey(workload), rv)
		count, err := strconv.Atoi(w.Count)
		if !ok || err != nil {
			continue
		}
		if w.Fallback || w.SelectsClass {
			return
		}
		known = true
		most = max(most, count+w.Surge)
		if n, err := strconv.Atoi(pod.Name[strings.LastIndexByte(pod.Name, '-')+1:]); err == nil && n-w.FirstOrdinal < count {
			ordinal = true
		}
	}
	if !known {
		return // set on its template or its namespace
	}
	c.report.OnDemand++
	if pod.OwnerKind == "StatefulSet" {
		if !ordinal {
			c.violate("I1", s, pod.name(), []any{pod.key(), workloadKey(workload)}, "is on-demand, and not of the first ordinals")
		}
		return
	}
	have := 0
	for _, key := range all {
		if other, ok := get[Pod](c.History, key, s.RV); ok && other.Active && other.Class == onDemand && c.classAt(other, s.RV) != "spot" { // the class of its node may have changed
			have++
		}
	}
	if have > most {
		c.violate("I1", s, pod.name(), append([]any{workloadKey(workload)}, all...), "is on-demand pod %d of its workload, which may have %d", have, most)
	}
}

const onDemand = "on-demand"
