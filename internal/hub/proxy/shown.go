package proxy

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/journal"
	"github.com/atoll-k8s/atoll/internal/hub/wire"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// shown returns a pod as the node reads it while something of the pod is kept: if the kubelet has told of its end,
// the pod has ended, although the cloud does not know it yet. A kubelet that starts would run it again otherwise.
// path is that of the pod.
func (p *Proxy) shown(object typed, path string) typed {
	pod, is := object.(*corev1.Pod)
	if !is || p.Journal == nil {
		return object
	}
	entries := p.Journal.Of(path)
	for i := range entries {
		if uid := uidIn(&entries[i]); uid != "" && uid != string(pod.UID) {
			return object // they are of an earlier pod of this name
		}
	}
	after, err := withEntries(pod, podKind, entries)
	if ended, is := after.(*corev1.Pod); err == nil && is && (ended.Status.Phase == corev1.PodSucceeded || ended.Status.Phase == corev1.PodFailed) {
		return ended
	}
	return object
}

// uidIn returns the UID of the pod whose status an entry writes; "" if it does not say it.
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

// keepsOf reports whether writes of an object are kept.
func (p *Proxy) keepsOf(path string) bool { return p.Journal != nil && len(p.Journal.Of(path)) > 0 }

// shownText is shown for a pod in a form. It returns nil if the pod is shown as it is.
func (p *Proxy) shownText(format wire.Format, text []byte, path string) []byte {
	if !p.keepsOf(path) {
		return nil
	}
	pod, err := decode(format.ContentType(), text, podKind)
	if err != nil {
		return nil // it is its metadata only
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

// keepsOfPod is keepsOf for a pod. Most of the time nothing is kept, and a list has many pods.
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

// shownItems returns the items of a kept list that are not shown as they are, by their place in it.
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
			continue // whoever reads the list finds it, too
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
