package proxy

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// shown returns a pod as the node reads it while the journal has writes of the pod: if the kubelet has written
// that the pod has ended, shown returns the ended pod, although the cloud does not know it yet. Otherwise a
// kubelet that restarts would run the pod again. path is the path of the pod.
func (p *Proxy) shown(object typed, path string) typed {
	pod, is := object.(*corev1.Pod)
	if !is || p.Journal == nil {
		return object
	}
	entries := p.Journal.Of(path)
	for i := range entries {
		if uid := uidIn(&entries[i]); uid != "" && uid != string(pod.UID) {
			return object // the writes are for an earlier pod with this name
		}
	}
	after, err := withEntries(pod, podKind, entries)
	if ended, is := after.(*corev1.Pod); err == nil && is && (ended.Status.Phase == corev1.PodSucceeded || ended.Status.Phase == corev1.PodFailed) {
		return ended
	}
	return object
}

// uidIn returns the UID of the pod whose status an entry writes; "" if the entry does not contain it.
func uidIn(e *journal.Entry) string {
	if e.Method == http.MethodPut {
		pod, err := decode(e.ContentType, e.Body, podKind)
		if err != nil {
			return ""
		}
		return string(pod.GetUID())
	}
	head, err := headOfPatch(e.Body)
	if err != nil {
		return ""
	}
	return head.Metadata.UID
}

// pathOf returns the path of a pod.
func pathOf(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// keepsOf reports whether the journal has writes of an object.
func (p *Proxy) keepsOf(path string) bool { return p.Journal != nil && len(p.Journal.Of(path)) > 0 }

// shownText is shown for an encoded pod. It returns nil if shown does not change the pod.
func (p *Proxy) shownText(format wire.Format, text []byte, path string) []byte {
	if !p.keepsOf(path) {
		return nil
	}
	pod, err := decode(format.ContentType(), text, podKind)
	if err != nil {
		return nil // it may have only metadata
	}
	shown := p.shown(pod, path)
	if shown == pod {
		return nil
	}
	text, err = encode(format, shown, podKind)
	if err != nil {
		return nil
	}
	return text
}

// keepsOfPod is keepsOf for a pod. It is fast if the journal is empty, because a list has many pods.
func (p *Proxy) keepsOfPod(namespace, name string) bool {
	return p.Journal != nil && p.Journal.Len() > 0 && p.keepsOf(pathOf(namespace, name))
}

// shownItem is shownText for an item of a list.
func (p *Proxy) shownItem(list *wire.Header, item []byte, path string) []byte {
	if !p.keepsOf(path) {
		return nil
	}
	apiVersion, kind := list.ItemKind()
	text, err := list.Format.ObjectOf(item, apiVersion, kind)
	if err != nil {
		return nil
	}
	if text = p.shownText(list.Format, text, path); text == nil {
		return nil
	}
	if item, err = list.Format.ItemOf(text, list.ItemsHaveType); err != nil {
		return nil
	}
	return item
}

// shownItems returns the items of a cached list that shown changes, by their index.
func (p *Proxy) shownItems(c *call, view *cache.View, list *wire.Header) (shown map[int][]byte) {
	if !c.isGated() || p.Journal == nil {
		return nil
	}
	for i := range view.Len() {
		path := pathOf(cutID(view.ID(i)))
		if !p.keepsOf(path) {
			continue
		}
		item, err := view.Value(i, nil)
		if err != nil {
			continue // reading the list returns the same error
		}
		if item = p.shownItem(list, item, path); item != nil {
			if shown == nil {
				shown = map[int][]byte{}
			}
			shown[i] = item
		}
	}
	return shown
}
