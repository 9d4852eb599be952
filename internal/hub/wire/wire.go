// Package wire splits the responses of an API server into objects, and builds responses from objects. It knows
// the encodings (JSON and protobuf) and the common parts of all kinds (apiVersion, kind, metadata, the form of
// lists and of watch events). It must not know specific kinds, HTTP, a disk or a clock.
//
// The bytes of an object are never encoded again, so fields of kinds and versions that this program does not
// know are preserved. An object has two forms:
//
//   - The object form is the response to a GET, and the object of a watch event. It has apiVersion and kind. In
//     protobuf it has an envelope.
//   - The item form is an item of a list. In protobuf it has no envelope. In JSON it has apiVersion and kind only
//     in lists of custom resources and in PartialObjectMetadataList.
//
// ItemOf and ObjectOf convert between them. Functions that read metadata accept both.
//
// If a field that this package reads occurs twice, which an API server never writes, that is an error. Returned
// slices share memory with the arguments, returned strings do not.
package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
)

// Format is an encoding of an API server's responses. The zero value is not a valid format.
type Format uint8

// The supported formats.
const (
	JSON Format = iota + 1
	Protobuf
)

var codecs = [...]codec{JSON: jsonCodec{}, Protobuf: protobufCodec{}}

// codec has the functions that differ between the formats. Its methods correspond to those of Format and Header.
type codec interface {
	meta(object []byte) (Meta, error)
	stringMap(object []byte, field string) (map[string]string, error)
	decodeList(body []byte) (*List, error)
	aroundItems(h *Header, size Size) (before, after []byte)
	itemOf(object []byte, withType bool) ([]byte, error)
	objectOf(item []byte, apiVersion, kind string) ([]byte, error)
	readFrame(r *frameReader) error
	decodeEvent(frame []byte) (Event, error)
	appendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error)
	encodeObject(apiVersion, kind string, object knownObject) ([]byte, error)
	decodeStatus(object []byte) (metav1.Status, error)
}

// FormatOf returns the format of a response with this Content-Type. Parameters such as stream=watch and
// as=PartialObjectMetadataList do not change it.
func FormatOf(contentType string) (Format, error) {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return 0, fmt.Errorf("parsing Content-Type %q: %w", contentType, err)
	}
	switch mediaType {
	case runtime.ContentTypeJSON:
		return JSON, nil
	case runtime.ContentTypeProtobuf:
		return Protobuf, nil
	}
	return 0, fmt.Errorf("Content-Type %q is neither JSON nor protobuf", contentType)
}

// String implements fmt.Stringer.
func (f Format) String() string {
	switch f {
	case JSON:
		return "JSON"
	case Protobuf:
		return "protobuf"
	}
	return fmt.Sprintf("Format(%d)", uint8(f))
}

// ContentType returns the Content-Type of an API server's response to a GET, a list or an error in the format.
func (f Format) ContentType() string {
	if f == Protobuf {
		return runtime.ContentTypeProtobuf
	}
	return runtime.ContentTypeJSON
}

// WatchContentType returns the Content-Type of an API server's response to a watch in the format.
func (f Format) WatchContentType() string {
	if f == Protobuf {
		return runtime.ContentTypeProtobuf + ";stream=watch"
	}
	return runtime.ContentTypeJSON
}

// Meta is the part of an object's type and metadata that identifies the object and its version. Labels and
// Annotations return the parts that may be large.
type Meta struct {
	APIVersion, Kind     string
	Namespace, Name      string
	UID, ResourceVersion string
	Deleting             bool // deletionTimestamp is set
}

// IsUpTo reports whether version is not later than other. It returns false if one of them is not a resource
// version.
func IsUpTo(version, other string) bool {
	order, err := resourceversion.CompareResourceVersion(version, other)
	return err == nil && order <= 0
}

var (
	// ErrNotAList is returned for a well-formed body that is not a list of objects: an object, a Status, a
	// Table, a discovery document, or a list whose items have no name.
	ErrNotAList = errors.New("not a list of objects")
	// ErrTooLarge is returned for a frame of a watch that exceeds the limit of its reader.
	ErrTooLarge = errors.New("the frame is too large")
)

// Meta returns the metadata of an object in either form. APIVersion and Kind are empty for an item without them.
// In protobuf, the result for a kind with a ListMeta, such as Status and lists, has only APIVersion and Kind.
func (f Format) Meta(object []byte) (Meta, error) {
	m, err := codecs[f].meta(object)
	return m, f.wrap("reading the metadata of an object", err)
}

// Labels returns the labels of an object in either form. The map is nil if there are none.
func (f Format) Labels(object []byte) (map[string]string, error) {
	m, err := codecs[f].stringMap(object, "labels")
	return m, f.wrap("reading the labels of an object", err)
}

// Annotations returns the annotations of an object in either form. The map is nil if there are none.
func (f Format) Annotations(object []byte) (map[string]string, error) {
	m, err := codecs[f].stringMap(object, "annotations")
	return m, f.wrap("reading the annotations of an object", err)
}

// ReadFields decodes fields of an object in JSON, in either form, into a struct with the tags of encoding/json.
// Fields without a counterpart in the struct are ignored. Other formats return an error.
func (f Format) ReadFields(object []byte, into any) error {
	if f != JSON {
		return f.wrap("reading the fields of an object", errors.New("only fields in JSON have names"))
	}
	return f.wrap("reading the fields of an object", json.Unmarshal(object, into))
}

// ItemOf returns an object in the item form. withType is the ItemsHaveType of the list's Header. The result may
// share memory with object.
func (f Format) ItemOf(object []byte, withType bool) ([]byte, error) {
	item, err := codecs[f].itemOf(object, withType)
	return item, f.wrap("converting an object to an item", err)
}

// ObjectOf returns an item in the object form. apiVersion and kind are the type of the item, from Item or
// Header.ItemKind; they are ignored if the item itself has a type. The result may share memory with item. An API
// server writes a newline after the response to a GET in JSON; ObjectOf does not.
func (f Format) ObjectOf(item []byte, apiVersion, kind string) ([]byte, error) {
	object, err := codecs[f].objectOf(item, apiVersion, kind)
	return object, f.wrap("converting an item to an object", err)
}

func (f Format) wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s in %s: %w", what, f, err)
}
