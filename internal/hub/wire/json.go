package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

type jsonCodec struct{}

func (jsonCodec) meta(object []byte) (Meta, error) {
	s := jsonScanner{b: object}
	m, err := s.meta()
	if err == nil {
		err = s.end()
	}
	return m, err
}

// meta reads an object.
func (s *jsonScanner) meta() (m Meta, err error) {
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

func (s *jsonScanner) objectMeta(m *Meta) error {
	if s.peek() == 'n' {
		return s.literal("null")
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
			m.Deleting = s.peek() != 'n'
		}
		return s.skip()
	})
}

// field reads a string into value.
func (s *jsonScanner) field(seen *seenFields, field field, value *string) (err error) {
	if err := seen.add(field); err != nil {
		return err
	}
	if *value, err = s.text(); err != nil {
		return fmt.Errorf("reading %s: %w", field, err)
	}
	return nil
}

func (jsonCodec) stringMap(object []byte, name string) (map[string]string, error) {
	s := jsonScanner{b: object}
	var m map[string]string
	read := func(key []byte) error {
		value, err := s.text()
		if err == nil {
			m[string(key)] = value
		}
		return err
	}
	inMetadata := func(key []byte) error {
		if string(key) != name || s.peek() != '{' {
			return s.skip()
		}
		m = map[string]string{}
		return s.object(read)
	}
	err := s.object(func(key []byte) error {
		if string(key) != "metadata" || s.peek() != '{' {
			return s.skip()
		}
		return s.object(inMetadata)
	})
	if err != nil {
		return nil, err
	}
	return nonEmpty(m), s.end()
}

func (jsonCodec) decodeList(body []byte) (*List, error) {
	s := jsonScanner{b: body}
	list := &List{Header: Header{Format: JSON}}
	h := &list.Header
	var seen seenFields
	var itemsStart, itemsEnd int
	kindIsFirst := false
	var name string
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return s.field(&seen, fieldAPIVersion, &h.APIVersion)
		case "kind":
			kindIsFirst = !seen.has(fieldItems)
			return s.field(&seen, fieldKind, &h.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			return s.listMeta(h, &name)
		case "items":
			if err := seen.add(fieldItems); err != nil {
				return err
			}
			c := s.peek()
			itemsStart = s.i
			defer func() { itemsEnd = s.i }()
			switch c {
			case 'n':
				h.layout.nullItems = true
				return s.literal("null")
			case '[':
				return s.array(func() error { return s.item(list) })
			}
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
	return list, list.complete(!kindIsFirst)
}

func (s *jsonScanner) item(list *List) error {
	if s.peek() != '{' {
		return fmt.Errorf("an item is no object: %w", ErrNotAList)
	}
	start := s.i
	m, err := s.meta()
	list.Items = append(list.Items, Item{Meta: m, Raw: s.b[start:s.i:s.i]})
	return err
}

func (s *jsonScanner) listMeta(h *Header, name *string) error {
	if s.peek() == 'n' {
		return s.literal("null")
	}
	var seen seenFields
	return s.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return s.field(&seen, fieldName, name)
		case "resourceVersion":
			return s.field(&seen, fieldResourceVersion, &h.ResourceVersion)
		case "continue":
			return s.field(&seen, fieldContinue, &h.Continue)
		case "remainingItemCount":
			if err := seen.add(fieldRemainingItemCount); err != nil {
				return err
			}
			s.space()
			start := s.i
			if err := s.skip(); err != nil {
				return err
			}
			return json.Unmarshal(s.b[start:s.i], &h.RemainingItemCount)
		}
		return s.skip()
	})
}

func (jsonCodec) listFrame(h *Header, size Size) (listFrame, error) {
	before, after := h.layout.before, h.layout.after
	switch {
	case !h.layout.isFor(h):
		metadata := jsonObjectOf(editListMeta(nil, jsonListMeta(h), inStructOrder))
		before = fmt.Appendf(nil, `{"kind":%s,"apiVersion":%s,"metadata":%s,"items":`, jsonString(h.Kind), jsonString(h.APIVersion), metadata)
		after = []byte("}\n")
	case h.layout.meta != h.listMeta():
		var err error
		if before, after, err = editJSONLayout(h); err != nil {
			return listFrame{}, err
		}
	}
	opening, closing := "[", "]"
	if h.layout.nullItems && size.items == 0 {
		opening, closing = "null", ""
	}
	return listFrame{
		before:    append(slices.Clip(before), opening...),
		separator: []byte(","),
		after:     append([]byte(closing), after...),
	}, nil
}

// editJSONLayout returns the layout of a list with the metadata of h.
func editJSONLayout(h *Header) (before, after []byte, err error) {
	items := len(h.layout.before)
	s := jsonScanner{b: slices.Concat(h.layout.before, []byte("null"), h.layout.after)}
	var start, end, kind int
	var members []member
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "kind":
			kind = s.i
		case "metadata":
			if s.peek() != '{' {
				break
			}
			start = s.i
			var err error
			members, err = s.members()
			end = s.i
			return err
		}
		return s.skip()
	})
	if err != nil {
		return nil, nil, err
	}
	if start == 0 {
		return nil, nil, errNoMetadata
	}
	order := inStructOrder
	if kind > items {
		order = inAlphabeticalOrder
	}
	metadata := jsonObjectOf(editListMeta(members, jsonListMeta(h), order))
	if end <= items {
		return slices.Concat(s.b[:start], metadata, s.b[end:items]), h.layout.after, nil
	}
	return h.layout.before, slices.Concat(s.b[items+len("null"):start], metadata, s.b[end:]), nil
}

// members reads the members of an object.
func (s *jsonScanner) members() ([]member, error) {
	var members []member
	err := s.object(func(key []byte) error {
		s.space()
		start := s.i
		err := s.skip()
		members = append(members, member{key: string(key), value: s.b[start:s.i]})
		return err
	})
	return members, err
}

func jsonObjectOf(members []member) []byte {
	object := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			object = append(object, ',')
		}
		object = append(object, jsonString(m.key)...)
		object = append(object, ':')
		object = append(object, m.value...)
	}
	return append(object, '}')
}

// jsonListMeta returns the members of a list's metadata that a Header has. A value is nil if
// the member is omitted.
func jsonListMeta(h *Header) []member {
	resourceVersion := member{key: "resourceVersion"}
	if h.ResourceVersion != "" {
		resourceVersion.value = jsonString(h.ResourceVersion)
	}
	more := member{key: "continue"}
	if h.Continue != "" || h.writesEmptyContinue() {
		more.value = jsonString(h.Continue)
	}
	remaining := member{key: "remainingItemCount"}
	if h.RemainingItemCount != nil {
		remaining.value = strconv.AppendInt(nil, *h.RemainingItemCount, 10)
	}
	return []member{resourceVersion, more, remaining}
}

// jsonString returns a string as encoding/json writes it.
func jsonString(s string) []byte {
	quoted, _ := json.Marshal(s) // strings cannot fail
	return quoted
}

func (jsonCodec) itemOf(object []byte, withType bool) ([]byte, error) {
	if !withType {
		return withoutJSONType(object, nil)
	}
	item, _, err := trimJSON(object)
	return item, err
}

func (jsonCodec) objectOf(item []byte, apiVersion, kind string) ([]byte, error) {
	object, m, err := trimJSON(item)
	if err != nil || (m.APIVersion != "" && m.Kind != "") {
		return object, err
	}
	return withoutJSONType(object, fmt.Appendf(nil, `"kind":%s,"apiVersion":%s`, jsonString(kind), jsonString(apiVersion)))
}

// trimJSON returns an object without white space around it.
func trimJSON(object []byte) ([]byte, Meta, error) {
	s := jsonScanner{b: object}
	s.space()
	start := s.i
	m, err := s.meta()
	if err != nil {
		return nil, Meta{}, err
	}
	end := s.i
	return object[start:end:end], m, s.end()
}

// withoutJSONType returns an object without its apiVersion and kind, and with first, if any, as
// its first members.
func withoutJSONType(object, first []byte) ([]byte, error) {
	s := jsonScanner{b: object}
	result := make([]byte, 0, len(object)+len(first)+1)
	result = append(append(result, '{'), first...)
	err := s.object(func(key []byte) error {
		start, dropped := s.keyAt, string(key) == "apiVersion" || string(key) == "kind"
		if err := s.skip(); err != nil || dropped {
			return err
		}
		if len(result) > 1 {
			result = append(result, ',')
		}
		result = append(result, s.b[start:s.i]...)
		return nil
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return nil, err
	}
	return append(result, '}'), nil
}

// readFrame reads up to the brace that closes the event, and adds the newline that an API
// server writes. It does not wait for that newline, which is white space before the next frame.
func (jsonCodec) readFrame(r *frameReader) error {
	if err := r.skipSpace(); err != nil {
		return err
	}
	var depth int
	var quoted, escaped bool
	for {
		if _, err := r.r.Peek(1); err != nil {
			return unexpected(err)
		}
		chunk, _ := r.r.Peek(r.r.Buffered())
		for i, c := range chunk {
			switch {
			case escaped:
				escaped = false
			case quoted:
				quoted, escaped = c != '"', c == '\\'
			case c == '"':
				quoted = true
			case c == '{':
				depth++
			case c == '}':
				depth--
			}
			if depth > 0 {
				continue
			}
			if c != '}' {
				return fmt.Errorf("a frame begins with %q", c)
			}
			if err := r.read(uint64(i) + 1); err != nil {
				return err
			}
			r.frame = append(r.frame, '\n')
			return nil
		}
		if err := r.read(uint64(len(chunk))); err != nil {
			return err
		}
	}
}

func (r *frameReader) skipSpace() error {
	for {
		next, err := r.r.Peek(1)
		if err != nil || !isJSONSpace(next[0]) {
			return err
		}
		if _, err := r.r.Discard(1); err != nil {
			return err
		}
	}
}

func (jsonCodec) decodeEvent(frame []byte) (event Event, err error) {
	s := jsonScanner{b: frame}
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return s.field(&seen, fieldType, (*string)(&event.Type))
		case "object":
			if err := seen.add(fieldObject); err != nil {
				return err
			}
			s.space()
			start := s.i
			err := s.object(nil)
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

func (jsonCodec) appendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error) {
	object = bytes.TrimFunc(object, func(r rune) bool { return r < 0x80 && isJSONSpace(byte(r)) })
	if len(object) < 2 || object[0] != '{' {
		return nil, errNoObject
	}
	dst = slices.Grow(dst, len(object)+len(eventType)+len(`{"type":"","object":}`)+1)
	dst = append(dst, `{"type":`...)
	dst = append(dst, jsonString(string(eventType))...)
	dst = append(dst, `,"object":`...)
	dst = append(dst, object...)
	return append(dst, "}\n"...), nil
}

func (jsonCodec) encodeObject(_, _ string, object knownObject) ([]byte, error) {
	encoded, err := json.Marshal(object)
	return append(encoded, '\n'), err
}

func (jsonCodec) decodeStatus(object []byte) (status metav1.Status, err error) {
	err = json.Unmarshal(object, &status)
	return status, err
}
