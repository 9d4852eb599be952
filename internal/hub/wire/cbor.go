package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/watch"
)

// cborCodec reads and writes CBOR as apimachinery does: strings are byte strings, and the
// object form has the tag of self-described CBOR.
type cborCodec struct{}

var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

func (cborCodec) meta(object []byte) (Meta, error) {
	s := cborScanner{b: object}
	s.tag()
	m, err := s.meta()
	if err == nil {
		err = s.end()
	}
	return m, err
}

// meta reads an object.
func (s *cborScanner) meta() (m Meta, err error) {
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return s.field(&seen, fieldAPIVersion, &m.APIVersion)
		case "kind":
			return s.field(&seen, fieldKind, &m.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			return s.objectMeta(&m)
		}
		return s.skip()
	})
	return m, err
}

func (s *cborScanner) objectMeta(m *Meta) error {
	if s.takeNull() {
		return nil
	}
	var seen seenFields
	return s.object(func(key []byte) error {
		switch string(key) {
		case "namespace":
			return s.field(&seen, fieldNamespace, &m.Namespace)
		case "name":
			return s.field(&seen, fieldName, &m.Name)
		case "uid":
			return s.field(&seen, fieldUID, &m.UID)
		case "resourceVersion":
			return s.field(&seen, fieldResourceVersion, &m.ResourceVersion)
		case "deletionTimestamp":
			m.Deleting = !s.isNull()
		}
		return s.skip()
	})
}

// field reads a string into value.
func (s *cborScanner) field(seen *seenFields, field field, value *string) (err error) {
	if err := seen.add(field); err != nil {
		return err
	}
	if *value, err = s.text(); err != nil {
		return fmt.Errorf("reading %s: %w", field, err)
	}
	return nil
}

func (cborCodec) stringMap(object []byte, name string) (map[string]string, error) {
	s := cborScanner{b: object}
	s.tag()
	var m map[string]string
	read := func(key []byte) error {
		value, err := s.text()
		if err == nil {
			m[string(key)] = value
		}
		return err
	}
	inMetadata := func(key []byte) error {
		if string(key) != name || !s.isMajor(cborMap) {
			return s.skip()
		}
		m = map[string]string{}
		return s.object(read)
	}
	err := s.object(func(key []byte) error {
		if string(key) != "metadata" || !s.isMajor(cborMap) {
			return s.skip()
		}
		return s.object(inMetadata)
	})
	if err != nil {
		return nil, err
	}
	return nonEmpty(m), s.end()
}

func (cborCodec) decodeList(body []byte) (*List, error) {
	s := cborScanner{b: body}
	s.tag()
	list := &List{Header: Header{Format: CBOR}}
	h := &list.Header
	var seen seenFields
	var itemsStart, itemsEnd int
	var name string
	custom := false
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return s.field(&seen, fieldAPIVersion, &h.APIVersion)
		case "kind":
			return s.field(&seen, fieldKind, &h.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			var err error
			custom, err = s.listMeta(h, &name)
			return err
		case "items":
			if err := seen.add(fieldItems); err != nil {
				return err
			}
			itemsStart = s.i
			defer func() { itemsEnd = s.i }()
			return s.items(list)
		}
		return s.skip()
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	if itemsStart == 0 || name != "" {
		return nil, ErrNotAList
	}
	h.layout.before, h.layout.after = bytes.Clone(body[:itemsStart]), bytes.Clone(body[itemsEnd:])
	return list, list.complete(custom)
}

func (s *cborScanner) items(list *List) error {
	if s.takeNull() {
		list.layout.nullItems = true
		return nil
	}
	major, n, err := s.head()
	if err != nil {
		return err
	}
	if major != cborArray {
		return fmt.Errorf("items is no array: %w", ErrNotAList)
	}
	for ; n > 0; n-- {
		if s.i < len(s.b) && !s.isMajor(cborMap) {
			return fmt.Errorf("an item is no map: %w", ErrNotAList)
		}
		start := s.i
		m, err := s.meta()
		if err != nil {
			return err
		}
		list.Items = append(list.Items, Item{Meta: m, Raw: s.b[start:s.i:s.i]})
	}
	return nil
}

// listMeta reads the metadata of a list. custom: continue is written although it is empty.
func (s *cborScanner) listMeta(h *Header, name *string) (custom bool, err error) {
	if s.takeNull() {
		return false, nil
	}
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return s.field(&seen, fieldName, name)
		case "resourceVersion":
			return s.field(&seen, fieldResourceVersion, &h.ResourceVersion)
		case "continue":
			err := s.field(&seen, fieldContinue, &h.Continue)
			custom = h.Continue == ""
			return err
		case "remainingItemCount":
			if err := seen.add(fieldRemainingItemCount); err != nil || s.takeNull() {
				return err
			}
			major, argument, err := s.head()
			if err != nil {
				return err
			}
			if major != cborUint || argument > math.MaxInt64 {
				return fmt.Errorf("%s is no number", fieldRemainingItemCount)
			}
			h.RemainingItemCount = new(int64(argument))
			return nil
		}
		return s.skip()
	})
	return custom, err
}

func (cborCodec) listFrame(h *Header, size Size) (listFrame, error) {
	before, after := h.layout.before, h.layout.after
	switch {
	case !h.layout.isFor(h):
		before = appendCBORHead(slices.Clone(selfDescribed), cborMap, 4)
		before = appendCBORMember(before, "kind", cborString(h.Kind))
		before = appendCBORMember(before, "apiVersion", cborString(h.APIVersion))
		before = appendCBORMember(before, "metadata", cborObjectOf(editListMeta(nil, cborListMeta(h), inStructOrder)))
		before = append(before, cborString("items")...)
		after = nil
	case h.layout.meta != h.listMeta():
		var err error
		if before, after, err = editCBORLayout(h); err != nil {
			return listFrame{}, err
		}
	}
	before = slices.Clip(before)
	if h.layout.nullItems && size.items == 0 {
		before = append(before, cborNull)
	} else {
		before = appendCBORHead(before, cborArray, uint64(size.items))
	}
	return listFrame{before: before, after: after}, nil
}

// editCBORLayout returns the layout of a list with the metadata of h.
func editCBORLayout(h *Header) (before, after []byte, err error) {
	items := len(h.layout.before)
	s := cborScanner{b: slices.Concat(h.layout.before, []byte{cborNull}, h.layout.after)}
	s.tag()
	var start, end int
	var members []member
	err = s.object(func(key []byte) error {
		if string(key) != "metadata" || !s.isMajor(cborMap) {
			return s.skip()
		}
		start = s.i
		err := s.object(func(key []byte) error {
			valueAt := s.i
			err := s.skip()
			members = append(members, member{key: string(key), value: s.b[valueAt:s.i]})
			return err
		})
		end = s.i
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if start == 0 {
		return nil, nil, errNoMetadata
	}
	metadata := cborObjectOf(editListMeta(members, cborListMeta(h), inStructOrder))
	if end <= items {
		return slices.Concat(s.b[:start], metadata, s.b[end:items]), h.layout.after, nil
	}
	return h.layout.before, slices.Concat(s.b[items+1:start], metadata, s.b[end:]), nil
}

func cborObjectOf(members []member) []byte {
	object := appendCBORHead(nil, cborMap, uint64(len(members)))
	for _, m := range members {
		object = appendCBORMember(object, m.key, m.value)
	}
	return object
}

// cborListMeta returns the members of a list's metadata that a Header has. A value is nil if
// the member is omitted.
func cborListMeta(h *Header) []member {
	resourceVersion := member{key: "resourceVersion"}
	if h.ResourceVersion != "" {
		resourceVersion.value = cborString(h.ResourceVersion)
	}
	more := member{key: "continue"}
	if h.Continue != "" || h.writesEmptyContinue() {
		more.value = cborString(h.Continue)
	}
	remaining := member{key: "remainingItemCount"}
	switch n := h.RemainingItemCount; {
	case n == nil:
	case *n < 0:
		remaining.value = appendCBORHead(nil, cborNegative, uint64(-1-*n))
	default:
		remaining.value = appendCBORHead(nil, cborUint, uint64(*n))
	}
	return []member{resourceVersion, more, remaining}
}

func appendCBORMember(dst []byte, key string, value []byte) []byte {
	return append(append(dst, cborString(key)...), value...)
}

func (cborCodec) itemOf(object []byte, withType bool) ([]byte, error) {
	s := cborScanner{b: object}
	s.tag()
	if !withType {
		return s.withoutType(nil, nil)
	}
	start := s.i
	if _, err := s.meta(); err != nil {
		return nil, err
	}
	return object[start:s.i:s.i], s.end()
}

func (cborCodec) objectOf(item []byte, apiVersion, kind string) ([]byte, error) {
	s := cborScanner{b: item}
	s.tag()
	start := s.i
	m, err := s.meta()
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	if m.APIVersion == "" || m.Kind == "" {
		s.i = start
		return s.withoutType(selfDescribed, []member{{"kind", cborString(kind)}, {"apiVersion", cborString(apiVersion)}})
	}
	if start > 0 {
		return item, nil
	}
	return slices.Concat(selfDescribed, item), nil
}

// withoutType reads an object and returns it without its apiVersion and kind, with first as its
// first members, after prefix.
func (s *cborScanner) withoutType(prefix []byte, first []member) ([]byte, error) {
	members := first
	err := s.object(func(key []byte) error {
		start := s.i
		dropped := string(key) == "apiVersion" || string(key) == "kind"
		if err := s.skip(); err != nil || dropped {
			return err
		}
		members = append(members, member{string(key), s.b[start:s.i]})
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	return append(slices.Clip(prefix), cborObjectOf(members)...), nil
}

// readFrame reads one value of a CBOR sequence.
func (cborCodec) readFrame(r *frameReader) error {
	if err := r.begun(); err != nil {
		return err
	}
	for left := uint64(1); left > 0; left-- {
		initial, err := r.r.Peek(1)
		if err != nil {
			return unexpected(err)
		}
		n, err := cborHead(initial[0])
		if err != nil {
			return err
		}
		start := len(r.frame)
		if err := r.read(uint64(n)); err != nil {
			return err
		}
		major, argument, err := decodeCBORHead(r.frame[start:])
		if err != nil {
			return err
		}
		values, bytes, err := contents(major, argument, uint64(r.limit))
		if err != nil {
			return fmt.Errorf("%w: the limit is %d bytes", ErrTooLarge, r.limit)
		}
		if left += values; left > uint64(r.limit)+1 {
			return fmt.Errorf("%w: the limit is %d bytes", ErrTooLarge, r.limit)
		}
		if err := r.read(bytes); err != nil {
			return err
		}
	}
	return nil
}

func (cborCodec) decodeEvent(frame []byte) (event Event, err error) {
	s := cborScanner{b: frame}
	s.tag()
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return s.field(&seen, fieldType, (*string)(&event.Type))
		case "object":
			if err := seen.add(fieldObject); err != nil {
				return err
			}
			start := s.i
			s.tag()
			if !s.isMajor(cborMap) {
				return errNoObject
			}
			err := s.skip()
			event.Object = s.b[start:s.i:s.i]
			return err
		}
		return s.skip()
	})
	if err == nil {
		err = s.end()
	}
	return event, err
}

func (cborCodec) appendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error) {
	s := cborScanner{b: object}
	s.tag()
	if s.i == 0 || !s.isMajor(cborMap) {
		return nil, errNoObject
	}
	dst = appendCBORHead(append(dst, selfDescribed...), cborMap, 2)
	dst = appendCBORMember(dst, "type", cborString(string(eventType)))
	return appendCBORMember(dst, "object", object), nil
}

func (cborCodec) encodeObject(_, _ string, object knownObject) ([]byte, error) {
	encoded, err := direct.Marshal(object)
	return append(slices.Clip(selfDescribed), encoded...), err
}

func (cborCodec) decodeStatus(object []byte) (status metav1.Status, err error) {
	m, err := cborCodec{}.meta(object)
	if err != nil || m.Kind != statusType.Kind {
		status.APIVersion, status.Kind = m.APIVersion, m.Kind
		return status, err
	}
	// direct.Unmarshal into a struct refuses fields of later versions.
	var fields map[string]any
	if err := direct.Unmarshal(object, &fields); err != nil {
		return status, err
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return status, err
	}
	err = json.Unmarshal(encoded, &status)
	return status, err
}
