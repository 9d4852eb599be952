package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	goruntime "runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
)

// frame returns the frame that an API server writes.
func frame(t testing.TB, encoding string, eventType watch.EventType, object runtime.Object) []byte {
	t.Helper()
	event := &metav1.WatchEvent{Type: string(eventType), Object: runtime.RawExtension{Raw: encode(t, encoding, object)}}
	if encodings[encoding].format != Protobuf {
		return encode(t, encoding, event)
	}
	var b bytes.Buffer
	raw := protobuf.NewRawSerializer(scheme.Scheme, scheme.Scheme)
	if err := raw.Encode(event, protobuf.LengthDelimitedFramer.NewFrameWriter(&b)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// events are objects of events.
func events(t testing.TB) map[string]runtime.Object {
	t.Helper()
	return map[string]runtime.Object{
		"a pod":         itemsOf(t, pods(1, metav1.ListMeta{}))[0],
		"a large pod":   largePod(200 << 10),
		"a widget":      itemsOf(t, widgets(1, ""))[0],
		"a Status":      &metav1.Status{TypeMeta: statusType, Status: "Failure", Reason: metav1.StatusReasonExpired, Code: 410, Message: "{\"too old\"}"},
		"an empty node": &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}},
	}
}

func largePod(size int) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "large", Annotations: map[string]string{"a": strings.Repeat(`{"\`, size/3)}},
	}
}

// readers deliver the same bytes in other pieces.
var readers = map[string]func(io.Reader) io.Reader{
	"all at once":     func(r io.Reader) io.Reader { return r },
	"byte by byte":    iotest.OneByteReader,
	"half of a read":  iotest.HalfReader,
	"data with error": iotest.DataErrReader,
}

// TestEventsAreReadAndWrittenAsAnAPIServerWritesThem: in chunks of any size.
func TestEventsAreReadAndWrittenAsAnAPIServerWritesThem(t *testing.T) {
	forEach(t, events(t), func(t *testing.T, encoding string, format Format, object runtime.Object) {
		var stream []byte
		var frames [][]byte
		types := []watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error}
		for _, eventType := range types {
			frames = append(frames, frame(t, encoding, eventType, object))
			stream = append(stream, frames[len(frames)-1]...)
		}
		for name, reader := range readers {
			r := format.NewEventReader(reader(bytes.NewReader(stream)), 1<<20)
			for i, eventType := range types {
				event, err := r.Next()
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if event.Type != eventType || !bytes.Equal(event.Frame, frames[i]) {
					t.Errorf("%s: got %s and\n%.300q, want %s and\n%.300q", name, event.Type, event.Frame, eventType, frames[i])
				}
				if diff := cmp.Diff(object, decode(t, format, event.Object, object)); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
				for _, object := range [][]byte{event.Object, encode(t, encoding, object)} {
					written, err := format.AppendEvent([]byte("before"), eventType, object)
					if err != nil || string(written) != "before"+string(frames[i]) {
						t.Errorf("%s: wrote %.300q, %v, want\n%.300q", name, written, err, frames[i])
					}
				}
			}
			for range 2 {
				if _, err := r.Next(); !errors.Is(err, io.EOF) {
					t.Errorf("%s: the error at the end is %v", name, err)
				}
			}
		}
	})
}

// TestWrittenEventsAreRead: what AppendEvent writes is what Next returns.
func TestWrittenEventsAreRead(t *testing.T) {
	forEach(t, events(t), func(t *testing.T, encoding string, format Format, object runtime.Object) {
		body := encode(t, encoding, object)
		written, err := format.AppendEvent(nil, watch.Added, body)
		if err != nil {
			t.Fatal(err)
		}
		event, err := format.NewEventReader(bytes.NewReader(written), len(written)).Next()
		if err != nil || event.Type != watch.Added || !bytes.Equal(event.Object, bytes.TrimSuffix(body, []byte("\n"))) || !bytes.Equal(event.Frame, written) {
			t.Errorf("got %+v, %v", event, err)
		}
	})
}

// TestBrokenStreamsReturnErrors: at each byte within a frame, and never io.EOF.
func TestBrokenStreamsReturnErrors(t *testing.T) {
	objects := events(t)
	delete(objects, "a large pod")
	forEach(t, objects, func(t *testing.T, encoding string, format Format, object runtime.Object) {
		whole := frame(t, encoding, watch.Added, object)
		end := len(bytes.TrimSuffix(whole, []byte("\n")))
		failure := errors.New("the connection is broken")
		for n := range end {
			r := format.NewEventReader(io.MultiReader(bytes.NewReader(whole), bytes.NewReader(whole[:n])), 1<<20)
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = io.EOF
			}
			if _, err := r.Next(); !errors.Is(err, want) || (n > 0 && errors.Is(err, io.EOF)) {
				t.Fatalf("after %d bytes the error is %v, want %v", n, err, want)
			}
			r = format.NewEventReader(io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(failure)), 1<<20)
			if _, err := r.Next(); !errors.Is(err, failure) {
				t.Fatalf("after %d bytes the error is %v, want %v", n, err, failure)
			}
		}
	})
}

// TestLargeFramesAreRefused: the frame is not read into memory.
func TestLargeFramesAreRefused(t *testing.T) {
	for encoding, e := range encodings {
		whole := frame(t, encoding, watch.Added, largePod(100_000))
		size := len(whole)
		if e.format == JSON {
			size-- // the newline is added
		}
		if _, err := e.format.NewEventReader(bytes.NewReader(whole), size).Next(); err != nil {
			t.Errorf("%s: a frame of the limit is refused: %v", encoding, err)
		}
		r := e.format.NewEventReader(bytes.NewReader(whole), size-1)
		for range 2 {
			if _, err := r.Next(); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%s: the error is %v", encoding, err)
			}
		}
	}
	if _, err := Protobuf.NewEventReader(bytes.NewReader([]byte{0xff, 0xff, 0xff, 0xff}), 1<<20).Next(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a length: the error is %v", err)
	}
}

// TestAnAnnouncedLengthIsNotAllocated: memory is allocated only for bytes that have arrived.
func TestAnAnnouncedLengthIsNotAllocated(t *testing.T) {
	const limit = 1 << 30
	begin := binary.BigEndian.AppendUint32(nil, limit-sizeOfLength)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	if _, err := Protobuf.NewEventReader(bytes.NewReader(begin), limit).Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	goruntime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 1<<20 {
		t.Errorf("%d bytes were allocated", allocated)
	}
}

func TestInvalidEventsAreRejected(t *testing.T) {
	for _, stream := range []string{
		"garbage", "[]\n", "\"a\"\n", "1\n", "{}\n", "{\"type\":\"ADDED\"}\n", "{\"type\":\"ADDED\",\"object\":null}\n",
		"{\"type\":\"ADDED\",\"object\":[]}\n", "{\"object\":{}}\n", "{\"type\":\"OTHER\",\"object\":{}}\n", "{\"type\":\"ADDED\",\"object\":{},}\n",
		"{\"type\":\"ADDED\",\"type\":\"DELETED\",\"object\":{}}\n", "}\n", "{]}\n", "<html>{}</html>",
	} {
		if event, err := JSON.NewEventReader(strings.NewReader(stream), 1<<10).Next(); err == nil {
			t.Errorf("%q is accepted as %+v", stream, event)
		}
	}
	if event, err := Protobuf.NewEventReader(bytes.NewReader([]byte{0, 0, 0, 0}), 1<<10).Next(); err == nil {
		t.Errorf("an empty frame is accepted as %+v", event)
	}
	for _, format := range formats {
		if _, err := format.AppendEvent(nil, watch.Added, []byte("no object")); err == nil {
			t.Errorf("%s: an event is written with an object that is none", format)
		}
	}
}

// TestJSONEventsMayBeIndented: white space between and within events does not matter.
func TestJSONEventsMayBeIndented(t *testing.T) {
	r := JSON.NewEventReader(strings.NewReader("\n {\n\"type\": \"ADDED\",\r\n \"object\": {\"a\":\n\"}\"}\n}{\"type\":\"DELETED\",\"object\":{}}\n\n"), 1<<10)
	for _, want := range []watch.EventType{watch.Added, watch.Deleted} {
		if event, err := r.Next(); err != nil || event.Type != want {
			t.Errorf("got %+v, %v, want %s", event, err, want)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("the error is %v", err)
	}
}

// TestBookmarksAreReadByClients: by typed and dynamic clients.
func TestBookmarksAreReadByClients(t *testing.T) {
	for _, format := range formats {
		for _, end := range []bool{false, true} {
			bookmark, err := format.Bookmark("v1", "Pod", "4711", end)
			if err != nil {
				t.Fatal(err)
			}
			want := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "4711"}}
			if end {
				want.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
			}
			if diff := cmp.Diff(runtime.Object(want), decode(t, format, bookmark, want)); diff != "" {
				t.Errorf("%s: %s", format, diff)
			}
			if got, err := format.IsEndOfList(bookmark); err != nil || got != end {
				t.Errorf("%s: IsEndOfList is %t, %v, want %t", format, got, err, end)
			}
			if m, err := format.Meta(bookmark); err != nil || m != (Meta{APIVersion: "v1", Kind: "Pod", ResourceVersion: "4711"}) {
				t.Errorf("%s: its metadata is %+v, %v", format, m, err)
			}
			if _, err := format.AppendEvent(nil, watch.Bookmark, bookmark); err != nil {
				t.Error(err)
			}
		}
		bookmark, err := format.Bookmark("shop.example.com/v1", "Widget", "4711", true)
		if err != nil {
			t.Fatal(err)
		}
		if format != Protobuf {
			like := &unstructured.Unstructured{}
			if got := decode(t, format, bookmark, like).(*unstructured.Unstructured); got.GetResourceVersion() != "4711" || got.GetKind() != "Widget" {
				t.Errorf("%s: got %v", format, got)
			}
		}
	}
}

// TestStatusesAreWrittenAsAnAPIServerWritesThem: and they are read back unchanged.
func TestStatusesAreWrittenAsAnAPIServerWritesThem(t *testing.T) {
	for name, status := range map[string]metav1.Status{
		"empty": {},
		"full": {
			Status: metav1.StatusFailure, Code: 404, Reason: metav1.StatusReasonNotFound, Message: `pods "<a>" not found`,
			Details: &metav1.StatusDetails{Name: "<a>", Kind: "pods", RetryAfterSeconds: 3, Causes: []metav1.StatusCause{{Type: "t", Message: "m", Field: "f"}}},
		},
	} {
		typed := status
		typed.TypeMeta = statusType
		for encoding, e := range encodings {
			body, err := e.format.EncodeStatus(status)
			if err != nil {
				t.Fatal(err)
			}
			if want := encode(t, encoding, &typed); !bytes.Equal(body, want) {
				t.Errorf("%s: %s: got\n%q, want\n%q", name, encoding, body, want)
			}
			got, err := e.format.DecodeStatus(body)
			if diff := cmp.Diff(typed, got); err != nil || diff != "" {
				t.Errorf("%s: %s: %v, %s", name, encoding, err, diff)
			}
		}
	}
	for encoding, e := range encodings {
		if _, err := e.format.DecodeStatus(encode(t, encoding, largePod(10))); err == nil {
			t.Errorf("%s: a pod is accepted as a Status", encoding)
		}
	}
}
