package wire

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
)

// Header is a list without its items.
type Header struct {
	Format           Format
	APIVersion, Kind string

	// ResourceVersion, Continue and RemainingItemCount may be changed between DecodeList and Encode. The other
	// fields of the list's metadata stay unchanged.
	ResourceVersion, Continue string
	RemainingItemCount        *int64

	// ItemsHaveType is true if the items have apiVersion and kind. It is false in protobuf. For a JSON list
	// without items, it is inferred from the order of the list's fields.
	ItemsHaveType bool

	// layout is the encoding of the decoded list, so that Encode can encode the list in the same way. The zero
	// value is the encoding of a built-in kind by an API server.
	layout layout
}

// layout is an encoded list without its items.
type layout struct {
	// apiVersion, kind and meta are the type and metadata of the encoded list.
	apiVersion, kind string
	meta             listMeta

	// before and after are the bytes before and after the items. Encode changes the metadata in them if
	// necessary.
	before, after []byte
	// envelopeBefore and envelopeAfter are the bytes before and after the protobuf message of the list.
	envelopeBefore, envelopeAfter []byte
	nullItems                     bool // the list has null instead of items
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
// output.
func (f Format) DecodeList(body []byte) (*List, error) {
	list, err := codecs[f].decodeList(body)
	if err != nil {
		return nil, f.wrap("decoding a list", err)
	}
	return list, nil
}

// Size is the size of the items of a list. It must be known before the first item is written, because a list in
// protobuf begins with its size. The zero value is the size of no items.
type Size struct {
	items             int
	bytes, asProtobuf int64
}

// Add adds an item with this length in bytes.
func (s *Size) Add(length int) {
	s.items++
	s.bytes += int64(length)
	s.asProtobuf += sizeOfItem(length)
}

// Encode writes the list with items in its format, which are read one by one. It returns the error that items
// yields, and an error if the items do not have the given size. It calls Write several times with few bytes. If
// nothing was changed, a list from an API server is written with the same bytes.
func (h *Header) Encode(w io.Writer, size Size, items iter.Seq2[[]byte, error]) error {
	frame, err := codecs[h.Format].listFrame(h, size)
	if err != nil {
		return h.Format.wrap("encoding a "+h.Kind, err)
	}
	if _, err := w.Write(frame.before); err != nil {
		return err
	}
	var written Size
	prefix := make([]byte, 0, maxItemPrefix)
	for item, err := range items {
		if err != nil {
			return err
		}
		switch {
		case h.Format == Protobuf:
			prefix = appendItemPrefix(prefix[:0], len(item))
		case written.items == 1:
			prefix = frame.separator
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
	_, err = w.Write(frame.after)
	return err
}

// Length returns how many bytes Encode writes for items of this size.
func (h *Header) Length(size Size) (int64, error) {
	frame, err := codecs[h.Format].listFrame(h, size)
	if err != nil {
		return 0, h.Format.wrap("encoding a "+h.Kind, err)
	}
	n := int64(len(frame.before)) + int64(len(frame.after))
	if h.Format == Protobuf {
		return n + size.asProtobuf, nil
	}
	return n + size.bytes + int64(len(frame.separator))*int64(max(0, size.items-1)), nil
}

// listFrame has the bytes before, between and after the items of a list.
type listFrame struct{ before, separator, after []byte }

var errSize = errors.New("the items do not have the given size")

// isFor reports whether the layout is for a list with the type of h.
func (l *layout) isFor(h *Header) bool {
	return l.before != nil && l.apiVersion == h.APIVersion && l.kind == h.Kind
}

// listMeta has the fields of a list's metadata that a Header has.
type listMeta struct {
	resourceVersion, more string
	hasRemaining          bool
	remaining             int64
}

func (h *Header) listMeta() listMeta {
	m := listMeta{resourceVersion: h.ResourceVersion, more: h.Continue}
	if h.RemainingItemCount != nil {
		m.hasRemaining, m.remaining = true, *h.RemainingItemCount
	}
	return m
}

// writesEmptyContinue reports whether an API server writes an empty continue field in JSON, as for custom
// resources.
func (h *Header) writesEmptyContinue() bool {
	return h.ItemsHaveType && h.Kind != partialList
}

// partialList is a built-in list kind whose items have apiVersion and kind.
const partialList = "PartialObjectMetadataList"

// complete checks a decoded list, and sets the fields that depend on other fields. custom means that the list is
// encoded like a list of custom resources.
func (l *List) complete(custom bool) error {
	if l.APIVersion == "" || !isListKind(l.Kind) {
		return fmt.Errorf("%w: its kind is %.40q", ErrNotAList, l.Kind)
	}
	l.layout.apiVersion, l.layout.kind, l.layout.meta = l.APIVersion, l.Kind, l.listMeta()
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

// member is a field of a JSON object. The value is encoded.
type member struct {
	key   string
	value []byte
}

// order reports whether the first key is written before the second one.
type order func(first, second string) bool

// listMetaFields are the fields of a list's metadata, in the order of encoding/json.
var listMetaFields = []string{"selfLink", "resourceVersion", "continue", "remainingItemCount", "shardInfo"}

func inStructOrder(first, second string) bool {
	i, j := slices.Index(listMetaFields, first), slices.Index(listMetaFields, second)
	return i >= 0 && (j < 0 || i < j)
}

func inAlphabeticalOrder(first, second string) bool { return first < second }

// editListMeta sets members of a list's metadata, and removes those whose new value is nil. Existing members
// keep their position.
func editListMeta(members, changes []member, before order) []member {
	for _, change := range changes {
		at := slices.IndexFunc(members, func(m member) bool { return m.key == change.key })
		switch {
		case at >= 0 && change.value == nil:
			members = slices.Delete(members, at, at+1)
		case at >= 0:
			members[at] = change
		case change.value != nil:
			at = slices.IndexFunc(members, func(m member) bool { return before(change.key, m.key) })
			if at < 0 {
				at = len(members)
			}
			members = slices.Insert(members, at, change)
		}
	}
	return members
}

var (
	errNoMetadata  = errors.New("the list has no metadata in which to set the resourceVersion")
	errNotAnObject = errors.New("it is not the object form of an object")
)

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
