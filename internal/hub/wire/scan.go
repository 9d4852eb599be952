package wire

import (
	"fmt"
	"slices"
)

// takeNull reads null if it is the next value.
func takeNull(s *jsonScanner) bool { return s.isNull() && s.skip() == nil }

// scanMeta reads an object, and returns its metadata.
func scanMeta(s *jsonScanner) (m Meta, err error) {
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

func scanObjectMeta(s *jsonScanner, m *Meta) error {
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
func scanField(s *jsonScanner, seen *seenFields, field field, value *string) (err error) {
	if err := seen.add(field); err != nil {
		return err
	}
	if *value, err = s.text(); err != nil {
		return fmt.Errorf("reading %s: %w", field, err)
	}
	return nil
}

// meta returns the metadata of an object.
func (jsonCodec) meta(object []byte) (Meta, error) {
	s := &jsonScanner{b: object}
	m, err := scanMeta(s)
	if err == nil {
		err = s.end()
	}
	return m, err
}

// stringMap returns labels or annotations from an object's metadata.
func (jsonCodec) stringMap(object []byte, name string) (map[string]string, error) {
	s := &jsonScanner{b: object}
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

// decodeList splits a list. An API server writes the members of a list of custom resources in alphabetical
// order, so the kind is after the items.
func (jsonCodec) decodeList(body []byte) (*List, error) {
	s := &jsonScanner{b: body}
	list := &List{Header: Header{Format: JSON}}
	h := &list.Header
	var seen seenFields
	var name string
	kindIsLast := false
	err := s.object(func(key []byte) error {
		switch string(key) {
		case "apiVersion":
			return scanField(s, &seen, fieldAPIVersion, &h.APIVersion)
		case "kind":
			kindIsLast = seen.has(fieldItems)
			return scanField(s, &seen, fieldKind, &h.Kind)
		case "metadata":
			if err := seen.add(fieldMetadata); err != nil {
				return err
			}
			return scanListMeta(s, h, &name)
		case "items":
			if err := seen.add(fieldItems); err != nil {
				return err
			}
			return scanItems(s, list)
		}
		return s.skip()
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && (!seen.has(fieldItems) || name != "") {
		err = ErrNotAList
	}
	if err != nil {
		return nil, err
	}
	return list, list.complete(kindIsLast)
}

func scanItems(s *jsonScanner, list *List) error {
	if takeNull(s) {
		return nil
	}
	if !s.isArray() {
		return fmt.Errorf("items is not an array: %w", ErrNotAList)
	}
	return s.array(func() error {
		if !s.isObject() {
			return fmt.Errorf("an item is not an object: %w", ErrNotAList)
		}
		start := s.at()
		m, err := scanMeta(s)
		list.Items = append(list.Items, Item{Meta: m, Raw: slices.Clip(s.since(start))})
		return err
	})
}

func scanListMeta(s *jsonScanner, h *Header, name *string) error {
	if takeNull(s) {
		return nil
	}
	var seen seenFields
	return s.object(func(key []byte) error {
		switch string(key) {
		case "name":
			return scanField(s, &seen, fieldName, name)
		case "resourceVersion":
			return scanField(s, &seen, fieldResourceVersion, &h.ResourceVersion)
		case "continue":
			return scanField(s, &seen, fieldContinue, &h.Continue)
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
}

// decodeEvent decodes an event of a watch.
func (jsonCodec) decodeEvent(frame []byte) (event Event, err error) {
	s := &jsonScanner{b: frame}
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
			if !s.isObject() {
				return errNotAnObject
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
