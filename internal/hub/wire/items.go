package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// Items finds the items of a list in protobuf while the list arrives, before its end is there. The zero
// value is at the beginning of a list.
//
// It reads what API servers write: the list in its envelope, with metadata before the items and nothing
// else. Other lists are errors, also some that DecodeList reads.
type Items struct {
	at         int // where the next field begins
	end        int // where the list in the envelope ends; 0 before it has begun
	hasType    bool
	hasMeta    bool
	hasItems   bool
	apiVersion string
	kind       string
}

var errOtherList = errors.New("the list is not written as API servers do")

// Next returns the next item of a list, of which body has what has arrived: at least as much as in the call
// before. The item shares memory with body. ok is false if the next item has not arrived, or there is none.
func (s *Items) Next(body []byte) (item Item, ok bool, err error) {
	for {
		f, arrived, err := s.next(body)
		if err != nil || !arrived {
			return Item{}, false, err
		}
		switch {
		case s.end == 0:
			err = s.inEnvelope(f)
		case s.at >= s.end:
			err = s.afterList(f)
		case f.number == 1 && !s.hasMeta && !s.hasItems:
			s.hasMeta = true
			err = readListMeta(f.bytes, &Header{})
		case f.number == 2:
			s.hasItems, s.at = true, f.end
			item, err := s.item(f.bytes)
			return item, err == nil, err
		default:
			err = fmt.Errorf("%w: it has a field %d", errOtherList, f.number)
		}
		if err != nil {
			return Item{}, false, err
		}
		if f.end > s.at {
			s.at = f.end
		}
	}
}

// At returns how many bytes of the list have been looked at: all items that end before it were returned.
func (s *Items) At() int { return s.at }

// Whole returns an error if body is not a whole list, all of whose items were returned.
func (s *Items) Whole(body []byte) error {
	if s.end == 0 || s.at < s.end || s.at != len(body) {
		return fmt.Errorf("%w: it ends after %d bytes", errOtherList, len(body))
	}
	return nil
}

// next returns the next field, and false if not all of it has arrived. Of the field that has the list, the
// beginning is enough: end is where the list begins, and varint its length.
func (s *Items) next(body []byte) (f messageField, arrived bool, err error) {
	if s.at == 0 {
		if len(body) < len(envelopeMagic) {
			return f, false, nil
		}
		if !bytes.HasPrefix(body, envelopeMagic) {
			return f, false, fmt.Errorf("%w: it does not begin with the magic number of protobuf", errOtherList)
		}
		s.at = len(envelopeMagic)
	}
	number, wireType, n := protowire.ConsumeTag(body[s.at:])
	if n < 0 {
		return f, false, unlessTruncated(n)
	}
	if wireType != protowire.BytesType {
		return f, false, fmt.Errorf("%w: its field %d has no length", errOtherList, number)
	}
	length, m := protowire.ConsumeVarint(body[s.at+n:])
	if m < 0 {
		return f, false, unlessTruncated(m)
	}
	start := s.at + n + m
	if length > maxLength || s.end > 0 && s.at < s.end && start+int(length) > s.end {
		return f, false, fmt.Errorf("%w: its field %d is longer than the list", errOtherList, number)
	}
	f = messageField{number: number, isBytes: true, start: s.at, end: start + int(length)}
	if s.end == 0 && number == 2 {
		f.varint, f.end = length, start
		return f, true, nil
	}
	if f.end > len(body) {
		return f, false, nil
	}
	f.bytes = body[start:f.end]
	return f, true, nil
}

// maxLength bounds the length of a field, in bytes, so that sums of it are numbers.
const maxLength = 1 << 30

// unlessTruncated returns the error of protowire, but none if the rest may still arrive.
func unlessTruncated(n int) error {
	if err := protowire.ParseError(n); !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	return nil
}

// inEnvelope reads a field before the list, and begins the list.
func (s *Items) inEnvelope(f messageField) error {
	switch {
	case f.number == 1 && !s.hasType:
		s.hasType = true
		return eachField(f.bytes, func(f messageField) error {
			switch f.number {
			case 1:
				return f.text(fieldAPIVersion, &s.apiVersion)
			case 2:
				return f.text(fieldKind, &s.kind)
			}
			return nil
		})
	case f.number == 2 && s.hasType && isListKind(s.kind) && s.apiVersion != "":
		s.end = f.end + int(f.varint)
		return nil
	default:
		return fmt.Errorf("%w: its envelope has a field %d", errOtherList, f.number)
	}
}

// afterList reads a field after the list. A second list there would replace the first one.
func (s *Items) afterList(f messageField) error {
	if f.number != 3 && f.number != 4 || len(f.bytes) > 0 {
		return fmt.Errorf("%w: its envelope has a field %d after it", errOtherList, f.number)
	}
	return nil
}

func (s *Items) item(object []byte) (Item, error) {
	item := Item{Raw: slices.Clip(object)}
	if err := readObjectMeta(object, &item.Meta); err != nil {
		return Item{}, err
	}
	if item.Name == "" {
		return Item{}, fmt.Errorf("%w: an item has no name", errOtherList)
	}
	item.APIVersion, item.Kind = (&Header{APIVersion: s.apiVersion, Kind: s.kind}).ItemKind()
	return item, nil
}
