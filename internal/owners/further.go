package owners

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Kind is a further kind of owner: one that is not built in. Those that are passed to SetKinds
// are kinds of workloads, and namespaced. Those that a Lineage discovers may also be
// cluster-scoped.
type Kind struct {
	schema.GroupVersionKind
	// ClusterScoped: objects of the kind are in no namespace.
	ClusterScoped bool
	// Resource is the plural under which the API server serves the kind. Empty:
	// discovery failed. Then the kind is not watched, and pods with such an owner wait at
	// the scheduling gate.
	Resource string
	// ReplicasPath is the path of the number of replicas in an object. Empty: only
	// the metadata of objects is read.
	ReplicasPath []string
	// RevisionLabel is the pod label whose value differs between revisions of an
	// object. Empty: the labels of Kubernetes' own kinds are used (see ownership.Revision).
	RevisionLabel string
	// PodTemplatePath is the path of the pod template in an object. Empty: it is not
	// known.
	PodTemplatePath []string
}

// sameWatch reports whether one watch serves both definitions of a kind.
func (k Kind) sameWatch(o Kind) bool {
	return k.GroupVersionKind == o.GroupVersionKind && k.Resource == o.Resource && slices.Equal(k.ReplicasPath, o.ReplicasPath)
}

// Problem is why a further kind cannot be listed, watched or understood.
type Problem struct {
	Kind Kind
	// Verb is the request that fails, list or watch. It is empty if an object has no
	// valid number of replicas.
	Verb string
	Err  error
}

const (
	verbList  = "list"
	verbWatch = "watch"
	// verbNone is the verb of the Problem that an object has no valid number of replicas.
	verbNone = ""
)

const (
	// endTimeout is how long SetKinds waits for a watch to end.
	endTimeout = time.Second
	// problemTime is how long the first list of a kind may take, and how long requests for a
	// listed kind may fail, until a Problem is reported: the API server may be restarting.
	problemTime = 10 * time.Second
)

// errNoResource: discovery of a kind has failed.
var errNoResource = errors.New("the resource of the kind is not known")

// errSlow: the first list has neither succeeded nor failed within problemTime.
var errSlow = errors.New("the API server has not answered yet")

// furtherInformer is the informer of a further kind.
type furtherInformer struct {
	*informer
	of Kind
}

// Extend enables further kinds, which SetKinds sets. After Extend, HasSynced returns false
// until SetKinds was called for the first time. Call it before Start.
func (w *Walker) Extend(dynamic dynamic.Interface, metadata metadata.Interface) {
	w.dynamic, w.metadata = dynamic, metadata
}

// OnProblem adds a handler that is called when the result of Problems changes. It must
// not block, and must not call the walker. Call it before Start.
func (w *Walker) OnProblem(h func()) { w.onProblem = append(w.onProblem, h) }

// OnRevisions adds a handler that is called when Revision may return another result for
// the same pods. It must not block, and must not call the walker. Call it before Start.
func (w *Walker) OnRevisions(h func()) { w.onRevisions = append(w.onRevisions, h) }

// SetKinds replaces the further kinds. It starts to watch new kinds. It removes the kinds that
// are not in the list, drops their objects from the cache, and waits up to endTimeout for each
// of their watches to end. A kind that stays keeps its cached objects, and its watch too if
// one watch serves the old and the new definition.
func (w *Walker) SetKinds(kinds []Kind) {
	w.lifecycle.Lock()
	defer w.lifecycle.Unlock()
	wanted := make(map[schema.GroupKind]Kind, len(kinds))
	for _, k := range kinds {
		wanted[k.GroupKind()] = k
	}
	for gk, old := range w.further {
		if k, stays := wanted[gk]; !stays || !k.sameWatch(old.of) {
			w.stopLocked(old, stays)
		}
	}
	for gk, k := range wanted {
		if old := w.further[gk]; old == nil || !k.sameWatch(old.of) {
			w.watchLocked(k, old)
		} else {
			old.of = k
		}
	}
	if w.setRevisionsLocked() {
		for _, h := range w.onRevisions {
			h()
		}
	}
	w.configured.Store(true)
}

// stopLocked stops the informer of a kind. If the kind stays, with another definition,
// its objects stay too, until the first list of the next informer.
func (w *Walker) stopLocked(f *furtherInformer, stays bool) {
	gone := f.close()
	if f.cancel != nil {
		f.cancel()
		select {
		case <-f.done:
		case <-time.After(endTimeout): // it hangs; the closed informer ignores further events
		}
	}
	if stays {
		f.known = gone // for watchLocked
		return
	}
	delete(w.further, f.of.GroupKind())
	w.mu.Lock()
	delete(w.kinds, f.of.GroupKind())
	w.mu.Unlock()
	syncedGauge.DeleteLabelValues(f.of.GroupKind().String())
	for uid := range gone {
		w.Drop(uid)
	}
}

// watchLocked starts the informer of a kind. old is the stopped informer of its previous
// definition, or nil.
func (w *Walker) watchLocked(k Kind, old *furtherInformer) {
	f := w.addLocked(k)
	if old != nil {
		f.known = old.known // no lock: the old informer is closed and does not write it
	}
	syncedGauge.WithLabelValues(k.GroupKind().String()).Set(0)
	if k.Resource != "" {
		w.launchLocked(f.informer)
	}
}

// addLocked adds a kind. Its objects can be read from then on; they are not watched yet.
func (w *Walker) addLocked(k Kind) *furtherInformer {
	f := &furtherInformer{informer: newInformer(w, w.furtherKind(k)), of: k}
	w.further[k.GroupKind()] = f
	w.mu.Lock()
	w.kinds[k.GroupKind()] = f.kind
	w.mu.Unlock()
	return f
}

// setRevisionsLocked publishes the revision labels and the template paths of the further
// kinds, and reports whether a revision label changed.
func (w *Walker) setRevisionsLocked() (changed bool) {
	revisions, templates := map[schema.GroupKind]string{}, map[schema.GroupKind][]string{}
	for gk, f := range w.further {
		templates[gk] = f.of.PodTemplatePath
		if f.of.RevisionLabel != "" {
			revisions[gk] = f.of.RevisionLabel
		}
	}
	w.templates.Store(&templates)
	return !maps.Equal(*w.revisions.Swap(&revisions), revisions)
}

// Revision returns the revision of a pod with this controller and these labels. Pods
// with the same direct owner and the same revision are counted together.
func (w *Walker) Revision(controller *ownership.Reference, labels map[string]string) string {
	label := ""
	if controller != nil {
		label = (*w.revisions.Load())[controller.GroupKind()]
	}
	return ownership.Revision(labels, label)
}

// PodTemplatePath returns the path of the pod template in objects of a kind; nil if it is
// not known.
func (w *Walker) PodTemplatePath(gk schema.GroupKind) []string {
	if path, found := podTemplates[gk]; found {
		return path
	}
	return (*w.templates.Load())[gk]
}

// Problems returns the problems of further kinds, sorted by kind and verb.
func (w *Walker) Problems() []Problem {
	w.lifecycle.Lock()
	defer w.lifecycle.Unlock()
	var out []Problem
	for _, f := range w.further {
		for verb, err := range f.problems() {
			out = append(out, Problem{Kind: f.of, Verb: verb, Err: err})
		}
	}
	slices.SortFunc(out, func(a, b Problem) int {
		return strings.Compare(a.Kind.GroupKind().String()+" "+a.Verb, b.Kind.GroupKind().String()+" "+b.Verb)
	})
	return out
}

// problems returns the failures that have become problems, by verb; errSlow if there are none
// and the first list is slow.
func (f *informer) problems() map[string]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]error{}
	for verb, failure := range f.failures {
		if failure.problem {
			out[verb] = failure.err
		}
	}
	if f.slow && len(out) == 0 {
		out[verbList] = errSlow
	}
	return out
}

// isLasting reports whether an error lasts until a person acts: missing RBAC rules, or a
// kind that is not served.
func isLasting(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// note records the result of a list or a watch. A failure becomes a problem
//
//   - at once, if a person has to act (isLasting), if the last failure of the verb is a
//     problem, or if the kind has not been listed yet;
//   - otherwise after problemTime, if no request of the verb has succeeded until then.
func (f *informer) note(ctx context.Context, verb string, err error) {
	if err != nil && ctx.Err() != nil {
		return // the informer is being stopped
	}
	f.mu.Lock()
	old := f.failures[verb]
	next := failure{err, isLasting(err) || err != nil && (old.problem && old.err != nil || !f.synced.Load())}
	if err == nil {
		delete(f.failures, verb)
	} else {
		f.failures[verb] = next
	}
	f.mu.Unlock()
	switch {
	case next.problem != old.problem:
		f.problemsChanged()
	case err != nil && old.err == nil:
		f.afterProblemTime(func() bool {
			current, failed := f.failures[verb]
			if !failed || current.problem {
				return false
			}
			current.problem = true
			f.failures[verb] = current
			return true
		})
	}
}

// afterProblemTime waits for problemTime in the background, and then calls check with mu held.
// If check returns true, it calls the handlers of OnProblem.
func (f *informer) afterProblemTime(check func() bool) {
	time.AfterFunc(f.walker.problemTime, func() {
		f.mu.Lock()
		changed := !f.closed && check()
		f.mu.Unlock()
		if changed {
			f.problemsChanged()
		}
	})
}

// watchSlowness makes it a problem if the first list takes longer than problemTime.
func (f *informer) watchSlowness() {
	f.afterProblemTime(func() bool {
		f.slow = !f.synced.Load()
		return f.slow
	})
}

// problemsChanged calls the handlers of OnProblem.
func (f *informer) problemsChanged() {
	for _, h := range f.walker.onProblem {
		h()
	}
}

// slim reduces an object of the API to the ownership.Object that is cached. It records the error of the first object without a valid number
// of replicas as a problem.
func (f *informer) slim(obj any) (*ownership.Object, error) {
	if o, ok := obj.(*ownership.Object); ok {
		return o, nil // slimmed by Transformer
	}
	o, err := f.kind.slim(obj)
	if o == nil || err == nil {
		return o, err
	}
	f.mu.Lock()
	_, found := f.failures[verbNone]
	first := !found
	if first {
		f.failures[verbNone] = failure{fmt.Errorf("reading %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err), true}
	}
	f.mu.Unlock()
	if first {
		f.problemsChanged()
	}
	return o, nil
}

// furtherKind returns how objects of a kind are read: their metadata only, or, with a
// ReplicasPath, whole objects.
func (w *Walker) furtherKind(k Kind) *kind {
	resource := k.GroupVersion().WithResource(k.Resource)
	out := &kind{GroupVersionKind: k.GroupVersionKind, clusterScoped: k.ClusterScoped, resource: resource.GroupResource().String(), further: true, template: k.PodTemplatePath}
	if k.Resource == "" {
		out.get = func(context.Context, string, string) (any, error) { return nil, errNoResource }
		out.replicas = func(any) (*int32, error) { return nil, nil }
		return out
	}
	if len(k.ReplicasPath) == 0 {
		client := w.metadata.Resource(resource)
		out.client, out.listWatch = w.metadata, listWatchOf(client.List, client.Watch)
		out.get = func(ctx context.Context, namespace, name string) (any, error) {
			obj, err := client.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
			if w.ofLineage && isUnserved(err) { // NotFound would mean that the owner was deleted; it may exist in another version
				return nil, fmt.Errorf("%w any more: %w", errNoResource, errors.New(err.Error()))
			}
			return obj, err
		}
		out.replicas = func(any) (*int32, error) { return nil, nil }
		return out
	}
	client := w.dynamic.Resource(resource)
	out.client, out.listWatch = w.dynamic, listWatchOf(client.List, client.Watch)
	out.get = func(ctx context.Context, namespace, name string) (any, error) {
		return client.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	}
	out.replicas = func(obj any) (*int32, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("%w %T", errNoObject, obj)
		}
		return replicasAt(u.Object, k.ReplicasPath)
	}
	return out
}

func listWatchOf[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error), events func(context.Context, metav1.ListOptions) (watch.Interface, error),
) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return list(ctx, options)
		},
		WatchFuncWithContext: events,
	}
}

var errNoReplicas = errors.New("is no number of replicas")

// replicasAt reads the number of replicas of an object; nil if the field is not set.
func replicasAt(object map[string]any, path []string) (*int32, error) {
	value, found, err := unstructured.NestedFieldNoCopy(object, path...)
	if err != nil {
		return nil, fmt.Errorf(".%s %w: a parent field is not an object", strings.Join(path, "."), errNoReplicas)
	}
	if !found || value == nil {
		return nil, nil
	}
	var n int64
	switch value := value.(type) {
	case int64:
		n = value
	case float64:
		n = int64(value)
		if float64(n) != value {
			n = -1
		}
	default:
		n = -1
	}
	if n < 0 || n > math.MaxInt32 {
		return nil, fmt.Errorf(".%s %w: it must be an integer from 0 to %d", strings.Join(path, "."), errNoReplicas, math.MaxInt32)
	}
	return new(int32(n)), nil
}
