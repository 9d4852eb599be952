package policies

import (
	"maps"

	"k8s.io/apimachinery/pkg/types"
)

// kept holds values by the UID of an object. It bounds their number in each namespace: when a
// namespace has more, all of its values are forgotten. It is not safe for concurrent use.
type kept[V any] struct {
	most       int
	values     map[types.UID]keptIn[V]
	namespaces map[string]int // the number of values of each
}

type keptIn[V any] struct {
	namespace string
	value     V
}

func newKept[V any](most int) *kept[V] {
	return &kept[V]{most: most, values: map[types.UID]keptIn[V]{}, namespaces: map[string]int{}}
}

// get returns the value of an object, and whether there is one.
func (k *kept[V]) get(uid types.UID) (V, bool) {
	in, found := k.values[uid]
	return in.value, found
}

// put sets the value of an object. The namespace of an object that has a value is known.
func (k *kept[V]) put(namespace string, uid types.UID, value V) {
	if in, found := k.values[uid]; found {
		k.values[uid] = keptIn[V]{in.namespace, value}
		return
	}
	if k.namespaces[namespace] >= k.most {
		maps.DeleteFunc(k.values, func(_ types.UID, in keptIn[V]) bool { return in.namespace == namespace })
		k.namespaces[namespace] = 0
	}
	k.namespaces[namespace]++
	k.values[uid] = keptIn[V]{namespace, value}
}

// drop forgets the value of an object.
func (k *kept[V]) drop(uid types.UID) {
	in, found := k.values[uid]
	if !found {
		return
	}
	delete(k.values, uid)
	if k.namespaces[in.namespace]--; k.namespaces[in.namespace] == 0 {
		delete(k.namespaces, in.namespace)
	}
}
