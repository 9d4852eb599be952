package inventory

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/filter"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// ofPool are the collections of the pool, by resource. The collection of NodePools contains only the NodePool
// of the pool.
var ofPool = map[string]filter.Collection{
	"nodepools":      {Path: "/apis/apps.openyurt.io/v1alpha1/nodepools", List: "application/json", Watch: "application/json"},
	"namespaces":     {Path: "/api/v1/namespaces", List: protobuf, Watch: protobuf},
	"services":       {Path: "/api/v1/services", List: protobuf, Watch: protobuf},
	"endpointslices": {Path: "/apis/discovery.k8s.io/v1/endpointslices", List: protobuf, Watch: protobuf},
}

// forgetWithin is how long forget waits for space in the queue of each collection.
const forgetWithin = time.Second

const protobuf = "application/vnd.kubernetes.protobuf,application/json"

// PoolInventory is an Inventory of the objects of the pool, while the hub follows them. Only Follow may run
// concurrently with other methods.
type PoolInventory struct {
	Inventory

	// pool returns the name of the pool.
	pool   func() string
	follow filter.Follower

	mu sync.Mutex
	// listed are the collections that were listed since Follow began; problems are why a collection cannot be
	// read.
	listed   map[string]bool
	problems map[string]error
}

// NewPool returns the inventory of the objects that Follow reads. pool returns the name of the pool, which must not
// change while Follow runs. follow reads a collection as the pool.
func NewPool(writes *ownwrites.Writes, pool func() string, follow filter.Follower) *PoolInventory {
	i := &PoolInventory{
		Inventory: Inventory{writes: writes, record: writes.Record, reads: isOfPool}, pool: pool, follow: follow,
		listed: map[string]bool{}, problems: map[string]error{},
	}
	i.forget() // scopes of an earlier process
	return i
}

// isOfPool reports whether a scope contains a collection of the pool.
func isOfPool(s *cache.Scope) (reads governance.Ref, is bool) {
	what, name := record.ReadBy(s.Key)
	_, is = ofPool[what.Resource]
	return governance.Ref{Resource: what.Resource}, is && (name == "" || what.Resource == "nodepools") && strings.HasPrefix(s.Key, identity.OfPool().Name+"\n")
}

// Follow reads the objects of the pool until ctx is done, and caches them until then. It removes cached objects
// at the start and at the end, because they could not be distinguished from current ones.
func (i *PoolInventory) Follow(ctx context.Context) {
	i.forget()
	defer i.forget()
	var running sync.WaitGroup
	for resource, collection := range ofPool {
		if resource == "nodepools" {
			collection.Selector = url.Values{"fieldSelector": {"metadata.name=" + i.pool()}}.Encode()
		}
		running.Go(func() { i.follow(ctx, collection, &poolReceiver{i, resource}) })
	}
	running.Wait()
}

// forget removes the cached objects, after those that still wait to be stored.
func (i *PoolInventory) forget() {
	i.mu.Lock()
	clear(i.listed)
	clear(i.problems)
	i.mu.Unlock()
	for _, s := range i.record.Cache.Scopes() {
		if _, is := isOfPool(&s); is {
			i.record.Remove(s.Key, forgetWithin)
		}
	}
}

// Items returns the objects, or none before all of them were read.
func (i *PoolInventory) Items() (items []governance.Item, err error) {
	i.mu.Lock()
	listed, problems := maps.Clone(i.listed), maps.Clone(i.problems)
	i.mu.Unlock()
	isReading := map[string]bool{}
	for resource := range ofPool {
		isReading[resource] = !listed[resource] || i.isReading(resource)
	}
	newest := i.newest()
	for _, resource := range slices.Sorted(maps.Keys(ofPool)) {
		if listed[resource] && newest[governance.Ref{Resource: resource}] != nil {
			continue
		}
		if isReading[resource] || problems[resource] != nil {
			return nil, problems[resource]
		}
		return nil, fmt.Errorf("the %s cannot be cached: they are too large, or the disk fails", resource)
	}
	found, err := i.read(newest)
	return slices.Collect(maps.Values(found)), err
}

// isReading reports whether a part of a collection of the pool is not stored yet.
func (i *PoolInventory) isReading(resource string) bool {
	return i.record.AreBusy(func(key string) bool {
		reads, is := isOfPool(&cache.Scope{Key: key})
		return is && reads.Resource == resource
	})
}

// poolReceiver records whether a collection can be read.
type poolReceiver struct {
	*PoolInventory

	resource string
}

// Replace implements filter.Receiver.
func (r *poolReceiver) Replace(wire.Format, []wire.Item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[r.resource] = true
	delete(r.problems, r.resource)
}

// Put implements filter.Receiver.
func (*poolReceiver) Put(wire.Format, *wire.Meta, []byte) {}

// Delete implements filter.Receiver.
func (*poolReceiver) Delete(*wire.Meta) {}

// Failed implements filter.Receiver. The objects read before stay.
func (r *poolReceiver) Failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problems[r.resource] = err
}
