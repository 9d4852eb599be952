package ownership

import "strings"

// LevelRule says at which owner the PodGroup of a pod is, for pods that have an
// owner of one kind above them (docs/sources.md, V3 to V5).
type LevelRule struct {
	// Group is the API group of the kind; "" is the core group.
	Group string
	// AnyGroup: the group does not matter.
	AnyGroup bool
	// Version is the version of the kind. It matters only with ExactVersion.
	Version string
	// ExactVersion: a reference to another version of the kind does not match.
	ExactVersion bool
	// Kind is compared without regard to case.
	Kind string
	// Adjust is how many steps from the owner that matches the PodGroup is: below 0
	// towards the pod, above 0 towards the topmost owner.
	Adjust int
}

// NoMatch says who owns the PodGroup of a pod that no rule is about.
type NoMatch string

const (
	// NoMatchDirectOwner is the pod's controller, or the pod where it has none.
	NoMatchDirectOwner NoMatch = "DirectOwner"
	// NoMatchRoot is the topmost owner.
	NoMatchRoot NoMatch = "Root"
)

// Levels are the rules by which the owner of a PodGroup is chosen. The zero value has
// no rule.
type Levels struct {
	Rules []LevelRule
	// NoMatch is used where no rule matches. Unset is NoMatchDirectOwner.
	NoMatch NoMatch
	// MovePending: a pod that has no node yet changes to the PodGroup that new rules
	// choose. Pods that have one never do.
	MovePending bool
	// AtMostDirectOwner: no PodGroup is above the pod's controller, whatever the rules
	// say.
	AtMostDirectOwner bool
}

// Level is the choice for one pod.
type Level struct {
	// Index is the place of the owner in the chain; 0 is the pod itself.
	Index int
	// Rule is the index of the rule that matched, or -1.
	Rule int
	// Clamped: the rule points beyond an end of the chain, and the end was taken.
	Clamped bool
}

// Select chooses from a chain that begins with the pod and ends with its topmost known
// owner. The owner nearest to the pod that a rule matches decides; of several rules
// that match it, the first. The chain must not be empty.
func (l *Levels) Select(chain []*Object) Level {
	level := l.match(chain)
	if l.AtMostDirectOwner {
		level.Index = min(level.Index, 1)
	}
	return level
}

func (l *Levels) match(chain []*Object) Level {
	top := len(chain) - 1
	for i, o := range chain[1:] {
		version := o.Version
		if ref := chain[i].Controller; ref != nil {
			version = ref.Version // whichever version of the kind was read
		}
		for r := range l.Rules {
			if !l.Rules[r].matches(o, version) {
				continue
			}
			// Adjust may be any int: compare before adding.
			at, adjust := i+1, l.Rules[r].Adjust
			switch {
			case adjust < -at:
				return Level{Index: 0, Rule: r, Clamped: true}
			case adjust > top-at:
				return Level{Index: top, Rule: r, Clamped: true}
			}
			return Level{Index: at + adjust, Rule: r}
		}
	}
	if l.NoMatch == NoMatchRoot {
		return Level{Index: top, Rule: -1}
	}
	return Level{Index: min(1, top), Rule: -1}
}

// matches tells whether a rule is about the kind of an owner, which is referred to in a
// version.
func (r *LevelRule) matches(o *Object, version string) bool {
	if !strings.EqualFold(r.Kind, o.Kind) || r.ExactVersion && r.Version != version {
		return false
	}
	return r.AnyGroup || r.Group == o.Group || sameGroup(r.Kind, r.Group, o.Group)
}

// ServedGroup is the group in which the rule's kind is served: apps for what was in
// extensions once.
func (r *LevelRule) ServedGroup() string {
	if sameGroup(r.Kind, r.Group, "apps") {
		return "apps"
	}
	return r.Group
}

// sameGroup tells whether two groups are names of one for a kind: what is in apps was
// in extensions once.
func sameGroup(kind, a, b string) bool {
	if a != "apps" && a != "extensions" || b != "apps" && b != "extensions" {
		return false
	}
	switch strings.ToLower(kind) {
	case "deployment", "replicaset", "daemonset":
		return true
	}
	return false
}

// Same tells whether two rules are about the same objects, so that the second never
// has a say.
func (r *LevelRule) Same(o *LevelRule) bool {
	if !strings.EqualFold(r.Kind, o.Kind) || r.AnyGroup != o.AnyGroup || r.ExactVersion != o.ExactVersion {
		return false
	}
	if r.ExactVersion && r.Version != o.Version {
		return false
	}
	return r.AnyGroup || r.Group == o.Group || sameGroup(r.Kind, r.Group, o.Group)
}
