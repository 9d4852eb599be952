package usage

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	// minWindow and maxWindow bound the time between two measurements of which a rate is made. Kubelets measure every
	// ten seconds or so; a longer time is that of a clock that was set.
	minWindow, maxWindow = time.Second, 5 * time.Minute
	// maxCores bounds a rate: no node has more.
	maxCores = 1e6
)

// series is what is known of a node or a container.
type series struct {
	last     point
	since    time.Time     // when last was read, by the clock of this process
	window   time.Duration // 0: a second measurement is missing
	cores    float64       // on average over the window
	measured bool          // whether there is a rate
}

// next returns the series with one more measurement, read now. It begins anew if the container was, or if the clock
// of the node was set.
func (s series) next(p point, now time.Time) series {
	begun := series{last: p, since: now}
	if s.since.IsZero() {
		return begun
	}
	window := p.at.Sub(s.last.at)
	if window >= 0 && window < minWindow && p.seconds >= s.last.seconds { // it is the same measurement
		return s
	}
	cores := (p.seconds - s.last.seconds) / window.Seconds()
	if window < minWindow || window > maxWindow || cores < 0 || cores > maxCores {
		return begun
	}
	begun.window, begun.cores, begun.measured = window, cores, true
	return begun
}

// isShown reports whether there is a rate, of measurements that are not too old.
func (s series) isShown(now time.Time) bool { return s.measured && now.Sub(s.since) <= keepFor }

func (s series) usage() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(s.cores*1e9), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(s.last.bytes), resource.BinarySI),
	}
}
