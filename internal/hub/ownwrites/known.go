package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/lru"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// errUnknown is the error of a write of an object that the hub does not have.
var errUnknown = errors.New("the hub does not have the object")

// known returns the newest version of an object that the cache has in any scope of the caller, and the version
// in the scope of a get by the caller. If that scope is not cached, both are the same.
func (p *Proxy) known(c *call, o *ownWrite) (newest, read typed, err error) {
	get := request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: o.object}, Header: http.Header{"Accept": c.Header.Values("Accept")}})
	paths := append(slices.Clone(o.collections), o.object)
	for _, s := range p.Cache.Scopes() {
		parts := strings.SplitN(s.Key, "\n", 3)
		if len(parts) < 3 || parts[0] != c.caller.Name || !slices.Contains(paths, parts[1]) {
			continue
		}
		object, err := p.keptObject(s.Key, c, o)
		if err != nil {
			continue // it is not in this scope, or incomplete
		}
		if s.Key == c.caller.Name+"\n"+get.Scope {
			read = object
		}
		if newest == nil || wire.IsUpTo(newest.GetResourceVersion(), object.GetResourceVersion()) {
			newest = object
		}
	}
	if newest == nil {
		return nil, nil, errUnknown
	}
	if read == nil {
		read = newest
	}
	return newest, read, nil
}

// keptObject returns an object from a scope.
func (p *Proxy) keptObject(key string, c *call, o *ownWrite) (typed, error) {
	p.queues.settle(key)
	view, err := p.Cache.View(key)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	h, err := decodeHead(view.Head())
	if err != nil {
		return nil, err
	}
	body, err := h.objectIn(view, c.what.Namespace, c.what.Name)
	if err != nil {
		return nil, err
	}
	return decode(h.ContentType, body, o.gvk)
}

// objectIn returns an object from a state, which is the object alone or a list, with its apiVersion and kind.
func (h *head) objectIn(view *cache.View, namespace, name string) ([]byte, error) {
	if h.List == nil {
		body, err := view.Get(document)
		if err != nil || h.Code != http.StatusOK {
			return nil, errors.Join(err, errUnknown)
		}
		return body, nil
	}
	list, err := h.list()
	if err != nil {
		return nil, err
	}
	item, err := view.Get(id(&wire.Meta{Namespace: namespace, Name: name}))
	if err != nil {
		return nil, err
	}
	apiVersion, kind := list.ItemKind()
	return list.Format.ObjectOf(item, apiVersion, kind)
}

// remembered returns a Lease or an event as the node last wrote it.
func (p *Proxy) remembered(object string, gvk schema.GroupVersionKind) (typed, error) {
	if entries := p.Journal.Of(object); len(entries) > 0 {
		last := entries[len(entries)-1]
		return decode(last.ContentType, last.Body, gvk)
	}
	contentType, body, found := p.recent.get(object)
	if !found {
		return nil, errUnknown
	}
	return decode(contentType, body, gvk)
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

// leaseFromJournal answers with the node's Lease as the node last wrote it, if the hub has it. A kubelet reads
// its Lease only when it starts. Without an answer it would create a Lease that exists already.
func (p *Proxy) leaseFromJournal(w http.ResponseWriter, c *call, reason error) bool {
	if p.Journal == nil || !isAway(reason) || c.Context().Err() != nil {
		return false
	}
	lease := &call{Request: c.Clone(c.Context()), caller: c.caller, what: c.what}
	lease.Method = http.MethodPut
	o := p.ownWriteOf(lease)
	if o == nil || o.kind != journal.Lease {
		return false
	}
	object, err := p.remembered(o.object, o.gvk)
	if err != nil {
		return false
	}
	format, err := accepted(c.Header)
	if err != nil {
		return false
	}
	body, err := encode(format, object, o.gvk)
	if err != nil {
		p.Log.V(2).Info("Encoding the node's last Lease failed", "error", err.Error())
		return false
	}
	p.metrics.request(c.what.Kind, fromJournal)
	w.Header().Set("Content-Type", format.ContentType())
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
	return true
}
