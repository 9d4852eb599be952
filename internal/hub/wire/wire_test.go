package wire

import (
	"bytes"
	"fmt"
	"io"
	"math/rand"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

func init() {
	if err := metav1.AddMetaToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
}

var formats = []Format{JSON, Protobuf}

// encodings are the serializers with which an API server writes answers. Feature gates and
// the kind of the answer decide which one of a format it is.
var encodings = map[string]struct {
	format Format
	encode func(runtime.Object, io.Writer) error
}{
	"JSON":               {JSON, kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, kjson.SerializerOptions{}).Encode},
	"JSON, streamed":     {JSON, kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, kjson.SerializerOptions{StreamingCollectionsEncoding: true}).Encode},
	"protobuf":           {Protobuf, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode},
	"protobuf, streamed": {Protobuf, protobuf.NewSerializerWithOptions(scheme.Scheme, scheme.Scheme, protobuf.SerializerOptions{StreamingCollectionsEncoding: true}).Encode},
}

// encode returns what an API server writes.
func encode(t testing.TB, encoding string, object runtime.Object) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := encodings[encoding].encode(object, &b); err != nil {
		t.Fatalf("encoding %T in %s: %v", object, encoding, err)
	}
	return b.Bytes()
}

// decode returns what a client reads, in a fresh object of the type of like.
func decode(t testing.TB, format Format, body []byte, like runtime.Object) runtime.Object {
	t.Helper()
	decoders := map[Format]runtime.Decoder{
		JSON:     kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, kjson.SerializerOptions{Strict: true}),
		Protobuf: protobuf.NewSerializer(scheme.Scheme, scheme.Scheme),
	}
	into := like.DeepCopyObject()
	if u, ok := into.(*unstructured.Unstructured); ok {
		u.Object = nil
	} else {
		clean, err := scheme.Scheme.New(like.GetObjectKind().GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		into = clean
	}
	object, _, err := decoders[format].Decode(body, nil, into)
	if err != nil {
		t.Fatalf("a client cannot decode %q: %v", body, err)
	}
	return object
}

// encodes returns whether a kind is served in an encoding.
func encodes(encoding string, object runtime.Object) bool {
	switch object.(type) {
	case *unstructured.Unstructured, *unstructured.UnstructuredList, *metav1.Table:
		return encodings[encoding].format != Protobuf
	}
	return true
}

func listMetaOf(more string, remaining *int64) metav1.ListMeta {
	return metav1.ListMeta{ResourceVersion: "4711", Continue: more, RemainingItemCount: remaining}
}

func pods(n int, list metav1.ListMeta) *corev1.PodList {
	pods := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list, Items: []corev1.Pod{}}
	for i := range n {
		pods.Items = append(pods.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprintf("cart-%d", i), UID: "e5b6", ResourceVersion: fmt.Sprint(100 + i),
				Labels:      map[string]string{"app": "cart", "pod-template-hash": "5d9f"},
				Annotations: map[string]string{"note": "<\"quoted\" & ü \u2028>", "empty": ""},
			},
			Spec:   corev1.PodSpec{NodeName: "edge-1", Containers: []corev1.Container{{Name: "c", Image: "cart:1", Args: []string{"{", "}]", "\\"}}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
		})
		if i%2 == 1 {
			now := metav1.Unix(1_700_000_000, 0)
			pods.Items[i].DeletionTimestamp = &now
		}
	}
	return pods
}

func widgets(n int, more string) *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{Object: map[string]any{}}
	list.SetAPIVersion("shop.example.com/v1")
	list.SetKind("WidgetList")
	list.SetResourceVersion("4711")
	list.SetContinue(more)
	list.Items = []unstructured.Unstructured{}
	for i := range n {
		list.Items = append(list.Items, unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "shop.example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"namespace": "shop", "name": fmt.Sprintf("w-%d", i), "uid": "u", "resourceVersion": "9", "labels": map[string]any{"a": "b"}},
			"spec":     map[string]any{"size": int64(7), "share": 0.5, "parts": []any{"a", nil, true}},
		}})
	}
	return list
}

// lists are answers to lists of each kind of layout.
func lists() map[string]runtime.Object {
	partial := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: listMetaOf("", nil),
		Items: []metav1.PartialObjectMetadata{{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "shop", ResourceVersion: "5"},
		}},
	}
	noPartial := partial.DeepCopy()
	noPartial.Items = nil
	nullPods := pods(0, listMetaOf("", nil))
	nullPods.Items = nil
	sharded := pods(2, listMetaOf("", nil))
	sharded.ShardInfo = &metav1.ShardInfo{Selector: "s"}
	sharded.SelfLink = "/link" //nolint:staticcheck // an old API server may send it
	return map[string]runtime.Object{
		"pods":                   pods(3, listMetaOf("", nil)),
		"many pods":              pods(300, listMetaOf("", nil)),
		"a page of pods":         pods(2, listMetaOf("more=", new(int64(12345)))),
		"the last but one page":  pods(2, listMetaOf("more", new(int64(0)))),
		"no pods":                pods(0, listMetaOf("", nil)),
		"null instead of pods":   nullPods,
		"a shard of the pods":    sharded,
		"pods without a version": pods(1, metav1.ListMeta{}),
		"widgets":                widgets(3, ""),
		"a page of widgets":      widgets(1, "more"),
		"no widgets":             widgets(0, ""),
		"metadata":               partial,
		"metadata of nothing":    noPartial,
		"nodes": &corev1.NodeList{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: listMetaOf("", nil),
			Items: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "edge-1"}}, {ObjectMeta: metav1.ObjectMeta{Name: "edge-2"}}},
		},
		"endpoint slices": &discoveryv1.EndpointSliceList{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSliceList"}, ListMeta: listMetaOf("", nil),
			Items: []discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Name: "cart"}, AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}}},
		},
	}
}

// itemsOf returns the objects of a list with their types.
func itemsOf(t testing.TB, list runtime.Object) []runtime.Object {
	t.Helper()
	items, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	gvk := list.GetObjectKind().GroupVersionKind()
	gvk.Kind = gvk.Kind[:len(gvk.Kind)-len("List")]
	for i := range items {
		items[i] = items[i].DeepCopyObject()
		items[i].GetObjectKind().SetGroupVersionKind(gvk)
	}
	return items
}

// metaOf returns what Meta should say of an object.
func metaOf(t testing.TB, object runtime.Object) Meta {
	t.Helper()
	o, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	apiVersion, kind := object.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	return Meta{
		APIVersion: apiVersion, Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID()),
		ResourceVersion: o.GetResourceVersion(), Deleting: o.GetDeletionTimestamp() != nil,
	}
}

// forEach calls f with each of the objects in each encoding in which it is served.
func forEach(t *testing.T, objects map[string]runtime.Object, f func(t *testing.T, encoding string, format Format, object runtime.Object)) {
	for name, object := range objects {
		for encoding, e := range encodings {
			if encodes(encoding, object) {
				t.Run(name+" in "+encoding, func(t *testing.T) { f(t, encoding, e.format, object) })
			}
		}
	}
}

// random returns lists of random objects, the same ones for a seed.
func random(t testing.TB, seed int64) map[string]runtime.Object {
	t.Helper()
	filler := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), serializer.NewCodecFactory(scheme.Scheme)).NumElements(1, 3)
	objects := map[string]runtime.Object{}
	for kind, list := range map[string]runtime.Object{
		"PodList": &corev1.PodList{}, "NodeList": &corev1.NodeList{}, "ConfigMapList": &corev1.ConfigMapList{}, "SecretList": &corev1.SecretList{},
		"ServiceList": &corev1.ServiceList{}, "EventList": &corev1.EventList{},
	} {
		filler.Fill(list)
		list.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: kind})
		if err := meta.EachListItem(list, func(object runtime.Object) error {
			o, err := meta.Accessor(object)
			if err == nil && o.GetName() == "" {
				o.SetName("n")
			}
			object.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		objects[fmt.Sprintf("%s %d", kind, seed)] = list
	}
	return objects
}

func TestFormatsAreRecognized(t *testing.T) {
	for contentType, want := range map[string]Format{
		"application/json":              JSON,
		"application/json;stream=watch": JSON,
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": JSON,
		"Application/JSON; charset=utf-8":                                  JSON,
		"application/vnd.kubernetes.protobuf":                              Protobuf,
		"application/vnd.kubernetes.protobuf;stream=watch":                 Protobuf,
		"application/cbor":                                                 0,
		"application/yaml":                                                 0,
		"text/plain; charset=utf-8":                                        0,
		"application/json;;=":                                              0,
		"":                                                                 0,
	} {
		if got, err := FormatOf(contentType); got != want || (err != nil) != (want == 0) {
			t.Errorf("FormatOf(%q) = %v, %v, want %v", contentType, got, err, want)
		}
	}
	for _, format := range formats {
		for _, contentType := range []string{format.ContentType(), format.WatchContentType()} {
			if got, err := FormatOf(contentType); got != format || err != nil {
				t.Errorf("FormatOf(%q) = %v, %v, want %v", contentType, got, err, format)
			}
		}
	}
}

// TestMetadataEqualsThatOfTheTypedObject: for objects and for items of a list.
func TestMetadataEqualsThatOfTheTypedObject(t *testing.T) {
	objects := lists()
	for seed := range int64(20) {
		for name, list := range random(t, seed) {
			objects[name] = list
		}
	}
	forEach(t, objects, func(t *testing.T, encoding string, format Format, list runtime.Object) {
		for _, object := range itemsOf(t, list) {
			body := encode(t, encoding, object)
			item, err := format.ItemOf(body, true)
			if err != nil {
				t.Fatal(err)
			}
			for form, encoded := range map[string][]byte{"object": body, "item": item} {
				want := metaOf(t, object)
				if form == "item" && format == Protobuf {
					want.APIVersion, want.Kind = "", ""
				}
				if got, err := format.Meta(encoded); err != nil || got != want {
					t.Errorf("of an %s: %+v, %v, want %+v", form, got, err, want)
				}
				o, _ := meta.Accessor(object)
				if got, err := format.Labels(encoded); err != nil || cmp.Diff(got, nonEmpty(o.GetLabels())) != "" {
					t.Errorf("labels of an %s: %v, %v, want %v", form, got, err, o.GetLabels())
				}
				if got, err := format.Annotations(encoded); err != nil || cmp.Diff(got, nonEmpty(o.GetAnnotations())) != "" {
					t.Errorf("annotations of an %s: %v, %v, want %v", form, got, err, o.GetAnnotations())
				}
			}
		}
	})
}

// TestObjectsAreConvertedToItemsAndBack: an object becomes the item that a list has, and that
// becomes the object.
func TestObjectsAreConvertedToItemsAndBack(t *testing.T) {
	objects := lists()
	for seed := range int64(20) {
		for name, list := range random(t, seed) {
			objects[name] = list
		}
	}
	forEach(t, objects, func(t *testing.T, encoding string, format Format, list runtime.Object) {
		decoded, err := format.DecodeList(encode(t, encoding, list))
		if err != nil {
			t.Fatal(err)
		}
		for i, object := range itemsOf(t, list) {
			body := encode(t, encoding, object)
			wantItem := decoded.Items[i].Raw
			item, err := format.ItemOf(body, decoded.ItemsHaveType)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(item, wantItem) {
				t.Errorf("the item is\n%q, want\n%q", item, wantItem)
			}
			back, err := format.ObjectOf(wantItem, decoded.Items[i].APIVersion, decoded.Items[i].Kind)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(back, bytes.TrimSuffix(body, []byte("\n"))) {
				t.Errorf("the object is\n%q, want\n%q", back, body)
			}
			again, err := format.ObjectOf(back, "other", "Other")
			if err != nil || !bytes.Equal(again, back) {
				t.Errorf("an object becomes\n%q, %v, want\n%q", again, err, back)
			}
		}
	})
}

// TestTypesAreAddedAndRemoved: kind and apiVersion, also for JSON that an API server does not write.
func TestTypesAreAddedAndRemoved(t *testing.T) {
	for object, want := range map[string]struct{ without, with string }{
		`{}`:                                 {`{}`, `{"kind":"K","apiVersion":"v1"}`},
		"\n{\"kind\" : \"A\" , \"a\":1}\r\n": {`{"a":1}`, `{"kind":"K","apiVersion":"v1","a":1}`},
		`{"a":1,"kind":"A","b":2}`:           {`{"a":1,"b":2}`, `{"kind":"K","apiVersion":"v1","a":1,"b":2}`},
		`{"a":{"kind":"x"},"apiVersion":"","b":[]}`: {`{"a":{"kind":"x"},"b":[]}`, `{"kind":"K","apiVersion":"v1","a":{"kind":"x"},"b":[]}`},
		`{"\u006bind":"A"}`:                         {`{}`, `{"kind":"K","apiVersion":"v1"}`},
	} {
		if got, err := JSON.ItemOf([]byte(object), false); err != nil || string(got) != want.without {
			t.Errorf("ItemOf(%q) = %q, %v, want %q", object, got, err, want.without)
		}
		if got, err := JSON.ObjectOf([]byte(object), "v1", "K"); err != nil || string(got) != want.with {
			t.Errorf("ObjectOf(%q) = %q, %v, want %q", object, got, err, want.with)
		}
	}
	if _, err := Protobuf.ItemOf([]byte{0x0a, 0}, false); err == nil {
		t.Error("a protobuf message without an envelope is accepted as an object")
	}
}

func TestArgumentsAreNotChanged(t *testing.T) {
	forEach(t, lists(), func(t *testing.T, encoding string, format Format, list runtime.Object) {
		body := encode(t, encoding, list)
		before := slices.Clone(body)
		decoded, err := format.DecodeList(body)
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range decoded.Items {
			object, err := format.ObjectOf(item.Raw, item.APIVersion, item.Kind)
			if err != nil {
				t.Fatal(err)
			}
			_ = append(object, "more"...)
			_ = append(item.Raw, "more"...)
		}
		if !bytes.Equal(body, before) {
			t.Error("the list was changed")
		}
	})
}
