package wire

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"
)

// arriving returns the items of a list that arrives in parts of n bytes, and whether it is whole. Each item is
// there as soon as its last byte is.
func arriving(t testing.TB, body []byte, n int) (items []Item, err error) {
	t.Helper()
	var s Items
	for end := 0; ; end = min(end+n, len(body)) {
		arrived := bytes.Clone(body[:end]) // the memory may be another one each time
		for {
			item, ok, err := s.Next(arrived)
			if err != nil {
				return nil, err
			}
			if !ok {
				break
			}
			if !bytes.HasSuffix(arrived[:s.At()], item.Raw) {
				t.Fatalf("%d bytes were looked at, and the item does not end there", s.At())
			}
			items = append(items, item)
		}
		if end == len(body) {
			return items, s.Whole(body)
		}
	}
}

// TestItemsOfPartialReadsEqualTheWholeList: they are those of the whole list, however it arrives.
func TestItemsOfPartialReadsEqualTheWholeList(t *testing.T) {
	objects := lists()
	for seed := range int64(5) {
		for name, list := range random(t, seed) {
			objects[name] = list
		}
	}
	forEach(t, objects, func(t *testing.T, encoding string, format Format, object runtime.Object) {
		body := encode(t, encoding, object)
		want, err := format.DecodeList(body)
		if err != nil {
			t.Fatal(err)
		}
		steps := []int{len(body)/20 + 1, len(body)}
		if len(body) < 4<<10 {
			steps = append(steps, 1, 7)
		}
		for _, n := range steps {
			got, err := arriving(t, body, n)
			if format != Protobuf {
				if err == nil {
					t.Errorf("a list in %s is read", format)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(want.Items) || len(got) > 0 && cmp.Diff(want.Items, got) != "" {
				t.Errorf("in parts of %d: %s", n, cmp.Diff(want.Items, got))
			}
			if _, err := arriving(t, body[:len(body)-1], n); err == nil {
				t.Error("a list without its end is whole")
			}
		}
	})
}

// TestItemsRefusesListsWithTwoReadings: what a decoder may read otherwise than Items does.
func TestItemsRefusesListsWithTwoReadings(t *testing.T) {
	body := encode(t, "protobuf", pods(2, listMetaOf("", nil)))
	e, _, err := openEnvelope(body)
	if err != nil {
		t.Fatal(err)
	}
	inEnvelope := func(fields ...[]byte) []byte { return bytes.Join(append([][]byte{envelopeMagic}, fields...), nil) }
	typed, list := typeMetaField("v1", "PodList"), appendMessage(nil, 2, e.raw)
	unknown := appendText(nil, 9, "?")
	if _, err := arriving(t, inEnvelope(typed, list), 1); err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string][]byte{
		"nothing":                        {},
		"no list":                        inEnvelope(typeMetaField("v1", "Pod"), list),
		"no type":                        inEnvelope(list),
		"its type twice":                 inEnvelope(typed, typed, list),
		"its type after it":              inEnvelope(list, typed),
		"a second list":                  inEnvelope(typed, list, list),
		"another field before":           inEnvelope(typed, unknown, list),
		"another field after":            inEnvelope(typed, list, unknown),
		"an encoding":                    inEnvelope(typed, list, appendText(nil, 3, "gzip")),
		"a number":                       inEnvelope(typed, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 1)),
		"a list that is too long":        inEnvelope(typed, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 1<<40)),
		"an item longer than the list":   inEnvelope(typed, appendMessage(nil, 2, []byte{2<<3 | 2, 100}), e.raw),
		"metadata after items":           inEnvelope(typed, appendMessage(nil, 2, append(bytes.Clone(e.raw), appendMessage(nil, 1, nil)...))),
		"another field after items":      inEnvelope(typed, appendMessage(nil, 2, append(bytes.Clone(e.raw), unknown...))),
		"an item that is no message":     inEnvelope(typed, appendMessage(nil, 2, appendText(nil, 2, "\xff"))),
		"an item without a name":         inEnvelope(typed, appendMessage(nil, 2, appendMessage(nil, 2, appendMessage(nil, 1, nil)))),
		"metadata that cannot be read":   inEnvelope(typed, appendMessage(nil, 2, appendMessage(nil, 1, []byte{2 << 3, 1}))),
		"less than its length":           inEnvelope(typed, list[:len(list)-1]),
		"more after an unfinished field": append(inEnvelope(typed, list), 3<<3|2, 5),
	} {
		if items, err := arriving(t, body, 1); err == nil {
			t.Errorf("%s: %d items are read", name, len(items))
		}
	}
}

// FuzzItems: a list that is read while it arrives is what DecodeList reads.
func FuzzItems(f *testing.F) {
	seedsOf(f, lists(), func(encoding string, object runtime.Object) []byte { return encode(f, encoding, object) })
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		got, err := arriving(t, body, 1+int(n))
		if err != nil {
			return
		}
		want, err := Protobuf.DecodeList(body)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want.Items) || len(got) > 0 && cmp.Diff(want.Items, got) != "" {
			t.Error(cmp.Diff(want.Items, got))
		}
	})
}
