package owners

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/lru"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// Lineage walks up from a pod through owners of any kind. It serves decisions that stay
// harmless if a walk ends early: which PodGroup a pod is in. Policies do not use it, so
// that a kind that cannot be read delays no pod without a PodGroup.
//
// It discovers kinds that the Walker does not watch while it walks. It reads the first
// object of such a kind, and from then on watches the metadata of all objects of the
// kind, if RBAC allows that. It reads each owner once, however many pods share the owner.
// Safe for concurrent use.
type Lineage struct {
	walker *Walker
	// others holds the kinds that walker does not watch.
	others *Walker
	// discovery returns how kinds are served. Its client must have a timeout.
	discovery discovery.DiscoveryInterface
	// mapTime is the constant mapTime; tests shorten it.
	mapTime time.Duration

	// unknown holds the kinds (schema.GroupKind) that could not be discovered, each with
	// the error and until when it counts (unread).
	unknown *lru.Cache
	// aliases maps kinds as references spell them to kinds as the API server does, both
	// schema.GroupKind.
	aliases *lru.Cache
	// hung holds the API groups (string) whose discovery timed out, with the time until
	// which discovery is not tried again (time.Time): owner references that name many
	// kinds or versions of one such group wait once.
	hung *lru.Cache

	mu sync.Mutex
	// readings holds the *reading of each readingKey.
	readings *lru.Cache
	// lookups are the discovery requests that are under way.
	lookups map[schema.GroupVersionKind]*lookup
	// watched are the kinds of others whose metadata is watched, as far as RBAC allows.
	watched sets.Set[schema.GroupKind]
}

// readingKey is an owner and the namespace of the object that refers to it: whether the
// reference is valid depends on both.
type readingKey struct {
	uid       types.UID
	namespace string
}

// reading is one read of an owner. done is closed once the other fields are set.
type reading struct {
	done  chan struct{}
	owner *ownership.Object
	err   error
	// until is when the result expires. If a watch has listed the kind since, it expires
	// at recent already: the watch delivers the owner by then.
	recent, until time.Time
}

// expired reports whether the owner has to be read again. It is false for a read that is
// under way.
func (r *reading) expired(now time.Time, listed bool) bool {
	return !r.until.IsZero() && (!now.Before(r.until) || listed && !now.Before(r.recent))
}

// EndReason is why a walk ended below the topmost owner.
type EndReason string

const (
	// EndGone: the next owner does not exist, or not any more, or is in another namespace.
	EndGone EndReason = "Gone"
	// EndForbidden: atoll-manager is not allowed to read the next owner.
	EndForbidden EndReason = "Forbidden"
	// EndUnknown: the API server does not serve the kind of the next owner.
	EndUnknown EndReason = "Unknown"
	// EndCycle: the next owner is in the chain already.
	EndCycle EndReason = "Cycle"
	// EndTooDeep: there are more than ownership.MaxHops owners.
	EndTooDeep EndReason = "TooDeep"
)

// End is where a walk ended that did not reach the topmost owner.
type End struct {
	Reason EndReason
	// At is the owner that was not reached.
	At ownership.Reference
	// Resource is the resource of its kind; empty if the kind was not discovered.
	Resource schema.GroupResource
}

const (
	// recentTime is how long a read counts if a watch has listed the kind of the owner.
	// keptTime is for kinds without a watch: RBAC forbids it, or there are maxOthers.
	recentTime, keptTime = 10 * time.Second, 10 * time.Minute
	// maxReadings bounds the reads that are remembered.
	maxReadings = 20_000
	// maxOthers bounds the kinds that are watched: everybody who may create pods can
	// name any kind in an owner reference.
	maxOthers = 50
	// mapTime bounds the discovery of one kind.
	mapTime = 3 * time.Second
	// hungTime is the pause before another discovery in an API group that timed out.
	hungTime = 10 * time.Second
)

// NewLineage returns a lineage that shares the caches of a walker. Kinds are watched only
// while Start runs. The clients must have timeouts.
func NewLineage(walker *Walker, metadata metadata.Interface, discovery discovery.DiscoveryInterface) *Lineage {
	others := NewWalker(nil)
	others.ofLineage = true
	others.metadata = metadata
	return &Lineage{
		walker: walker, others: others, discovery: discovery, mapTime: mapTime,
		unknown: lru.New(maxGone), aliases: lru.New(maxGone), hung: lru.New(maxGone), readings: lru.New(maxReadings),
		lookups: map[schema.GroupVersionKind]*lookup{}, watched: sets.New[schema.GroupKind](),
	}
}

// OnChange adds a handler for owners of every kind. It is called for changes that matter
// to PodGroups only. Call before Start.
func (l *Lineage) OnChange(h Handler) {
	handler := func(old, new *ownership.Object) {
		if old == nil || new == nil || !sameGang(old, new) {
			h(old, new)
		}
	}
	l.walker.OnChange(handler)
	l.others.OnChange(handler)
}

// Start watches the kinds that the lineage discovers, until ctx is done.
func (l *Lineage) Start(ctx context.Context) error { return l.others.Start(ctx) }

// NeedLeaderElection is false: every replica admits pods.
func (l *Lineage) NeedLeaderElection() bool { return false }

// HasSynced reports whether the walker has synced.
func (l *Lineage) HasSynced() bool { return l.walker.HasSynced() }

// Get returns an owner that the caches hold, or nil.
func (l *Lineage) Get(uid types.UID) *ownership.Object {
	if o := l.walker.Get(uid); o != nil {
		return o
	}
	return l.others.Get(uid)
}

// Above returns the owner and those above it. It reads the caches only: an owner that
// they do not hold ends the chain.
func (l *Lineage) Above(uid types.UID) (chain []*ownership.Object) {
	for o := l.Get(uid); o != nil && len(chain) < ownership.MaxHops; o = l.Get(o.Controller.UID) {
		if chain = append(chain, o); o.Controller == nil {
			break
		}
	}
	return chain
}

// Descendants returns the UID and those of all objects below it in the caches.
func (l *Lineage) Descendants(uid types.UID) []types.UID {
	out := []types.UID{uid}
	seen := sets.New(uid)
	for i := 0; i < len(out); i++ {
		for _, w := range []*Walker{l.walker, l.others} {
			for _, child := range w.Descendants(out[i])[1:] {
				if !seen.Has(child) {
					seen.Insert(child)
					out = append(out, child)
				}
			}
		}
	}
	return out
}

// Chain returns the pod, its controller, the controller of that and so on, as far as
// they exist and can be read. end is why the chain stops below the topmost owner; nil if
// it does not. The pod's own controller is in the chain, with the fields of its reference
// only, even if it may not be read or its kind is not served. After an error the caller
// should try again.
func (l *Lineage) Chain(ctx context.Context, pod *ownership.Object) (chain []*ownership.Object, end *End, err error) {
	chain = make([]*ownership.Object, 1, 4)
	chain[0] = pod
	seen := sets.New(pod.UID)
	for at := pod; at.Controller != nil; at = chain[len(chain)-1] {
		ref := at.Controller
		end := &End{At: *ref}
		switch {
		case seen.Has(ref.UID):
			end.Reason = EndCycle
			return chain, end, nil
		case len(chain) > ownership.MaxHops:
			end.Reason = EndTooDeep
			return chain, end, nil
		case !canExist(ref):
			end.Reason = EndGone
			return chain, end, nil
		}
		owner, resource, err := l.owner(ctx, at)
		end.Resource = resource
		switch {
		case err == nil:
			seen.Insert(ref.UID)
			chain = append(chain, owner)
			continue
		case errors.Is(err, ErrOwnerGone):
			end.Reason = EndGone
			return chain, end, nil
		case apierrors.IsForbidden(err):
			end.Reason = EndForbidden
		case meta.IsNoMatchError(err) || errors.Is(err, errNoResource):
			end.Reason = EndUnknown
		default:
			return nil, nil, err
		}
		if at == pod {
			chain = append(chain, fromReference(at))
		}
		return chain, end, nil
	}
	return chain, nil, nil
}

// fromReference returns the controller of an object with the fields of its reference
// only. A reference holds no namespace: that of the object is taken.
func fromReference(of *ownership.Object) *ownership.Object {
	ref := of.Controller
	return &ownership.Object{GroupVersionKind: ref.GroupVersionKind, Namespace: of.Namespace, Name: ref.Name, UID: ref.UID}
}

// owner returns the controller of an object, from the caches or the API server, and the
// resource of its kind if the owner was read.
func (l *Lineage) owner(ctx context.Context, of *ownership.Object) (*ownership.Object, schema.GroupResource, error) {
	ref := of.Controller
	gk := ref.GroupKind()
	in, k := l.known(gk)
	if k == nil {
		gk = l.canonical(gk)
		in, k = l.known(gk)
	}
	if k != nil {
		if o := in.Get(ref.UID); mayOwn(o, of) {
			return o, schema.GroupResource{}, nil
		}
	}
	if k == nil {
		var err error
		if in, k, err = l.discover(ctx, ref.GroupVersionKind); err != nil {
			return nil, schema.GroupResource{}, err
		}
	}
	owner, err := l.once(ctx, in, k, of)
	if in == l.others && errors.Is(err, errNoResource) {
		l.forget(gk)
	}
	return owner, schema.ParseGroupResource(k.resource), err
}

// once reads an owner. Concurrent calls for the same owner share one read.
func (l *Lineage) once(ctx context.Context, in *Walker, k *kind, of *ownership.Object) (*ownership.Object, error) {
	key := readingKey{of.Controller.UID, of.Namespace}
	now := in.clock.Now()
	l.mu.Lock()
	last, _ := l.readings.Get(key)
	r, _ := last.(*reading)
	if r == nil || r.expired(now, in == l.walker || k.listed.Load()) {
		if !bounded.MayCall(ctx) {
			l.mu.Unlock()
			return nil, fmt.Errorf("reading %s %s/%s: %w", of.Controller.Kind, of.Namespace, of.Controller.Name, ErrManyReads)
		}
		r = &reading{done: make(chan struct{})}
		l.readings.Add(key, r)
		go l.read(bounded.WithoutTurn(context.WithoutCancel(ctx)), in, k, of, key, r)
	}
	l.mu.Unlock()
	if ended(ctx, r.done) {
		return r.owner, r.err
	}
	return nil, fmt.Errorf("reading %s %s/%s: %w", of.Controller.Kind, of.Namespace, of.Controller.Name, context.Cause(ctx))
}

// ended waits until done is closed, and returns false if ctx is done before. A request lets
// others use the CPU meanwhile.
func ended(ctx context.Context, done <-chan struct{}) (closed bool) {
	select {
	case <-done:
		return true
	default:
	}
	bounded.Outside(ctx, func() {
		select {
		case <-done:
			closed = true
		case <-ctx.Done():
		}
	})
	return closed
}

// read reads an owner into r, and begins to watch its kind if that is discovered. It
// returns within readTimeout.
func (l *Lineage) read(ctx context.Context, in *Walker, k *kind, of *ownership.Object, key readingKey, r *reading) {
	owner, err := in.read(ctx, k, of, of.Controller)
	if err == nil && !mayOwn(owner, of) {
		owner, err = nil, ErrOwnerGone
	}
	if err == nil && in == l.others {
		l.watch(k)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(r.done)
	r.owner, r.err = owner, err
	now := in.clock.Now()
	r.recent, r.until = now.Add(recentTime), now.Add(keptTime)
	switch {
	case apierrors.IsForbidden(err): // in this namespace, or for this owner: others may be readable
		r.recent, r.until = now.Add(unreadTime), now.Add(unreadTime)
	case err != nil:
		l.readings.Remove(key) // the walker limits repeated reads after other errors
	}
}

// watch begins to watch the metadata of a kind. Kinds of the core group are not watched:
// only pods are read there (discover), and there are too many of them.
func (l *Lineage) watch(k *kind) {
	l.mu.Lock()
	if l.watched.Has(k.GroupKind()) || k.Group == "" || l.watched.Len() >= maxOthers {
		l.mu.Unlock()
		return
	}
	l.watched.Insert(k.GroupKind())
	l.mu.Unlock()
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[k.GroupKind()]; f != nil && f.cancel == nil {
		l.others.launchLocked(f.informer)
	}
}

// discover asks the API server how a kind is served, and returns the kind and the walker
// that holds its objects. Of the core group it accepts pods only.
func (l *Lineage) discover(ctx context.Context, gvk schema.GroupVersionKind) (*Walker, *kind, error) {
	if gvk.Group == "" && gvk.Kind != "Pod" {
		// Everybody who may create pods can name any kind in an owner reference. Secrets
		// must not be read for that, and Events are too many.
		return nil, nil, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	}
	now := l.walker.clock.Now()
	last, _ := l.unknown.Get(gvk.GroupKind())
	if failed, known := last.(unread); known && now.Before(failed.until) {
		return nil, nil, failed.err
	}
	served, err := l.served(ctx, gvk)
	if err != nil {
		return nil, nil, fmt.Errorf("discovering how %s is served: %w", gvk.GroupKind(), err)
	}
	if gvk.GroupKind() != served.GroupKind() {
		l.aliases.Add(gvk.GroupKind(), served.GroupKind())
	}
	if k := l.walker.kindOf(served.GroupKind()); k != nil {
		return l.walker, k, nil
	}
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[served.GroupKind()]; f != nil {
		return l.others, f.kind, nil // added by a concurrent walk, or under another spelling
	}
	return l.others, l.others.addLocked(served).kind, nil
}

// known returns a kind that is built-in, configured or discovered, and the walker that
// holds its objects; a nil kind if it is none of these.
func (l *Lineage) known(gk schema.GroupKind) (*Walker, *kind) {
	if k := l.walker.kindOf(gk); k != nil {
		return l.walker, k
	}
	return l.others, l.others.kindOf(gk)
}

// canonical returns a kind as the API server spells it, if it was discovered under
// another spelling, and gk otherwise.
func (l *Lineage) canonical(gk schema.GroupKind) schema.GroupKind {
	alias, _ := l.aliases.Get(gk)
	if served, ok := alias.(schema.GroupKind); ok {
		return served
	}
	return gk
}

// served is Served with a time limit: that of ctx, and mapTime at most. The discovery
// client takes no context, and an aggregated API server may hang. Concurrent calls for
// the same kind share one request.
func (l *Lineage) served(ctx context.Context, gvk schema.GroupVersionKind) (Kind, error) {
	short, cancel := context.WithTimeout(ctx, l.mapTime)
	defer cancel()
	now := l.walker.clock.Now()
	l.mu.Lock()
	q := l.lookups[gvk]
	last, _ := l.hung.Get(gvk.Group)
	if until, hung := last.(time.Time); hung && now.Before(until) {
		l.mu.Unlock()
		return Kind{}, errHung
	}
	if q == nil {
		if !bounded.MayCall(ctx) {
			l.mu.Unlock()
			return Kind{}, ErrManyReads
		}
		q = &lookup{done: make(chan struct{})}
		l.lookups[gvk] = q
		go l.lookUp(gvk, q)
	}
	l.mu.Unlock()
	if ended(short, q.done) {
		return q.kind, q.err
	}
	if ctx.Err() == nil {
		l.hung.Add(gvk.Group, now.Add(l.mapTime+hungTime))
	}
	return Kind{}, context.Cause(short)
}

// errHung: the last discovery in the API group timed out less than hungTime ago.
var errHung = errors.New("the last discovery in its API group has timed out")

// lookup is one discovery request. done is closed once the other fields are set.
type lookup struct {
	done chan struct{}
	kind Kind
	err  error
}

// lookUp sends the discovery request of a lookup. It returns when the client does.
func (l *Lineage) lookUp(gvk schema.GroupVersionKind, q *lookup) {
	q.kind, q.err = Served(l.discovery, gvk, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lookups, gvk)
	if q.err != nil {
		pause := shortUnreadTime
		if meta.IsNoMatchError(q.err) {
			pause = unreadTime
		}
		l.unknown.Add(gvk.GroupKind(), unread{q.err, l.walker.clock.Now().Add(pause)})
	}
	close(q.done)
}

// forget removes a discovered kind that is not served any more in its version. The next
// walk discovers it again.
func (l *Lineage) forget(gk schema.GroupKind) {
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[gk]; f != nil {
		l.others.stopLocked(f, false)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watched.Delete(gk)
}
