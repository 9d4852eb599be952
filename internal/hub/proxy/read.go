package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// head is the head of a scope in the cache.
type head struct {
	// Code and ContentType are the status code and the Content-Type of the response.
	Code        int    `json:"code"`
	ContentType string `json:"contentType"`
	// List is the encoded list without its items, and ItemsHaveType the field of its wire.Header. A scope
	// without List is a document: its only item is the body.
	List          []byte `json:"list,omitempty"`
	ItemsHaveType bool   `json:"itemsHaveType,omitempty"`
	// ResourceVersion is the version of the state, which includes all events up to this version.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

func decodeHead(raw []byte) (*head, error) {
	h := &head{}
	if err := json.Unmarshal(raw, h); err != nil {
		return nil, fmt.Errorf("reading the head of a cached response: %w", err)
	}
	return h, nil
}

func (h *head) encode() []byte {
	raw, err := json.Marshal(h)
	if err != nil {
		panic(err) // all its fields can be encoded
	}
	return raw
}

// documentHead returns the head of a document.
func documentHead(response *http.Response) *head {
	return &head{Code: response.StatusCode, ContentType: response.Header.Get("Content-Type")}
}

// headOf returns the head of a list.
func headOf(list *wire.Header, contentType string) (*head, error) {
	empty := *list
	empty.Continue, empty.RemainingItemCount = "", nil
	var raw bytes.Buffer
	if err := empty.Encode(&raw, wire.Size{}, func(func([]byte, error) bool) {}); err != nil {
		return nil, err
	}
	return &head{
		Code: http.StatusOK, ContentType: contentType, List: raw.Bytes(), ItemsHaveType: list.ItemsHaveType, ResourceVersion: list.ResourceVersion,
	}, nil
}

// list decodes the list of a head. The result has no items.
func (h *head) list() (*wire.Header, error) {
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return nil, err
	}
	list, err := format.DecodeList(h.List)
	if err != nil {
		return nil, err
	}
	list.ItemsHaveType, list.ResourceVersion = h.ItemsHaveType, h.ResourceVersion
	return &list.Header, nil
}

// document is the id of the only item of a document.
const document = ""

// keptCodes are the codes of responses that are cached: the object exists, or does not exist.
var keptCodes = []int{http.StatusOK, http.StatusNotFound}

// get answers a request for one object or document.
func (p *Proxy) get(w http.ResponseWriter, c *call) {
	response, err := p.read(c, c.Request)
	if err != nil {
		p.documentFromCache(w, c, err)
		return
	}
	defer response.Body.Close()
	if c.isGated() && response.StatusCode == http.StatusOK {
		p.getThroughGate(w, c, response)
		return
	}
	p.passAndKeep(w, c, response, func(st *state, body []byte) error {
		return p.storeDocument(st, c, documentHead(response), body)
	})
}

// passAndKeep forwards the cloud's response to the client, and caches it if its code is one of keptCodes.
func (p *Proxy) passAndKeep(w http.ResponseWriter, c *call, response *http.Response, store func(*state, []byte) error) {
	answer := &buffer{limit: p.bytesOf(c)}
	passInto(w, response, answer)
	encoding := response.Header.Get("Content-Encoding")
	switch {
	case response.StatusCode == http.StatusForbidden:
		p.drop(c)
	case slices.Contains(keptCodes, response.StatusCode):
		if encoding == "" && !answer.tooLarge && p.isKept(c, response, answer.body) {
			break
		}
		queued := p.keep(c, func(st *state) error {
			defer answer.release()
			if err := answer.decode(encoding); err != nil {
				return err
			}
			return store(st, answer.body)
		})
		if queued {
			return
		}
	}
	answer.release()
}

// isKept reports whether the cache already has the same document, so that it need not be stored. This is so for
// most repeated reads.
func (p *Proxy) isKept(c *call, response *http.Response, body []byte) bool {
	return c.what.Kind == request.Get && !p.queues.isBusy(c.key) && p.Cache.Has(c.key, documentHead(response).encode(), document, body)
}

// documentFromCache answers with the last response to the request.
func (p *Proxy) documentFromCache(w http.ResponseWriter, c *call, reason error) {
	if p.leaseFromJournal(w, c, reason) || c.what.Kind == request.Get && p.fromOtherForm(w, c, reason) {
		return
	}
	c.key = p.keyOfDiscovery(c)
	view, h, found := p.fromCache(w, c, reason)
	if !found {
		return
	}
	defer view.Close()
	p.documentInTurn(w, c, view, h)
}

// documentInTurn answers with a cached document. A large document waits for a slot, because all of it is then in
// memory.
func (p *Proxy) documentInTurn(w http.ResponseWriter, c *call, view *cache.View, h *head) {
	write := func() { p.writeDocument(w, c, view, h) }
	if view.Len() > 0 && view.Size(0) > maxSmall {
		p.fromCacheInTurn(w, c, write)
		return
	}
	write()
}

// writeDocument answers with a cached document.
func (p *Proxy) writeDocument(w http.ResponseWriter, c *call, view *cache.View, h *head) {
	body, err := view.Get(document)
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	p.observeRead(c, h.ContentType, body)
	if format, err := wire.FormatOf(h.ContentType); err == nil && c.isGated() && h.Code == http.StatusOK {
		if shown := p.shownText(format, body, c.what.Path); shown != nil {
			body = shown
		}
	}
	w.Header().Set("Content-Type", h.ContentType)
	w.WriteHeader(h.Code)
	_, _ = w.Write(body)
}

// storeDocument stores a document, unless the cache already has it.
func (p *Proxy) storeDocument(s *state, c *call, h *head, body []byte) error {
	*s = state{}
	raw := h.encode()
	if p.Cache.Has(c.key, raw, document, body) {
		return nil
	}
	_, err := p.Cache.Update(c.key, raw, func(yield func(string, []byte) bool) { yield(document, body) })
	return err
}

// list answers a request for a collection.
func (p *Proxy) list(w http.ResponseWriter, c *call) {
	if (p.sessionOf(c) != nil || c.wantsTable()) && !p.asWhole(w, c) {
		return
	}
	response, err := p.read(c, c.Request)
	if err != nil {
		p.listFromCache(w, c, err)
		return
	}
	defer response.Body.Close()
	if c.isGated() && response.StatusCode == http.StatusOK {
		p.listThroughGate(w, c, response)
		return
	}
	if session := p.sessionOf(c); session != nil && response.StatusCode == http.StatusOK {
		p.Filter.Await(c.Context()) // before the request has a slot
		p.inTurn(w, c, p.limits().filtered, func() { p.listThroughFilter(w, c, response, session) })
		return
	}
	p.passAndKeep(w, c, response, func(st *state, body []byte) error {
		if response.StatusCode != http.StatusOK { // the cloud does not serve this resource, or no longer does
			return p.storeDocument(st, c, documentHead(response), body)
		}
		return p.storeCollection(st, c, response.Header.Get("Content-Type"), body)
	})
}

// listFromCache answers with the last state of the collection, as one list.
func (p *Proxy) listFromCache(w http.ResponseWriter, c *call, reason error) {
	if p.fromOtherForm(w, c, reason) {
		return
	}
	view, h, found := p.fromCache(w, c, reason)
	if !found {
		return
	}
	defer view.Close()
	position := request.PositionOf(c.URL.Query())
	switch version := position.ResourceVersion; {
	case position.Continue != "", position.Exact && version != h.ResourceVersion:
		// Only the cloud has the rest of a chunked list, or an older state. The client lists again.
		p.refuse(w, c.Request, http.StatusGone, metav1.StatusReasonExpired, "the hub has only the last state of this list, and the cloud is not reachable")
		return
	case version != "" && version != "0" && !wire.IsUpTo(version, h.ResourceVersion):
		p.unavailable(w, c.Request, fmt.Errorf("%w: the cached state is older than the requested resourceVersion", reason))
		return
	}
	if h.List == nil {
		p.documentInTurn(w, c, view, h)
		return
	}
	list, err := h.list()
	if err != nil {
		p.unavailable(w, c.Request, err)
		return
	}
	if session := p.sessionOf(c); session != nil {
		p.Filter.Await(c.Context()) // before the request has a slot
		p.inTurn(w, c, p.limits().filtered, func() { p.filteredFromCache(w, c, view, h, list, session) })
		return
	}
	p.fromCacheInTurn(w, c, func() { p.writeList(w, c, view, h.ContentType, list) })
}

// writeList answers with a cached list.
func (p *Proxy) writeList(w http.ResponseWriter, c *call, view *cache.View, contentType string, list *wire.Header) {
	var size wire.Size
	shown := p.shownItems(c, view, list)
	for i := range view.Len() {
		if item, is := shown[i]; is {
			size.Add(len(item))
		} else {
			size.Add(view.Size(i))
		}
	}
	if length, err := list.Length(size); err == nil {
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	}
	w.Header().Set("Content-Type", contentType)
	buffered := bufio.NewWriterSize(w, 32<<10) // few writes to the client are faster
	err := list.Encode(buffered, size, values(view, shown))
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		p.Log.V(2).Info("Sending a cached response failed", "path", c.URL.Path, "error", err.Error())
		panic(http.ErrAbortHandler) // the client must see that the response is incomplete
	}
}

// values yields the values of a view. A value whose index is in others is replaced.
func values(view *cache.View, others map[int][]byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var value []byte
		for i := range view.Len() {
			var err error
			if other, is := others[i]; is {
				if !yield(other, nil) {
					return
				}
				continue
			}
			if value, err = view.Value(i, value[:0]); !yield(value, err) || err != nil {
				return
			}
		}
	}
}

// storeCollection stores the response to a list request.
func (p *Proxy) storeCollection(s *state, c *call, contentType string, body []byte) error {
	list, err := decodeList(contentType, body)
	if position := request.PositionOf(c.URL.Query()); errors.Is(err, wire.ErrNotAList) && !position.Limit && position.Continue == "" && isTable(body) {
		return p.storeDocument(s, c, &head{Code: http.StatusOK, ContentType: contentType}, body)
	}
	if err != nil {
		return err
	}
	return p.storeList(s, c, contentType, list)
}

// storeList stores a list, or a chunk of a list.
func (p *Proxy) storeList(s *state, c *call, contentType string, list *wire.List) error {
	position := request.PositionOf(c.URL.Query())
	h, err := headOf(&list.Header, contentType)
	if err != nil {
		return err
	}
	if position.ResourceVersion != "" && s.resume(p, c.key) == nil && s.head.List != nil && wire.IsUpTo(h.ResourceVersion, s.head.ResourceVersion) {
		return nil // the cached state is newer: the response is from an API server that lags behind
	}
	*s = state{}
	if position.Continue == "" && list.Continue == "" {
		writer, err := p.Cache.Update(c.key, h.encode(), pairs(list.Items))
		if err != nil {
			return err
		}
		*s = state{writer, h}
		return nil
	}
	return p.storeChunk(s, c, list, h)
}

// pairs yields each item with its id.
func pairs(items []wire.Item) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range items {
			if !yield(id(&items[i].Meta), items[i].Raw) {
				return
			}
		}
	}
}

// storeChunk adds a chunk to its list, and stores the list with its last chunk.
func (p *Proxy) storeChunk(s *state, c *call, list *wire.List, h *head) (err error) {
	position := request.PositionOf(c.URL.Query())
	snapshot := p.chunks.take(c.key, position.Continue)
	if snapshot == nil {
		if position.Continue != "" {
			return errors.New("the hub has not received its first chunks")
		}
		if snapshot, err = p.Cache.Snapshot(c.key); err != nil {
			return err
		}
	}
	for i := range list.Items {
		if err := snapshot.Add(id(&list.Items[i].Meta), list.Items[i].Raw); err != nil {
			snapshot.Abort()
			return err
		}
	}
	if list.Continue != "" {
		p.chunks.put(c.key, list.Continue, snapshot, p.MaxBytes/ofChunked)
		return nil
	}
	writer, err := snapshot.Commit(h.encode())
	if err != nil {
		return err
	}
	*s = state{writer, h}
	return nil
}

// isTable reports whether a body is a Table, the kind that kubectl requests.
func isTable(text []byte) bool {
	var kind struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(text, &kind) == nil && kind.Kind == "Table"
}

// id is the id of an object within its collection.
func id(m *wire.Meta) string { return m.Namespace + "/" + m.Name }

// cutID returns the namespace and the name from an id.
func cutID(id string) (namespace, name string) {
	namespace, name, _ = strings.Cut(id, "/")
	return namespace, name
}

// Limits for chunked lists that are not complete: their number, the divisor of the cache's size for their bytes,
// and how long a list waits for its next chunk. Clients may abandon any number of lists.
const (
	maxChunked  = 32
	ofChunked   = 2
	chunkWithin = 5 * time.Minute
)

// chunks are the chunked lists that are not complete, one per scope.
type chunks struct {
	mu      sync.Mutex
	waiting []chunked // the oldest first
}

type chunked struct {
	key, next string
	snapshot  *cache.Snapshot
	at        time.Time
}

// take removes and returns the list of a scope whose next chunk has this continue token; nil if there is none.
func (s *chunks) take(key, next string) *cache.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.waiting, func(w chunked) bool { return w.key == key && w.next == next })
	if i < 0 || next == "" {
		return nil
	}
	snapshot := s.waiting[i].snapshot
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return snapshot
}

// put stores a list until its next chunk arrives, for chunkWithin. It drops an older list of the same scope, and
// the oldest lists while all lists together have more than most bytes. A most of 0 means no limit.
func (s *chunks) put(key, next string, snapshot *cache.Snapshot, most int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(func(w chunked) bool { return w.key == key })
	s.waiting = append(s.waiting, chunked{key, next, snapshot, time.Now()})
	size := int64(0)
	for _, w := range s.waiting {
		size += w.snapshot.Size()
	}
	for len(s.waiting) > maxChunked || most > 0 && size > most && len(s.waiting) > 0 {
		size -= s.waiting[0].snapshot.Size()
		s.waiting[0].snapshot.Abort()
		s.waiting = slices.Delete(s.waiting, 0, 1)
	}
	time.AfterFunc(chunkWithin, s.expire)
}

// expire drops the lists whose next chunk has not arrived in time.
func (s *chunks) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropLocked(func(w chunked) bool { return time.Since(w.at) >= chunkWithin })
}

func (s *chunks) dropLocked(is func(chunked) bool) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w chunked) bool {
		drop := is(w)
		if drop {
			w.snapshot.Abort()
		}
		return drop
	})
}
