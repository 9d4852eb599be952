// Package records decides what a coordinator takes from whom: it has a record of each stored object, with its
// version in the cloud and the node that it is of. It is pure: storage is the caller's, and times are values.
//
// A node may upload what is of itself: its Node, its Lease, pods that are bound to it, and what those pods
// name. The node whose hub leads may upload what belongs to the whole pool, too; who leads is the caller's to
// know. An old upload never replaces a later one. See docs/security.md for what a stolen certificate of a
// node can do with this.
package records

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/atoll-k8s/atoll/internal/governance"
)

// Record is what is known of a stored object.
type Record struct {
	// UID and Version are those of the cloud.
	UID     string `json:"uid"`
	Version uint64 `json:"version"`
	// Node is the node that has uploaded it. For a kind of a node, it is the one that the object is of. What belongs to
	// the pool goes with it, too, when it leaves the pool, because it may have been forged.
	Node string `json:"node"`
	// Bytes is what the object takes, stored or in the memory of an API server, whichever is more.
	Bytes int64 `json:"bytes"`
	// Names are the objects that a pod names.
	Names []governance.Ref `json:"names,omitempty"`
}

// Limits bound what is stored.
type Limits struct {
	// NodeObjects and NodeBytes bound what one node has uploaded of itself, PoolObjects and PoolBytes what belongs to the
	// pool, and Bytes all of it.
	NodeObjects, PoolObjects    int
	NodeBytes, PoolBytes, Bytes int64
}

// An API server and etcd keep the versions of the last minutes. So later versions are bounded, those of a node and those of what
// belongs to the pool: beyond the bytes that may be stored, ahead are the bytes at once, and aSecond those in each second.
const ahead, aSecond = 16 << 20, 256 << 10

// Reason is why an upload is not taken.
type Reason string

const (
	// Forbidden: the node may not upload this object.
	Forbidden Reason = "Forbidden"
	// Stale: the stored version is a later one.
	Stale Reason = "Stale"
	// Full: a limit is reached.
	Full Reason = "Full"
	// Malformed: it is not what it is uploaded as, or an API server could not show it.
	Malformed Reason = "Malformed"
)

// Refusal is the error of an upload that is not taken.
type Refusal struct {
	Reason  Reason
	Message string
}

// Error implements error.
func (r *Refusal) Error() string { return r.Message }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// Set has the records of all stored objects. It is not safe for concurrent use.
type Set struct {
	limits  Limits
	records map[governance.Ref]Record
	// named counts the pods that name an object.
	named map[governance.Ref]int
	nodes map[string]*node
	// pool has what belongs to the pool, and the digest of the last inventory of that.
	pool  node
	bytes int64
	began time.Time
	// takesSecrets tells whether Secrets are taken.
	takesSecrets bool
}

// node is what is known of a node.
type node struct {
	objects int
	bytes   int64
	// recent are the bytes of all versions that were stored, less what may be by the time since.
	recent int64
	since  time.Time
	// digest is that of its last inventory, and beat the time of its last beat.
	digest string
	beat   time.Time
}

// New returns the records of what is stored. Until SilentAfter has passed since now, no node counts as silent.
func New(limits Limits, records map[governance.Ref]Record, now time.Time) *Set {
	s := &Set{limits: limits, records: map[governance.Ref]Record{}, named: map[governance.Ref]int{}, nodes: map[string]*node{}, pool: node{since: now}, began: now}
	for ref, record := range records {
		s.Put(ref, record)
	}
	return s
}

func (s *Set) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{beat: s.began, since: s.began}
		s.nodes[name] = n
	}
	return n
}

// owner returns what an object counts for.
func (s *Set) owner(ref governance.Ref, record Record) *node {
	if isOfPool(ref) {
		return &s.pool
	}
	return s.node(record.Node)
}

// TakeSecrets sets whether Secrets are taken: not until it is called. It returns those to be removed, because they are not.
func (s *Set) TakeSecrets(take bool) (remove []governance.Ref) {
	if take && !s.takesSecrets {
		s.forgetDigests() // nodes may have told of them before
	}
	s.takesSecrets = take
	for ref := range s.records {
		if !take && ref.Resource == governance.Secrets {
			remove = append(remove, ref)
		}
	}
	slices.SortFunc(remove, governance.Ref.Compare)
	return remove
}

// Beat notes that a node is there, and tells whether its last inventory had this digest.
func (s *Set) Beat(name, digest string, now time.Time) (isKnown bool) {
	n := s.node(name)
	n.beat = now
	return n.digest == digest
}

// IsPoolKnown tells whether the last inventory of the pool had this digest.
func (s *Set) IsPoolKnown(digest string) bool { return digest != "" && s.pool.digest == digest }

// Inventory compares what a node has with what is stored: missing is what it is to upload, in order, and
// remove what is to be removed of what it has uploaded. Its Node and its Lease stay: a hub that was started
// again without the cloud may not know them. Items that the node may not upload are not missing.
func (s *Set) Inventory(name string, inventory *governance.Inventory, now time.Time) (missing, remove []governance.Ref, err error) {
	has, missing, err := s.compare(name, inventory, false, now)
	if err != nil {
		return nil, nil, err
	}
	for ref, record := range s.records {
		if has[ref] || record.Node != name || ref.Resource == "nodes" || ref.Resource == "leases" || isOfPool(ref) {
			continue
		}
		remove = append(remove, ref)
		if kind, _ := governance.KindOf(ref.Resource); !kind.IsOfNode {
			s.forgetDigests() // another node that has it uploads it again
		}
	}
	n := s.node(name)
	n.digest, n.beat = inventory.Digest(), now
	slices.SortFunc(remove, governance.Ref.Compare)
	return missing, remove, nil
}

// PoolInventory is Inventory for what belongs to the pool, by the node whose hub leads: what others have uploaded
// before it stays if it is in the inventory, and is removed if not.
func (s *Set) PoolInventory(name string, inventory *governance.Inventory, now time.Time) (missing, remove []governance.Ref, err error) {
	has, missing, err := s.compare(name, inventory, true, now)
	if err != nil {
		return nil, nil, err
	}
	for ref := range s.records {
		if isOfPool(ref) && !has[ref] {
			remove = append(remove, ref)
		}
	}
	s.pool.digest = inventory.Digest()
	slices.SortFunc(remove, governance.Ref.Compare)
	return missing, remove, nil
}

// compare returns which objects an inventory has, and of these the ones to upload, in order.
func (s *Set) compare(name string, inventory *governance.Inventory, ofPool bool, now time.Time) (has map[governance.Ref]bool, missing []governance.Ref, err error) {
	most := governance.MaxItems
	if ofPool {
		most = governance.MaxPoolItems
	}
	if len(inventory.Items) > most {
		return nil, nil, refuse(Full, "items: more than %d", most)
	}
	has = make(map[governance.Ref]bool, len(inventory.Items))
	for i, item := range inventory.Items {
		if err := item.Validate(); err != nil {
			return nil, nil, refuse(Forbidden, "items[%d].%v", i, err)
		}
		version, err := governance.Version(item.Version)
		if err != nil {
			return nil, nil, refuse(Forbidden, "items[%d].%v", i, err)
		}
		if isOfPool(item.Ref) != ofPool {
			return nil, nil, refuse(Forbidden, "items[%d].resource: %s are of the other inventory", i, item.Resource)
		}
		has[item.Ref] = true
		if s.check(name, item.Ref, Record{UID: item.UID, Version: version, Node: name}, now) == nil && !s.Has(item.Ref, item.UID, version) {
			missing = append(missing, item.Ref)
		}
	}
	slices.SortFunc(missing, governance.Ref.Compare)
	return has, missing, nil
}

// isOfPool reports whether an object belongs to the whole pool.
func isOfPool(ref governance.Ref) bool {
	kind, _ := governance.KindOf(ref.Resource)
	return kind.IsOfPool
}

// Has reports whether this version or a later one of an object is stored.
func (s *Set) Has(ref governance.Ref, uid string, version uint64) bool {
	record, found := s.records[ref]
	return found && record.UID == uid && record.Version >= version
}

// IsOf reports whether an object with this UID is stored, and a node has uploaded it.
func (s *Set) IsOf(ref governance.Ref, node, uid string) bool {
	record, found := s.records[ref]
	return found && record.Node == node && record.UID == uid
}

// Check tells whether an object may be stored. record.Node is the node that uploads it, leads tells whether its hub
// leads, and boundTo is the node that a pod is bound to.
func (s *Set) Check(ref governance.Ref, record Record, leads bool, boundTo string, now time.Time) error {
	if ref.Resource == "pods" && boundTo != record.Node {
		return refuse(Forbidden, "%s is not bound to the node %s", ref, record.Node)
	}
	kind, _ := governance.KindOf(ref.Resource)
	if kind.IsOfPool && !leads {
		return refuse(Forbidden, "%s is of the pool, and the hub of the node %s does not lead", ref, record.Node)
	}
	if !kind.IsOfNode && !kind.IsOfPool && s.named[ref] == 0 {
		return refuse(Forbidden, "no pod that is stored names %s", ref)
	}
	if err := s.check(record.Node, ref, record, now); err != nil {
		return err
	}
	before, isReplaced := s.records[ref]
	n, of, maxObjects, maxBytes := s.node(record.Node), "the node "+record.Node, s.limits.NodeObjects, s.limits.NodeBytes
	if kind.IsOfPool {
		n, of, maxObjects, maxBytes = &s.pool, "the pool", s.limits.PoolObjects, s.limits.PoolBytes
	}
	objects, bytes, all := n.objects+1, n.bytes+record.Bytes, s.bytes+record.Bytes-before.Bytes
	if isReplaced && (kind.IsOfPool || before.Node == record.Node) {
		objects, bytes = objects-1, bytes-before.Bytes
	}
	switch {
	case objects > maxObjects:
		return refuse(Full, "%s would have more than %d objects", of, maxObjects)
	case bytes > maxBytes:
		return refuse(Full, "the objects of %s would take more than %d bytes", of, maxBytes)
	case all > s.limits.Bytes:
		return refuse(Full, "the objects of all nodes would take more than %d bytes", s.limits.Bytes)
	case n.at(now)+record.Bytes > maxBytes+ahead:
		return refuse(Full, "%s uploads more than %d bytes a second", of, aSecond)
	}
	return nil
}

// at returns the bytes that were stored of late.
func (n *node) at(now time.Time) int64 {
	if passed := now.Sub(n.since); passed > 0 {
		n.recent, n.since = max(0, n.recent-int64(passed.Seconds()*aSecond)), now
	}
	return n.recent
}

// check tells what can be told without the object.
func (s *Set) check(name string, ref governance.Ref, record Record, now time.Time) error {
	switch ref.Resource {
	case governance.Secrets:
		if !s.takesSecrets {
			return refuse(Forbidden, "the YurtCoordinator does not ask for Secrets: spec.upload")
		}
	case "nodes":
		if ref.Name != name {
			return refuse(Forbidden, "%s is not the node %s", ref, name)
		}
	case "leases":
		if ref.Namespace != "kube-node-lease" || ref.Name != name {
			return refuse(Forbidden, "%s is not the Lease of the node %s", ref, name)
		}
	}
	before, found := s.records[ref]
	if !found {
		return nil
	}
	kind, _ := governance.KindOf(ref.Resource)
	if kind.IsOfNode && before.Node != name && (before.UID == record.UID || now.Sub(s.node(before.Node).beat) < governance.SilentAfter) {
		return refuse(Forbidden, "%s is of the node %s", ref, before.Node)
	}
	if record.Version < before.Version {
		return refuse(Stale, "the version %d of %s is stored", before.Version, ref)
	}
	return nil
}

// Put notes that an object is stored. orphans are objects that no pod names any more.
func (s *Set) Put(ref governance.Ref, record Record) (orphans []governance.Ref) {
	for _, named := range record.Names {
		s.named[named]++
	}
	orphans = s.Remove(ref)
	s.records[ref] = record
	n := s.owner(ref, record)
	n.objects++
	n.bytes += record.Bytes
	n.recent += record.Bytes
	s.bytes += record.Bytes
	return orphans
}

// Remove notes that an object is not stored any more. orphans are objects that no pod names any more.
func (s *Set) Remove(ref governance.Ref) (orphans []governance.Ref) {
	record, found := s.records[ref]
	if !found {
		return nil
	}
	delete(s.records, ref)
	n := s.owner(ref, record)
	n.objects--
	n.bytes -= record.Bytes
	s.bytes -= record.Bytes
	for _, named := range record.Names {
		if s.named[named]--; s.named[named] > 0 {
			continue
		}
		delete(s.named, named)
		if _, found := s.records[named]; found {
			orphans = append(orphans, named)
		}
	}
	return orphans
}

// Keep returns what is to be removed, because nodes have uploaded it that are not in the pool, and forgets those nodes.
func (s *Set) Keep(isOfPool func(node string) bool) (remove []governance.Ref) {
	for ref, record := range s.records {
		if !isOfPool(record.Node) {
			remove = append(remove, ref)
		}
	}
	if len(remove) > 0 {
		s.forgetDigests() // others may have the same ConfigMaps, and the hub that leads has what is of the pool
	}
	maps.DeleteFunc(s.nodes, func(name string, n *node) bool { return n.objects == 0 && !isOfPool(name) })
	slices.SortFunc(remove, governance.Ref.Compare)
	return remove
}

// forgetDigests lets all nodes send their inventories again.
func (s *Set) forgetDigests() {
	s.pool.digest = ""
	for _, n := range s.nodes {
		n.digest = ""
	}
}
