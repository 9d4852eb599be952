package seats

import "slices"

// intern replaces parts of a pod by equal parts of the pod of the cohort that was observed
// before, so that one copy stays in memory: most of what is stored of thousands of pods is
// the same text. It must be called before the pod is stored anywhere.
func (c *cohort) intern(pod *Pod) {
	like := c.like
	c.like = pod
	if like == nil {
		return
	}
	intern(&pod.Namespace, like.Namespace)
	intern(&pod.Scheduler, like.Scheduler)
	if slices.Equal(pod.Marks, like.Marks) {
		pod.Marks = like.Marks
	}
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
		intern(&mine.Name, others.Name)
		intern(&mine.Image, others.Image)
	}
}

// intern replaces a string by the stored one if both have the same text.
func intern(text *string, stored string) {
	if *text == stored {
		*text = stored
	}
}
