package wire

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Event is an event of a watch.
type Event struct {
	Type watch.EventType
	// Object is the object in the frame, in the object form.
	Object []byte
	// Frame is the complete event. It can be forwarded unchanged.
	Frame []byte
}

// EventReader reads the events of a watch. Only one goroutine may use it at a time.
type EventReader struct {
	format Format
	frames frameReader
	err    error
}

// NewEventReader returns a reader of a watch in the format. A frame may have up to limit bytes.
func (f Format) NewEventReader(r io.Reader, limit int) *EventReader {
	return &EventReader{format: f, frames: frameReader{r: bufio.NewReader(r), limit: limit}}
}

// Next returns the next event. Its bytes are valid until the next call. The error is io.EOF if the watch ended
// between two frames, ErrTooLarge if a frame exceeds the limit, and the reader's error if reading failed. After
// an error, all calls return the same error.
func (r *EventReader) Next() (Event, error) {
	if r.err != nil {
		return Event{}, r.err
	}
	event, err := r.next()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.format.wrap("reading a watch", err)
	}
	r.err = err
	return event, err
}

func (r *EventReader) next() (Event, error) {
	if cap(r.frames.frame) > keptBuffer {
		r.frames.frame = nil
	}
	r.frames.frame = r.frames.frame[:0]
	codec := codecs[r.format]
	if err := codec.readFrame(&r.frames); err != nil {
		return Event{}, err
	}
	event, err := codec.decodeEvent(r.frames.frame)
	if err != nil {
		return Event{}, err
	}
	switch event.Type {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error:
	default:
		return Event{}, fmt.Errorf("an event has the unknown type %.20q", event.Type)
	}
	if len(event.Object) == 0 {
		return Event{}, errors.New("an event has no object")
	}
	event.Frame = r.frames.frame
	return event, nil
}

// keptBuffer is the largest size of a frame buffer that is reused for the next frame. Otherwise one large object
// would keep its memory until the watch ends.
const keptBuffer = 64 << 10

// frameReader reads the bytes of one frame from r into frame.
type frameReader struct {
	r     *bufio.Reader
	limit int
	frame []byte
}

// read appends n bytes. It does not allocate them before they have arrived.
func (r *frameReader) read(n uint64) error {
	if n > uint64(r.limit-len(r.frame)) {
		return fmt.Errorf("%w: the limit is %d bytes", ErrTooLarge, r.limit)
	}
	for left := int(n); left > 0; {
		_, err := r.r.Peek(1)
		if err != nil {
			return unexpected(err)
		}
		chunk, _ := r.r.Peek(min(left, r.r.Buffered()))
		r.frame = append(r.frame, chunk...)
		left -= len(chunk)
		if _, err := r.r.Discard(len(chunk)); err != nil {
			return err
		}
	}
	return nil
}

// atEnd returns io.EOF if the stream ends here. It must be called between two frames.
func (r *frameReader) atEnd() error {
	_, err := r.r.Peek(1)
	return err
}

// unexpected replaces io.EOF by io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// AppendEvent appends the frame of an event with an object in the object form. The bytes are the same as those
// of an API server.
func (f Format) AppendEvent(dst []byte, eventType watch.EventType, object []byte) ([]byte, error) {
	frame, err := codecs[f].appendEvent(dst, eventType, object)
	return frame, f.wrap("encoding an event", err)
}

// Bookmark returns the object of a BOOKMARK event. endOfList is true for the bookmark that ends the initial
// events of a watch with sendInitialEvents=true. The object has only type and metadata; the object of an API
// server also has the empty fields that are never omitted.
func (f Format) Bookmark(apiVersion, kind, resourceVersion string, endOfList bool) ([]byte, error) {
	bookmark := metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		ObjectMeta: metav1.ObjectMeta{ResourceVersion: resourceVersion},
	}
	if endOfList {
		bookmark.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
	}
	object, err := codecs[f].encodeObject(apiVersion, kind, &bookmark)
	return object, f.wrap("encoding a bookmark", err)
}

// IsEndOfList reports whether the object of a BOOKMARK event ends the initial events.
func (f Format) IsEndOfList(object []byte) (bool, error) {
	annotations, err := f.Annotations(object)
	return annotations[metav1.InitialEventsAnnotationKey] == "true", err
}

// EncodeStatus returns the body of an error response, which is also the object of an ERROR event. It sets
// apiVersion and kind.
func (f Format) EncodeStatus(status metav1.Status) ([]byte, error) {
	status.TypeMeta = statusType
	body, err := codecs[f].encodeObject(status.APIVersion, status.Kind, &status)
	return body, f.wrap("encoding a Status", err)
}

// DecodeStatus returns the Status of an error response or of an ERROR event. An object of another kind is an
// error.
func (f Format) DecodeStatus(object []byte) (metav1.Status, error) {
	status, err := codecs[f].decodeStatus(object)
	if err == nil && status.TypeMeta != statusType {
		err = fmt.Errorf("%.40q of %.40q is not a Status of v1", status.Kind, status.APIVersion)
	}
	return status, f.wrap("decoding a Status", err)
}

var statusType = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}

// knownObject is an object that this package creates.
type knownObject interface {
	Marshal() ([]byte, error)
}
