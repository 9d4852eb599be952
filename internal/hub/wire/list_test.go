package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// write returns the list that Encode writes.
func write(h *Header, items []Item) []byte {
	return (&List{Header: *h, Items: items}).Encode()
}

// hasSameList checks that clients decode the same list from got and want, and that the hub decodes the same items
// and header. A list of custom resources of an API server has an empty continue, which is the same as none.
func hasSameList(t testing.TB, format Format, got, want []byte, like runtime.Object) {
	t.Helper()
	plain := func(body []byte) runtime.Object {
		var object runtime.Object
		if u, ok := like.(*unstructured.UnstructuredList); ok {
			list := u.NewEmptyInstance().(*unstructured.UnstructuredList)
			if err := list.UnmarshalJSON(body); err != nil {
				t.Fatal(err)
			}
			if list.GetContinue() == "" {
				unstructured.RemoveNestedField(list.Object, "metadata", "continue")
			}
			return list
		}
		object = decode(t, format, body, like)
		if list, err := meta.ListAccessor(object); err == nil {
			list.SetSelfLink("")
			if sharded, ok := object.(*corev1.PodList); ok {
				sharded.ShardInfo = nil
			}
		}
		return object
	}
	if diff := cmp.Diff(plain(want), plain(got), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("a client decodes another list: %s", diff)
	}
	wanted, err := format.DecodeList(want)
	if err != nil {
		t.Fatal(err)
	}
	list, err := format.DecodeList(got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wanted, list, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the hub decodes another list: %s", diff)
	}
}

// TestDecodedListsAreEncodedAsTheSameList: header and items equal those of the typed list, also after Encode.
func TestDecodedListsAreEncodedAsTheSameList(t *testing.T) {
	objects := lists()
	for seed := range int64(20) {
		for name, list := range random(t, seed) {
			objects[name] = list
		}
	}
	forEach(t, objects, func(t *testing.T, encoding string, format Format, object runtime.Object) {
		body := encode(t, encoding, object)
		list, err := format.DecodeList(body)
		if err != nil {
			t.Fatal(err)
		}
		want, err := meta.ListAccessor(object)
		if err != nil {
			t.Fatal(err)
		}
		apiVersion, kind := object.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
		if list.APIVersion != apiVersion || list.Kind != kind || list.ResourceVersion != want.GetResourceVersion() ||
			list.Continue != want.GetContinue() || cmp.Diff(list.RemainingItemCount, want.GetRemainingItemCount()) != "" {
			t.Errorf("got %+v", list.Header)
		}
		var got, wantMeta []Meta
		for _, item := range list.Items {
			got = append(got, item.Meta)
		}
		for _, item := range itemsOf(t, object) {
			wantMeta = append(wantMeta, metaOf(t, item))
		}
		if diff := cmp.Diff(wantMeta, got); diff != "" {
			t.Error(diff)
		}
		hasSameList(t, format, write(&list.Header, list.Items), body, object)
	})
}

// TestHeadersCanBeStoredAsListsWithoutItems: together with the items they give the same list again.
func TestHeadersCanBeStoredAsListsWithoutItems(t *testing.T) {
	forEach(t, lists(), func(t *testing.T, encoding string, format Format, object runtime.Object) {
		body := encode(t, encoding, object)
		list, err := format.DecodeList(body)
		if err != nil {
			t.Fatal(err)
		}
		stored, err := format.DecodeList(write(&list.Header, nil))
		if err != nil {
			t.Fatal(err)
		}
		if stored.ItemsHaveType != list.ItemsHaveType {
			t.Errorf("ItemsHaveType is %t, want %t", stored.ItemsHaveType, list.ItemsHaveType)
		}
		if len(stored.Items) > 0 {
			t.Errorf("it has %d items", len(stored.Items))
		}
		hasSameList(t, format, write(&stored.Header, list.Items), body, object)
	})
}

// TestHeadersOfEarlierVersionsAreRead: an earlier hub stored the list of the API server without its items, with
// fields of the metadata that are no longer kept.
func TestHeadersOfEarlierVersionsAreRead(t *testing.T) {
	for body, want := range map[string]Header{
		`{"kind":"PodList","apiVersion":"v1","metadata":{"selfLink":"/s","resourceVersion":"7"},"items":[]}` + "\n": {APIVersion: "v1", Kind: "PodList"},
		`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":null}` + "\n":               {APIVersion: "v1", Kind: "PodList"},
		`{"apiVersion":"a/v1","items":[],"kind":"WList","metadata":{"continue":"","resourceVersion":"7"}}` + "\n":   {APIVersion: "a/v1", Kind: "WList", ItemsHaveType: true},
	} {
		want.Format, want.ResourceVersion = JSON, "7"
		list, err := JSON.DecodeList([]byte(body))
		if err != nil {
			t.Errorf("%s: %v", body, err)
			continue
		}
		if diff := cmp.Diff(want, list.Header); diff != "" {
			t.Errorf("%s: %s", body, diff)
		}
	}
}

// TestChangedListsAreDecodedAsFromTheAPIServer: for lists whose metadata and items change.
func TestChangedListsAreDecodedAsFromTheAPIServer(t *testing.T) {
	type change struct {
		more      string
		remaining *int64
		n         int
	}
	for name, build := range map[string]func(change) runtime.Object{
		"pods": func(c change) runtime.Object { return pods(c.n, listMetaOf(c.more, c.remaining)) },
		"pods of a shard": func(c change) runtime.Object {
			list := pods(c.n, listMetaOf(c.more, c.remaining))
			list.ShardInfo = &metav1.ShardInfo{Selector: "x"}
			list.SelfLink = "/s" //nolint:staticcheck // an old API server may send it
			return list
		},
		"widgets": func(c change) runtime.Object {
			list := widgets(c.n, c.more)
			list.SetRemainingItemCount(c.remaining)
			return list
		},
	} {
		changes := map[string]change{"none": {}, "page": {"more", new(int64(300)), 3}, "whole": {"", nil, 3}, "page without count": {"<m>", nil, 1}}
		for from, first := range changes {
			for to, second := range changes {
				for encoding, e := range encodings {
					a, b := build(first), build(second)
					if accessor, _ := meta.ListAccessor(b); to != "none" {
						accessor.SetResourceVersion("4712")
					} else {
						accessor.SetResourceVersion("")
						if u, ok := b.(*unstructured.UnstructuredList); ok {
							unstructured.RemoveNestedField(u.Object, "metadata", "resourceVersion")
						}
					}
					if !encodes(encoding, a) {
						continue
					}
					t.Run(name+" from "+from+" to "+to+" in "+encoding, func(t *testing.T) {
						body := encode(t, encoding, b)
						list, err := e.format.DecodeList(encode(t, encoding, a))
						if err != nil {
							t.Fatal(err)
						}
						wanted, err := e.format.DecodeList(body)
						if err != nil {
							t.Fatal(err)
						}
						list.ResourceVersion, list.Continue, list.RemainingItemCount = wanted.ResourceVersion, wanted.Continue, wanted.RemainingItemCount
						hasSameList(t, e.format, write(&list.Header, wanted.Items), body, b)
					})
				}
			}
		}
	}
}

// TestListsAreEncodedFromAPlainHeader: a Header that does not come from DecodeList is decoded like the
// list of a built-in kind from an API server.
func TestListsAreEncodedFromAPlainHeader(t *testing.T) {
	for _, want := range []*corev1.PodList{pods(0, listMetaOf("", nil)), pods(2, listMetaOf("", nil)), pods(2, listMetaOf("more", new(int64(7))))} {
		for encoding, e := range encodings {
			body := encode(t, encoding, want)
			list, err := e.format.DecodeList(body)
			if err != nil {
				t.Fatal(err)
			}
			h := Header{
				Format: e.format, APIVersion: list.APIVersion, Kind: list.Kind,
				ResourceVersion: list.ResourceVersion, Continue: list.Continue, RemainingItemCount: list.RemainingItemCount,
			}
			hasSameList(t, e.format, write(&h, list.Items), body, want)
		}
	}
}

func TestWriteChecksTheSize(t *testing.T) {
	failure := errors.New("the disk is broken")
	for _, format := range formats {
		h := &Header{Format: format, APIVersion: "v1", Kind: "PodList"}
		for name, tc := range map[string]struct {
			add  []int
			err  error
			want error
		}{
			"the size":         {add: []int{2, 2}},
			"no size":          {want: errSize},
			"too few items":    {add: []int{2, 2, 2}, want: errSize},
			"too many items":   {add: []int{2}, want: errSize},
			"too small items":  {add: []int{2, 3}, want: errSize},
			"too large items":  {add: []int{1, 2}, want: errSize},
			"an item is lost":  {add: []int{2, 2}, err: failure, want: failure},
			"items of no size": {add: []int{0, 0}, want: errSize},
		} {
			var size Size
			for _, n := range tc.add {
				size.Add(n)
			}
			err := h.Write(io.Discard, size, func(yield func([]byte, error) bool) {
				_ = yield([]byte("{}"), nil) && yield([]byte("{}"), tc.err)
			})
			if !errors.Is(err, tc.want) {
				t.Errorf("%s: %s: the error is %v, want %v", format, name, err, tc.want)
			}
		}
	}
}

// TestNonListsReturnErrNotAList: DecodeList returns ErrNotAList for anything that is not a list, so that it is
// passed on unchanged.
func TestNonListsReturnErrNotAList(t *testing.T) {
	object := map[string]any{"apiVersion": "a/v1", "kind": "AllowList", "metadata": map[string]any{"name": "n"}, "items": []any{map[string]any{"a": "b"}}}
	values := map[string]any{"apiVersion": "a/v1", "kind": "MetricValueList", "metadata": map[string]any{}, "items": []any{map[string]any{"value": "3"}}}
	numbers := map[string]any{"apiVersion": "a/v1", "kind": "NumberList", "metadata": map[string]any{}, "items": []any{int64(1)}}
	forEach(t, map[string]runtime.Object{
		"a pod":                         itemsOf(t, pods(1, metav1.ListMeta{}))[0],
		"a Status":                      &metav1.Status{TypeMeta: statusType, Status: "Failure", Code: 404},
		"a Table":                       &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "Table"}, Rows: []metav1.TableRow{{}}},
		"groups":                        &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroupList"}, Groups: []metav1.APIGroup{{Name: "apps"}}},
		"resources":                     &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: "v1", APIResources: []metav1.APIResource{{Name: "pods"}}},
		"a custom resource with items":  &unstructured.Unstructured{Object: object},
		"a list of values":              &unstructured.Unstructured{Object: values},
		"a list of numbers":             &unstructured.Unstructured{Object: numbers},
		"a list of pods without a name": &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, Items: []corev1.Pod{{}}},
		"a list without a kind":         &corev1.PodList{Items: []corev1.Pod{}},
	}, func(t *testing.T, encoding string, format Format, object runtime.Object) {
		if _, err := format.DecodeList(encode(t, encoding, object)); !errors.Is(err, ErrNotAList) {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestTruncatedListsAreErrors: a list is cut at each byte.
func TestTruncatedListsAreErrors(t *testing.T) {
	forEach(t, map[string]runtime.Object{"pods": pods(2, listMetaOf("more", new(int64(1)))), "widgets": widgets(2, "")},
		func(t *testing.T, encoding string, format Format, object runtime.Object) {
			body := bytes.TrimSuffix(encode(t, encoding, object), []byte("\n"))
			for n := range len(body) {
				list, err := format.DecodeList(body[:n])
				if err == nil && (format != Protobuf || n < len(body)-len(envelopeEnd)) {
					t.Fatalf("%q is accepted as %+v", body[:n], list)
				}
			}
			if format == Protobuf {
				return
			}
			if _, err := format.DecodeList(append(bytes.Clone(body), '}')); err == nil {
				t.Error("a byte after the list is accepted")
			}
		})
}

func TestAmbiguousListsAreErrors(t *testing.T) {
	for _, body := range []string{
		`{"kind":"PodList","apiVersion":"v1","items":[],"items":[]}`,
		`{"kind":"PodList","kind":"NodeList","apiVersion":"v1","items":[]}`,
		`{"kind":"PodList","apiVersion":"v1","metadata":{},"metadata":{},"items":[]}`,
		`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"a","name":"b"}}]}`,
		`{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":1}}]}`,
		`{"kind":"PodList","apiVersion":"v1","metadata":{"remainingItemCount":"1"},"items":[]}`,
		`{"kind":"PodList","apiVersion":"v1","metadata":[],"items":[]}`,
	} {
		if list, err := JSON.DecodeList([]byte(body)); err == nil {
			t.Errorf("%s is accepted as %+v", body, list)
		}
	}
}
