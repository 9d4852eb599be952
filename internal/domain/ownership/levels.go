package ownership

import "strings"

// LevelRule is a rule about the owner of a PodGroup, for pods with an owner of one kind
// (docs/sources.md, V3 to V5).
type LevelRule struct {
	// Group is the API group of the kind; "" is the core group.
	Group string
	// AnyGroup: the rule matches any API group, and Group is not used.
	AnyGroup bool
	// Version is the version of the kind. It is used only with ExactVersion.
	Version string
	// ExactVersion: the rule does not match a reference to another version of the kind.
	ExactVersion bool
	// Kind is compared without regard to case.
	Kind string
	// Adjust is the number of steps in the chain from the matching owner to the owner of the
	// PodGroup: below 0 towards the pod, above 0 towards the topmost owner.
	Adjust int
}

// NoMatch selects the owner of the PodGroup for pods that no rule matches.
type NoMatch string

const (
	// NoMatchDirectOwner is the pod's controller, or the pod itself if it has none.
	NoMatchDirectOwner NoMatch = "DirectOwner"
	// NoMatchRoot is the topmost owner.
	NoMatchRoot NoMatch = "Root"
)

// Levels are the rules that select the owner of a PodGroup. The zero value has no rule.
type Levels struct {
	Rules []LevelRule
	// Stated: the text has a list of rules, which may be empty, or another setting of these.
	Stated bool
	// NoMatch is used if no rule matches. "" means NoMatchDirectOwner.
	NoMatch NoMatch
	// MovePending: when rules change, pods without a node move to the PodGroup that the new
	// rules select. Pods with a node never move.
	MovePending bool
	// AtMostDirectOwner: the owner of a PodGroup is the pod or its controller, even if a rule
	// selects an owner above.
	AtMostDirectOwner bool
}

// Level is the owner of the PodGroup for one pod.
type Level struct {
	// Index is the index of the owner in the chain; 0 is the pod itself.
	Index int
	// Rule is the index of the rule that matched; -1 if none did.
	Rule int
	// Clamped is true if the rule's Adjust leads beyond an end of the chain. Index is that
	// end then.
	Clamped bool
}

// Select returns the owner of the PodGroup from a chain that begins with the pod. The owner
// nearest to the pod that matches a rule decides; if several rules match it, the first one
// counts. The chain must not be empty.
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
			version = ref.Version // the owner may have been read in another version
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

// matches reports whether the rule matches an owner. version is the version of its kind in
// the reference to it.
func (r *LevelRule) matches(o *Object, version string) bool {
	if !strings.EqualFold(r.Kind, o.Kind) || r.ExactVersion && r.Version != version {
		return false
	}
	return r.AnyGroup || r.Group == o.Group || sameGroup(r.Kind, r.Group, o.Group)
}

// ServedGroup returns the API group that serves the rule's kind: apps for kinds that were
// in extensions formerly.
func (r *LevelRule) ServedGroup() string {
	if sameGroup(r.Kind, r.Group, "apps") {
		return "apps"
	}
	return r.Group
}

// sameGroup reports whether two API groups hold the same kind. Some kinds of apps were in
// extensions formerly.
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

// same reports whether two rules match the same objects, so that the second is never used.
func (r *LevelRule) same(o *LevelRule) bool {
	if !strings.EqualFold(r.Kind, o.Kind) || r.AnyGroup != o.AnyGroup || r.ExactVersion != o.ExactVersion {
		return false
	}
	if r.ExactVersion && r.Version != o.Version {
		return false
	}
	return r.AnyGroup || r.Group == o.Group || sameGroup(r.Kind, r.Group, o.Group)
}
