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

// Capacity holds the data that a decision about the capacity class of a pod needs.
type Capacity struct {
	// Workload is the workload whose pods are divided over the classes; nil for pods
	// that are not divided.
	Workload *ownership.Object
	// Settings are those of the workload. Count is the most on-demand pods in
	// force, and Configured is the number in its settings: they differ while FellBack is set.
	capacity.Settings
	Configured int
	// FellBack is the class that the workload does not use now because it has had no
	// nodes for too long; None if there is none.
	FellBack capacity.Class
	// Ordinal is true for pods of a StatefulSet: their ordinal decides their class.
	Ordinal bool
	// direct is the direct owner of the pod.
	direct *ownership.Object
}

// SetClasses sets the capacity classes. Without it no pod is divided over classes. It
// must be called before anything runs.
func (r *Resolver) SetClasses(c *capacity.Classes) { r.classes = c }

// Exclude excludes the pods of namespaces from capacity classes. It must be called
// before anything runs.
func (r *Resolver) Exclude(namespaces ...string) { r.excluded.Insert(namespaces...) }

// SetNamespacesListed records that all namespaces have been listed.
func (r *Resolver) SetNamespacesListed() { r.namespacesKnown.Store(true) }

// NamespacesKnown returns true once all namespaces have been listed.
func (r *Resolver) NamespacesKnown() bool { return r.namespacesKnown.Load() }

// Classes returns the capacity classes; nil if they are not in use.
func (r *Resolver) Classes() *capacity.Classes { return r.classes }

// OnNamespace adds a handler that is called when the capacity settings of a namespace
// change. The handler must not block. OnNamespace must be called before anything runs.
func (r *Resolver) OnNamespace(h func(name string)) { r.onNamespace = append(r.onNamespace, h) }

// SetNamespace records the capacity settings of a namespace; empty settings for a
// namespace that has none or is deleted.
func (r *Resolver) SetNamespace(name string, settings ownership.Capacity) {
	r.mu.Lock()
	before := r.namespaces[name]
	if settings == (ownership.Capacity{}) {
		delete(r.namespaces, name)
	} else {
		r.namespaces[name] = settings
	}
	r.mu.Unlock()
	if before == settings {
		return
	}
	for _, h := range r.onNamespace {
		h(name)
	}
}

// CapacityOf returns the Capacity of a pod with these owners, the direct one first. On
// is false for pods that are not divided.
func (r *Resolver) CapacityOf(owners []*ownership.Object) Capacity {
	if r.classes == nil {
		return Capacity{}
	}
	workload := ownership.CapacityWorkload(owners)
	if workload == nil || r.excluded.Has(workload.Namespace) {
		return Capacity{}
	}
	c := Capacity{
		Workload: workload, Settings: r.settings(workload), direct: owners[0],
		Ordinal: owners[0].IsStatefulSet(),
	}
	c.Configured = c.Count
	if c.On && c.Fallback {
		c.FellBack = r.ledger.EmptyClass(r.fallbackAfter)
		c.Count = capacity.WithoutNodes(c.Count, c.FellBack)
	}
	return c
}

// DefaultFallback is how long a class has to be without nodes before pods may fall back
// to the other class. It is longer than an autoscaler needs to create nodes.
const DefaultFallback = 5 * time.Minute

// SetFallback replaces DefaultFallback. It must be called before anything runs.
func (r *Resolver) SetFallback(after time.Duration) { r.fallbackAfter = after }

// ClassOfVolumes calls seats.Ledger.ClassOfVolumes.
func (r *Resolver) ClassOfVolumes(required []*corev1.NodeSelector) (class capacity.Class, tied bool) {
	return r.ledger.ClassOfVolumes(required)
}

// Misses returns true if the workload fell back from a class of which its settings
// demand pods.
func (c *Capacity) Misses() bool {
	return c.Workload.Replicas != nil && capacity.Wants(c.FellBack, int(*c.Workload.Replicas), c.Configured)
}

// CapacityOfPod looks up the owners of a pod and returns its Capacity; see CapacityOf.
func (r *Resolver) CapacityOfPod(ctx context.Context, pod *ownership.Object) (Capacity, error) {
	if r.classes == nil {
		return Capacity{}, nil
	}
	chain, err := r.walker.Chain(ctx, pod)
	if err != nil {
		return Capacity{}, err
	}
	return r.CapacityOf(chain[1:]), nil
}

// settings joins the settings of a workload, its pod template and its namespace. While
// the count is invalid, the last valid one stays in force.
func (r *Resolver) settings(workload *ownership.Object) capacity.Settings {
	r.mu.Lock()
	defer r.mu.Unlock()
	sources := [...]capacity.Source{
		capacity.Source(workload.Capacity), capacity.Source(workload.TemplateCapacity), capacity.Source(r.namespaces[workload.Namespace]),
	}
	s := capacity.Read(sources[:]...)
	last, known := r.counts[workload.UID]
	switch {
	case !s.On:
		delete(r.counts, workload.UID)
	case s.Invalid != nil && known:
		s.Count = last
	case s.Invalid == nil && (!known || last != s.Count):
		if !known && len(r.counts) >= maxKept {
			clear(r.counts)
		}
		r.counts[workload.UID] = s.Count
	}
	return s
}

// RememberCount records the count that was in force for a workload under the previous
// leader. It does nothing if this replica has recorded a count itself, or if the map
// is full.
func (r *Resolver) RememberCount(workload types.UID, count int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.counts[workload]; !known && len(r.counts) < maxKept {
		r.counts[workload] = count
	}
}

// DropCount deletes the recorded count of a deleted workload.
func (r *Resolver) DropCount(workload types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.counts, workload)
}

// OfOrdinal returns the class of a StatefulSet's pod by the ordinal in its name; None
// for other pods.
func (c *Capacity) OfOrdinal(pod string) capacity.Class {
	if ordinal, ok := capacity.Ordinal(pod); ok && c.Ordinal {
		return capacity.OfOrdinal(ordinal, int(c.direct.FirstOrdinal), c.Count)
	}
	return capacity.None
}

// ClassRequest returns the request to the ledger for the class of a pod of c. uid is the
// pod's UID, or its token while it is being created. own is the class to which the pod
// is restricted by its own node selector and affinity; None if it may be of both.
func (r *Resolver) ClassRequest(c *Capacity, uid types.UID, name, revision string, own capacity.Class) seats.ClassRequest {
	request := seats.ClassRequest{
		Pod: uid, Namespace: c.direct.Namespace, Cohort: seats.Cohort{Owner: c.direct.UID, Revision: revision}, Total: 1,
		Class: own, Count: c.Count, Surge: int(c.Workload.Surge),
	}
	if c.direct.Replicas != nil {
		request.Total = int(*c.direct.Replicas)
	}
	if c.direct.UID == c.Workload.UID {
		request.Total += request.Surge // the workload creates its surge pods itself
	}
	if own != capacity.None {
		return request
	}
	if request.Class = c.OfOrdinal(name); request.Class != capacity.None {
		return request
	}
	for _, uid := range r.walker.Descendants(c.Workload.UID) {
		if o := r.walker.Get(uid); o != nil && uid != c.direct.UID && o.Replicas != nil {
			request.Siblings = append(request.Siblings, seats.Sibling{Owner: uid, Replicas: int(*o.Replicas)})
		}
	}
	return request
}
