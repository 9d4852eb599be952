package ownership

import (
	"maps"
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selector has the keys of the labels by which an object selects its pods. The zero value is
// a selector that is not known. There is one for each ReplicaSet of a cluster, and most have
// the same keys, so equal keys share memory.
type Selector struct{ keys unique.Handle[string] }

// separator cannot be part of a label's key.
const separator = "\n"

// maxKeys bounds the memory of the keys of a selector that are kept, in bytes.
const maxKeys = 4 << 10

// SelectorOf returns the keys of a selector. For nil, and for keys of more than 4 KiB in
// all, it returns the zero value, which is not known.
func SelectorOf(selector *metav1.LabelSelector) Selector {
	if selector == nil {
		return Selector{}
	}
	keys := make([]string, 0, len(selector.MatchLabels)+len(selector.MatchExpressions))
	for key := range selector.MatchLabels {
		keys = append(keys, key)
	}
	for _, expression := range selector.MatchExpressions {
		keys = append(keys, expression.Key)
	}
	size := 0
	for _, key := range keys {
		size += len(key)
	}
	if size > maxKeys {
		return Selector{}
	}
	return SelectorByKeys(keys...)
}

// SelectorByKeys returns a selector with these keys. It is known also without keys, which is
// the case for objects that do not select pods by labels.
func SelectorByKeys(keys ...string) Selector {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return Selector{unique.Make(strings.Join(slices.Compact(keys), separator))}
}

// Known reports whether the keys are known.
func (s Selector) Known() bool { return s != Selector{} }

// Keys returns the keys, sorted.
func (s Selector) Keys() []string {
	if !s.Known() || s.keys.Value() == "" {
		return nil
	}
	return strings.Split(s.keys.Value(), separator)
}

// Restore returns a copy of changed in which each label of the selector is as in original: with
// the same value, or absent. If an override changed such a label of a pod, the pod's owner would
// create another pod, whose label would be changed too, and so on without end. For a selector
// that is not known it returns changed. The arguments are not modified.
func (s Selector) Restore(original, changed map[string]string) map[string]string {
	kept := changed
	for _, key := range s.Keys() {
		before, had := original[key]
		now, has := changed[key]
		if had == has && before == now {
			continue
		}
		if kept = maps.Clone(kept); kept == nil {
			kept = map[string]string{}
		}
		delete(kept, key)
		if had {
			kept[key] = before
		}
	}
	return kept
}

// Equal reports whether two selectors have the same keys, or are both not known.
func (s Selector) Equal(o Selector) bool { return s == o }

// String returns the keys as text for messages.
func (s Selector) String() string { return strings.Join(s.Keys(), ", ") }
