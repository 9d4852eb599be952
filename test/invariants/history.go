package invariants

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Stamp says when a version of an object was.
type Stamp struct {
	// RV is the resourceVersion.
	RV uint64
	// Seen is when it came in. While watches are up that is moments later.
	Seen time.Time
	// Gap: versions of this kind may be missing before this one, because a watch
	// was lost for too long. What changed in a gap changed at an unknown version.
	Gap bool
}

// version is what an object was from its Stamp on, until the next one.
type version struct {
	Stamp
	object Object // nil: deleted
}

// timeline is all versions of one object, oldest first. Objects of one name
// that came one after the other share it, where a name is the key.
type timeline []version

// at is the object as it was at a resourceVersion, or nil.
func (t timeline) at(rv uint64) Object {
	i := sort.Search(len(t), func(i int) bool { return t[i].RV > rv })
	if i == 0 {
		return nil
	}
	return t[i-1].object
}

// within are the versions in force at some moment between a time and a
// resourceVersion.
func (t timeline) within(from time.Time, to uint64) timeline {
	end := sort.Search(len(t), func(i int) bool { return t[i].RV > to })
	start := end
	for start > 0 && (start == end || !t[start].Seen.Before(from)) {
		start--
	}
	return t[start:end]
}

// last is the object as it was before it was deleted.
func (t timeline) last() Object {
	for _, v := range slices.Backward(t) {
		if v.object != nil {
			return v.object
		}
	}
	return nil
}

// Gap is a time of which versions may be missing.
type Gap struct {
	What     string
	From, To uint64
}

// History is what all objects were, at every resourceVersion.
type History struct {
	timelines map[any]timeline
	sorted    bool

	pods, nodes []any
	cohorts     map[cohort][]any
	byName      map[types.NamespacedName][]any
	// Gaps are where it is not complete.
	Gaps []Gap
	// First and Last are the resourceVersions of the first and the last version.
	First, Last uint64
}

// NewHistory makes an empty history.
func NewHistory() *History {
	return &History{
		timelines: map[any]timeline{}, cohorts: map[cohort][]any{}, byName: map[types.NamespacedName][]any{}, First: math.MaxUint64,
	}
}

// Put adds a version of an object. Versions come in any order.
func (h *History) Put(s Stamp, o Object) { h.add(o.key(), version{s, o}) }

// Gone adds the end of an object.
func (h *History) Gone(s Stamp, o Object) { h.add(o.key(), version{Stamp: s}) }

func (h *History) add(key any, v version) {
	h.First, h.Last = min(h.First, v.RV), max(h.Last, v.RV)
	t, known := h.timelines[key]
	if known && v.object != nil && t[len(t)-1].object != nil && t[len(t)-1].RV < v.RV && equal(t[len(t)-1].object, v.object) {
		return
	}
	h.timelines[key] = append(t, v)
	h.sorted = false
	if v.object != nil && !known {
		h.index(key, v.object)
	}
}

func (h *History) index(key any, o Object) {
	switch o := o.(type) {
	case Pod:
		h.pods = append(h.pods, key)
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		h.byName[name] = append(h.byName[name], key)
		h.cohorts[o.cohort()] = append(h.cohorts[o.cohort()], key)
	case Node:
		h.nodes = append(h.nodes, key)
	}
}

// sort puts versions in order; everything that asks needs it first.
func (h *History) sort() {
	if h.sorted {
		return
	}
	for _, t := range h.timelines {
		slices.SortStableFunc(t, func(a, b version) int { return cmp.Compare(a.RV, b.RV) })
	}
	h.sorted = true
}

// get is an object as it was at a resourceVersion.
func get[T Object](h *History, key any, rv uint64) (T, bool) {
	o, ok := h.timelines[key].at(rv).(T)
	return o, ok
}

// groupOf is the group of a node at a resourceVersion; "" is none.
func (h *History) groupOf(node string, rv uint64) string {
	n, _ := get[Node](h, nodeKey(node), rv)
	return n.Group
}

// hasMembers tells whether a node was in a group.
func (h *History) hasMembers(group string, rv uint64) bool {
	return slices.ContainsFunc(h.nodes, func(key any) bool {
		n, ok := get[Node](h, key, rv)
		return ok && n.Group == group
	})
}

// application is what of a pod's owners its policies come from.
type application struct {
	// chain are the owners, nearest first.
	chain []Workload
	// propagation and override are the topmost that require a policy, or nil.
	propagation, override *Workload
}

// applicationAt finds a pod's application. ok is false where the chain leads to
// what the history does not know, or nowhere.
func (h *History) applicationAt(pod Pod, rv uint64) (a application, ok bool) {
	if pod.Owner == "" {
		own := Workload{
			UID: pod.UID, Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
			Policies: pod.Policies, IgnoreMissing: pod.IgnoreMissing, Replicas: 1,
		}
		a.chain = []Workload{own}
	}
	for uid, kind := pod.Owner, pod.OwnerKind; uid != ""; {
		owner, found := get[Workload](h, workloadKey(uid), rv)
		if !watchedKinds[kind] || !found || len(a.chain) == ownership.MaxHops {
			return application{}, false
		}
		a.chain = append(a.chain, owner)
		uid, kind = owner.Owner, owner.OwnerKind
	}
	for i := range a.chain {
		if a.chain[i].Policies.RequiredPropagation != "" {
			a.propagation = &a.chain[i]
		}
		if a.chain[i].Policies.RequiredOverride != "" {
			a.override = &a.chain[i]
		}
	}
	return a, true
}

// moments are the resourceVersions, up to one, at which one of the objects
// became another since a time, and those just before. Newest first.
func (h *History) moments(from time.Time, to uint64, keys ...any) []uint64 {
	moments := []uint64{to}
	for _, key := range keys {
		for _, v := range h.timelines[key].within(from, to) {
			if v.RV > 0 && !v.Seen.Before(from) {
				moments = append(moments, v.RV, v.RV-1)
			}
		}
	}
	slices.Sort(moments)
	moments = slices.Compact(moments)
	slices.Reverse(moments)
	return moments
}
