package record

import (
	"errors"
	"iter"
	"net/http"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// ErrUnknown is the error of an object that the hub does not have.
var ErrUnknown = errors.New("the hub does not have the object")

// document is the id of the only item of a document.
const document = ""

// State is a cached state of a scope: a list, or a document. Close it after use.
type State struct {
	*cache.View
	Head *Head
}

// Open opens the state of a scope after its current jobs, for which it waits as Settle does, and marks the scope as used. The error is
// cache.ErrNotFound if nothing is cached.
func (r *Recorder) Open(key string) (*State, error) {
	r.Settle(key)
	return stateOf(r.Cache.View(key))
}

// Peek is like Open, but does not wait and does not mark the scope as used.
func (r *Recorder) Peek(key string) (*State, error) { return stateOf(r.Cache.Peek(key)) }

func stateOf(view *cache.View, err error) (*State, error) {
	if err != nil {
		return nil, err
	}
	h, err := decodeHead(view.Head())
	if err != nil {
		_ = view.Close()
		return nil, err
	}
	return &State{view, h}, nil
}

// Document returns the body of a document.
func (s *State) Document() ([]byte, error) { return s.Get(document) }

// Object returns an object from a list, or the only object of a document, with its apiVersion and kind. The error
// is ErrUnknown if a document is the response to a request for an object that does not exist.
func (s *State) Object(namespace, name string) ([]byte, error) {
	if !s.Head.IsList() {
		body, err := s.Document()
		if err != nil || s.Head.Code != http.StatusOK {
			return nil, errors.Join(err, ErrUnknown)
		}
		return body, nil
	}
	list, err := s.Head.Header()
	if err != nil {
		return nil, err
	}
	item, err := s.Get(ID(&wire.Meta{Namespace: namespace, Name: name}))
	if err != nil {
		return nil, err
	}
	apiVersion, kind := list.ItemKind()
	return list.Format.ObjectOf(item, apiVersion, kind)
}

// Values yields the items of a list, or the body of a document. A value is valid until the next one.
func (s *State) Values() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var value []byte
		for i := range s.Len() {
			var err error
			if value, err = s.Value(i, value[:0]); !yield(value, err) || err != nil {
				return
			}
		}
	}
}

// Objects yields the objects of a list, or of a document, with their apiVersion and kind. It yields none for the
// response to a request for an object that does not exist.
func (s *State) Objects() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		if !s.Head.IsList() {
			if s.Head.Code != http.StatusNotFound {
				s.Values()(yield)
			}
			return
		}
		list, err := s.Head.Header()
		if err != nil {
			yield(nil, err)
			return
		}
		apiVersion, kind := list.ItemKind()
		for object, err := range s.Values() {
			if err == nil {
				object, err = list.Format.ObjectOf(object, apiVersion, kind)
			}
			if !yield(object, err) {
				return
			}
		}
	}
}

// ID is the id of an object within its collection.
func ID(m *wire.Meta) string { return m.Namespace + "/" + m.Name }
