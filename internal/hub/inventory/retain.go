package inventory

import (
	"errors"
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
	"github.com/atoll-k8s/atoll/internal/hub/objects"
	"github.com/atoll-k8s/atoll/internal/hub/record"
	"github.com/atoll-k8s/atoll/internal/hub/request"
)

// RetainEvery is the time between two calls of Retain.
const RetainEvery = 10 * time.Minute

// Retain removes cached objects of pods that do not exist any more from the scopes of the node: the pods
// themselves, their tokens, and Secrets, ConfigMaps and volumes that no pod of the node uses. Everything else
// that the node reads stays. Scopes that were used in the last RetainEvery stay too, because a pod that is
// starting may not be in the list yet.
func Retain(r *record.Recorder, nodeName string) {
	err := r.Panics.Do("removing objects of deleted pods", func() error { return RetainSince(r, nodeName, time.Now().Add(-RetainEvery)) })
	if err != nil {
		r.Log.V(2).Info("Removing cached objects of deleted pods failed", "error", err.Error())
	}
}

// ofPods are the resources that are cached because of pods. naming are those whose content decides what is
// needed. Each resource may refer to the ones after it.
var (
	naming = []string{"persistentvolumeclaims", "persistentvolumes", "volumeattachments", "serviceaccounts"}
	ofPods = append(naming, "secrets", "configmaps", "pods", "resourceclaims")
)

// needs are the objects that the pods of a node need.
type needs struct {
	pods sets.Set[types.UID]
	// namespaced are the strings in the objects of a namespace, as namespace/string, and anywhere the strings
	// in volumes. An object is needed if its name is among them.
	namespaced, anywhere sets.Set[string]
}

// RetainSince is Retain, except that scopes of which no pod is known stay if they were used since the given time.
func RetainSince(r *record.Recorder, nodeName string, since time.Time) error {
	n := &needs{pods: sets.New[types.UID](), namespaced: sets.New[string](), anywhere: sets.New[string]()}
	kept := map[string][]cache.Scope{}
	var list cache.Scope // the newest one, in any representation
	for _, s := range r.Cache.Scopes() {
		if !record.IsOfNode(s.Key) {
			continue
		}
		what, name := record.ReadBy(s.Key)
		switch {
		case name != "":
			kept[what.Resource] = append(kept[what.Resource], s)
		case strings.HasPrefix(s.Key, record.PodsOfNode(nodeName)) && !strings.Contains(s.Key, "as="):
			if s.Written.After(list.Written) {
				list = s
			}
		}
	}
	if list.Key == "" {
		return nil
	}
	if list.Stale != nil && !errors.Is(list.Stale, cache.ErrReopened) {
		return list.Stale // the cache may lack later pods
	}
	h, pods, err := Objects(r, list.Key)
	if err != nil || !h.IsList() {
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
				_, objects, err = Objects(r, s.Key)
			}
			what, name := record.ReadBy(s.Key)
			if err != nil || n.need(&what, name, objects) {
				for _, object := range objects {
					n.add(object)
				}
			} else if s.Used.Before(since) && !r.IsBusy(s.Key) {
				if err := r.Cache.Remove(s.Key); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// need reports whether the object with a name is needed by a pod. Objects that do not belong to pods are always
// needed.
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

// isOfOthers reports whether an object belongs to a pod or a volume that the node does not have any more.
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

// add adds the names in an object, if its kind can refer to others.
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

// texts calls add with each string in the fields of an object.
func texts(object runtime.Object, add func(string)) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return // never for a decoded object
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

// Objects returns the head and the decoded objects of a scope; no objects if the cached answer is 404.
func Objects(r *record.Recorder, key string) (h *record.Head, decoded []runtime.Object, err error) {
	state, err := r.Peek(key)
	if err != nil {
		return nil, nil, err
	}
	defer state.Close()
	for body, err := range state.Objects() {
		if err != nil {
			return nil, nil, err
		}
		object, _, err := objects.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil, nil, err
		}
		decoded = append(decoded, object)
	}
	return state.Head, decoded, nil
}
