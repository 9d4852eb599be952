package ownwrites

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

// PodKind is the kind of a pod.
var PodKind = corev1.SchemeGroupVersion.WithKind("Pod")

// PathOfPod returns the path of a pod.
func PathOfPod(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Shown returns a pod as the node reads it while the journal has writes of the pod: if the kubelet has written
// that the pod has ended, Shown returns the ended pod, although the cloud does not know it yet. Otherwise a
// kubelet that restarts would run the pod again. Objects of other kinds are returned unchanged.
func (w *Writes) Shown(object objects.Typed) objects.Typed {
	pod, is := object.(*corev1.Pod)
	if !is {
		return object
	}
	if ended, is := w.Written(pod); is && (ended.Status.Phase == corev1.PodSucceeded || ended.Status.Phase == corev1.PodFailed) {
		return ended
	}
	return object
}

// Written returns a pod with the journaled writes of its status. It returns false if there are none, or if they are
// for an earlier pod with the same name.
func (w *Writes) Written(pod *corev1.Pod) (after *corev1.Pod, is bool) {
	entries := w.of(pod.Namespace, pod.Name)
	for i := range entries {
		if uid := uidIn(&entries[i]); uid != "" && uid != string(pod.UID) {
			return nil, false
		}
	}
	if len(entries) == 0 {
		return nil, false
	}
	object, err := objects.WithEntries(pod, PodKind, entries)
	after, is = object.(*corev1.Pod)
	return after, is && err == nil
}

// of returns the journaled writes of a pod. It is fast if the journal is empty, because a list has many pods.
func (w *Writes) of(namespace, name string) []journal.Entry {
	if !w.HasAny() {
		return nil
	}
	return w.Journal.Of(PathOfPod(namespace, name))
}

// HasAny reports whether the journal has any writes.
func (w *Writes) HasAny() bool { return w.Journal != nil && w.Journal.Len() > 0 }

// Has reports whether the journal has writes of a pod.
func (w *Writes) Has(namespace, name string) bool { return len(w.of(namespace, name)) > 0 }

// uidIn returns the UID of the pod whose status an entry writes; "" if the entry does not contain it.
func uidIn(e *journal.Entry) string {
	if e.Method == http.MethodPut {
		pod, err := objects.Decode(e.ContentType, e.Body, PodKind)
		if err != nil {
			return ""
		}
		return string(pod.GetUID())
	}
	head, err := objects.HeadOfPatch(e.Body)
	if err != nil {
		return ""
	}
	return head.Metadata.UID
}

// ShownText is Shown for an encoded pod, with its apiVersion and kind. It returns nil if Shown does not change the
// pod.
func (w *Writes) ShownText(format wire.Format, m *wire.Meta, text []byte) []byte {
	if !w.Has(m.Namespace, m.Name) {
		return nil
	}
	pod, err := objects.Decode(format.ContentType(), text, PodKind)
	if err != nil {
		return nil // it may have only metadata
	}
	shown := w.Shown(pod)
	if shown == pod {
		return nil
	}
	text, err = objects.Encode(format, shown, PodKind)
	if err != nil {
		return nil
	}
	return text
}
