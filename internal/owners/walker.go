// Package owners walks from a pod up its controllers: Pod, ReplicaSet,
// Deployment and so on, by UID and never by name alone, at most
// ownership.MaxHops hops. The walk reads caches of slim objects. An owner that
// is not in a cache yet is read from the API server once, for one second at most.
//
// The package returns owners, descendants and the workloads that require a
// policy. It makes no decisions and must not depend on groups or seats.
package owners

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// ErrOwnerGone: an object of the chain names a controller that does not exist,
// or does not exist any more. The garbage collector will delete the object.
var ErrOwnerGone = errors.New("owner does not exist any more")

// ErrOwnerCycle: the chain of controllers leads back into itself.
var ErrOwnerCycle = errors.New("owners form a cycle")

// ErrOwnerUnread: the caches do not hold the controller, and it cannot be read now.
// The caller must wait, because the controller may require policies.
var ErrOwnerUnread = errors.New("owner cannot be read for now")

const (
	// readTimeout bounds one read of an owner from the API server. The creation of
	// pods and kube-scheduler wait for the read.
	readTimeout = time.Second
	// unreadTime is how long no owner of a kind is read after a read failed.
	// shortUnreadTime is used instead where the failure delays one walk only.
	unreadTime, shortUnreadTime = 30 * time.Second, 2 * time.Second
	// goneTime is how long the walker remembers that an owner does not exist, and
	// maxGone bounds the number of such owners.
	goneTime, maxGone = 30 * time.Second, 10_000
)

// PolicyKind is a kind of policy in the index of workloads.
type PolicyKind int

const (
	// Propagation stands for PropagationPolicy.
	Propagation PolicyKind = iota
	// Override stands for OverridePolicy.
	Override
)

// RequiredBy returns the name of the policy of the kind that an object requires itself; "" if it requires none.
func (k PolicyKind) RequiredBy(o *ownership.Object) string {
	switch {
	case o == nil:
		return ""
	case k == Propagation:
		return o.Policies.RequiredPropagation
	}
	return o.Policies.RequiredOverride
}

type policyKey struct {
	kind            PolicyKind
	namespace, name string
}

// Handler is called for every change: old is nil for a new object, new is nil for
// a deleted one. It must not block.
type Handler func(old, new *ownership.Object)

// Walker holds the caches that the walk reads. Safe for concurrent use.
type Walker struct {
	mu        sync.RWMutex
	kinds     map[schema.GroupKind]*kind
	objects   map[types.UID]*ownership.Object
	children  map[types.UID]sets.Set[types.UID]
	requiring map[policyKey]sets.Set[types.UID]
	// gone holds the UIDs of owners that the API server does not have, with the time
	// (time.Time) until which that is assumed. Put removes an owner from it.
	gone *lru.Cache

	clock       clock.PassiveClock
	problemTime time.Duration // problemTime; tests shorten it
	handlers    []Handler     // set before Start
	informers   []*informer   // of the built-in kinds

	// dynamic and metadata read the further kinds; set before Start.
	dynamic  dynamic.Interface
	metadata metadata.Interface
	// onProblem and onRevisions are the handlers of OnProblem and OnRevisions; set
	// before Start.
	onProblem, onRevisions []func()
	// revisions holds the revision labels of the further kinds that have one.
	revisions atomic.Pointer[map[schema.GroupKind]string]
	// templates holds the paths of the pod templates of further kinds.
	templates atomic.Pointer[map[schema.GroupKind][]string]
	// ofLineage: this is the second walker of a Lineage, for the kinds that it
	// discovers. Failed reads are retried sooner there, and a kind that is forbidden in
	// one namespace may be readable in another.
	ofLineage bool
	// configured: SetKinds was called.
	configured atomic.Bool
	running    sync.WaitGroup

	// lifecycle guards the fields below, and serializes the start and stop of
	// informers.
	lifecycle sync.Mutex
	ctx       context.Context // of Start; nil before
	ended     bool            // the context of Start is done: no informer may start
	further   map[schema.GroupKind]*furtherInformer
}

// NewWalker returns a walker over the built-in workload kinds, or over none if
// client is nil. Handlers must be added before Start.
func NewWalker(client kubernetes.Interface) *Walker {
	w := &Walker{
		kinds:     map[schema.GroupKind]*kind{},
		objects:   map[types.UID]*ownership.Object{},
		children:  map[types.UID]sets.Set[types.UID]{},
		requiring: map[policyKey]sets.Set[types.UID]{},
		further:   map[schema.GroupKind]*furtherInformer{},
		gone:      lru.New(maxGone),
		clock:     clock.RealClock{}, problemTime: problemTime,
	}
	w.revisions.Store(&map[schema.GroupKind]string{})
	w.templates.Store(&map[schema.GroupKind][]string{})
	if client == nil {
		return w
	}
	for _, k := range builtinKinds(client) {
		w.kinds[k.GroupKind()] = k
		w.informers = append(w.informers, newInformer(w, k))
	}
	return w
}

// OnChange adds a handler. Call before Start.
func (w *Walker) OnChange(h Handler) { w.handlers = append(w.handlers, h) }

// Chain returns the pod, its controller, the controller of that and so on up to
// the topmost owner. A controller of a kind that the walker does not watch is the
// last element and has no labels, so that the labels of the pod decide nothing.
// Errors: ErrOwnerGone, ErrOwnerCycle or ErrOwnerUnread.
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

// PolicyOwners returns the workloads of a pod, as ownership.PolicyOwnersOfPod finds them,
// and the chain of owners. Errors: those of Chain.
func (w *Walker) PolicyOwners(ctx context.Context, pod *ownership.Object) (ownership.PolicyOwners, []*ownership.Object, error) {
	chain, err := w.Chain(ctx, pod)
	if err != nil {
		return ownership.PolicyOwners{}, nil, err
	}
	return ownership.PolicyOwnersOfPod(chain), chain, nil
}

func (w *Walker) owner(ctx context.Context, of *ownership.Object) (*ownership.Object, error) {
	ref := of.Controller
	if o := w.Get(ref.UID); mayOwn(o, of) {
		return o, nil
	}
	k := w.kindOf(ref.GroupKind())
	if k == nil && w.dynamic != nil && !w.configured.Load() {
		return nil, fmt.Errorf("%w: it is not known yet whether a %s is a workload", ErrOwnerUnread, ref.Kind)
	}
	if k == nil {
		return fromReference(of), nil
	}
	return w.read(ctx, k, of, ref)
}

// ErrManyReads: requests from the address of this one have needed as many reads as they may.
var ErrManyReads = errors.New("requests need too many reads of owners that are not known yet")

// canExist reports whether an object can have the name and the UID of a reference. The API
// server does not check those of references, and a read of such a name fails.
func canExist(ref *ownership.Reference) bool {
	return ref.Name != "" && len(content.IsPathSegmentName(ref.Name)) == 0 && len(validation.IsDNS1123Label(string(ref.UID))) == 0
}

// read reads an owner that the caches do not hold. It fails without a request
// while the owner is in gone, or while a failed read keeps its kind from being read.
func (w *Walker) read(ctx context.Context, k *kind, of *ownership.Object, ref *ownership.Reference) (*ownership.Object, error) {
	failed := func(err error) error {
		return fmt.Errorf("reading %s %s/%s: %w", ref.Kind, of.Namespace, ref.Name, err)
	}
	if w.isGone(ref.UID) || !canExist(ref) {
		return nil, failed(ErrOwnerGone)
	}
	if err := k.whyUnread(w.clock.Now()); err != nil {
		return nil, failed(fmt.Errorf("%w: %w", ErrOwnerUnread, err))
	}
	if !bounded.MayCall(ctx) {
		return nil, failed(fmt.Errorf("%w: %w", ErrOwnerUnread, ErrManyReads))
	}
	short, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	namespace := of.Namespace
	if k.clusterScoped {
		namespace = ""
	}
	var obj any
	var err error
	bounded.Outside(ctx, func() { obj, err = k.get(short, namespace, ref.Name) })
	switch {
	case apierrors.IsNotFound(err):
		w.setGone(ref.UID)
		return nil, failed(ErrOwnerGone)
	case err != nil:
		// If the caller's time is over, the kind may still be readable. So may other
		// owners of the kind where a Lineage may not read this one. The kinds of Kubernetes
		// are readable whenever the API server is.
		if k.further && ctx.Err() == nil && (!w.ofLineage || !apierrors.IsForbidden(err)) {
			k.unread.Store(&unread{err, w.clock.Now().Add(w.unreadTime())})
		}
		return nil, failed(fmt.Errorf("%w: %w", ErrOwnerUnread, err))
	}
	o, _ := k.slim(obj) // an object without a valid number of replicas is an owner too
	if o == nil || o.UID != ref.UID {
		w.setGone(ref.UID)
		return nil, failed(fmt.Errorf("another object has the name: %w", ErrOwnerGone))
	}
	return o, nil
}

// unreadTime returns how long no owner of a further kind is read after a read failed.
// It is short for a Lineage, where one walk waits for the read and not every pod of a
// workload.
func (w *Walker) unreadTime() time.Duration {
	if w.ofLineage {
		return shortUnreadTime
	}
	return unreadTime
}

func (w *Walker) isGone(uid types.UID) bool {
	value, _ := w.gone.Get(uid)
	until, known := value.(time.Time)
	return known && w.clock.Now().Before(until)
}

// setGone remembers for goneTime that an owner does not exist. An object that is
// created later has another UID.
func (w *Walker) setGone(uid types.UID) {
	w.mu.Lock() // serializes the check below with putLocked
	defer w.mu.Unlock()
	if w.objects[uid] == nil { // else the watch delivered it during the read
		w.gone.Add(uid, w.clock.Now().Add(goneTime))
	}
}

// mayOwn reports whether an owner is in the namespace of the object, or
// cluster-scoped. The garbage collector ignores references to other namespaces too.
func mayOwn(owner, of *ownership.Object) bool {
	return owner != nil && (owner.Namespace == of.Namespace || owner.Namespace == "")
}

func (w *Walker) kindOf(gk schema.GroupKind) *kind {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.kinds[gk]
}

// NamespaceOf returns the namespace of an object, "" if the caches do not hold it.
func (w *Walker) NamespaceOf(uid types.UID) string {
	if o := w.Get(uid); o != nil {
		return o.Namespace
	}
	return ""
}

// Get returns an object that the caches hold, or nil.
func (w *Walker) Get(uid types.UID) *ownership.Object {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.objects[uid]
}

// Requiring returns the objects that require the named policy themselves, except
// those below another object that requires a policy of the kind: the topmost one
// decides.
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

// PolicyOwnersOf returns the workloads of the pods whose direct owner has this
// UID. It reads the caches only: an owner that they do not hold ends the walk.
func (w *Walker) PolicyOwnersOf(uid types.UID) ownership.PolicyOwners {
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
	return ownership.PolicyOwnersOf(chain)
}

func (w *Walker) requiredAboveLocked(kind PolicyKind, o *ownership.Object) bool {
	for hops := 0; o.Controller != nil && hops < ownership.MaxHops; hops++ {
		owner := w.objects[o.Controller.UID]
		if !mayOwn(owner, o) {
			return false
		}
		o = owner
		if kind.RequiredBy(o) != "" {
			return true
		}
	}
	return false
}

// Descendants returns the UID, which comes first, and the UIDs of all objects in the
// caches that it owns, directly or not. The direct owners of its pods are among them.
func (w *Walker) Descendants(uid types.UID) []types.UID {
	w.mu.RLock()
	defer w.mu.RUnlock()
	out := []types.UID{uid}
	seen := sets.New(uid)
	for i := 0; i < len(out); i++ {
		parent := w.objects[out[i]]
		for child := range w.children[out[i]] {
			if parent != nil && !mayOwn(parent, w.objects[child]) {
				continue
			}
			if !seen.Has(child) {
				seen.Insert(child)
				out = append(out, child)
			}
		}
	}
	return out
}

// PodsRefused returns why pods of one of the objects cannot be created: the API
// server's message. It is "" if pods can be created, or if no status shows it. Of
// several messages it returns the same one each time.
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

// OfJob reports whether a Job is the controller, or one of its owners in the caches.
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

// Put stores an object and calls the handlers. Informers call it. Pods without owners
// are stored by the watcher of pods, because the walker does not watch pods.
func (w *Walker) Put(o *ownership.Object) {
	w.mu.Lock()
	old := w.putLocked(o)
	w.mu.Unlock()
	w.handle(old, o)
}

// Observe adds an object of a kind that Kubernetes has and that was read otherwise, as the
// watch of its kind would.
func (w *Walker) Observe(o runtime.Object) {
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		return
	}
	if k := w.kindOf(kinds[0].GroupKind()); k != nil {
		if slim, _ := k.slim(o); slim != nil { // one without a valid number of replicas is an owner too
			w.Put(slim)
		}
	}
}

// Drop removes an object and calls the handlers, if the caches hold it.
func (w *Walker) Drop(uid types.UID) {
	w.mu.Lock()
	old := w.dropLocked(uid)
	w.mu.Unlock()
	if old != nil {
		w.handle(old, nil)
	}
}

func (w *Walker) handle(old, new *ownership.Object) {
	for _, h := range w.handlers {
		h(old, new)
	}
}

func (w *Walker) putLocked(o *ownership.Object) (old *ownership.Object) {
	if old = w.dropLocked(o.UID); old != nil {
		o.Replaced = replaced(old, o)
	}
	w.objects[o.UID] = o
	w.gone.Remove(o.UID)
	if o.Controller != nil {
		insert(w.children, o.Controller.UID, o.UID)
	}
	for _, kind := range []PolicyKind{Propagation, Override} {
		if name := kind.RequiredBy(o); name != "" {
			insert(w.requiring, policyKey{kind, o.Namespace, name}, o.UID)
		}
	}
	return old
}

// replaced returns the last policy of each kind that an object required before the one that it
// requires now; nil if there is none.
func replaced(old, new *ownership.Object) *ownership.Policies {
	propagation, override := Propagation.RequiredBy(old), Override.RequiredBy(old)
	if propagation == Propagation.RequiredBy(new) && override == Override.RequiredBy(new) {
		return old.Replaced
	}
	last := ownership.Policies{}
	if old.Replaced != nil {
		last = *old.Replaced
	}
	if propagation != Propagation.RequiredBy(new) {
		last.RequiredPropagation = propagation
	}
	if override != Override.RequiredBy(new) {
		last.RequiredOverride = override
	}
	return &last
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
		if name := kind.RequiredBy(old); name != "" {
			remove(w.requiring, policyKey{kind, old.Namespace, name}, uid)
		}
	}
	return old
}

func insert[K comparable](index map[K]sets.Set[types.UID], key K, uid types.UID) {
	if index[key] == nil {
		index[key] = sets.New[types.UID]()
	}
	index[key].Insert(uid)
}

func remove[K comparable](index map[K]sets.Set[types.UID], key K, uid types.UID) {
	index[key].Delete(uid)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// Above returns the object and its owners up to the topmost. It reads the caches
// only: an owner that they do not hold ends the chain. It is nil for an object that
// they do not hold.
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

// ScaledRoots returns every StatefulSet, and every other object with a number of
// replicas whose owner in the caches has none.
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
