package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

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
	if takeNull(s) {
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

// array calls element before each element of an array. element must read it.
func (s *cborScanner) array(element func() error) error {
	major, n, err := s.head()
	if err != nil {
		return err
	}
	if major != cborArray {
		return errors.New("it is no array")
	}
	for ; n > 0; n-- {
		if s.i >= len(s.b) {
			return errCBOREnd
		}
		if err := element(); err != nil {
			return err
		}
	}
	return nil
}

func (s *cborScanner) integer() (*int64, error) {
	if takeNull(s) {
		return nil, nil
	}
	major, argument, err := s.head()
	if err != nil {
		return nil, err
	}
	if major != cborUint && major != cborNegative || argument > math.MaxInt64 {
		return nil, errors.New("it is no integer")
	}
	if major == cborNegative {
		return new(-1 - int64(argument)), nil
	}
	return new(int64(argument)), nil
}

func (s *cborScanner) isObject() bool { return s.isMajor(cborMap) }

func (s *cborScanner) isArray() bool { return s.isMajor(cborArray) }

func (s *cborScanner) at() int { return s.i }

func (s *cborScanner) since(start int) []byte { return s.b[start:s.i] }

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

func cborInteger(n int64) []byte {
	if n < 0 {
		return appendCBORHead(nil, cborNegative, uint64(-1-n))
	}
	return appendCBORHead(nil, cborUint, uint64(n))
}
