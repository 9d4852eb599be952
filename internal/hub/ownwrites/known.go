package ownwrites

import (
	"net/http"
	"net/url"
	"slices"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// known returns the newest version of an object that the cache has in any scope of the node, and the version in
// the scope of a get by the same client. If that scope is not cached, both are the same.
func (w *Writes) known(o *Write) (newest, read objects.Typed, err error) {
	get := request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: o.Object}, Header: http.Header{"Accept": o.request.Header.Values("Accept")}})
	paths := append(slices.Clone(o.collections), o.Object)
	for _, s := range w.Record.Cache.Scopes() {
		if !record.IsOfNode(s.Key) || !slices.Contains(paths, record.PathOf(s.Key)) {
			continue
		}
		object, err := w.knownIn(s.Key, o)
		if err != nil {
			continue // it is not in this scope, or incomplete
		}
		if s.Key == record.KeyOf(identity.OfNode(), &get) {
			read = object
		}
		if newest == nil || wire.IsUpTo(newest.GetResourceVersion(), object.GetResourceVersion()) {
			newest = object
		}
	}
	if newest == nil {
		return nil, nil, record.ErrUnknown
	}
	if read == nil {
		read = newest
	}
	return newest, read, nil
}

// knownIn returns the object of a write from a scope.
func (w *Writes) knownIn(key string, o *Write) (objects.Typed, error) {
	state, err := w.Record.Open(key)
	if err != nil {
		return nil, err
	}
	defer state.Close()
	body, err := state.Object(o.what.Namespace, o.what.Name)
	if err != nil {
		return nil, err
	}
	return objects.Decode(state.Head.ContentType, body, o.gvk)
}

// remembered returns a Lease or an event as the node last wrote it.
func (w *Writes) remembered(object string, gvk schema.GroupVersionKind) (objects.Typed, error) {
	if entries := w.Journal.Of(object); len(entries) > 0 {
		last := entries[len(entries)-1]
		return objects.Decode(last.ContentType, last.Body, gvk)
	}
	contentType, body, found := w.recent.get(object)
	if !found {
		return nil, record.ErrUnknown
	}
	return objects.Decode(contentType, body, gvk)
}

// maxRecent is the most responses in recent, and maxRecentSize the size limit for each of them, in bytes.
const maxRecent, maxRecentSize = 256, 16 << 10

// recent are the last responses of the cloud to writes of Leases and events by the node. The cache does not
// have them, because no client reads these objects.
type recent struct {
	once sync.Once
	of   *lru.Cache // of recentAnswer, by object
}

type recentAnswer struct {
	contentType string
	body        []byte
}

func (r *recent) cache() *lru.Cache {
	r.once.Do(func() { r.of = lru.New(maxRecent) })
	return r.of
}

func (r *recent) put(object, contentType string, body []byte) {
	if len(body) <= maxRecentSize {
		r.cache().Add(object, recentAnswer{contentType, body})
	}
}

func (r *recent) get(object string) (contentType string, body []byte, found bool) {
	value, found := r.cache().Get(object)
	answer, _ := value.(recentAnswer)
	return answer.contentType, answer.body, found
}

// Lease returns the node's Lease as the node last wrote it, in the format that a client accepts, if the request is
// a get of it and the hub has it. A kubelet reads its Lease only when it starts. Without an answer it would create
// a Lease that exists already.
func (w *Writes) Lease(r *http.Request, what *request.Request) (contentType string, body []byte, found bool) {
	if w.Journal == nil {
		return "", nil, false
	}
	put := r.Clone(r.Context())
	put.Method = http.MethodPut
	o := w.Of(put, what)
	if o == nil || o.Kind != journal.Lease {
		return "", nil, false
	}
	object, err := w.remembered(o.Object, o.gvk)
	if err != nil {
		return "", nil, false
	}
	format, err := objects.Accepted(r.Header)
	if err != nil {
		return "", nil, false
	}
	body, err = objects.Encode(format, object, o.gvk)
	return format.ContentType(), body, err == nil
}

// LastLease returns the cloud's response to the node's last write of its Lease, if the hub has it.
func (w *Writes) LastLease() (contentType string, body []byte, found bool) {
	return w.recent.get(LeasePath(w.NodeName))
}

// LeasePath returns the path of the Lease of a node.
func LeasePath(nodeName string) string {
	return "/apis/" + coordinationv1.SchemeGroupVersion.String() + "/namespaces/" + corev1.NamespaceNodeLease + "/leases/" + nodeName
}
