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

	// ResourceVersion, Continue and RemainingItemCount may be changed between DecodeList and
	// Encode. The other fields of the list's metadata stay as they were.
	ResourceVersion, Continue string
	RemainingItemCount        *int64

	// ItemsHaveType: the items have apiVersion and kind. It is false in protobuf. Of a list
	// without items in JSON it is inferred from how the list is written.
	ItemsHaveType bool

	// layout is how the list was written, so that Encode writes it in the same way. The zero
	// value is how an API server writes the list of a built-in kind.
	layout layout
}

// layout is a list without its items, in bytes.
type layout struct {
	// The layout is that of a list with this type and metadata.
	apiVersion, kind string
	meta             listMeta

	// before and after surround the items. Encode changes metadata in them if it has to.
	before, after []byte
	// envelopeBefore and envelopeAfter surround the protobuf message of the list.
	envelopeBefore, envelopeAfter []byte
	nullItems                     bool // the list had null instead of items
}

// Item is an item of a list, in the form in which the list has it.
type Item struct {
	// Meta has the item's apiVersion and kind also if the item does not.
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

// DecodeList divides a list into its items, which share memory with body. The header does
// not. The error is ErrNotAList if body is something else.
//
// A Header can be stored as the list that Encode writes with no items: DecodeList returns the
// same Header for it.
func (f Format) DecodeList(body []byte) (*List, error) {
	list, err := codecs[f].decodeList(body)
	if err != nil {
		return nil, f.wrap("decoding a list", err)
	}
	return list, nil
}

// Size is the size of the items of a list. It must be known before the first item is written,
// because lists in protobuf begin with it. The zero value is that of no items.
type Size struct {
	items            int
	bytes, protobufs int64
}

// Add adds an item with a length in bytes.
func (s *Size) Add(length int) {
	s.items++
	s.bytes += int64(length)
	s.protobufs += sizeOfItem(length)
}

// Encode writes the list with items in its form, which are read one by one. It returns the
// error that items yields, and an error if the items are not of the given size. It makes
// several small writes. A list that an API server wrote is written with the same bytes if
// nothing was changed.
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

// Length returns how many bytes Encode writes for items of a size.
func (h *Header) Length(size Size) (int64, error) {
	frame, err := codecs[h.Format].listFrame(h, size)
	if err != nil {
		return 0, h.Format.wrap("encoding a "+h.Kind, err)
	}
	n := int64(len(frame.before)) + int64(len(frame.after))
	if h.Format == Protobuf {
		return n + size.protobufs, nil
	}
	return n + size.bytes + int64(len(frame.separator))*int64(max(0, size.items-1)), nil
}

// listFrame is what surrounds and separates the items of a list.
type listFrame struct{ before, separator, after []byte }

var errSize = errors.New("the items do not have the size that was given")

// isFor returns whether the layout is that of a list of the type of h.
func (l *layout) isFor(h *Header) bool {
	return l.before != nil && l.apiVersion == h.APIVersion && l.kind == h.Kind
}

// listMeta is the part of a list's metadata that a Header has.
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

// writesEmptyContinue returns whether an API server writes continue in JSON also if it
// is empty, which it does for custom resources.
func (h *Header) writesEmptyContinue() bool {
	return h.ItemsHaveType && h.Kind != partialList
}

// partialList is a list whose items have apiVersion and kind although it is of a built-in kind.
const partialList = "PartialObjectMetadataList"

// complete checks a list whose fields were read, and sets those that follow from them. custom:
// the list is written as those of custom resources are.
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

// isListKind returns whether a kind can be that of a list of objects. The exceptions are
// discovery documents.
func isListKind(kind string) bool {
	switch kind {
	case "List", "APIGroupList", "APIResourceList":
		return false
	}
	return strings.HasSuffix(kind, "List")
}

// member is a field of an object in JSON. The value is encoded.
type member struct {
	key   string
	value []byte
}

// order returns whether the first key is written before the second one.
type order func(first, second string) bool

// listMetaFields are the fields of a list's metadata, as encoding/json writes them.
var listMetaFields = []string{"selfLink", "resourceVersion", "continue", "remainingItemCount", "shardInfo"}

func inStructOrder(first, second string) bool {
	i, j := slices.Index(listMetaFields, first), slices.Index(listMetaFields, second)
	return i >= 0 && (j < 0 || i < j)
}

func inAlphabeticalOrder(first, second string) bool { return first < second }

// editListMeta sets members of a list's metadata, and removes those whose value is nil. Members
// that exist keep their place.
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
	errNoMetadata = errors.New("the list has no metadata in which to set the resourceVersion")
	errNoObject   = errors.New("it is not the object form of an object")
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

// seenFields are the fields of one message or map that were read. A field that is there twice
// is an error: decoders do not agree which one counts.
type seenFields uint16

func (s *seenFields) has(f field) bool { return *s&(1<<f) != 0 }

func (s *seenFields) add(f field) error {
	if s.has(f) {
		return fmt.Errorf("%s is there twice", f)
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
