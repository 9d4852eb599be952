// Package capacity decides which pods of a workload run on on-demand nodes and
// which on spot nodes (docs/sources.md, C1 to C14): so many on-demand, the rest spot, exactly.
//
// It is pure: what there is comes in, what is to be goes out. Who counts pods,
// and who keeps two decisions from taking the same place, is internal/seats.
package capacity

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// Class is a class of capacity.
type Class int8

const (
	// None: neither, or not known.
	None Class = iota
	// OnDemand is capacity that stays.
	OnDemand
	// Spot is capacity that its owner may take back at any time.
	Spot
)

// String is the class as labels and columns have it; "" is None.
func (c Class) String() string {
	return [...]string{None: "", OnDemand: "on-demand", Spot: "spot"}[c]
}

// ParseClass is the inverse of String. What is no class is None.
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

// Other is the other class; that of None is None.
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

// Source is what one object says under the keys of on-demand and spot nodes. Empty is
// absent.
type Source struct{ Switch, Count, OnEmpty string }

// Settings are what a workload, its pod template and its namespace say together.
type Settings struct {
	// On: the workload's pods are divided.
	On bool
	// Count is the number of on-demand pods at most, from 0. Without a count it
	// is more than any workload has pods.
	Count int
	// Fallback: pods of a class that has had no node for long get the other one.
	Fallback bool
	// Invalid says which value cannot be used; nil if all can. A switch that
	// cannot be used counts as absent, and so does a count.
	Invalid error
}

// NamesNode is why a pod is of the class that it is, which its owner made for one
// node: gm.CapacityReasonAnnotation.
const NamesNode = "its owner names the node"

// MaxCount is the highest count, and stands for no count at all.
const MaxCount = math.MaxInt32

// Read joins sources, the nearest first: of each key the first that says
// something counts.
func Read(sources ...Source) Settings {
	s := Settings{Count: MaxCount}
	for _, source := range sources {
		if source.Switch != "" {
			if on, err := ParseSwitch(source.Switch); err == nil {
				s.On = on
			} else {
				s.Invalid = err
			}
			break
		}
	}
	for _, source := range sources {
		if source.Count != "" {
			if count, err := ParseCount(source.Count); err == nil {
				s.Count = count
			} else if s.Invalid == nil {
				s.Invalid = err
			}
			break
		}
	}
	for _, source := range sources {
		if source.OnEmpty != "" {
			fallback, err := ParseOnEmpty(source.OnEmpty)
			s.Fallback = fallback
			if s.Invalid == nil && err != nil {
				s.Invalid = err
			}
			break
		}
	}
	return s
}

// ParseOnEmpty tells whether pods fall back to the other class.
func ParseOnEmpty(s string) (fallback bool, err error) {
	switch s {
	case gm.OnEmptyFallback:
		return true, nil
	case gm.OnEmptyWait:
		return false, nil
	default:
		return false, fmt.Errorf("%.64q is neither %s nor %s", s, gm.OnEmptyWait, gm.OnEmptyFallback)
	}
}

// WithoutNodes is the count that is in force while one class has no nodes and pods
// fall back to the other.
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

// ParseSwitch reads the switch: true or false.
func ParseSwitch(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, fmt.Errorf("%.64q is neither true nor false", s)
	}
}

// ParseCount reads a count of on-demand pods: a whole number from 0 to MaxCount.
func ParseCount(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%.64q is no whole number from 0 to %d", s, MaxCount)
	}
	return int(n), nil
}

// Divide is how n pods divide at rest.
func Divide(n, count int) (onDemand, spot int) {
	onDemand = max(0, min(n, count))
	return onDemand, max(0, n) - onDemand
}

// Wants tells whether some of n pods are to be of a class.
func Wants(class Class, n, count int) bool {
	var of [3]int
	of[OnDemand], of[Spot] = Divide(n, count)
	return of[class] > 0
}

// Revision is what there is of another revision of a workload.
type Revision struct {
	// OnDemand is the number of its on-demand pods.
	OnDemand int
	// Replicas is the number of pods that it is to have now.
	Replicas int
}

// Next is the class of the next pod of a revision that has own on-demand pods.
// While several revisions have pods, at most count + surge are on-demand, and of
// another revision only as many count as it is to keep: those that it gives up
// are about to go. Rollouts end exact with this in all but the rarest orders of
// events; holding all revisions to count alone would leave half of them with too
// few on-demand pods.
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

// OfOrdinal is the class of a StatefulSet's pod: those with the lowest ordinals
// are on-demand. Nothing has to be counted.
func OfOrdinal(ordinal, start, count int) Class {
	if ordinal-start < count {
		return OnDemand
	}
	return Spot
}

// Ordinal reads the ordinal of a StatefulSet's pod from its name.
func Ordinal(pod string) (ordinal int, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i < 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(pod[i+1:], 10, 31)
	return int(n), err == nil
}
