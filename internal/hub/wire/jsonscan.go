package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// maxJSONDepth limits the nesting of JSON. encoding/json has the same limit.
const maxJSONDepth = 10000

// jsonScanner reads JSON from b, beginning at i. It accepts the same JSON as encoding/json. Each method begins
// at a value or at white space before it, and ends right after the value.
type jsonScanner struct {
	b     []byte
	i     int
	depth int
	// keyAt is the start of the key with which object has just called member.
	keyAt int
}

// object calls member with each key of an object. member must read the value. If member is nil, all values are
// skipped. A value that is not an object is an error.
func (s *jsonScanner) object(member func(key []byte) error) error {
	if err := s.open('{', '}'); err != nil {
		return err
	}
	if s.take('}') {
		s.depth--
		return nil
	}
	for {
		s.space()
		keyAt := s.i
		key, simple, err := s.quoted()
		if err != nil {
			return err
		}
		if !s.take(':') {
			return s.unexpected("a colon")
		}
		if member == nil {
			err = s.skip()
		} else {
			if !simple {
				var text string
				if err := json.Unmarshal(key, &text); err != nil {
					return err
				}
				key = []byte(text)
			} else {
				key = key[1 : len(key)-1]
			}
			s.keyAt = keyAt
			err = member(key)
		}
		if err != nil {
			return err
		}
		if s.take(',') {
			continue
		}
		if !s.take('}') {
			return s.unexpected("a comma or the end of an object")
		}
		s.depth--
		return nil
	}
}

// array calls element before each element of an array. element must read it. If element is nil, all elements are
// skipped. A value that is not an array is an error.
func (s *jsonScanner) array(element func() error) error {
	if err := s.open('[', ']'); err != nil {
		return err
	}
	if s.take(']') {
		s.depth--
		return nil
	}
	for {
		var err error
		if element == nil {
			err = s.skip()
		} else {
			err = element()
		}
		if err != nil {
			return err
		}
		if s.take(',') {
			continue
		}
		if !s.take(']') {
			return s.unexpected("a comma or the end of an array")
		}
		s.depth--
		return nil
	}
}

func (s *jsonScanner) open(opening, closing byte) error {
	if !s.take(opening) {
		return s.unexpected(fmt.Sprintf("%c…%c", opening, closing))
	}
	if s.depth++; s.depth > maxJSONDepth {
		return fmt.Errorf("it has more than %d nested levels", maxJSONDepth)
	}
	return nil
}

// skip reads a value of any type.
func (s *jsonScanner) skip() error {
	switch c := s.peek(); c {
	case '{':
		return s.object(nil)
	case '[':
		return s.array(nil)
	case '"':
		_, _, err := s.quoted()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal(null)
	default:
		return s.number()
	}
}

// text reads a string. It returns null as the empty string.
func (s *jsonScanner) text() (string, error) {
	if s.peek() == 'n' {
		return "", s.literal(null)
	}
	quoted, simple, err := s.quoted()
	if err != nil {
		return "", err
	}
	if simple {
		return string(quoted[1 : len(quoted)-1]), nil
	}
	var text string
	err = json.Unmarshal(quoted, &text)
	return text, err
}

// quoted reads a string, and returns it with its quotes. simple means that its value is the text between the
// quotes.
func (s *jsonScanner) quoted() (quoted []byte, simple bool, err error) {
	if !s.take('"') {
		return nil, false, s.unexpected("a string")
	}
	b, start := s.b, s.i-1
	simple = true
	for i := s.i; i < len(b); i++ {
		c := b[i]
		if plainText[c] {
			continue
		}
		switch {
		case c == '"':
			s.i = i + 1
			return b[start:s.i], simple, nil
		case c == '\\':
			simple = false
			n := escapeLength(b[i:])
			if n == 0 {
				s.i = i
				return nil, false, s.unexpected("an escape sequence")
			}
			i += n - 1
		case c < ' ':
			s.i = i
			return nil, false, s.unexpected("a character of a string")
		case c >= 0x80:
			simple = false // it may be invalid UTF-8
		}
	}
	s.i = len(b)
	return nil, false, s.unexpected("the end of a string")
}

// plainText has the characters that a JSON string contains without an escape sequence.
var plainText = func() (plain [256]bool) {
	for c := ' '; c < 0x7f; c++ {
		plain[c] = c != '"' && c != '\\'
	}
	return plain
}()

// escapeLength returns the length of the escape sequence at the start of b; 0 if there is none.
func escapeLength(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(b) < 6 {
			return 0
		}
		for _, c := range b[2:6] {
			if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return 0
			}
		}
		return 6
	}
	return 0
}

func (s *jsonScanner) number() error {
	_ = s.take('-')
	if s.i < len(s.b) && s.b[s.i] == '0' {
		s.i++
	} else if !s.digits() {
		return s.unexpected("a value")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if !s.digits() {
			return s.unexpected("a digit")
		}
	}
	return nil
}

func (s *jsonScanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && isDigit(s.b[s.i]) {
		s.i++
	}
	return s.i > start
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (s *jsonScanner) literal(literal string) error {
	s.space()
	if !bytes.HasPrefix(s.b[s.i:], []byte(literal)) {
		return s.unexpected("a value")
	}
	s.i += len(literal)
	return nil
}

// end returns an error if anything except white space follows.
func (s *jsonScanner) end() error {
	if s.space(); s.i < len(s.b) {
		return s.unexpected("the end")
	}
	return nil
}

func (s *jsonScanner) isObject() bool { return s.peek() == '{' }

func (s *jsonScanner) isArray() bool { return s.peek() == '[' }

func (s *jsonScanner) isNull() bool { return s.peek() == 'n' }

func (s *jsonScanner) at() int {
	s.space()
	return s.i
}

func (s *jsonScanner) since(start int) []byte { return s.b[start:s.i] }

func (s *jsonScanner) integer() (n *int64, err error) {
	start := s.at()
	if err := s.skip(); err != nil {
		return nil, err
	}
	err = json.Unmarshal(s.since(start), &n)
	return n, err
}

// peek returns the next byte after white space; 0 at the end.
func (s *jsonScanner) peek() byte {
	if s.space(); s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

// take reads c and the white space before it, if c is the next byte.
func (s *jsonScanner) take(c byte) bool {
	if s.peek() != c || s.i == len(s.b) {
		return false
	}
	s.i++
	return true
}

func (s *jsonScanner) space() {
	for s.i < len(s.b) && isJSONSpace(s.b[s.i]) {
		s.i++
	}
}

func isJSONSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

func (s *jsonScanner) unexpected(want string) error {
	if s.i >= len(s.b) {
		return errors.New("it ends before " + want)
	}
	return fmt.Errorf("found %q at byte %d instead of %s", s.b[s.i], s.i, want)
}
