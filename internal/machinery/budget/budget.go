// Package budget bounds the memory that the objects of each namespace take in the caches of
// atoll-manager. Whoever may write in a namespace can store thousands of objects of a
// megabyte each, and every one of them would be kept as long as it exists. It depends on no
// kind.
//
// What does not fit is left out of the cache: the object is there, without what its author
// wrote, and everything that reads it must ask Unread first.
package budget

import (
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

// perObject is what an object takes in caches in addition to its content, in bytes: keys,
// metadata, queues. An object that is left out takes it too.
const perObject = 2 << 10

// Budget bounds the memory of one cache. Safe for concurrent use.
type Budget struct {
	object, namespace int64

	mu      sync.Mutex
	objects map[types.UID]entry
	taken   map[string]int64 // by namespace
}

// entry is what is known of one object.
type entry struct {
	namespace string
	// size is the memory that the object would take; read is whether it takes it.
	size int64
	read bool
}

func (e entry) takes() int64 {
	if e.read {
		return e.size + perObject
	}
	return perObject
}

// New returns a Budget of so many bytes for the content of one object, and so many for all
// objects of a namespace together.
func New(object, namespace int64) *Budget {
	return &Budget{object: object, namespace: namespace, objects: map[types.UID]entry{}, taken: map[string]int64{}}
}

// Excess is the error for an object that does not fit.
type Excess struct {
	// Namespace is set if the object would fit into another namespace.
	Namespace string
	// Size and Limit are bytes: of the object, or of all objects of the namespace.
	Size, Limit int64
}

func (e *Excess) Error() string {
	if e.Namespace == "" {
		return fmt.Sprintf("it takes %s of memory once it is read, more than the %s that one object may take: make it shorter", kibibytes(e.Size), kibibytes(e.Limit))
	}
	return fmt.Sprintf("with it the objects of namespace %q would take more than the %s of memory that they may take: delete some of them or make them shorter",
		e.Namespace, kibibytes(e.Limit))
}

func kibibytes(n int64) string { return fmt.Sprintf("%d KiB", (n+1023)>>10) }

// Take records an object that comes into the cache, or a new state of it. It returns an
// *Excess if the object has to be left out.
func (b *Budget) Take(namespace string, uid types.UID, size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.checkLocked(namespace, uid, size)
	b.dropLocked(uid)
	e := entry{namespace: namespace, size: size, read: err == nil}
	b.objects[uid] = e
	b.taken[namespace] += e.takes()
	return err
}

// Drop forgets an object that was deleted.
func (b *Budget) Drop(uid types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropLocked(uid)
}

func (b *Budget) dropLocked(uid types.UID) {
	e, found := b.objects[uid]
	if !found {
		return
	}
	delete(b.objects, uid)
	if b.taken[e.namespace] -= e.takes(); b.taken[e.namespace] == 0 {
		delete(b.taken, e.namespace)
	}
}

// Retain forgets all objects but those that are present.
func (b *Budget) Retain(present func(types.UID) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for uid := range b.objects {
		if !present(uid) {
			b.dropLocked(uid)
		}
	}
}

// Check returns an *Excess if an object of this size would be left out. It accepts one that
// is not larger than it was. uid is "" for an object that does not exist yet.
func (b *Budget) Check(namespace string, uid types.UID, size int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, found := b.objects[uid]; found && size <= e.size {
		return nil
	}
	return b.checkLocked(namespace, uid, size)
}

// Fits reports whether there is room by now for an object that was left out.
func (b *Budget) Fits(uid types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, found := b.objects[uid]
	return found && b.checkLocked(e.namespace, uid, e.size) == nil
}

func (b *Budget) checkLocked(namespace string, uid types.UID, size int64) error {
	if size > b.object {
		return &Excess{Size: size, Limit: b.object}
	}
	sum := b.taken[namespace] + size + perObject
	if e, found := b.objects[uid]; found && e.namespace == namespace {
		sum -= e.takes()
	}
	if sum > b.namespace {
		return &Excess{Namespace: namespace, Size: sum, Limit: b.namespace}
	}
	return nil
}

// unread is the key of the annotation of an object that was left out. No API server accepts
// it, so nobody else can set it.
const unread = "not read, because"

// Unread returns why an object was left out of the cache, or nil if it was not.
func Unread(o metav1.Object) error {
	if why, left := o.GetAnnotations()[unread]; left {
		return notRead(why)
	}
	return nil
}

func isLeftOut(o metav1.Object) bool {
	_, left := o.GetAnnotations()[unread]
	return left
}

type notRead string

// IsUnread reports whether an error is, or wraps, one of Unread.
func IsUnread(err error) bool {
	var e notRead
	return errors.As(err, &e)
}

// ReadAgain passes updates in which an object is left out of the cache, or is read again. Its
// generation stays the same then.
var ReadAgain = predicate.Funcs{
	CreateFunc:  func(event.CreateEvent) bool { return false },
	DeleteFunc:  func(event.DeleteEvent) bool { return false },
	GenericFunc: func(event.GenericEvent) bool { return false },
	UpdateFunc:  func(e event.UpdateEvent) bool { return isLeftOut(e.ObjectOld) != isLeftOut(e.ObjectNew) },
}

func (e notRead) Error() string { return "the object is not read: " + string(e) }

// Transform returns a function for the cache of one kind. size returns the memory that
// counts, and without an object with the status of another one at most: the metadata is
// copied. Add the handler DropDeleted to the informer of the same kind.
func Transform[T client.Object](b *Budget, size func(T) int64, without func(T) T) cache.TransformFunc {
	return func(obj any) (any, error) {
		o, ok := obj.(T)
		if !ok || isLeftOut(o) { // a tombstone, or an object of the cache itself
			return obj, nil
		}
		o.SetManagedFields(nil)
		err := b.Take(o.GetNamespace(), o.GetUID(), size(o))
		if err == nil {
			return o, nil
		}
		left := without(o)
		slim(o, left)
		left.SetAnnotations(map[string]string{unread: err.Error()})
		return left, nil
	}
}

// maxListed bounds the labels, owners and finalizers of an object that is left out. Of an
// object with more labels, those remain that without sets.
const maxListed = 32

// slim copies the metadata that an object keeps when it is left out.
func slim(from, to client.Object) {
	to.SetNamespace(from.GetNamespace())
	to.SetName(from.GetName())
	to.SetUID(from.GetUID())
	to.SetResourceVersion(from.GetResourceVersion())
	to.SetGeneration(from.GetGeneration())
	to.SetCreationTimestamp(from.GetCreationTimestamp())
	to.SetDeletionTimestamp(from.GetDeletionTimestamp())
	if l := from.GetLabels(); len(l) <= maxListed {
		to.SetLabels(l)
	}
	if l := from.GetFinalizers(); len(l) <= maxListed {
		to.SetFinalizers(l)
	}
	if l := from.GetOwnerReferences(); len(l) <= maxListed {
		to.SetOwnerReferences(l)
	}
}

// DropDeleted returns the handler that forgets deleted objects.
func (b *Budget) DropDeleted() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		// An object that was deleted and made again while no watch ran is one that changed.
		UpdateFunc: func(from, to any) {
			old, isOld := from.(metav1.Object)
			o, isNew := to.(metav1.Object)
			if isOld && isNew && old.GetUID() != o.GetUID() {
				b.Drop(old.GetUID())
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(metav1.Object); ok {
				b.Drop(o.GetUID())
			}
		},
	}
}
