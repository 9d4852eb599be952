package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

type jsonCodec struct{}

// null is the JSON of absent items, metadata or strings.
const null = "null"

// aroundItems returns kind after the items if the items have a type, because decodeList infers ItemsHaveType of a
// list without items from this order.
func (jsonCodec) aroundItems(h *Header, _ Size) (before, after []byte) {
	metadata, _ := json.Marshal(h.metadata()) // encoding strings and a number cannot fail
	kind, apiVersion := jsonString(h.Kind), jsonString(h.APIVersion)
	if h.ItemsHaveType && h.Kind != partialList {
		return fmt.Appendf(nil, `{"apiVersion":%s,"items":[`, apiVersion), fmt.Appendf(nil, "],\"kind\":%s,\"metadata\":%s}\n", kind, metadata)
	}
	return fmt.Appendf(nil, `{"kind":%s,"apiVersion":%s,"metadata":%s,"items":[`, kind, apiVersion, metadata), []byte("]}\n")
}

// jsonString encodes a string like encoding/json.
func jsonString(s string) []byte {
	quoted, _ := json.Marshal(s) // encoding a string cannot fail
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

// trimJSON returns an object without leading and trailing white space.
func trimJSON(object []byte) ([]byte, Meta, error) {
	s := jsonScanner{b: object}
	s.space()
	start := s.i
	m, err := scanMeta(&s)
	if err != nil {
		return nil, Meta{}, err
	}
	end := s.i
	return object[start:end:end], m, s.end()
}

// withoutJSONType returns an object without its apiVersion and kind. If first is not empty, it becomes the first
// members of the object.
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

// readFrame reads up to the closing brace of the event, and appends a newline like an API server. It does not
// wait for the newline in the stream, which counts as white space before the next frame.
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
				return fmt.Errorf("a frame begins with %q instead of '{'", c)
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

func (jsonCodec) appendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error) {
	object = bytes.TrimFunc(object, func(r rune) bool { return r < 0x80 && isJSONSpace(byte(r)) })
	if len(object) < 2 || object[0] != '{' {
		return nil, errNotAnObject
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
