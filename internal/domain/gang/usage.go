package gang

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
)

// maxResources bounds what is kept of a pod: users write the names.
const maxResources = 32

// UsageOf returns the usage of one pod as a ResourceQuota counts it, under the quota's names
// (such as requests.cpu and count/pods). Requests are also there under the plain names of
// their resources: gang schedulers compare the usage with quotas and with the capacity of
// nodes. Of huge pages and extended resources it has the first maxResources in alphabetical
// order.
func UsageOf(pod *corev1.Pod) corev1.ResourceList {
	one := resource.MustParse("1")
	usage := corev1.ResourceList{corev1.ResourcePods: one, "count/pods": one}
	requests := helpers.PodRequests(pod, helpers.PodResourcesOptions{})
	others := 0
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		switch {
		case name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
		case strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix), isExtended(name):
			if others++; others > maxResources {
				continue
			}
			name = corev1.ResourceName(strings.Clone(string(name))) // not a part of a large pod in memory
		default:
			continue
		}
		q := requests[name]
		usage[name], usage[corev1.DefaultResourceRequestsPrefix+name] = q, q
	}
	for name, q := range helpers.PodLimits(pod, helpers.PodResourcesOptions{}) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			usage["limits."+name] = q
		}
	}
	return usage
}

// isExtended reports whether the name is that of an extended resource.
func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix)
}

// times multiplies each quantity by n.
func times(usage corev1.ResourceList, n int64) corev1.ResourceList {
	out := make(corev1.ResourceList, len(usage))
	for name, q := range usage {
		q = q.DeepCopy()
		q.Mul(n)
		out[name] = q
	}
	return out
}
