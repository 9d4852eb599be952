package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	kjson "sigs.k8s.io/json"
)

// seedsOf adds bytes and the encoding that they are in.
func seedsOf(f *testing.F, objects map[string]runtime.Object, body func(encoding string, object runtime.Object) []byte) {
	f.Helper()
	for encoding, e := range encodings {
		for _, object := range objects {
			if !encodes(encoding, object) {
				continue
			}
			if seed := body(encoding, object); len(seed) < 4<<10 {
				f.Add(uint8(e.format), seed)
			}
		}
	}
	for _, format := range formats {
		for _, seed := range [][]byte{nil, []byte(" "), []byte("k8s\x00"), []byte("{}"), []byte(`{"items":[]}`), []byte(`{"a":"\`), {0, 0, 0, 2, 0x0a}} {
			f.Add(uint8(format), seed)
		}
	}
}

func formatOf(t *testing.T, n uint8) Format {
	t.Helper()
	if n < uint8(JSON) || n > uint8(Protobuf) {
		t.Skip()
	}
	return Format(n)
}

// FuzzList: what is decoded can be encoded, and is then the same list.
func FuzzList(f *testing.F) {
	seedsOf(f, lists(), func(encoding string, object runtime.Object) []byte { return encode(f, encoding, object) })
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		format := formatOf(t, n)
		list, err := format.DecodeList(body)
		if err != nil {
			return
		}
		size := 0
		for _, item := range list.Items {
			size += len(item.Raw)
			if _, err := format.Meta(item.Raw); err != nil {
				t.Errorf("the metadata of an item: %v", err)
			}
			object, err := format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
			if err != nil {
				t.Fatalf("the object of an item: %v", err)
			}
			if m, err := format.Meta(object); err != nil || m != item.Meta && hasObjectMeta(m.Kind) && format == Protobuf {
				t.Errorf("the metadata is %+v, %v, want %+v", m, err, item.Meta)
			}
		}
		if size > len(body) {
			t.Errorf("the items have %d bytes of %d", size, len(body))
		}
		for _, resourceVersion := range []string{list.ResourceVersion, "4712"} {
			list.ResourceVersion = resourceVersion
			encoded := list.Encode()
			again, err := format.DecodeList(encoded)
			if err != nil {
				t.Fatalf("%q becomes %q: %v", body, encoded, err)
			}
			if len(again.Items) != len(list.Items) || !reflect.DeepEqual(again.metadata(), list.metadata()) || again.Kind != list.Kind {
				t.Errorf("%q becomes %q", body, encoded)
			}
			for i := range again.Items {
				if !bytes.Equal(again.Items[i].Raw, list.Items[i].Raw) {
					t.Errorf("item %d of %q becomes %q", i, body, again.Items[i].Raw)
				}
			}
		}
	})
}

// FuzzMeta: metadata is what a client reads, and conversions keep it.
func FuzzMeta(f *testing.F) {
	seedsOf(f, events(f), func(encoding string, object runtime.Object) []byte { return encode(f, encoding, object) })
	f.Fuzz(func(t *testing.T, n uint8, object []byte) {
		format := formatOf(t, n)
		_, _ = format.Labels(object)
		_, _ = format.IsEndOfList(object)
		_, _ = format.DecodeStatus(object)
		m, err := format.Meta(object)
		if err != nil {
			return
		}
		if format == JSON {
			var want struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				Metadata   struct {
					Namespace       string `json:"namespace"`
					Name            string `json:"name"`
					UID             string `json:"uid"`
					ResourceVersion string `json:"resourceVersion"`
				} `json:"metadata"`
			}
			err := kjson.UnmarshalCaseSensitivePreserveInts(object, &want)
			got := m
			got.Deleting = false
			if o := want.Metadata; err != nil || got != (Meta{want.APIVersion, want.Kind, o.Namespace, o.Name, o.UID, o.ResourceVersion, false}) {
				t.Errorf("the metadata of %q is %+v, and a client reads %+v, %v", object, m, want, err)
			}
		}
		for _, withType := range []bool{true, false} {
			item, err := format.ItemOf(object, withType)
			if err != nil {
				continue // it is an item
			}
			back, err := format.ObjectOf(item, m.APIVersion, m.Kind)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := format.Meta(back); err != nil || got != m {
				t.Errorf("%q becomes %q with %+v, %v, want %+v", object, back, got, err, m)
			}
		}
	})
}

// FuzzEvents: what is read can be written, and is then the same event.
func FuzzEvents(f *testing.F) {
	seedsOf(f, events(f), func(encoding string, object runtime.Object) []byte {
		return append(frame(f, encoding, watch.Added, object), frame(f, encoding, watch.Deleted, object)...)
	})
	f.Fuzz(func(t *testing.T, n uint8, stream []byte) {
		format := formatOf(t, n)
		const limit = 4 << 10
		r := format.NewEventReader(bytes.NewReader(stream), limit)
		read := 0
		for {
			event, err := r.Next()
			if err != nil {
				if _, again := r.Next(); !errors.Is(again, err) {
					t.Errorf("the errors are %v and %v", err, again)
				}
				return
			}
			if read += len(event.Frame); read > len(stream)+1 && format != JSON || len(event.Frame) > limit+1 {
				t.Errorf("%d bytes of %d were read, the last frame has %d", read, len(stream), len(event.Frame))
			}
			written, err := format.AppendEvent(nil, event.Type, event.Object)
			if err != nil {
				t.Fatal(err)
			}
			again, err := format.NewEventReader(bytes.NewReader(written), len(written)).Next()
			if err != nil || again.Type != event.Type || !bytes.Equal(again.Object, event.Object) {
				t.Errorf("%q becomes %+v, %v", event.Frame, again, err)
			}
		}
	})
}

// FuzzScanner: it accepts what encoding/json accepts.
func FuzzScanner(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `{}`, `[1,-0.5e+3,"a\u00e9\n",true,false,null,{"a":[]}]`, `01`, `-`, `1.`, `1e`, `"\x"`, `"\u12g4"`, "\"\x00\"", `[,]`, `{"a"}`, `{"a":1,}`, `nul`, `[1 2]`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := jsonScanner{b: b}
		err := s.skip()
		if err == nil {
			err = s.end()
		}
		if valid := json.Valid(b); valid != (err == nil) {
			t.Errorf("encoding/json says %t of %q, and the scanner says %v", valid, b, err)
		}
	})
}
