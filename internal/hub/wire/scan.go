package wire

import (
	"bytes"
	"fmt"
	"slices"
)

// scanner reads JSON or CBOR, one value after the other. Both have the same fields in the same
// places, so that what follows reads either.
type scanner interface {
	// object calls member with each key of an object. member must read the value.
	object(member func(key []byte) error) error
	// array calls element before each element of an array. element must read it.
	array(element func() error) error
	// text reads a string, or null as the empty string.
	text() (string, error)
	// integer reads an integer, or null as nil.
	integer() (*int64, error)
	// skip reads any value.
	skip() error
	// tag reads what may stand before an object that is in no other.
	tag()
	// isObject, isArray and isNull tell what is next.
	isObject() bool
	isArray() bool
	isNull() bool
	// at is where the next value begins, and since is what was read from there.
	at() int
	since(start int) []byte
	// end returns an error if anything is left.
	end() error
}

// notation is how JSON or CBOR is read and written.
type notation struct {
	format  Format
	scan    func([]byte) scanner
	null    []byte
	text    func(string) []byte
	integer func(int64) []byte
	object  func([]member) []byte
}

// takeNull reads null if it is next.
func takeNull(s scanner) bool { return s.isNull() && s.skip() == nil }

// scanMeta reads an object.
func scanMeta(s scanner) (m Meta, err error) {
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return scanField(s, &seen, fieldAPIVersion, &m.APIVersion)
		case "kind":
			return scanField(s, &seen, fieldKind, &m.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			return scanObjectMeta(s, &m)
		}
		return s.skip()
	})
	return m, err
}

func scanObjectMeta(s scanner, m *Meta) error {
	if takeNull(s) {
		return nil
	}
	var seen seenFields
	return s.object(func(key []byte) error {
		switch string(key) {
		case "namespace":
			return scanField(s, &seen, fieldNamespace, &m.Namespace)
		case "name":
			return scanField(s, &seen, fieldName, &m.Name)
		case "uid":
			return scanField(s, &seen, fieldUID, &m.UID)
		case "resourceVersion":
			return scanField(s, &seen, fieldResourceVersion, &m.ResourceVersion)
		case "deletionTimestamp":
			m.Deleting = !s.isNull()
		}
		return s.skip()
	})
}

// scanField reads a string into value.
func scanField(s scanner, seen *seenFields, field field, value *string) (err error) {
	if err := seen.add(field); err != nil {
		return err
	}
	if *value, err = s.text(); err != nil {
		return fmt.Errorf("reading %s: %w", field, err)
	}
	return nil
}

// meta returns the metadata of an object.
func (n *notation) meta(object []byte) (Meta, error) {
	s := n.scan(object)
	s.tag()
	m, err := scanMeta(s)
	if err == nil {
		err = s.end()
	}
	return m, err
}

// stringMap returns a map of an object's metadata.
func (n *notation) stringMap(object []byte, name string) (map[string]string, error) {
	s := n.scan(object)
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
		if string(key) != name || !s.isObject() {
			return s.skip()
		}
		m = map[string]string{}
		return s.object(read)
	}
	err := s.object(func(key []byte) error {
		if string(key) != "metadata" || !s.isObject() {
			return s.skip()
		}
		return s.object(inMetadata)
	})
	if err != nil {
		return nil, err
	}
	return nonEmpty(m), s.end()
}

// decodeList divides a list. kindIsFirst tells that its kind stands before its items, and emptyContinue
// that continue is written although it is empty.
func (n *notation) decodeList(body []byte) (list *List, kindIsFirst, emptyContinue bool, err error) {
	s := n.scan(body)
	s.tag()
	list = &List{Header: Header{Format: n.format}}
	h := &list.Header
	var seen seenFields
	var start, end int
	var name string
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return scanField(s, &seen, fieldAPIVersion, &h.APIVersion)
		case "kind":
			kindIsFirst = !seen.has(fieldItems)
			return scanField(s, &seen, fieldKind, &h.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			emptyContinue, err = scanListMeta(s, h, &name)
			return err
		case "items":
			if err := seen.add(fieldItems); err != nil {
				return err
			}
			start = s.at()
			defer func() { end = start + len(s.since(start)) }()
			return scanItems(s, list)
		}
		return s.skip()
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && (start == 0 || name != "") {
		err = ErrNotAList
	}
	if err != nil {
		return nil, false, false, err
	}
	h.layout.before, h.layout.after = bytes.Clone(body[:start]), bytes.Clone(body[end:])
	return list, kindIsFirst, emptyContinue, nil
}

func scanItems(s scanner, list *List) error {
	if takeNull(s) {
		list.layout.nullItems = true
		return nil
	}
	if !s.isArray() {
		return fmt.Errorf("items is no array: %w", ErrNotAList)
	}
	return s.array(func() error {
		if !s.isObject() {
			return fmt.Errorf("an item is no object: %w", ErrNotAList)
		}
		start := s.at()
		m, err := scanMeta(s)
		list.Items = append(list.Items, Item{Meta: m, Raw: slices.Clip(s.since(start))})
		return err
	})
}

func scanListMeta(s scanner, h *Header, name *string) (emptyContinue bool, err error) {
	if takeNull(s) {
		return false, nil
	}
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return scanField(s, &seen, fieldName, name)
		case "resourceVersion":
			return scanField(s, &seen, fieldResourceVersion, &h.ResourceVersion)
		case "continue":
			err := scanField(s, &seen, fieldContinue, &h.Continue)
			emptyContinue = h.Continue == ""
			return err
		case "remainingItemCount":
			if err := seen.add(fieldRemainingItemCount); err != nil {
				return err
			}
			count, err := s.integer()
			if err != nil {
				return fmt.Errorf("reading %s: %w", fieldRemainingItemCount, err)
			}
			h.RemainingItemCount = count
			return nil
		}
		return s.skip()
	})
	return emptyContinue, err
}

// listMeta returns the members of a list's metadata that a Header has. A value is nil if the member
// is omitted.
func (n *notation) listMeta(h *Header) []member {
	resourceVersion, more, remaining := member{key: "resourceVersion"}, member{key: "continue"}, member{key: "remainingItemCount"}
	if h.ResourceVersion != "" {
		resourceVersion.value = n.text(h.ResourceVersion)
	}
	if h.Continue != "" || h.writesEmptyContinue() {
		more.value = n.text(h.Continue)
	}
	if h.RemainingItemCount != nil {
		remaining.value = n.integer(*h.RemainingItemCount)
	}
	return []member{resourceVersion, more, remaining}
}

// editLayout returns the layout of a list with the metadata of h.
func (n *notation) editLayout(h *Header) (before, after []byte, err error) {
	items := len(h.layout.before)
	text := slices.Concat(h.layout.before, n.null, h.layout.after)
	s := n.scan(text)
	s.tag()
	var start, end, kind int
	var members []member
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "kind":
			kind = s.at()
		case "metadata":
			if !s.isObject() {
				break
			}
			start = s.at()
			var err error
			members, err = scanMembers(s)
			end = start + len(s.since(start))
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
	if n.format == JSON && kind > items {
		order = inAlphabeticalOrder
	}
	metadata := n.object(editListMeta(members, n.listMeta(h), order))
	if end <= items {
		return slices.Concat(text[:start], metadata, text[end:items]), h.layout.after, nil
	}
	return h.layout.before, slices.Concat(text[items+len(n.null):start], metadata, text[end:]), nil
}

// scanMembers reads the members of an object.
func scanMembers(s scanner) (members []member, err error) {
	err = s.object(func(key []byte) error {
		start := s.at()
		err := s.skip()
		members = append(members, member{key: string(key), value: s.since(start)})
		return err
	})
	return members, err
}

// decodeEvent reads an event of a watch.
func (n *notation) decodeEvent(frame []byte) (event Event, err error) {
	s := n.scan(frame)
	s.tag()
	var seen seenFields
	err = s.object(func(key []byte) error {
		switch string(key) {
		case "type":
			return scanField(s, &seen, fieldType, (*string)(&event.Type))
		case "object":
			if err := seen.add(fieldObject); err != nil {
				return err
			}
			start := s.at()
			s.tag()
			if !s.isObject() {
				return errNoObject
			}
			err := s.skip()
			event.Object = slices.Clip(s.since(start))
			return err
		}
		return s.skip()
	})
	if err == nil {
		err = s.end()
	}
	return event, err
}
