// Package inventory knows which objects the cache has: it lists those that the coordinator of the pool should have,
// and removes those of pods that do not exist any more. It must not know how the hub answers requests.
package inventory

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/ownwrites"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Inventory lists the cached objects of the node that the coordinator of its pool should have, in their last
// version from the cloud. It reads a scope again only when it has changed. An Inventory must be used by one
// goroutine at a time.
type Inventory struct {
	writes *ownwrites.Writes
	record *record.Recorder
	// reads returns which object a scope contains; without a name for a collection.
	reads  func(*cache.Scope) (reads governance.Ref, is bool)
	scopes map[string]*inventoried
	// at has the scope of each object of the last call of Items.
	at map[governance.Ref]string
}

// inventoried is the content of a scope at the time when it was written.
type inventoried struct {
	written time.Time
	items   []governance.Item
}

// New returns the inventory of the cached objects of the node. It includes Secrets only while hasSecrets returns
// true.
func New(writes *ownwrites.Writes, hasSecrets func() bool) *Inventory {
	return &Inventory{writes: writes, record: writes.Record, reads: func(s *cache.Scope) (reads governance.Ref, is bool) {
		reads, is = refIn(s, writes.NodeName)
		return reads, is && (reads.Resource != governance.Secrets || hasSecrets())
	}}
}

// errNoPods is returned while the kubelet has not listed its pods through the hub.
var errNoPods = errors.New("the pods of the node are not known yet")

// Items returns the objects. After an error it is not known which objects the node has.
func (i *Inventory) Items() (items []governance.Item, err error) {
	newest := i.newest()
	if newest[governance.Ref{Resource: "pods"}] == nil {
		return nil, errNoPods
	}
	found, err := i.read(newest)
	if err != nil {
		return nil, err
	}
	if lease, _, err := i.ownLease(); err == nil {
		found[lease.Ref] = lease
	}
	return slices.Collect(maps.Values(found)), nil
}

// newest returns the newest scope for each object or collection.
func (i *Inventory) newest() map[governance.Ref]*cache.Scope {
	newest := map[governance.Ref]*cache.Scope{}
	scopes := i.record.Cache.Scopes()
	for n := range scopes {
		if reads, is := i.reads(&scopes[n]); is && (newest[reads] == nil || scopes[n].Written.After(newest[reads].Written)) {
			newest[reads] = &scopes[n]
		}
	}
	return newest
}

// read returns the objects of scopes. It skips a single object that cannot be read. For a collection it returns
// an error.
func (i *Inventory) read(newest map[governance.Ref]*cache.Scope) (found map[governance.Ref]governance.Item, err error) {
	before := i.scopes
	i.scopes, i.at = map[string]*inventoried{}, map[governance.Ref]string{}
	found = map[governance.Ref]governance.Item{}
	for reads, s := range newest {
		if reads.Name == "" && s.Stale != nil && !errors.Is(s.Stale, cache.ErrReopened) {
			return nil, fmt.Errorf("the cache may lack later %s: %w", reads.Resource, s.Stale)
		}
		read := before[s.Key]
		if read == nil || !read.written.Equal(s.Written) {
			if read, err = contentOf(i.record, s, reads.Name == ""); err != nil && reads.Name == "" {
				return nil, fmt.Errorf("reading the cached %s: %w", reads.Resource, err)
			}
			if err != nil { // continue with the other objects
				i.record.Log.V(2).Info("Reading a cached object failed", "object", reads.String(), "error", err.Error())
				continue
			}
		}
		i.scopes[s.Key] = read
		for _, item := range read.items {
			i.at[item.Ref], found[item.Ref] = s.Key, item
		}
	}
	return found, nil
}

// refIn returns what a scope contains: the pods of the node, without a name, or one object of another kind. It
// returns false for other scopes.
func refIn(s *cache.Scope, nodeName string) (reads governance.Ref, is bool) {
	if !record.IsOfNode(s.Key) || strings.Contains(s.Key, "as=") {
		return reads, false
	}
	what, name := record.ReadBy(s.Key)
	if what.Resource == "pods" {
		return governance.Ref{Resource: what.Resource}, strings.HasPrefix(s.Key, record.PodsOfNode(nodeName))
	}
	return governance.Ref{Resource: what.Resource, Namespace: what.Namespace, Name: name}, name != "" && isUploaded(&what)
}

// isUploaded reports whether hubs upload objects of the kind of a request.
func isUploaded(what *request.Request) bool {
	kind, known := governance.KindOf(what.Resource)
	return known && !kind.IsOfPool && what.Subresource == "" && strings.TrimPrefix(what.Group+"/"+what.Version, "/") == kind.APIVersion
}

// contentOf reads a scope. A single object may be missing; a collection must not be.
func contentOf(r *record.Recorder, s *cache.Scope, isCollection bool) (*inventoried, error) {
	read := &inventoried{written: s.Written}
	state, err := r.Peek(s.Key)
	if errors.Is(err, cache.ErrNotFound) && !isCollection { // the scope was removed meanwhile
		return read, nil
	}
	if err != nil {
		return nil, err
	}
	defer state.Close()
	h := state.Head
	if !h.IsList() && isCollection {
		return read, fmt.Errorf("the status code is %d", h.Code)
	}
	if !h.IsList() && h.Code != http.StatusOK {
		return read, nil // the object does not exist
	}
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return nil, err
	}
	what, _ := record.ReadBy(s.Key)
	for value, err := range state.Values() {
		if err != nil {
			return nil, err
		}
		m, err := format.Meta(value)
		if err != nil {
			return nil, err
		}
		read.items = append(read.items, governance.Item{
			Ref: governance.Ref{Resource: what.Resource, Namespace: m.Namespace, Name: m.Name}, UID: m.UID, Version: m.ResourceVersion,
		})
	}
	return read, nil
}

// Body returns an object of the last call of Items, with its apiVersion and kind. It may be a later version
// than in that call.
func (i *Inventory) Body(ref governance.Ref) ([]byte, error) {
	if lease, body, err := i.ownLease(); err == nil && lease.Ref == ref {
		return body, nil
	}
	key, has := i.at[ref]
	if !has {
		return nil, record.ErrUnknown
	}
	_, body, err := objectAt(i.record, key, ref)
	return body, err
}

// objectAt returns an object from a scope, with its apiVersion and kind.
func objectAt(r *record.Recorder, key string, ref governance.Ref) (contentType string, body []byte, err error) {
	state, err := r.Peek(key)
	if err != nil {
		return "", nil, err
	}
	defer state.Close()
	body, err = state.Object(ref.Namespace, ref.Name)
	return state.Head.ContentType, body, err
}

// OwnNode returns the Node object of a node from its cache.
func OwnNode(r *record.Recorder, nodeName string) (*corev1.Node, error) {
	ref := governance.Ref{Resource: "nodes", Name: nodeName}
	var newest cache.Scope
	for _, s := range r.Cache.Scopes() {
		if reads, is := refIn(&s, nodeName); is && reads == ref && s.Written.After(newest.Written) {
			newest = s
		}
	}
	contentType, body, err := objectAt(r, newest.Key, ref)
	if err != nil {
		return nil, fmt.Errorf("reading the cached Node: %w", err)
	}
	object, err := objects.Decode(contentType, body, corev1.SchemeGroupVersion.WithKind("Node"))
	if err != nil {
		return nil, err
	}
	node, is := object.(*corev1.Node)
	if !is {
		return nil, fmt.Errorf("reading the cached Node: it is a %T", object)
	}
	return node, nil
}

// ownLease returns the node's Lease from the cloud's response to the last write of the node, if the hub has it.
func (i *Inventory) ownLease() (item governance.Item, body []byte, err error) {
	ref := governance.Ref{Resource: "leases", Namespace: corev1.NamespaceNodeLease, Name: i.writes.NodeName}
	contentType, body, found := i.writes.LastLease()
	if !found {
		return item, nil, record.ErrUnknown
	}
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return item, nil, err
	}
	m, err := format.Meta(body)
	return governance.Item{Ref: ref, UID: m.UID, Version: m.ResourceVersion}, body, err
}
