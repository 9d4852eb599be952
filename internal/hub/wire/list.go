package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Header is a list without its items.
type Header struct {
	Format           Format
	APIVersion, Kind string

	// ResourceVersion, Continue and RemainingItemCount are the metadata of the list. Other fields of the metadata
	// are not kept.
	ResourceVersion, Continue string
	RemainingItemCount        *int64

	// ItemsHaveType is true if the items have apiVersion and kind. It is false in protobuf. For a JSON list
	// without items, it is inferred from the order of the list's fields, in which an API server and Encode write
	// kind after the items only if the items have a type.
	ItemsHaveType bool
}

// Item is an item of a list, in the encoding of the list.
type Item struct {
	// Meta has the item's apiVersion and kind even if the item does not contain them.
	Meta
	Raw []byte
}

// List is a list of objects.
type List struct {
	Header
	Items []Item
}

// ItemKind returns the apiVersion and kind of the list's items.
func (h *Header) ItemKind() (apiVersion, kind string) {
	return h.APIVersion, strings.TrimSuffix(h.Kind, "List")
}

// DecodeList splits a list into its items, which share memory with body. The header does not share memory with
// it. The error is ErrNotAList if body is not a list.
//
// A Header can be stored as the output of Encode without items: DecodeList returns the same Header for this
// output. Hubs of earlier versions stored the list of the API server without its items.
func (f Format) DecodeList(body []byte) (*List, error) {
	list, err := codecs[f].decodeList(body)
	if err != nil {
		return nil, f.wrap("decoding a list", err)
	}
	return list, nil
}

// Encode returns the list in its format. Clients decode the same list as from an API server, but the bytes may
// differ.
func (l *List) Encode() []byte {
	var size Size
	for i := range l.Items {
		size.Add(len(l.Items[i].Raw))
	}
	var list bytes.Buffer
	list.Grow(int(l.Length(size)))
	_ = l.Write(&list, size, func(yield func([]byte, error) bool) { // the size is right, and a buffer returns no error
		for i := range l.Items {
			if !yield(l.Items[i].Raw, nil) {
				return
			}
		}
	})
	return list.Bytes()
}

// Size is the size of the items of a list. It must be known before the first item is written, because a list in
// protobuf begins with its size. The zero value is the size of no items.
type Size struct {
	items             int
	bytes, asProtobuf int64 // asProtobuf includes the tags and lengths before the items
}

// Add adds an item with this length in bytes.
func (s *Size) Add(length int) {
	s.items++
	s.bytes += int64(length)
	s.asProtobuf += int64(sizeOfField(length))
}

// Write writes what Encode returns for a list with these items, which are read one by one. It returns the error
// that items yields, and an error if the items do not have the given size. It calls w.Write several times with few
// bytes.
func (h *Header) Write(w io.Writer, size Size, items iter.Seq2[[]byte, error]) error {
	before, after := codecs[h.Format].aroundItems(h, size)
	if _, err := w.Write(before); err != nil {
		return err
	}
	var written Size
	var prefix []byte
	for item, err := range items {
		if err != nil {
			return err
		}
		switch {
		case h.Format == Protobuf:
			prefix = protowire.AppendVarint(protowire.AppendTag(prefix[:0], 2, protowire.BytesType), uint64(len(item)))
		case written.items == 1:
			prefix = []byte(",")
		}
		written.Add(len(item))
		if written.items > size.items || written.bytes > size.bytes {
			break
		}
		if _, err := w.Write(prefix); err != nil {
			return err
		}
		if _, err := w.Write(item); err != nil {
			return err
		}
	}
	if written != size {
		return fmt.Errorf("encoding a %s in %s: %w", h.Kind, h.Format, errSize)
	}
	_, err := w.Write(after)
	return err
}

// Length returns how many bytes Write writes for items of this size.
func (h *Header) Length(size Size) int64 {
	before, after := codecs[h.Format].aroundItems(h, size)
	n := int64(len(before) + len(after))
	if h.Format == Protobuf {
		return n + size.asProtobuf
	}
	return n + size.bytes + int64(max(0, size.items-1)) // commas
}

var errSize = errors.New("the items do not have the given size")

// metadata returns the metadata of an encoded list.
func (h *Header) metadata() *metav1.ListMeta {
	return &metav1.ListMeta{ResourceVersion: h.ResourceVersion, Continue: h.Continue, RemainingItemCount: h.RemainingItemCount}
}

// partialList is a built-in list kind whose items have apiVersion and kind.
const partialList = "PartialObjectMetadataList"

// complete checks a decoded list, and sets the fields that depend on other fields. custom means that the list is
// encoded like a list of custom resources.
func (l *List) complete(custom bool) error {
	if l.APIVersion == "" || !isListKind(l.Kind) {
		return fmt.Errorf("%w: its kind is %.40q", ErrNotAList, l.Kind)
	}
	l.ItemsHaveType = l.Format != Protobuf && (custom || l.Kind == partialList)
	apiVersion, kind := l.ItemKind()
	for i := range l.Items {
		item := &l.Items[i]
		if item.Name == "" {
			return fmt.Errorf("%w: item %d has no name", ErrNotAList, i)
		}
		hasType := item.APIVersion != "" && item.Kind != ""
		if !hasType {
			item.APIVersion, item.Kind = apiVersion, kind
		}
		if i == 0 {
			l.ItemsHaveType = hasType
		}
	}
	return nil
}

// isListKind reports whether a kind may be a list of objects. The exceptions are kinds of discovery documents.
func isListKind(kind string) bool {
	switch kind {
	case "List", "APIGroupList", "APIResourceList":
		return false
	}
	return strings.HasSuffix(kind, "List")
}

var errNotAnObject = errors.New("it is not the object form of an object")

// field is a field that this package reads.
type field uint8

const (
	fieldAPIVersion field = iota
	fieldKind
	fieldMetadata
	fieldItems
	fieldNamespace
	fieldName
	fieldUID
	fieldResourceVersion
	fieldContinue
	fieldRemainingItemCount
	fieldType
	fieldObject
)

var fieldNames = [...]string{
	"apiVersion", "kind", "metadata", "items", "namespace", "name", "uid", "resourceVersion",
	"continue", "remainingItemCount", "type", "object",
}

// String implements fmt.Stringer.
func (f field) String() string { return fieldNames[f] }

// seenFields are the fields of a message or map that were read so far. A duplicate field is an error, because
// decoders do not agree which value is valid.
type seenFields uint16

func (s *seenFields) has(f field) bool { return *s&(1<<f) != 0 }

func (s *seenFields) add(f field) error {
	if s.has(f) {
		return fmt.Errorf("%s occurs twice", f)
	}
	*s |= 1 << f
	return nil
}

func nonEmpty(m map[string]string) map[string]string {
	if len(m) == 0 {
		return nil
	}
	return m
}
