package owners

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Lineage walks up from a pod through owners of any kind, for decisions that a walk
// which ends early does not harm: which PodGroup a pod is in. Policies do not depend on
// it, so that a kind that cannot be read holds up no pod that has none.
//
// Kinds beside the Walker's are met while walking. Their first object is read; from
// then on the metadata of all of them is watched, if that is allowed. Each owner is
// read once, however many pods ask.
type Lineage struct {
	walker *Walker
	// others holds the kinds that walker does not know.
	others *Walker
	// discovery is asked how kinds are served. Its client has a timeout.
	discovery discovery.DiscoveryInterface

	mu sync.Mutex
	// readings are reads of the last minutes, by owner and namespace of who asks.
	readings map[readingKey]*reading
	// unknown are kinds that could not be mapped, until when that is believed.
	unknown map[schema.GroupKind]unread
	// aliases are kinds that references write otherwise than the API server does.
	aliases map[schema.GroupKind]schema.GroupKind
	// hung are API groups that did not answer how a kind is served, until when they are not
	// asked again: whoever names many kinds or versions of one waits once.
	hung map[string]time.Time
	// mapTime is how long is waited for that answer.
	mapTime time.Duration
	// questions are those that the mapper has not answered yet.
	questions map[schema.GroupVersionKind]*question
	// watched are the kinds of others whose metadata is watched, as far as that is allowed.
	watched map[schema.GroupKind]bool
}

type readingKey struct {
	uid       types.UID
	namespace string
}

// reading is one read: done is closed when the rest is set.
type reading struct {
	done  chan struct{}
	owner *ownership.Object
	err   error
	// until is how long it counts; recent is for an owner whose kind a watch has listed
	// since: by then the watch has it.
	recent, until time.Time
}

// over tells whether the owner is to be read again.
func (r *reading) over(now time.Time, listed bool) bool {
	return !r.until.IsZero() && (!now.Before(r.until) || listed && !now.Before(r.recent))
}

// EndReason says why a walk ended below the topmost owner.
type EndReason string

const (
	// EndGone: the next owner does not exist (any more), or is in another namespace.
	EndGone EndReason = "Gone"
	// EndForbidden: atoll-manager may not read the next owner.
	EndForbidden EndReason = "Forbidden"
	// EndUnknown: the API server does not serve the kind of the next owner.
	EndUnknown EndReason = "Unknown"
	// EndCycle: the owners lead back into themselves.
	EndCycle EndReason = "Cycle"
	// EndTooDeep: there are more than ownership.MaxHops owners.
	EndTooDeep EndReason = "TooDeep"
)

// End is where a walk ended that did not come to the topmost owner.
type End struct {
	Reason EndReason
	// At is the owner that could not be reached.
	At ownership.Reference
	// Resource is how the API server serves its kind, if it is known.
	Resource schema.GroupResource
}

const (
	// recentTime is how long a read counts of an owner whose kind a watch has listed.
	// keptTime is for kinds that are not watched, because they are too many or may not be.
	recentTime, keptTime = 10 * time.Second, 10 * time.Minute
	// maxReadings bounds the reads that are remembered.
	maxReadings = 20_000
	// maxOthers bounds the kinds that are watched: whoever may create pods can name any.
	maxOthers = 50
	// mapTime bounds the question how a kind is served.
	mapTime = 3 * time.Second
	// hungTime is how long an API group is not asked that did not answer.
	hungTime = 10 * time.Second
)

// NewLineage makes a lineage beside a walker. Start must run for kinds to be watched. The
// clients must have timeouts.
func NewLineage(walker *Walker, metadata metadata.Interface, discovery discovery.DiscoveryInterface) *Lineage {
	others := NewWalker(nil)
	others.impatient = true
	others.metadata = metadata
	return &Lineage{
		walker: walker, others: others, discovery: discovery,
		readings: map[readingKey]*reading{}, unknown: map[schema.GroupKind]unread{}, aliases: map[schema.GroupKind]schema.GroupKind{}, hung: map[string]time.Time{}, mapTime: mapTime, questions: map[schema.GroupVersionKind]*question{}, watched: map[schema.GroupKind]bool{},
	}
}

// OnChange adds a handler for owners of every kind. Call before Start.
func (l *Lineage) OnChange(h Handler) {
	handler := func(old, new *ownership.Object) {
		if old == nil || new == nil || !sameGang(old, new) {
			h(old, new)
		}
	}
	l.walker.OnChange(handler)
	l.others.OnChange(handler)
}

// Start watches the kinds that are met, until ctx is done.
func (l *Lineage) Start(ctx context.Context) error { return l.others.Start(ctx) }

// NeedLeaderElection is false: every replica admits pods.
func (l *Lineage) NeedLeaderElection() bool { return false }

// HasSynced tells whether the kinds of workloads are known.
func (l *Lineage) HasSynced() bool { return l.walker.HasSynced() }

// Get returns an owner that the caches hold, or nil.
func (l *Lineage) Get(uid types.UID) *ownership.Object {
	if o := l.walker.Get(uid); o != nil {
		return o
	}
	return l.others.Get(uid)
}

// Above returns the owner and those above it, as far as the caches hold them.
func (l *Lineage) Above(uid types.UID) (chain []*ownership.Object) {
	for o := l.Get(uid); o != nil && len(chain) < ownership.MaxHops; o = l.Get(o.Controller.UID) {
		if chain = append(chain, o); o.Controller == nil {
			break
		}
	}
	return chain
}

// Descendants returns the UID and those of all that the caches hold below it.
func (l *Lineage) Descendants(uid types.UID) []types.UID {
	out := []types.UID{uid}
	seen := uidSet{uid: {}}
	for i := 0; i < len(out); i++ {
		for _, w := range []*Walker{l.walker, l.others} {
			for _, child := range w.Descendants(out[i])[1:] {
				if _, ok := seen[child]; !ok {
					seen[child] = struct{}{}
					out = append(out, child)
				}
			}
		}
	}
	return out
}

// Chain returns the pod, its controller, that one's controller and so on, as far as
// they exist and can be read; end says why it is no further, and is nil if the last one
// has no controller. A pod's controller of which nothing but its name can be known is
// in the chain as that. An error means that another try may do.
func (l *Lineage) Chain(ctx context.Context, pod *ownership.Object) (chain []*ownership.Object, end *End, err error) {
	chain = make([]*ownership.Object, 1, 4)
	chain[0] = pod
	seen := map[types.UID]bool{pod.UID: true}
	for at := pod; at.Controller != nil; at = chain[len(chain)-1] {
		ref := at.Controller
		end := &End{At: *ref}
		switch {
		case seen[ref.UID]:
			end.Reason = EndCycle
			return chain, end, nil
		case len(chain) > ownership.MaxHops:
			end.Reason = EndTooDeep
			return chain, end, nil
		case ref.Name == "" || len(content.IsPathSegmentName(ref.Name)) > 0 || len(validation.IsDNS1123Label(string(ref.UID))) > 0:
			end.Reason = EndGone // nothing has such a name, or such a UID
			return chain, end, nil
		}
		owner, resource, err := l.owner(ctx, at)
		end.Resource = resource
		switch {
		case err == nil:
			seen[ref.UID] = true
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
		if in, k, err = l.meet(ctx, ref.GroupVersionKind); err != nil {
			return nil, schema.GroupResource{}, err
		}
	}
	owner, err := l.once(ctx, in, k, of)
	if in == l.others && errors.Is(err, errNoResource) {
		l.forget(gk)
	}
	return owner, schema.ParseGroupResource(k.resource), err
}

// once reads an owner, together with whoever else asks for it.
func (l *Lineage) once(ctx context.Context, in *Walker, k *kind, of *ownership.Object) (*ownership.Object, error) {
	key := readingKey{of.Controller.UID, of.Namespace}
	now := in.clock.Now()
	l.mu.Lock()
	r := l.readings[key]
	if r == nil || r.over(now, in == l.walker || k.listed.Load()) {
		r = &reading{done: make(chan struct{})}
		l.forgetLocked(now)
		l.readings[key] = r
		go l.read(context.WithoutCancel(ctx), in, k, of, key, r)
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.owner, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("reading %s %s/%s: %w", of.Controller.Kind, of.Namespace, of.Controller.Name, context.Cause(ctx))
	}
}

// read ends within readTimeout.
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
	case apierrors.IsForbidden(err): // in this namespace, or for this owner: others may be read
		r.recent, r.until = now.Add(unreadTime), now.Add(unreadTime)
	case err != nil:
		delete(l.readings, key) // the walker knows what not to ask again
	}
}

func (l *Lineage) forgetLocked(now time.Time) {
	if len(l.readings) < maxReadings {
		return
	}
	for key, r := range l.readings {
		if !r.until.IsZero() && !now.Before(r.until) {
			delete(l.readings, key)
		}
	}
	if len(l.readings) >= maxReadings {
		clear(l.readings) // those that are under way end all the same
	}
}

// watch begins to watch a kind of which an object was read. Pods are not watched: they are
// too many.
func (l *Lineage) watch(k *kind) {
	l.mu.Lock()
	if l.watched[k.GroupKind()] || k.Group == "" || len(l.watched) >= maxOthers {
		l.mu.Unlock()
		return
	}
	l.watched[k.GroupKind()] = true
	l.mu.Unlock()
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[k.GroupKind()]; f != nil && f.cancel == nil {
		l.others.launchLocked(f.informer)
	}
}

// meet finds out how a kind is served that was not met before.
func (l *Lineage) meet(ctx context.Context, gvk schema.GroupVersionKind) (*Walker, *kind, error) {
	if gvk.Group == "" && gvk.Kind != "Pod" {
		// Whoever may create pods can name any kind: those that hold secrets, or are many.
		return nil, nil, &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	}
	now := l.walker.clock.Now()
	l.mu.Lock()
	is, known := l.unknown[gvk.GroupKind()]
	l.mu.Unlock()
	if known && now.Before(is.until) {
		return nil, nil, is.err
	}
	served, err := l.served(ctx, gvk)
	if err != nil {
		return nil, nil, fmt.Errorf("asking how %s is served: %w", gvk.GroupKind(), err)
	}
	if gvk.GroupKind() != served.GroupKind() {
		l.mu.Lock()
		if len(l.aliases) >= maxGone {
			clear(l.aliases)
		}
		l.aliases[gvk.GroupKind()] = served.GroupKind()
		l.mu.Unlock()
	}
	if k := l.walker.kindOf(served.GroupKind()); k != nil {
		return l.walker, k, nil
	}
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[served.GroupKind()]; f != nil {
		return l.others, f.kind, nil // another pod was first, or this one writes the kind otherwise
	}
	return l.others, l.others.addLocked(served).kind, nil
}

// known is a kind that was met, and where its objects are.
func (l *Lineage) known(gk schema.GroupKind) (*Walker, *kind) {
	if k := l.walker.kindOf(gk); k != nil {
		return l.walker, k
	}
	return l.others, l.others.kindOf(gk)
}

// canonical is a kind as the API server writes it, if that is known.
func (l *Lineage) canonical(gk schema.GroupKind) schema.GroupKind {
	l.mu.Lock()
	defer l.mu.Unlock()
	if is, ok := l.aliases[gk]; ok {
		return is
	}
	return gk
}

// served asks together with whoever else asks, for as long as ctx allows and no longer
// than mapTime: the client takes no context, and an API server may hang.
func (l *Lineage) served(ctx context.Context, gvk schema.GroupVersionKind) (Kind, error) {
	bounded, cancel := context.WithTimeout(ctx, l.mapTime)
	defer cancel()
	now := l.walker.clock.Now()
	l.mu.Lock()
	q := l.questions[gvk]
	if until, hung := l.hung[gvk.Group]; hung && now.Before(until) {
		l.mu.Unlock()
		return Kind{}, errHung
	}
	if q == nil {
		q = &question{done: make(chan struct{})}
		l.questions[gvk] = q
		go l.ask(gvk, q)
	}
	l.mu.Unlock()
	select {
	case <-q.done:
		return q.kind, q.err
	case <-bounded.Done():
		if ctx.Err() == nil {
			l.mu.Lock()
			if len(l.hung) >= maxGone {
				clear(l.hung)
			}
			l.hung[gvk.Group] = now.Add(l.mapTime + hungTime)
			l.mu.Unlock()
		}
		return Kind{}, context.Cause(bounded)
	}
}

// errHung says that an API group did not answer a moment ago.
var errHung = errors.New("it did not answer a moment ago")

// question is how a kind is served: done is closed when the rest is set.
type question struct {
	done chan struct{}
	kind Kind
	err  error
}

// ask ends when the client does.
func (l *Lineage) ask(gvk schema.GroupVersionKind, q *question) {
	q.kind, q.err = Served(l.discovery, gvk, false)
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.questions, gvk)
	if q.err != nil { // nobody asks again at once
		believed := shortUnreadTime
		if meta.IsNoMatchError(q.err) {
			believed = unreadTime
		}
		if len(l.unknown) >= maxGone {
			clear(l.unknown)
		}
		l.unknown[gvk.GroupKind()] = unread{q.err, l.walker.clock.Now().Add(believed)}
	}
	close(q.done)
}

// forget lets go of a kind that is not served any more as it was: it is met anew.
func (l *Lineage) forget(gk schema.GroupKind) {
	l.others.lifecycle.Lock()
	defer l.others.lifecycle.Unlock()
	if f := l.others.further[gk]; f != nil {
		l.others.endLocked(f, false)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watched, gk)
}
