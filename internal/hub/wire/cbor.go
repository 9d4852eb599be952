package wire

import (
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/watch"
)

// cborCodec reads and writes CBOR as apimachinery does: strings are byte strings, and the
// object form has the tag of self-described CBOR.
type cborCodec struct{}

var selfDescribed = []byte{0xd9, 0xd9, 0xf7}

var cborNotation = notation{
	format: CBOR, scan: func(b []byte) scanner { return &cborScanner{b: b} },
	null: []byte{cborNull}, text: cborString, integer: cborInteger, object: cborObjectOf,
}

func (cborCodec) meta(object []byte) (Meta, error) { return cborNotation.meta(object) }

func (cborCodec) stringMap(object []byte, name string) (map[string]string, error) {
	return cborNotation.stringMap(object, name)
}

func (cborCodec) decodeEvent(frame []byte) (Event, error) { return cborNotation.decodeEvent(frame) }

func (cborCodec) decodeList(body []byte) (*List, error) {
	list, _, emptyContinue, err := cborNotation.decodeList(body)
	if err != nil {
		return nil, err
	}
	return list, list.complete(emptyContinue)
}

func (cborCodec) listFrame(h *Header, size Size) (listFrame, error) {
	before, after := h.layout.before, h.layout.after
	switch {
	case !h.layout.isFor(h):
		before = appendCBORHead(slices.Clone(selfDescribed), cborMap, 4)
		before = appendCBORMember(before, "kind", cborString(h.Kind))
		before = appendCBORMember(before, "apiVersion", cborString(h.APIVersion))
		before = appendCBORMember(before, "metadata", cborObjectOf(editListMeta(nil, cborNotation.listMeta(h), inStructOrder)))
		before = append(before, cborString("items")...)
		after = nil
	case h.layout.meta != h.listMeta():
		var err error
		if before, after, err = cborNotation.editLayout(h); err != nil {
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

func cborObjectOf(members []member) []byte {
	object := appendCBORHead(nil, cborMap, uint64(len(members)))
	for _, m := range members {
		object = appendCBORMember(object, m.key, m.value)
	}
	return object
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
	if _, err := scanMeta(&s); err != nil {
		return nil, err
	}
	return object[start:s.i:s.i], s.end()
}

func (cborCodec) objectOf(item []byte, apiVersion, kind string) ([]byte, error) {
	s := cborScanner{b: item}
	s.tag()
	start := s.i
	m, err := scanMeta(&s)
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
