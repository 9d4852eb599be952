package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/watch"
)

// cborCodec reads and writes CBOR as apimachinery does: strings are byte strings, and the
// object form has the tag of self-described CBOR.
type cborCodec struct{}

var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

// Major types, and the values of the last one that this package knows.
const (
	cborUint = iota
	cborNegative
	cborBytes
	cborText
	cborArray
	cborMap
	cborTag
	cborSimple

	cborNull = 0xf6
)

var (
	errCBOREnd        = errors.New("it ends within a value")
	errCBORIndefinite = errors.New("it has a value of indefinite length")
	errCBORReserved   = errors.New("it has a reserved value")
)

// cborScanner reads CBOR from b, beginning at i.
type cborScanner struct {
	b []byte
	i int
}

// cborHead returns the length of the head of a value that begins with a byte.
func cborHead(initial byte) (length int, err error) {
	switch info := initial & 31; {
	case info < 24:
		return 1, nil
	case info < 28:
		return 1 + 1<<(info-24), nil
	case info == 31:
		return 0, errCBORIndefinite
	}
	return 0, errCBORReserved
}

// decodeCBORHead returns the major type and the argument of a whole head.
func decodeCBORHead(head []byte) (major byte, argument uint64, err error) {
	major = head[0] >> 5
	switch len(head) {
	case 1:
		argument = uint64(head[0] & 31)
	case 2:
		argument = uint64(head[1])
		if major == cborSimple && argument < 32 {
			return 0, 0, errCBORReserved
		}
	case 3:
		argument = uint64(binary.BigEndian.Uint16(head[1:]))
	case 5:
		argument = uint64(binary.BigEndian.Uint32(head[1:]))
	default:
		argument = binary.BigEndian.Uint64(head[1:])
	}
	return major, argument, nil
}

func (s *cborScanner) head() (major byte, argument uint64, err error) {
	if s.i >= len(s.b) {
		return 0, 0, errCBOREnd
	}
	n, err := cborHead(s.b[s.i])
	if err != nil {
		return 0, 0, err
	}
	if n > len(s.b)-s.i {
		return 0, 0, errCBOREnd
	}
	s.i += n
	return decodeCBORHead(s.b[s.i-n : s.i])
}

// contents returns how many values, and how many bytes, follow a head.
func contents(major byte, argument, limit uint64) (values, bytes uint64, err error) {
	switch major {
	case cborBytes, cborText:
		bytes = argument
	case cborArray:
		values = argument
	case cborMap:
		values = 2 * min(argument, math.MaxInt64)
	case cborTag:
		values = 1
	}
	if values > limit || bytes > limit {
		return 0, 0, errCBOREnd
	}
	return values, bytes, nil
}

// skip reads any value.
func (s *cborScanner) skip() error {
	for left := uint64(1); left > 0; left-- {
		major, argument, err := s.head()
		if err != nil {
			return err
		}
		values, bytes, err := contents(major, argument, uint64(len(s.b)-s.i))
		if err != nil {
			return err
		}
		// Each value takes a byte at least, so the sum of what is left does not overflow.
		left += values
		s.i += int(bytes)
	}
	return nil
}

// text reads a string, or null as the empty string.
func (s *cborScanner) text() (string, error) {
	if s.takeNull() {
		return "", nil
	}
	text, err := s.string()
	return string(text), err
}

func (s *cborScanner) string() ([]byte, error) {
	major, length, err := s.head()
	if err != nil {
		return nil, err
	}
	if major != cborBytes && major != cborText {
		return nil, errors.New("it is no string")
	}
	if length > uint64(len(s.b)-s.i) {
		return nil, errCBOREnd
	}
	text := s.b[s.i : s.i+int(length)]
	if major == cborText && !utf8.Valid(text) {
		return nil, errors.New("a text string is not UTF-8")
	}
	s.i += int(length)
	return text, nil
}

// object calls member with each key of a map. member must read the value.
func (s *cborScanner) object(member func(key []byte) error) error {
	major, pairs, err := s.head()
	if err != nil {
		return err
	}
	if major != cborMap {
		return errors.New("it is no map")
	}
	for ; pairs > 0; pairs-- {
		key, err := s.string()
		if err != nil {
			return fmt.Errorf("reading a key: %w", err)
		}
		if err := member(key); err != nil {
			return err
		}
	}
	return nil
}

func (s *cborScanner) takeNull() bool {
	if !s.isNull() {
		return false
	}
	s.i++
	return true
}

func (s *cborScanner) isNull() bool { return s.i < len(s.b) && s.b[s.i] == cborNull }

// isMajor returns whether a value of a major type is next.
func (s *cborScanner) isMajor(major byte) bool { return s.i < len(s.b) && s.b[s.i]>>5 == major }

// tag reads the tag of self-described CBOR if it is next.
func (s *cborScanner) tag() {
	if bytes.HasPrefix(s.b[s.i:], selfDescribed) {
		s.i += len(selfDescribed)
	}
}

func (s *cborScanner) end() error {
	if s.i < len(s.b) {
		return errors.New("there are bytes after its end")
	}
	return nil
}

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

func appendCBORHead(dst []byte, major byte, argument uint64) []byte {
	major <<= 5
	switch {
	case argument < 24:
		return append(dst, major|byte(argument))
	case argument <= math.MaxUint8:
		return append(dst, major|24, byte(argument))
	case argument <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, major|25), uint16(argument))
	case argument <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, major|26), uint32(argument))
	}
	return binary.BigEndian.AppendUint64(append(dst, major|27), argument)
}

func cborString(s string) []byte {
	return append(appendCBORHead(nil, cborBytes, uint64(len(s))), s...)
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
