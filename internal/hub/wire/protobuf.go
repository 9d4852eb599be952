package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// protobufCodec reads and writes messages of Kubernetes. The field numbers are from generated.proto in
// apimachinery.
type protobufCodec struct{}

// envelopeMagic is the prefix of the object form. A runtime.Unknown follows it. No item has this prefix, because
// it would be the tag of a group.
var envelopeMagic = []byte("k8s\x00")

// messageField is a field of a message. bytes is its content if its wire type is bytes.
type messageField struct {
	number  protowire.Number
	isBytes bool
	bytes   []byte
	varint  uint64
}

// eachField calls f with the fields of a message.
func eachField(message []byte, f func(messageField) error) error {
	for i := 0; i < len(message); {
		number, wireType, n := protowire.ConsumeTag(message[i:])
		if n < 0 {
			return protowire.ParseError(n)
		}
		field := messageField{number: number}
		value := message[i+n:]
		var length int
		switch wireType {
		case protowire.BytesType:
			field.isBytes = true
			field.bytes, length = protowire.ConsumeBytes(value)
		case protowire.VarintType:
			field.varint, length = protowire.ConsumeVarint(value)
		default:
			length = protowire.ConsumeFieldValue(number, wireType, value)
		}
		if length < 0 {
			return protowire.ParseError(length)
		}
		i += n + length
		if err := f(field); err != nil {
			return err
		}
	}
	return nil
}

// text reads a string into value. If a field occurs twice, the last value is valid, as in all decoders.
func (f messageField) text(name field, value *string) error {
	if !f.isBytes {
		return fmt.Errorf("%s is not a string", name)
	}
	*value = string(f.bytes)
	return nil
}

// textBytes reads a string like text, and stores it as bytes.
func (f messageField) textBytes(name field, value *[]byte) error {
	if !f.isBytes {
		return fmt.Errorf("%s is not a string", name)
	}
	*value = f.bytes
	return nil
}

// message returns the content of a message field that must occur only once.
func (f messageField) message(seen *seenFields, name field) ([]byte, error) {
	if !f.isBytes {
		return nil, fmt.Errorf("%s is not a message", name)
	}
	return f.bytes, seen.add(name)
}

// envelope is a runtime.Unknown.
type envelope struct {
	apiVersion, kind string
	raw              []byte
}

// openEnvelope splits the object form. has is false for the item form.
func openEnvelope(object []byte) (e envelope, has bool, err error) {
	message, has := bytes.CutPrefix(object, envelopeMagic)
	if !has {
		return envelope{raw: object}, false, nil
	}
	var seen seenFields
	err = eachField(message, func(f messageField) error {
		switch f.number {
		case 1:
			typeMeta, err := f.message(&seen, fieldType)
			if err != nil {
				return err
			}
			return eachField(typeMeta, func(f messageField) error {
				switch f.number {
				case 1:
					return f.text(fieldAPIVersion, &e.apiVersion)
				case 2:
					return f.text(fieldKind, &e.kind)
				}
				return nil
			})
		case 2:
			e.raw, err = f.message(&seen, fieldObject)
			return err
		case 3, 4:
			if len(f.bytes) > 0 {
				return fmt.Errorf("the object in the envelope has the unknown encoding %.40q", f.bytes)
			}
		}
		return nil
	})
	if err == nil && (!seen.has(fieldType) || !seen.has(fieldObject)) {
		err = errors.New("its envelope is incomplete")
	}
	return e, true, err
}

// hasObjectMeta reports whether field 1 of a kind is an ObjectMeta.
func hasObjectMeta(kind string) bool { return kind != "Status" && !isListKind(kind) }

func (protobufCodec) meta(object []byte) (Meta, error) {
	e, _, err := openEnvelope(object)
	m := Meta{APIVersion: e.apiVersion, Kind: e.kind}
	if err != nil || !hasObjectMeta(e.kind) {
		return m, err
	}
	return m, readObjectMeta(e.raw, &m)
}

func readObjectMeta(object []byte, m *Meta) error {
	var texts [4][]byte
	err := eachMetaField(object, func(f messageField) error {
		switch f.number {
		case 1:
			return f.textBytes(fieldName, &texts[0])
		case 3:
			return f.textBytes(fieldNamespace, &texts[1])
		case 5:
			return f.textBytes(fieldUID, &texts[2])
		case 6:
			return f.textBytes(fieldResourceVersion, &texts[3])
		case 9:
			m.Deleting = true
		}
		return nil
	})
	// One allocation for all texts: a list has many objects.
	var space [256]byte
	all := space[:0]
	for _, text := range texts {
		all = append(all, text...)
	}
	rest := string(all)
	for i, into := range []*string{&m.Name, &m.Namespace, &m.UID, &m.ResourceVersion} {
		*into, rest = rest[:len(texts[i])], rest[len(texts[i]):]
	}
	return err
}

// eachMetaField calls f with the fields of an object's metadata.
func eachMetaField(object []byte, f func(messageField) error) error {
	var seen seenFields
	return eachField(object, func(field messageField) error {
		if field.number != 1 {
			return nil
		}
		metadata, err := field.message(&seen, fieldMetadata)
		if err != nil {
			return err
		}
		return eachField(metadata, f)
	})
}

func (protobufCodec) stringMap(object []byte, name string) (map[string]string, error) {
	number := protowire.Number(11)
	if name == "annotations" {
		number = 12
	}
	e, _, err := openEnvelope(object)
	if err != nil || !hasObjectMeta(e.kind) {
		return nil, err
	}
	m := map[string]string{}
	err = eachMetaField(e.raw, func(f messageField) error {
		if f.number != number {
			return nil
		}
		if !f.isBytes {
			return errors.New("an entry of a map is not a message")
		}
		var key, value string
		err := eachField(f.bytes, func(f messageField) error {
			switch f.number {
			case 1:
				key = string(f.bytes)
			case 2:
				value = string(f.bytes)
			}
			return nil
		})
		m[key] = value
		return err
	})
	if err != nil {
		return nil, err
	}
	return nonEmpty(m), nil
}

func (protobufCodec) decodeList(body []byte) (*List, error) {
	e, has, err := openEnvelope(body)
	if err != nil {
		return nil, err
	}
	if !has {
		return nil, errors.New("it does not begin with the magic number of Kubernetes protobuf")
	}
	if !isListKind(e.kind) {
		return nil, fmt.Errorf("%w: its kind is %.40q", ErrNotAList, e.kind)
	}
	list := &List{Header: Header{Format: Protobuf, APIVersion: e.apiVersion, Kind: e.kind}}
	var seen seenFields
	list.Items = make([]Item, 0, countItems(e.raw))
	err = eachField(e.raw, func(f messageField) error {
		switch f.number {
		case 1:
			metadata, err := f.message(&seen, fieldMetadata)
			if err != nil {
				return err
			}
			return readListMeta(metadata, &list.Header)
		case 2:
			if !f.isBytes {
				return fmt.Errorf("an item is not a message: %w", ErrNotAList)
			}
			item := Item{Raw: slices.Clip(f.bytes)}
			err := readObjectMeta(f.bytes, &item.Meta)
			list.Items = append(list.Items, item)
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return list, list.complete(false)
}

// countItems returns the number of items of a list. It stops at the first error.
func countItems(list []byte) (n int) {
	for len(list) > 0 {
		number, wireType, tag := protowire.ConsumeTag(list)
		if tag < 0 {
			return n
		}
		length := protowire.ConsumeFieldValue(number, wireType, list[tag:])
		if length < 0 {
			return n
		}
		if number == 2 {
			n++
		}
		list = list[tag+length:]
	}
	return n
}

func readListMeta(metadata []byte, h *Header) error {
	return eachField(metadata, func(f messageField) error {
		switch f.number {
		case 2:
			return f.text(fieldResourceVersion, &h.ResourceVersion)
		case 3:
			return f.text(fieldContinue, &h.Continue)
		case 4:
			if f.isBytes {
				return fmt.Errorf("%s is not a number", fieldRemainingItemCount)
			}
			h.RemainingItemCount = new(int64(f.varint))
		}
		return nil
	})
}

// sizeOfField returns the size of a field with a number up to 15 and a content of this length.
func sizeOfField(length int) int { return 1 + protowire.SizeBytes(length) }

func (protobufCodec) aroundItems(h *Header, size Size) (before, after []byte) {
	encoded, _ := h.metadata().Marshal() // encoding strings and a number cannot fail
	metadata := appendMessage(nil, 1, encoded)
	before = append(bytes.Clone(envelopeMagic), typeMetaField(h.APIVersion, h.Kind)...)
	before = protowire.AppendTag(before, 2, protowire.BytesType)
	before = protowire.AppendVarint(before, uint64(int64(len(metadata))+size.asProtobuf))
	return append(before, metadata...), envelopeEnd
}

func appendText(dst []byte, number protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, number, protowire.BytesType), text)
}

func appendMessage(dst []byte, number protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(dst, number, protowire.BytesType), message)
}

// typeMetaField returns the first field of an envelope.
func typeMetaField(apiVersion, kind string) []byte {
	return appendMessage(nil, 1, appendText(appendText(nil, 1, apiVersion), 2, kind))
}

// envelopeEnd are the last fields of an envelope: contentEncoding and contentType, empty.
var envelopeEnd = appendText(appendText(nil, 3, ""), 4, "")

func (protobufCodec) itemOf(object []byte, _ bool) ([]byte, error) {
	e, has, err := openEnvelope(object)
	if err == nil && !has {
		err = errNotAnObject
	}
	return slices.Clip(e.raw), err
}

func (protobufCodec) objectOf(item []byte, apiVersion, kind string) ([]byte, error) {
	if bytes.HasPrefix(item, envelopeMagic) {
		_, _, err := openEnvelope(item)
		return item, err
	}
	typeMeta := typeMetaField(apiVersion, kind)
	object := make([]byte, 0, len(envelopeMagic)+len(typeMeta)+sizeOfField(len(item))+len(envelopeEnd))
	object = append(append(object, envelopeMagic...), typeMeta...)
	return append(appendMessage(object, 2, item), envelopeEnd...), nil
}

// sizeOfLength is the size of the big-endian length before each frame.
const sizeOfLength = 4

func (protobufCodec) readFrame(r *frameReader) error {
	if err := r.atEnd(); err != nil {
		return err
	}
	if err := r.read(sizeOfLength); err != nil {
		return err
	}
	return r.read(uint64(binary.BigEndian.Uint32(r.frame)))
}

// decodeEvent decodes a metav1.WatchEvent, whose object is a runtime.RawExtension.
func (protobufCodec) decodeEvent(frame []byte) (event Event, err error) {
	var seen seenFields
	err = eachField(frame[sizeOfLength:], func(f messageField) error {
		switch f.number {
		case 1:
			return f.text(fieldType, (*string)(&event.Type))
		case 2:
			extension, err := f.message(&seen, fieldObject)
			if err != nil {
				return err
			}
			return eachField(extension, func(f messageField) error {
				if f.number == 1 {
					event.Object = slices.Clip(f.bytes)
				}
				return nil
			})
		}
		return nil
	})
	if err == nil && !bytes.HasPrefix(event.Object, envelopeMagic) {
		err = errNotAnObject
	}
	return event, err
}

func (protobufCodec) appendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error) {
	if !bytes.HasPrefix(object, envelopeMagic) {
		return nil, errNotAnObject
	}
	extension := 1 + protowire.SizeBytes(len(object))
	length := 1 + protowire.SizeBytes(len(eventType)) + 1 + protowire.SizeBytes(extension)
	if length > math.MaxUint32 {
		return nil, ErrTooLarge
	}
	dst = slices.Grow(dst, sizeOfLength+length)
	dst = binary.BigEndian.AppendUint32(dst, uint32(length))
	dst = appendText(dst, 1, string(eventType))
	dst = protowire.AppendTag(dst, 2, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(extension))
	return appendMessage(dst, 1, object), nil
}

func (protobufCodec) encodeObject(apiVersion, kind string, object knownObject) ([]byte, error) {
	message, err := object.Marshal()
	if err != nil {
		return nil, err
	}
	return protobufCodec{}.objectOf(message, apiVersion, kind)
}

func (protobufCodec) decodeStatus(object []byte) (status metav1.Status, err error) {
	e, has, err := openEnvelope(object)
	if err != nil {
		return status, err
	}
	if !has {
		return status, errNotAnObject
	}
	if e.kind == statusType.Kind {
		err = status.Unmarshal(e.raw)
	}
	status.APIVersion, status.Kind = e.apiVersion, e.kind
	return status, err
}
