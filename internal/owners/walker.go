// Package owners walks from a pod up its controllers: Pod, ReplicaSet,
// Deployment and so on, by UID and never by name alone, at most
// ownership.MaxHops hops. The walk reads caches of slim objects; an owner that
// is not in the cache yet is read from the API server, once and for a second at
// most.
//
// It answers who owns whom and which workloads require a policy. It decides
// nothing, and knows nothing of groups or seats.
package owners

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// ErrOwnerGone: an object of the chain names a controller that does not exist
// (any more). The garbage collector will remove the object.
var ErrOwnerGone = errors.New("owner does not exist any more")

// ErrOwnerCycle: the chain of controllers leads back into itself.
var ErrOwnerCycle = errors.New("owners form a cycle")

// ErrOwnerUnread: the controller is of a kind beside the built-in ones, which
// somebody named as a workload, and it cannot be read for now. Whoever asks has
// to wait: whether the controller requires policies is not known.
var ErrOwnerUnread = errors.New("owner cannot be read for now")

const (
	// readTimeout bounds one read of an owner from the API server: pods that are
	// being created and kube-scheduler wait for it.
	readTimeout = time.Second
	// unreadTime is how long no owner of a kind is read after a read failed, and
	// shortUnreadTime is for failures that pass.
	unreadTime, shortUnreadTime = 30 * time.Second, 2 * time.Second
	// goneTime is how long it is remembered that an owner does not exist, and
	// maxGone how many of them are.
	goneTime, maxGone = 30 * time.Second, 10_000
)

// PolicyKind tells the two kinds of policies apart in the index of workloads.
type PolicyKind int

const (
	// Propagation stands for PropagationPolicy.
	Propagation PolicyKind = iota
	// Override stands for OverridePolicy.
	Override
)

type policyKey struct {
	kind            PolicyKind
	namespace, name string
}

type uidSet map[types.UID]struct{}

// Handler is told of every change: old is nil for a new object, new is nil for
// one that is gone. It must not block.
type Handler func(old, new *ownership.Object)

// Walker holds the caches that the walk reads. Safe for concurrent use.
type Walker struct {
	mu        sync.RWMutex
	kinds     map[schema.GroupKind]*kind
	objects   map[types.UID]*ownership.Object
	children  map[types.UID]uidSet
	requiring map[policyKey]uidSet
	// gone are owners that the API server does not have, until when that is
	// believed. One that comes in all the same is gone no more.
	gone map[types.UID]time.Time

	clock       clock.PassiveClock
	problemTime time.Duration // problemTime, but in tests
	handlers    []Handler     // set before Start
	informers   []*informer   // of the built-in kinds

	// dynamic and metadata read the kinds beside the built-in ones; set before Start.
	dynamic  dynamic.Interface
	metadata metadata.Interface
	// onProblem and onRevisions are told of what their setters say; set before Start.
	onProblem, onRevisions []func()
	// revisions are the revision labels by kind of owner, of those that name one.
	revisions atomic.Pointer[map[schema.GroupKind]string]
	// templates are where further kinds keep the template of their pods.
	templates atomic.Pointer[map[schema.GroupKind][]string]
	// impatient: the walker holds the kinds that a Lineage meets (unreadTime).
	impatient bool
	// configured: SetKinds was called.
	configured atomic.Bool
	running    sync.WaitGroup

	// lifecycle guards what follows, and that kinds come and go one after the other.
	lifecycle sync.Mutex
	ctx       context.Context // of Start; nil before
	ended     bool            // nothing is started any more
	further   map[schema.GroupKind]*furtherInformer
}

// NewWalker makes a walker over the built-in workload kinds. Handlers must be
// added before Start.
func NewWalker(client kubernetes.Interface) *Walker {
	w := &Walker{
		kinds:     map[schema.GroupKind]*kind{},
		objects:   map[types.UID]*ownership.Object{},
		children:  map[types.UID]uidSet{},
		requiring: map[policyKey]uidSet{},
		further:   map[schema.GroupKind]*furtherInformer{},
		gone:      map[types.UID]time.Time{},
		clock:     clock.RealClock{}, problemTime: problemTime,
	}
	w.revisions.Store(&map[schema.GroupKind]string{})
	w.templates.Store(&map[schema.GroupKind][]string{})
	if client == nil {
		return w // it is told of every kind
	}
	for _, k := range builtinKinds(client) {
		w.kinds[k.GroupKind()] = k
		w.informers = append(w.informers, newInformer(w, k))
	}
	return w
}

// OnChange adds a handler. Call before Start.
func (w *Walker) OnChange(h Handler) { w.handlers = append(w.handlers, h) }

// Chain returns the pod, its controller, that one's controller and so on up to
// the topmost. Errors: ErrOwnerGone, ErrOwnerCycle, ErrOwnerUnread, or the API
// server's. A
// controller of a kind that the walker does not know ends the chain as an
// object without labels, so that nothing is concluded from the pod's own.
func (w *Walker) Chain(ctx context.Context, pod *ownership.Object) ([]*ownership.Object, error) {
	chain := make([]*ownership.Object, 1, 4)
	chain[0] = pod
	for at := pod; at.Controller != nil; at = chain[len(chain)-1] {
		if len(chain) > ownership.MaxHops {
			return nil, fmt.Errorf("walking up from %s %s/%s: %w or are deeper than %d", at.Kind, at.Namespace, at.Name, ErrOwnerCycle, ownership.MaxHops)
		}
		owner, err := w.owner(ctx, at)
		if err != nil {
			return nil, err
		}
		chain = append(chain, owner)
	}
	return chain, nil
}

// Application is the chain's decision for one pod.
func (w *Walker) Application(ctx context.Context, pod *ownership.Object) (ownership.Application, []*ownership.Object, error) {
	chain, err := w.Chain(ctx, pod)
	if err != nil {
		return ownership.Application{}, nil, err
	}
	return ownership.ApplicationOf(chain), chain, nil
}

func (w *Walker) owner(ctx context.Context, of *ownership.Object) (*ownership.Object, error) {
	ref := of.Controller
	if o := w.Get(ref.UID); mayOwn(o, of) {
		return o, nil
	}
	k := w.kindOf(ref.GroupKind())
	if k == nil {
		return fromReference(of), nil
	}
	return w.read(ctx, k, of, ref)
}

// read reads an owner that the caches do not hold.
func (w *Walker) read(ctx context.Context, k *kind, of *ownership.Object, ref *ownership.Reference) (*ownership.Object, error) {
	failed := func(err error) error {
		return fmt.Errorf("reading %s %s/%s: %w", ref.Kind, of.Namespace, ref.Name, err)
	}
	if w.isGone(ref.UID) {
		return nil, failed(ErrOwnerGone)
	}
	if err := k.whyUnread(w.clock.Now()); err != nil {
		return nil, failed(fmt.Errorf("%w: %w", ErrOwnerUnread, err))
	}
	bounded, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	namespace := of.Namespace
	if k.clusterScoped {
		namespace = ""
	}
	obj, err := k.get(bounded, namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err):
		w.setGone(ref.UID)
		return nil, failed(ErrOwnerGone)
	case err != nil && k.further:
		if ctx.Err() == nil && (!w.impatient || !apierrors.IsForbidden(err)) { // else it was the caller who had no time, or may read others
			k.unread.Store(&unread{err, w.clock.Now().Add(w.unreadTime())})
		}
		return nil, failed(fmt.Errorf("%w: %w", ErrOwnerUnread, err))
	case err != nil:
		return nil, failed(err)
	}
	o, _ := k.slim(obj) // an object that does not say how many pods it wants is one
	if o == nil || o.UID != ref.UID {
		w.setGone(ref.UID)
		return nil, failed(fmt.Errorf("found another of that name: %w", ErrOwnerGone))
	}
	return o, nil
}

// unreadTime is how long no owner of a further kind is read after a read failed: soon
// again where only one walk waits for it, and not every pod of a workload.
func (w *Walker) unreadTime() time.Duration {
	if w.impatient {
		return shortUnreadTime
	}
	return unreadTime
}

func (w *Walker) isGone(uid types.UID) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	until, known := w.gone[uid]
	return known && w.clock.Now().Before(until)
}

// setGone remembers that an owner does not exist. The UIDs of those that are
// created later are others.
func (w *Walker) setGone(uid types.UID) {
	now := w.clock.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects[uid] != nil {
		return // it came in while it was read
	}
	if len(w.gone) >= maxGone {
		maps.DeleteFunc(w.gone, func(_ types.UID, until time.Time) bool { return !now.Before(until) })
	}
	if len(w.gone) >= maxGone {
		clear(w.gone)
	}
	w.gone[uid] = now.Add(goneTime)
}

// mayOwn: an owner is of the namespace of what it owns, or of none. References
// to other namespaces mean nothing; the garbage collector treats them so.
func mayOwn(owner, of *ownership.Object) bool {
	return owner != nil && (owner.Namespace == of.Namespace || owner.Namespace == "")
}

func (w *Walker) kindOf(gk schema.GroupKind) *kind {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.kinds[gk]
}

// Get returns an object that the caches hold, or nil.
func (w *Walker) Get(uid types.UID) *ownership.Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.objects[uid]
}

// Requiring returns the objects that require the named policy themselves,
// except those below another such object: the topmost one decides.
func (w *Walker) Requiring(kind PolicyKind, namespace, name string) []*ownership.Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	uids := w.requiring[policyKey{kind, namespace, name}]
	out := make([]*ownership.Object, 0, len(uids))
	for uid := range uids {
		if o := w.objects[uid]; !w.requiredAboveLocked(kind, o) {
			out = append(out, o)
		}
	}
	return out
}

// ApplicationOfOwner returns the application of the pods whose direct owner
// has this UID, as far as the caches know it.
func (w *Walker) ApplicationOfOwner(uid types.UID) ownership.Application {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var chain []*ownership.Object
	for o := w.objects[uid]; o != nil && len(chain) < ownership.MaxHops; {
		chain = append(chain, o)
		if o.Controller == nil {
			break
		}
		owner := w.objects[o.Controller.UID]
		if !mayOwn(owner, o) {
			break
		}
		o = owner
	}
	return ownership.ApplicationOfOwners(chain)
}

func (w *Walker) requiredAboveLocked(kind PolicyKind, o *ownership.Object) bool {
	for hops := 0; o.Controller != nil && hops < ownership.MaxHops; hops++ {
		owner := w.objects[o.Controller.UID]
		if !mayOwn(owner, o) {
			return false
		}
		o = owner
		if required(kind, o) != "" {
			return true
		}
	}
	return false
}

// Descendants returns the UIDs of the object and of all that it owns, directly
// or not: the direct owners of its pods are among them.
func (w *Walker) Descendants(uid types.UID) []types.UID {
	w.mu.RLock()
	defer w.mu.RUnlock()
	out := []types.UID{uid}
	seen := uidSet{uid: {}}
	for i := 0; i < len(out); i++ {
		parent := w.objects[out[i]]
		for child := range w.children[out[i]] {
			if parent != nil && !mayOwn(parent, w.objects[child]) {
				continue
			}
			if _, ok := seen[child]; !ok {
				seen[child] = struct{}{}
				out = append(out, child)
			}
		}
	}
	return out
}

// PodsRefused is why pods of one of the objects cannot be created, in the words
// of the API server; "" if they can, or if no kind of them says. Of several it is
// always the same.
func (w *Walker) PodsRefused(uids []types.UID) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	why := ""
	for _, uid := range uids {
		if o := w.objects[uid]; o != nil {
			why = max(why, o.PodsRefused)
		}
	}
	return why
}

// OfJob tells whether pods with this controller are those of a Job, directly or
// further up, as far as the caches know.
func (w *Walker) OfJob(controller *ownership.Reference) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for hops := 0; controller != nil && hops < ownership.MaxHops; hops++ {
		if controller.Kind == "Job" {
			return true
		}
		owner := w.objects[controller.UID]
		if owner == nil {
			return false
		}
		controller = owner.Controller
	}
	return false
}

// Labelled returns every object that carries a required or a binding label, and
// every Job that is to be resumed.
func (w *Walker) Labelled() []*ownership.Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []*ownership.Object
	for _, o := range w.objects {
		if o.Policies != (ownership.Policies{}) || o.Restarting {
			out = append(out, o)
		}
	}
	return out
}

// Put records an object that no informer delivers: a pod without owners.
func (w *Walker) Put(o *ownership.Object) {
	w.mu.Lock()
	old := w.putLocked(o)
	w.mu.Unlock()
	w.tell(old, o)
}

// Drop forgets an object.
func (w *Walker) Drop(uid types.UID) {
	w.mu.Lock()
	old := w.dropLocked(uid)
	w.mu.Unlock()
	if old != nil {
		w.tell(old, nil)
	}
}

func (w *Walker) tell(old, new *ownership.Object) {
	for _, h := range w.handlers {
		h(old, new)
	}
}

func (w *Walker) putLocked(o *ownership.Object) (old *ownership.Object) {
	old = w.dropLocked(o.UID)
	w.objects[o.UID] = o
	delete(w.gone, o.UID)
	if o.Controller != nil {
		insert(w.children, o.Controller.UID, o.UID)
	}
	for _, kind := range []PolicyKind{Propagation, Override} {
		if name := required(kind, o); name != "" {
			insert(w.requiring, policyKey{kind, o.Namespace, name}, o.UID)
		}
	}
	return old
}

func (w *Walker) dropLocked(uid types.UID) *ownership.Object {
	old := w.objects[uid]
	if old == nil {
		return nil
	}
	delete(w.objects, uid)
	if old.Controller != nil {
		remove(w.children, old.Controller.UID, uid)
	}
	for _, kind := range []PolicyKind{Propagation, Override} {
		if name := required(kind, old); name != "" {
			remove(w.requiring, policyKey{kind, old.Namespace, name}, uid)
		}
	}
	return old
}

func required(kind PolicyKind, o *ownership.Object) string {
	if kind == Propagation {
		return o.Policies.RequiredPropagation
	}
	return o.Policies.RequiredOverride
}

func insert[K comparable](index map[K]uidSet, key K, uid types.UID) {
	set := index[key]
	if set == nil {
		set = uidSet{}
		index[key] = set
	}
	set[uid] = struct{}{}
}

func remove[K comparable](index map[K]uidSet, key K, uid types.UID) {
	delete(index[key], uid)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// Above returns the object and its owners up to the topmost, as far as the caches
// know; nil for an object that they do not.
func (w *Walker) Above(uid types.UID) (chain []*ownership.Object) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for o := w.objects[uid]; o != nil && len(chain) <= ownership.MaxHops; {
		chain = append(chain, o)
		if o.Controller == nil {
			break
		}
		owner := w.objects[o.Controller.UID]
		if !mayOwn(owner, o) {
			break
		}
		o = owner
	}
	return chain
}

// ScaledRoots returns every object that says how many pods it wants and has no owner
// that is known to do so, and every StatefulSet.
func (w *Walker) ScaledRoots() []*ownership.Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	var out []*ownership.Object
	for _, o := range w.objects {
		if o.Replicas == nil {
			continue
		}
		if o.Controller != nil && !o.IsStatefulSet() && mayOwn(w.objects[o.Controller.UID], o) && w.objects[o.Controller.UID].Replicas != nil {
			continue
		}
		out = append(out, o)
	}
	return out
}
