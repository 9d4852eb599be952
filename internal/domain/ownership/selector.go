package ownership

import (
	"maps"
	"slices"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selector holds the keys of the labels by which an object finds its pods. The
// zero value is a selector that is not known. There is one for each ReplicaSet
// of a cluster and hardly two are of different keys, so the keys are stored once.
type Selector struct{ keys unique.Handle[string] }

// separator is in no key of a label.
const separator = "\n"

// SelectorOf keeps the keys of a selector. Of nil they are not known.
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
	return SelectorByKeys(keys...)
}

// SelectorByKeys is a selector that looks at these labels; at none, if the
// object finds its pods in another way.
func SelectorByKeys(keys ...string) Selector {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	return Selector{unique.Make(strings.Join(slices.Compact(keys), separator))}
}

// Known tells whether the keys are known.
func (s Selector) Known() bool { return s != Selector{} }

// Keys are the keys, sorted.
func (s Selector) Keys() []string {
	if !s.Known() || s.keys.Value() == "" {
		return nil
	}
	return strings.Split(s.keys.Value(), separator)
}

// Keep returns labels as they are to be, with those as they were by which the
// object finds its pods: a pod that lost one would be another's, and its owner would
// make a new one, without end. Where the selector is not known nothing is kept.
func (s Selector) Keep(was, is map[string]string) map[string]string {
	kept := is
	for _, key := range s.Keys() {
		before, had := was[key]
		now, has := is[key]
		if had == has && before == now {
			continue
		}
		if kept = maps.Clone(kept); kept == nil {
			kept = map[string]string{}
		}
		if delete(kept, key); had {
			kept[key] = before
		}
	}
	return kept
}

// Equal tells whether two selectors look at the same labels.
func (s Selector) Equal(o Selector) bool { return s == o }

// String shows the keys, for messages.
func (s Selector) String() string { return strings.Join(s.Keys(), ", ") }
