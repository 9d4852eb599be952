package seats

import "slices"

// shareLocked lets a pod share with another of its cohort, and with its node,
// what is equal: most of what is kept of thousands of pods is the same text.
// Nobody else knows the pod yet.
func (l *Ledger) shareLocked(pod *Pod, c *cohort) {
	if n := l.nodes[pod.Node]; n != nil {
		share(&pod.Node, n.Name)
	}
	like := c.like
	c.like = pod
	if like == nil {
		return
	}
	share(&pod.Namespace, like.Namespace)
	if pod.Controller != nil && like.Controller != nil && *pod.Controller == *like.Controller {
		pod.Controller = like.Controller
	}
	if pod.Policies == like.Policies {
		pod.Policies = like.Policies
	}
	if pod.Demand.Equal(like.Demand) {
		pod.Demand = like.Demand
	}
	pod.Revision = c.key.Revision
	if slices.Equal(pod.Containers, like.Containers) {
		pod.Containers = like.Containers
		return
	}
	for i := range pod.Containers {
		if i == len(like.Containers) {
			return
		}
		mine, others := &pod.Containers[i], &like.Containers[i]
		share(&mine.Name, others.Name)
		share(&mine.Image, others.Image)
	}
}

// share makes a string the other one, whose text it has.
func share(mine *string, other string) {
	if *mine == other {
		*mine = other
	}
}
