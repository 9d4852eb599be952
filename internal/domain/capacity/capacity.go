// Package capacity decides which pods of a workload run on on-demand nodes and which on spot
// nodes (docs/sources.md, C1 to C14). Users set the number of on-demand pods; the rest are
// spot.
//
// Read parses a workload's settings, Next and OfOrdinal choose the class of a new pod, and
// Classes defines which nodes are of a class and restricts pods to them. The ledger
// (internal/seats) counts pods and serializes decisions; this package must not.
package capacity

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Class is a capacity class of nodes and pods.
type Class int8

const (
	// None: no class, or not known.
	None Class = iota
	// OnDemand nodes stay until they are deleted.
	OnDemand
	// Spot nodes may be taken away by the cloud provider at any time.
	Spot
)

// String returns the class as labels and columns show it, "" for None.
func (c Class) String() string {
	return [...]string{None: "", OnDemand: "on-demand", Spot: "spot"}[c]
}

// ParseClass is the inverse of String. Any other text is None.
func ParseClass(s string) Class {
	switch s {
	case OnDemand.String():
		return OnDemand
	case Spot.String():
		return Spot
	default:
		return None
	}
}

// Other returns the other class, None for None.
func (c Class) Other() Class {
	switch c {
	case OnDemand:
		return Spot
	case Spot:
		return OnDemand
	default:
		return None
	}
}

// Source has the values of the three capacity keys of one object. "" means that the key is
// absent.
type Source struct{ Switch, Count, OnEmpty string }

// Settings are the capacity settings of a workload, joined from the workload, its pod
// template and its namespace.
type Settings struct {
	// On is true if the workload's pods are divided over the classes. The default is false.
	On bool
	// Count is the highest number of on-demand pods, from 0. The default is MaxCount.
	Count int
	// Fallback: if a class has had no node for some time, its pods get the other class. The
	// default is false: they wait.
	Fallback bool
	// Invalid is the first error in a value, nil if all are valid. An invalid value counts as
	// absent, but hides the values of sources after it.
	Invalid error
}

// NamesNode is the value of gm.CapacityReasonAnnotation on a pod that has its class because
// its owner created it for one node, as a DaemonSet does.
const NamesNode = "its owner names the node"

// MaxCount is the highest count, and means that all pods are on-demand.
const MaxCount = math.MaxInt32

// Read joins sources in order of precedence, the workload first. For each key, the first
// source that has it counts.
func Read(sources ...Source) Settings {
	s := Settings{Count: MaxCount}
	for _, source := range sources {
		if source.Switch != "" {
			if on, err := parseSwitch(source.Switch); err == nil {
				s.On = on
			} else {
				s.Invalid = err
			}
			break
		}
	}
	for _, source := range sources {
		if source.Count != "" {
			if count, err := parseCount(source.Count); err == nil {
				s.Count = count
			} else if s.Invalid == nil {
				s.Invalid = err
			}
			break
		}
	}
	for _, source := range sources {
		if source.OnEmpty != "" {
			fallback, err := parseOnEmpty(source.OnEmpty)
			s.Fallback = fallback
			if s.Invalid == nil && err != nil {
				s.Invalid = err
			}
			break
		}
	}
	return s
}

// parseOnEmpty parses whether pods fall back to the other class.
func parseOnEmpty(s string) (fallback bool, err error) {
	switch s {
	case gm.OnEmptyFallback:
		return true, nil
	case gm.OnEmptyWait:
		return false, nil
	default:
		return false, fmt.Errorf("%.64q is neither %s nor %s", s, gm.OnEmptyWait, gm.OnEmptyFallback)
	}
}

// WithoutNodes returns the count that applies to a workload with Fallback while the class
// empty has no nodes: all pods get the other class. Without an empty class it is count.
func WithoutNodes(count int, empty Class) int {
	switch empty {
	case OnDemand:
		return 0
	case Spot:
		return MaxCount
	default:
		return count
	}
}

// parseSwitch parses the switch: true or false.
func parseSwitch(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("%.64q is neither true nor false", s)
	}
}

// parseCount parses the number of on-demand pods: an integer from 0 to MaxCount.
func parseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%.64q is not an integer from 0 to %d", s, MaxCount)
	}
	return int(n), nil
}

// Divide returns how many of n pods are of each class when no rollout is in progress.
func Divide(n, count int) (onDemand, spot int) {
	onDemand = max(0, min(n, count))
	return onDemand, max(0, n) - onDemand
}

// Wants reports whether Divide gives the class at least one of n pods.
func Wants(class Class, n, count int) bool {
	var pods [3]int
	pods[OnDemand], pods[Spot] = Divide(n, count)
	return pods[class] > 0
}

// Revision is another revision of a workload in a rollout.
type Revision struct {
	// OnDemand is the number of its on-demand pods.
	OnDemand int
	// Replicas is the number of pods that it should have now.
	Replicas int
}

// Next returns the class of the next pod of a revision that has own on-demand pods.
//
// While several revisions have pods, at most count + surge pods are on-demand together. Of
// another revision at most Replicas pods count, because the pods beyond are about to be
// deleted. With this, rollouts end with the exact count except in very rare orders of
// events. A limit of count without surge would leave half of the rollouts with too few
// on-demand pods.
func Next(own int, others []Revision, count, surge int) Class {
	if own >= count {
		return Spot
	}
	sum := own
	for _, o := range others {
		sum += max(0, min(o.OnDemand, o.Replicas))
	}
	if sum >= count+max(0, surge) {
		return Spot
	}
	return OnDemand
}

// OfOrdinal returns the class of a StatefulSet's pod: the count lowest ordinals, from start,
// are on-demand. It needs no counting of pods.
func OfOrdinal(ordinal, start, count int) Class {
	if ordinal-start < count {
		return OnDemand
	}
	return Spot
}

// Ordinal parses the ordinal of a StatefulSet's pod from the pod's name.
func Ordinal(pod string) (ordinal int, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i < 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(pod[i+1:], 10, 31)
	return int(n), err == nil
}
