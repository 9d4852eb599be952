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

// Stamp is the moment of a version of an object.
type Stamp struct {
	// RV is the resourceVersion.
	RV uint64
	// Seen is the time when the version was received. While the watch is connected that
	// is moments after the write.
	Seen time.Time
	// Gap reports that versions of this kind may be missing before this one, because a
	// watch was lost for too long. A change within a gap happened at an unknown version.
	Gap bool
}

// version is the content of an object from its Stamp on, until the next version.
type version struct {
	Stamp
	object Object // nil: deleted
}

// timeline has all versions of one object, oldest first. If the key is a name, objects
// that had the name one after the other share a timeline.
type timeline []version

// at returns the object at a resourceVersion, or nil.
func (t timeline) at(rv uint64) Object {
	i := sort.Search(len(t), func(i int) bool { return t[i].RV > rv })
	if i == 0 {
		return nil
	}
	return t[i-1].object
}

// within returns the versions that were in force at some moment between a time and a
// resourceVersion.
func (t timeline) within(from time.Time, to uint64) timeline {
	end := sort.Search(len(t), func(i int) bool { return t[i].RV > to })
	start := end
	for start > 0 && (start == end || !t[start].Seen.Before(from)) {
		start--
	}
	return t[start:end]
}

// last returns the last version of the object before its deletion.
func (t timeline) last() Object {
	for _, v := range slices.Backward(t) {
		if v.object != nil {
			return v.object
		}
	}
	return nil
}

// Gap is a period in which versions may be missing.
type Gap struct {
	What     string
	From, To uint64
}

// History has the content of all objects at every resourceVersion.
type History struct {
	timelines map[any]timeline
	sorted    bool

	pods, nodes []any
	cohorts     map[cohort][]any
	byName      map[types.NamespacedName][]any
	// Gaps are the periods in which it is not complete.
	Gaps []Gap
	// First and Last are the resourceVersions of the first and the last version.
	First, Last uint64
}

// NewHistory returns an empty history.
func NewHistory() *History {
	return &History{
		timelines: map[any]timeline{}, cohorts: map[cohort][]any{}, byName: map[types.NamespacedName][]any{}, First: math.MaxUint64,
	}
}

// Put adds a version of an object. Versions may be added in any order.
func (h *History) Put(s Stamp, o Object) { h.add(o.key(), version{s, o}) }

// Gone adds the deletion of an object.
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

// sort sorts the versions. It must be called before any query.
func (h *History) sort() {
	if h.sorted {
		return
	}
	for _, t := range h.timelines {
		slices.SortStableFunc(t, func(a, b version) int { return cmp.Compare(a.RV, b.RV) })
	}
	h.sorted = true
}

// get returns an object at a resourceVersion.
func get[T Object](h *History, key any, rv uint64) (T, bool) {
	o, ok := h.timelines[key].at(rv).(T)
	return o, ok
}

// groupOf returns the group of a node at a resourceVersion; "" means none.
func (h *History) groupOf(node string, rv uint64) string {
	n, _ := get[Node](h, nodeKey(node), rv)
	return n.Group
}

// hasMembers reports whether a group had a node at a resourceVersion.
func (h *History) hasMembers(group string, rv uint64) bool {
	return slices.ContainsFunc(h.nodes, func(key any) bool {
		n, ok := get[Node](h, key, rv)
		return ok && n.Group == group
	})
}

// ancestry has a pod's owners, and those of them that require its policies.
type ancestry struct {
	// chain are the owners, nearest first.
	chain []Workload
	// propagation and override are the topmost owners that require a policy of the kind,
	// or nil.
	propagation, override *Workload
}

// ancestryAt returns a pod's ancestry at a resourceVersion. ok is false if an owner is
// not in the history.
func (h *History) ancestryAt(pod Pod, rv uint64) (a ancestry, ok bool) {
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
			return ancestry{}, false
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

// moments returns the resourceVersions, up to a given one, at which one of the objects
// changed since a time, and those just before. Newest first.
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
