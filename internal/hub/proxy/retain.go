package proxy

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/atoll-k8s/atoll/internal/hub/cache"
	"github.com/atoll-k8s/atoll/internal/hub/identity"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// RetainEvery is how often Retain is to be called.
const RetainEvery = 10 * time.Minute

// Retain removes what is kept for the node of pods that are gone: the pods themselves, their tokens, and the
// Secrets, ConfigMaps and volumes that no pod of the node names any more. All else that the node reads stays. What
// was used in the last RetainEvery stays, too: a pod's start reads it before or after the list has the pod.
func (p *Proxy) Retain() {
	err := p.Panics.Do("removing what pods had that are gone", func() error { return p.retain(time.Now().Add(-RetainEvery)) })
	if err != nil {
		p.Log.V(2).Info("What pods had that are gone is not removed", "error", err.Error())
	}
}

// naming are the kinds of what is kept because of pods and of which the content tells what is needed, and ofPods
// all of these kinds. Each one names what comes after it.
var (
	naming = []string{"persistentvolumeclaims", "persistentvolumes", "volumeattachments", "serviceaccounts"}
	ofPods = append(naming, "secrets", "configmaps", "pods", "resourceclaims")
)

// needs are what the pods of a node need.
type needs struct {
	pods sets.Set[types.UID]
	// namespaced are the texts in a namespace's objects that are needed, as namespace/text, and anywhere those in
	// volumes.
	namespaced, anywhere sets.Set[string]
}

// retain is Retain for what was last used before a time.
func (p *Proxy) retain(before time.Time) error {
	n := &needs{pods: sets.New[types.UID](), namespaced: sets.New[string](), anywhere: sets.New[string]()}
	kept := map[string][]cache.Scope{}
	var list cache.Scope // the newest one, in whatever form
	for _, s := range p.Cache.Scopes() {
		if !isOfNode(s.Key) {
			continue
		}
		what, name := readBy(s.Key)
		switch {
		case name != "":
			kept[what.Resource] = append(kept[what.Resource], s)
		case strings.HasPrefix(s.Key, p.podsOfNode()) && !strings.Contains(s.Key, "as="):
			if s.Written.After(list.Written) {
				list = s
			}
		}
	}
	if list.Key == "" {
		return nil
	}
	if list.Stale != nil && !errors.Is(list.Stale, cache.ErrReopened) {
		return list.Stale // there may be later pods
	}
	h, pods, err := p.keptObjects(list.Key)
	if err != nil || h.List == nil {
		return err
	}
	for _, pod := range pods {
		n.add(pod)
	}
	for _, resource := range ofPods {
		for _, s := range kept[resource] {
			var objects []runtime.Object
			var err error
			if slices.Contains(naming, resource) {
				_, objects, err = p.keptObjects(s.Key)
			}
			what, name := readBy(s.Key)
			if err != nil || n.need(&what, name, objects) {
				for _, object := range objects {
					n.add(object)
				}
			} else if s.Used.Before(before) && !p.queues.isBusy(s.Key) {
				if err := p.Cache.Remove(s.Key); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// podsOfNode begins the keys of the lists of all pods of the node.
func (p *Proxy) podsOfNode() string {
	selector := url.Values{"fieldSelector": {"spec.nodeName=" + p.Recognizer.NodeName}}
	return identity.OfNode().Name + "\n/api/v1/pods\n" + selector.Encode() + "\n"
}

// readBy returns what is read by the requests of a scope of the node, and the name of the only object that they
// read; "" if they read a collection or a document.
func readBy(key string) (what request.Request, name string) {
	parts := append(strings.SplitN(key, "\n", 4), "", "", "")
	path, query := parts[1], parts[2]
	if question, is := strings.CutPrefix(path, repeatablePrefix); is {
		path, query, _ = strings.Cut(question, "?")
	}
	what = request.Of(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path, RawQuery: query}})
	if what.Name != "" {
		return what, what.Name
	}
	values, _ := url.ParseQuery(query) // it was made by Encode
	if selected, is := strings.CutPrefix(values.Get("fieldSelector"), "metadata.name="); is && !strings.Contains(selected, ",") {
		name = selected
	}
	return what, name
}

// need reports whether a pod needs what is read by a name. Objects that are not of pods are always needed.
func (n *needs) need(what *request.Request, name string, objects []runtime.Object) bool {
	inNamespace := n.namespaced.Has(what.Namespace + "/" + name)
	switch what.Resource {
	case "persistentvolumeclaims", "configmaps", "pods", "resourceclaims":
		return inNamespace
	case "secrets":
		return inNamespace || n.anywhere.Has(name)
	case "persistentvolumes":
		return n.anywhere.Has(name)
	default: // volumeattachments, serviceaccounts
		return !slices.ContainsFunc(objects, n.isOfOthers)
	}
}

// isOfOthers reports whether an object is of a pod or a volume that the node does not have any more.
func (n *needs) isOfOthers(object runtime.Object) bool {
	switch o := object.(type) {
	case *authenticationv1.TokenRequest:
		of := o.Spec.BoundObjectRef
		return of != nil && of.Kind == "Pod" && !n.pods.Has(of.UID)
	case *storagev1.VolumeAttachment:
		volume := o.Spec.Source.PersistentVolumeName
		return volume != nil && !n.anywhere.Has(*volume)
	default:
		return false
	}
}

// add adds what an object names. It may name nothing.
func (n *needs) add(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Pod:
		n.pods.Insert(o.UID)
		n.namespaced.Insert(o.Namespace + "/" + o.Name)
		for i := range o.Spec.Volumes {
			if v := &o.Spec.Volumes[i]; v.Ephemeral != nil {
				n.namespaced.Insert(o.Namespace + "/" + o.Name + "-" + v.Name)
			}
		}
		texts(object, func(text string) { n.namespaced.Insert(o.Namespace + "/" + text) })
	case *corev1.PersistentVolumeClaim:
		n.anywhere.Insert(o.Spec.VolumeName)
	case *corev1.PersistentVolume:
		texts(object, func(text string) { n.anywhere.Insert(text) })
	}
}

// texts calls add with each text in the fields of an object.
func texts(object runtime.Object, add func(string)) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return // of no object that was read from text
	}
	var walk func(any)
	walk = func(value any) {
		switch v := value.(type) {
		case string:
			add(v)
		case []any:
			for _, one := range v {
				walk(one)
			}
		case map[string]any:
			for _, one := range v {
				walk(one)
			}
		}
	}
	walk(fields)
}

// keptObjects returns the head and the objects of a scope; no object for an answer that there is none.
func (p *Proxy) keptObjects(key string) (h *head, objects []runtime.Object, err error) {
	view, err := p.Cache.Peek(key)
	if err != nil {
		return nil, nil, err
	}
	defer view.Close()
	h, err = decodeHead(view.Head())
	if err != nil || h.List == nil && h.Code == http.StatusNotFound {
		return h, nil, err
	}
	ofItem := func(item []byte) ([]byte, error) { return item, nil }
	if h.List != nil {
		list, err := h.list()
		if err != nil {
			return nil, nil, err
		}
		apiVersion, kind := list.ItemKind()
		ofItem = func(item []byte) ([]byte, error) { return list.Format.ObjectOf(item, apiVersion, kind) }
	}
	for item, err := range values(view, nil) {
		if err != nil {
			return nil, nil, err
		}
		body, err := ofItem(item)
		if err != nil {
			return nil, nil, err
		}
		object, _, err := codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		objects = append(objects, object)
	}
	return h, objects, nil
}
