package proxy

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
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Inventory lists the cached objects of the node that the coordinator of its pool should have, in their last
// version from the cloud. It reads a scope again only when it has changed. An Inventory must be used by one
// goroutine at a time.
type Inventory struct {
	proxy *Proxy
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

// NewInventory returns the inventory of the cached objects. It includes Secrets only while hasSecrets returns
// true.
func (p *Proxy) NewInventory(hasSecrets func() bool) *Inventory {
	return &Inventory{proxy: p, reads: func(s *cache.Scope) (reads governance.Ref, is bool) {
		reads, is = p.isForInventory(s)
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
	if lease, _, err := i.proxy.ownLease(); err == nil {
		found[lease.Ref] = lease
	}
	return slices.Collect(maps.Values(found)), nil
}

// newest returns the newest scope for each object or collection.
func (i *Inventory) newest() map[governance.Ref]*cache.Scope {
	newest := map[governance.Ref]*cache.Scope{}
	scopes := i.proxy.Cache.Scopes()
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
			if read, err = i.proxy.inventoryOf(s, reads.Name == ""); err != nil && reads.Name == "" {
				return nil, fmt.Errorf("reading the cached %s: %w", reads.Resource, err)
			}
			if err != nil { // continue with the other objects
				i.proxy.Log.V(2).Info("Reading a cached object failed", "object", reads.String(), "error", err.Error())
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

// isForInventory returns what a scope contains: the pods of the node, without a name, or one object of another
// kind. It returns false for other scopes.
func (p *Proxy) isForInventory(s *cache.Scope) (reads governance.Ref, is bool) {
	if !isOfNode(s.Key) || strings.Contains(s.Key, "as=") {
		return reads, false
	}
	what, name := readBy(s.Key)
	if what.Resource == "pods" {
		return governance.Ref{Resource: what.Resource}, strings.HasPrefix(s.Key, p.podsOfNode())
	}
	return governance.Ref{Resource: what.Resource, Namespace: what.Namespace, Name: name}, name != "" && isUploaded(&what)
}

// isUploaded reports whether hubs upload objects of the kind of a request.
func isUploaded(what *request.Request) bool {
	kind, known := governance.KindOf(what.Resource)
	return known && !kind.IsOfPool && what.Subresource == "" && strings.TrimPrefix(what.Group+"/"+what.Version, "/") == kind.APIVersion
}

// inventoryOf reads a scope. A single object may be missing; a collection must not be.
func (p *Proxy) inventoryOf(s *cache.Scope, isCollection bool) (*inventoried, error) {
	read := &inventoried{written: s.Written}
	view, err := p.Cache.Peek(s.Key)
	if errors.Is(err, cache.ErrNotFound) && !isCollection { // the scope was removed meanwhile
		return read, nil
	}
	if err != nil {
		return nil, err
	}
	defer view.Close()
	h, err := decodeHead(view.Head())
	if err == nil && h.List == nil && isCollection {
		err = fmt.Errorf("the status code is %d", h.Code)
	}
	if err != nil || h.List == nil && h.Code != http.StatusOK {
		return read, err // the object does not exist
	}
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return nil, err
	}
	what, _ := readBy(s.Key)
	for value, err := range values(view, nil) {
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
	if lease, body, err := i.proxy.ownLease(); err == nil && lease.Ref == ref {
		return body, nil
	}
	key, has := i.at[ref]
	if !has {
		return nil, errUnknown
	}
	_, body, err := i.proxy.keptAt(key, ref)
	return body, err
}

// keptAt returns an object from a scope, with its apiVersion and kind.
func (p *Proxy) keptAt(key string, ref governance.Ref) (contentType string, body []byte, err error) {
	view, err := p.Cache.Peek(key)
	if err != nil {
		return "", nil, err
	}
	defer view.Close()
	h, err := decodeHead(view.Head())
	if err != nil {
		return "", nil, err
	}
	body, err = h.objectIn(view, ref.Namespace, ref.Name)
	return h.ContentType, body, err
}

// OwnNode returns the Node object of this node from the cache.
func (p *Proxy) OwnNode() (*corev1.Node, error) {
	ref := governance.Ref{Resource: "nodes", Name: p.Recognizer.NodeName}
	var newest cache.Scope
	scopes := p.Cache.Scopes()
	for n := range scopes {
		if reads, is := p.isForInventory(&scopes[n]); is && reads == ref && scopes[n].Written.After(newest.Written) {
			newest = scopes[n]
		}
	}
	contentType, body, err := p.keptAt(newest.Key, ref)
	if err != nil {
		return nil, fmt.Errorf("reading the cached Node: %w", err)
	}
	object, err := decode(contentType, body, corev1.SchemeGroupVersion.WithKind("Node"))
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
func (p *Proxy) ownLease() (item governance.Item, body []byte, err error) {
	ref := governance.Ref{Resource: "leases", Namespace: "kube-node-lease", Name: p.Recognizer.NodeName}
	contentType, body, found := p.recent.get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + ref.Name)
	if !found {
		return item, nil, errUnknown
	}
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return item, nil, err
	}
	m, err := format.Meta(body)
	return governance.Item{Ref: ref, UID: m.UID, Version: m.ResourceVersion}, body, err
}
