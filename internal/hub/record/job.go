package record

import (
	"encoding/json"
	"errors"
	"iter"
	"net/http"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/request"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Job stores something of a scope. It keeps between two jobs of the scope the writer that continues the cached
// state, and the head of the cached state. Both are nil if they are not known.
type Job struct {
	r      *Recorder
	key    string
	writer *cache.Writer
	head   *Head
}

func (j *Job) reset() { j.writer, j.head = nil, nil }

func (j *Job) remove() error {
	j.reset()
	return j.r.Cache.Remove(j.key)
}

// Document stores a document, unless the cache already has it.
func (j *Job) Document(h *Head, body []byte) error {
	j.reset()
	raw := h.encode()
	if j.r.Cache.Has(j.key, raw, document, body) {
		return nil
	}
	_, err := j.r.Cache.Update(j.key, raw, func(yield func(string, []byte) bool) { yield(document, body) })
	return err
}

// Collection stores the response to a list request: a list, a chunk of one, or a table.
func (j *Job) Collection(position request.Position, h *Head, body []byte) error {
	if h.Code != http.StatusOK { // the cloud does not serve this resource, or no longer does
		return j.Document(h, body)
	}
	format, err := wire.FormatOf(h.ContentType)
	if err != nil {
		return err
	}
	list, err := format.DecodeList(body)
	if errors.Is(err, wire.ErrNotAList) && !position.Limit && position.Continue == "" && isTable(body) {
		return j.Document(h, body)
	}
	if err != nil {
		return err
	}
	return j.List(position, h.ContentType, list)
}

// isTable reports whether a body is a Table, the kind that kubectl requests.
func isTable(text []byte) bool {
	var kind struct {
		Kind string `json:"kind"`
	}
	return json.Unmarshal(text, &kind) == nil && kind.Kind == "Table"
}

// List stores a list, or a chunk of a list.
func (j *Job) List(position request.Position, contentType string, list *wire.List) error {
	h := headOfList(&list.Header, contentType)
	if position.ResourceVersion != "" && j.resume() == nil && j.head.IsList() && wire.IsUpTo(h.ResourceVersion, j.head.ResourceVersion) {
		return nil // the cached state is newer: the response is from an API server that lags behind
	}
	j.reset()
	if position.Continue == "" && list.Continue == "" {
		writer, err := j.r.Cache.Update(j.key, h.encode(), pairs(list.Items))
		if err == nil {
			j.writer, j.head = writer, h
		}
		return err
	}
	return j.chunk(position.Continue, list, h)
}

// pairs yields each item with its id.
func pairs(items []wire.Item) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for i := range items {
			if !yield(ID(&items[i].Meta), items[i].Raw) {
				return
			}
		}
	}
}

// chunk adds a chunk to its list, and stores the list with its last chunk.
func (j *Job) chunk(token string, list *wire.List, h *Head) (err error) {
	snapshot := j.r.chunks.take(j.key, token)
	if snapshot == nil {
		if token != "" {
			return errors.New("the hub has not received its first chunks")
		}
		if snapshot, err = j.r.Cache.Snapshot(j.key); err != nil {
			return err
		}
	}
	for id, value := range pairs(list.Items) {
		if err := snapshot.Add(id, value); err != nil {
			snapshot.Abort()
			return err
		}
	}
	if list.Continue != "" {
		j.r.chunks.put(j.key, list.Continue, snapshot)
		return nil
	}
	return j.commit(snapshot, h)
}

func (j *Job) commit(snapshot *cache.Snapshot, h *Head) error {
	writer, err := snapshot.Commit(h.encode())
	if err == nil {
		j.writer, j.head = writer, h
	}
	return err
}

// resume opens the cached state to continue it.
func (j *Job) resume() error {
	if j.writer != nil {
		return nil
	}
	writer, raw, err := j.r.Cache.Resume(j.key)
	if err != nil {
		return err
	}
	h, err := decodeHead(raw)
	if err == nil {
		j.writer, j.head = writer, h
	}
	return err
}
