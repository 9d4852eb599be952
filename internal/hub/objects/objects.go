// Package objects decodes, encodes and patches objects of the kinds that the hub must understand: those that the
// node writes about itself, and those for tokens, reviews and volumes. It is pure.
package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "github.com/evanphx/json-patch/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// Typed is an object of a kind with journaled writes.
type Typed interface {
	runtime.Object
	metav1.Object
}

// Codecs encode and decode the kinds with journaled writes, and those for tokens and volumes.
var Codecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, eventsv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two kinds with one name: every test would fail
		}
	}
	return serializer.NewCodecFactory(scheme)
}()

// newOf returns an empty object of a kind; nil if its writes are not journaled.
func newOf(gvk schema.GroupVersionKind) Typed {
	switch gvk {
	case coordinationv1.SchemeGroupVersion.WithKind("Lease"):
		return &coordinationv1.Lease{}
	case corev1.SchemeGroupVersion.WithKind("Node"):
		return &corev1.Node{}
	case corev1.SchemeGroupVersion.WithKind("Pod"):
		return &corev1.Pod{}
	case corev1.SchemeGroupVersion.WithKind("Event"):
		return &corev1.Event{}
	case eventsv1.SchemeGroupVersion.WithKind("Event"):
		return &eventsv1.Event{}
	default:
		return nil
	}
}

// Decode decodes an object of a kind in the format of contentType.
func Decode(contentType string, body []byte, gvk schema.GroupVersionKind) (Typed, error) {
	format, err := wire.FormatOf(contentType)
	if err != nil {
		return nil, err
	}
	info, found := runtime.SerializerInfoForMediaType(Codecs.SupportedMediaTypes(), format.ContentType())
	if !found {
		return nil, fmt.Errorf("the hub cannot decode a %s in %s", gvk.Kind, format)
	}
	into := newOf(gvk)
	_, is, err := info.Serializer.Decode(body, &gvk, into)
	if err != nil {
		return nil, fmt.Errorf("reading a %s: %w", gvk.Kind, err)
	}
	if *is != gvk {
		return nil, fmt.Errorf("reading a %s: it is a %s", gvk.Kind, is)
	}
	return into, nil
}

// Encode encodes an object in a format.
func Encode(format wire.Format, object Typed, gvk schema.GroupVersionKind) ([]byte, error) {
	info, found := runtime.SerializerInfoForMediaType(Codecs.SupportedMediaTypes(), format.ContentType())
	if !found {
		return nil, fmt.Errorf("the hub cannot encode a %s in %s", gvk.Kind, format)
	}
	var body bytes.Buffer
	err := Codecs.EncoderForVersion(info.Serializer, gvk.GroupVersion()).Encode(object, &body)
	return body.Bytes(), err
}

// IsPatch reports whether the hub can apply patches of a content type.
func IsPatch(contentType string) bool {
	return contentType == string(types.StrategicMergePatchType) || contentType == string(types.MergePatchType)
}

// Patched returns an object with a patch applied. The name, the UID and the resourceVersion stay, because an
// API server does not let a client change them.
func Patched(object Typed, gvk schema.GroupVersionKind, contentType string, patch []byte) (Typed, error) {
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	var after []byte
	if contentType == string(types.MergePatchType) {
		after, err = jsonpatch.MergePatch(before, patch)
	} else {
		after, err = strategicpatch.StrategicMergePatch(before, patch, newOf(gvk))
	}
	if err != nil {
		return nil, fmt.Errorf("applying the patch: %w", err)
	}
	into := newOf(gvk)
	if err := json.Unmarshal(after, into); err != nil {
		return nil, fmt.Errorf("applying the patch: %w", err)
	}
	keepIdentity(into, object)
	return into, nil
}

// keepIdentity sets the identity and the version of an object to those of another one.
func keepIdentity(object, of Typed) {
	object.SetNamespace(of.GetNamespace())
	object.SetName(of.GetName())
	object.SetUID(of.GetUID())
	object.SetResourceVersion(of.GetResourceVersion())
	object.SetCreationTimestamp(of.GetCreationTimestamp())
	object.SetDeletionTimestamp(of.GetDeletionTimestamp())
	object.GetObjectKind().SetGroupVersionKind(of.GetObjectKind().GroupVersionKind())
}

// KeepSpec sets the spec of an object to that of another one: a write of the status does not change the spec.
func KeepSpec(object, of Typed) {
	switch object := object.(type) {
	case *corev1.Node:
		if of, is := of.(*corev1.Node); is {
			object.Spec = of.Spec
		}
	case *corev1.Pod:
		if of, is := of.(*corev1.Pod); is {
			object.Spec = of.Spec
		}
	}
}

// WithEntries returns an object with journaled writes of its status applied, in their order.
func WithEntries(object Typed, gvk schema.GroupVersionKind, entries []journal.Entry) (Typed, error) {
	for _, e := range entries {
		var after Typed
		var err error
		if e.Method == http.MethodPut {
			after, err = Decode(e.ContentType, e.Body, gvk)
		} else {
			after, err = Patched(object, gvk, e.ContentType, e.Body)
		}
		if err != nil {
			return nil, err
		}
		keepIdentity(after, object)
		KeepSpec(after, object)
		object = after
	}
	return object, nil
}

// PatchHead has the fields of a patch that identify its object and show how it was computed.
type PatchHead struct {
	Metadata struct {
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Status map[string]json.RawMessage `json:"status"`
}

// HeadOfPatch reads the head of a patch.
func HeadOfPatch(patch []byte) (PatchHead, error) {
	var h PatchHead
	if err := json.Unmarshal(patch, &h); err != nil {
		return h, fmt.Errorf("reading the patch: %w", err)
	}
	return h, nil
}

// ExtentOf returns the extent of a patch. A kubelet computes the patch of a status by comparing whole objects.
// The patch of a Node then has the order of all conditions, because at least the heartbeat time differs
// (k8s.io/component-helpers/node/util.PatchNodeStatus). The patch of a Pod has its UID and a status
// (k8s.io/kubernetes/pkg/util/pod.PatchPodStatus).
func (h *PatchHead) ExtentOf(contentType string, gvk schema.GroupVersionKind) journal.Extent {
	if contentType != string(types.StrategicMergePatchType) {
		return journal.Part
	}
	_, ordered := h.Status["$setElementOrder/conditions"]
	if gvk.Kind == "Node" && ordered || gvk.Kind == "Pod" && h.Metadata.UID != "" && h.Status != nil {
		return journal.Difference
	}
	return journal.Part
}

// Rebased converts a Difference that was computed from an older version of a pod to one for a newer version, so
// that the newer version gets the same status.
func Rebased(read, newest *corev1.Pod, patch []byte) ([]byte, error) {
	gvk := corev1.SchemeGroupVersion.WithKind("Pod")
	want, err := Patched(read, gvk, string(types.StrategicMergePatchType), patch)
	if err != nil {
		return nil, err
	}
	pod, is := want.(*corev1.Pod)
	if !is {
		return nil, errors.New("the result of the patch is not a pod")
	}
	from, err := json.Marshal(&corev1.Pod{Status: newest.Status})
	if err != nil {
		return nil, err
	}
	to, err := json.Marshal(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: newest.UID}, Status: pod.Status})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(from, to, corev1.Pod{})
}

// Accepted returns the format that a client accepts for the response to a write.
func Accepted(h http.Header) (wire.Format, error) {
	text := strings.Join(h.Values("Accept"), ",")
	if text == "" {
		return wire.JSON, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		mediaType, parameters, _ := strings.Cut(strings.TrimSpace(one), ";")
		switch {
		case strings.Contains(parameters, "as="): // a table, or metadata only
		case mediaType == "*/*", mediaType == "application/*":
			return wire.JSON, nil
		default:
			if format, err := wire.FormatOf(mediaType); err == nil {
				return format, nil
			}
		}
	}
	return 0, fmt.Errorf("the hub answers writes in JSON or protobuf, but the client accepts %q", text)
}
