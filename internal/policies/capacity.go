package policies

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// Capacity is what is known about the class of capacity of a pod.
type Capacity struct {
	// Workload is the one whose pods are divided; nil for pods that are not.
	Workload *ownership.Object
	// Settings are what it says. Their Count is the one in force, and Asked the one
	// that it asks for.
	capacity.Settings
	Asked int
	// FellBack is the class that has had no nodes for so long that the workload does
	// without it; None if there is none.
	FellBack capacity.Class
	// Ordinal: pods of a StatefulSet have their class by their ordinal.
	Ordinal bool
	direct  *ownership.Object
}

// SetClasses says how the classes are known. Without it no pod is divided. Call
// before anything runs.
func (b *Resolver) SetClasses(c *capacity.Classes) { b.classes = c }

// Exclude leaves the pods of namespaces as they are. Call before anything runs.
func (b *Resolver) Exclude(namespaces ...string) {
	for _, name := range namespaces {
		b.excluded[name] = true
	}
}

// KnowNamespaces records that all namespaces have been listed.
func (b *Resolver) KnowNamespaces() { b.namespacesKnown.Store(true) }

// NamespacesKnown tells whether it is known what all namespaces say.
func (b *Resolver) NamespacesKnown() bool { return b.namespacesKnown.Load() }

// Classes are what SetClasses was told; nil where classes are not in use.
func (b *Resolver) Classes() *capacity.Classes { return b.classes }

// OnNamespace adds a handler that is told of namespaces that come to say something
// else. It must not block. Call before anything runs.
func (b *Resolver) OnNamespace(h func(name string)) { b.onNamespace = append(b.onNamespace, h) }

// SetNamespace records what a namespace says. One that is gone says nothing.
func (b *Resolver) SetNamespace(name string, says ownership.Capacity) {
	b.mu.Lock()
	before := b.namespaces[name]
	if says == (ownership.Capacity{}) {
		delete(b.namespaces, name)
	} else {
		b.namespaces[name] = says
	}
	b.mu.Unlock()
	if before == says {
		return
	}
	for _, h := range b.onNamespace {
		h(name)
	}
}

// CapacityOf joins what is known of a pod with these owners, the direct one
// first. On is false for pods that are not divided.
func (b *Resolver) CapacityOf(owners []*ownership.Object) Capacity {
	if b.classes == nil {
		return Capacity{}
	}
	workload := ownership.CapacityWorkload(owners)
	if workload == nil || b.excluded[workload.Namespace] {
		return Capacity{}
	}
	c := Capacity{
		Workload: workload, Settings: b.settings(workload), direct: owners[0],
		Ordinal: owners[0].IsStatefulSet(),
	}
	c.Asked = c.Count
	if c.On && c.Fallback {
		c.FellBack = b.ledger.EmptyClass(b.fallbackAfter)
		c.Count = capacity.WithoutNodes(c.Count, c.FellBack)
	}
	return c
}

// DefaultFallback is after how long without a node pods of a class may fall back to the
// other one: longer than it takes to make nodes.
const DefaultFallback = 5 * time.Minute

// SetFallback sets another time than DefaultFallback. Call before anything runs.
func (b *Resolver) SetFallback(after time.Duration) { b.fallbackAfter = after }

// ClassOfVolumes is seats.Ledger.ClassOfVolumes.
func (b *Resolver) ClassOfVolumes(required []*corev1.NodeSelector) (class capacity.Class, tied bool) {
	return b.ledger.ClassOfVolumes(required)
}

// Misses tells whether the workload does without a class that it is to have pods of.
func (c *Capacity) Misses() bool {
	return c.Workload.Replicas != nil && capacity.Wants(c.FellBack, int(*c.Workload.Replicas), c.Asked)
}

// CapacityOfPod is CapacityOf for a pod.
func (b *Resolver) CapacityOfPod(ctx context.Context, pod *ownership.Object) (Capacity, error) {
	if b.classes == nil {
		return Capacity{}, nil
	}
	chain, err := b.walker.Chain(ctx, pod)
	if err != nil {
		return Capacity{}, err
	}
	return b.CapacityOf(chain[1:]), nil
}

// settings are what a workload, its pod template and its namespace say. A count
// that cannot be used leaves the last one that could in force.
func (b *Resolver) settings(workload *ownership.Object) capacity.Settings {
	b.mu.Lock()
	defer b.mu.Unlock()
	sources := [...]capacity.Source{
		capacity.Source(workload.Capacity), capacity.Source(workload.TemplateCapacity), capacity.Source(b.namespaces[workload.Namespace]),
	}
	s := capacity.Read(sources[:]...)
	last, known := b.counts[workload.UID]
	switch {
	case !s.On:
		delete(b.counts, workload.UID)
	case s.Invalid != nil && known:
		s.Count = last
	case s.Invalid == nil && (!known || last != s.Count):
		if !known && len(b.counts) >= maxKept {
			clear(b.counts)
		}
		b.counts[workload.UID] = s.Count
	}
	return s
}

// RememberCount is the count that was in force for a workload when another replica
// led, unless this one knows another.
func (b *Resolver) RememberCount(workload types.UID, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.counts[workload]; !known && len(b.counts) < maxKept {
		b.counts[workload] = count
	}
}

// DropCount forgets a workload that is gone.
func (b *Resolver) DropCount(workload types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.counts, workload)
}

// OfOrdinal is the class that a StatefulSet's pod has by its name; None for others.
func (c *Capacity) OfOrdinal(pod string) capacity.Class {
	if ordinal, ok := capacity.Ordinal(pod); ok && c.Ordinal {
		return capacity.OfOrdinal(ordinal, int(c.direct.FirstOrdinal), c.Count)
	}
	return capacity.None
}

// ClassRequest asks for the class of a pod of c: uid is its UID, or the token of one that is
// being created, own the class that its own demands leave it.
func (b *Resolver) ClassRequest(c *Capacity, uid types.UID, name, revision string, own capacity.Class) seats.ClassRequest {
	r := seats.ClassRequest{
		Pod: uid, Namespace: c.direct.Namespace, Cohort: seats.Cohort{Owner: c.direct.UID, Revision: revision}, Total: 1,
		Class: own, Count: c.Count, Surge: int(c.Workload.Surge),
	}
	if c.direct.Replicas != nil {
		r.Total = int(*c.direct.Replicas)
	}
	if c.direct.UID == c.Workload.UID {
		r.Total += r.Surge // it makes those pods itself
	}
	if own != capacity.None {
		return r
	}
	if r.Class = c.OfOrdinal(name); r.Class != capacity.None {
		return r
	}
	for _, uid := range b.walker.Descendants(c.Workload.UID) {
		if o := b.walker.Get(uid); o != nil && uid != c.direct.UID && o.Replicas != nil {
			r.Siblings = append(r.Siblings, seats.Sibling{Owner: uid, Replicas: int(*o.Replicas)})
		}
	}
	return r
}
