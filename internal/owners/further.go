package owners

import (
	"context"
	"errors"
	"fmt"
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

// Kind is a kind of owner beside the built-in ones. Workloads are namespaced.
type Kind struct {
	schema.GroupVersionKind
	// ClusterScoped: objects of the kind are in no namespace.
	ClusterScoped bool
	// Resource is the plural under which the API server serves the kind. Empty:
	// it could not say. Then nothing is watched, and its pods wait.
	Resource string
	// ReplicasPath leads to the number of pods that an object wants. Empty: no
	// more than the metadata of objects is read.
	ReplicasPath []string
	// RevisionLabel is the pod label that tells the revisions of an object's
	// pods apart. Empty: those of ownership.Revision.
	RevisionLabel string
	// PodTemplatePath leads to the template of an object's pods. Empty: it is
	// not known.
	PodTemplatePath []string
}

// sameWatch tells whether a watch for the one serves the other.
func (k Kind) sameWatch(o Kind) bool {
	return k.GroupVersionKind == o.GroupVersionKind && k.Resource == o.Resource && slices.Equal(k.ReplicasPath, o.ReplicasPath)
}

// Problem is why a kind beside the built-in ones is not known as it should be.
type Problem struct {
	Kind Kind
	// Verb is list or watch for what the API server does not answer as it
	// should, and empty for an object that cannot be read.
	Verb string
	Err  error
}

const (
	verbList  = "list"
	verbWatch = "watch"
	// verbNone is the key of the first object that cannot be read.
	verbNone = ""
)

const (
	// endTimeout is how long SetKinds waits for a watch to end.
	endTimeout = time.Second
	// problemTime is how long a list may take, or a kind that was listed before
	// may fail, until that is a problem: the API server may be restarting.
	problemTime = 10 * time.Second
)

// errNoResource: the API server could not say how it serves a kind.
var errNoResource = errors.New("the API server does not say how it serves the kind")

// errSlow: the first list has neither come nor failed.
var errSlow = errors.New("the API server has not answered yet")

// furtherInformer is the informer of a kind beside the built-in ones.
type furtherInformer struct {
	*informer
	of Kind
}

// Extend lets the walk know kinds beside the built-in ones, which SetKinds
// names. Until it has done so once the walker is not synced. Call before Start.
func (w *Walker) Extend(dynamic dynamic.Interface, metadata metadata.Interface) {
	w.dynamic, w.metadata = dynamic, metadata
}

// OnProblem adds a handler that is told when Problems changes. It must not
// block, nor ask the walker. Call before Start.
func (w *Walker) OnProblem(h func()) { w.onProblem = append(w.onProblem, h) }

// OnRevisions adds a handler that is told when Revision answers otherwise for
// the same pods. It must not block, nor ask the walker. Call before Start.
func (w *Walker) OnRevisions(h func()) { w.onRevisions = append(w.onRevisions, h) }

// SetKinds makes the walk know exactly these kinds beside the built-in ones. A
// kind that is new is watched from here on; one that is not there any more is
// forgotten, with its objects, and its watch has ended when SetKinds returns,
// unless it hangs. What a kind has in common with before goes on undisturbed.
func (w *Walker) SetKinds(kinds []Kind) {
	w.lifecycle.Lock()
	defer w.lifecycle.Unlock()
	wanted := make(map[schema.GroupKind]Kind, len(kinds))
	for _, k := range kinds {
		wanted[k.GroupKind()] = k
	}
	for gk, old := range w.further {
		if k, stays := wanted[gk]; !stays || !k.sameWatch(old.of) {
			w.endLocked(old, stays)
		}
	}
	for gk, k := range wanted {
		if old := w.further[gk]; old == nil || !k.sameWatch(old.of) {
			w.beginLocked(k, old)
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

// endLocked ends a watch. If the kind stays, in another form, its objects do
// too, until the next list.
func (w *Walker) endLocked(f *furtherInformer, stays bool) {
	gone := f.close()
	if f.cancel != nil {
		f.cancel()
		select {
		case <-f.done:
		case <-time.After(endTimeout): // it hangs, and what it still brings is dropped
		}
	}
	if stays {
		f.known = gone // nothing reads them but beginLocked
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

func (w *Walker) beginLocked(k Kind, old *furtherInformer) {
	f := w.addLocked(k)
	if old != nil {
		f.known = old.known // its informer is closed
	}
	syncedGauge.WithLabelValues(k.GroupKind().String()).Set(0)
	if k.Resource != "" {
		w.launchLocked(f.informer)
	}
}

// addLocked makes a kind known whose objects are read, and not watched yet.
func (w *Walker) addLocked(k Kind) *furtherInformer {
	f := &furtherInformer{informer: newInformer(w, w.furtherKind(k)), of: k}
	w.further[k.GroupKind()] = f
	w.mu.Lock()
	w.kinds[k.GroupKind()] = f.kind
	w.mu.Unlock()
	return f
}

func (w *Walker) setRevisionsLocked() (changed bool) {
	revisions, templates := map[schema.GroupKind]string{}, map[schema.GroupKind][]string{}
	for gk, f := range w.further {
		templates[gk] = f.of.PodTemplatePath
		if f.of.RevisionLabel != "" {
			revisions[gk] = f.of.RevisionLabel
		}
	}
	w.templates.Store(&templates)
	old := *w.revisions.Swap(&revisions)
	if len(old) != len(revisions) {
		return true
	}
	for gk, label := range revisions {
		if old[gk] != label {
			return true
		}
	}
	return false
}

// Revision is the name under which the pods of one revision of a workload are
// counted together, beside their direct owner: of a pod with this controller
// and these labels.
func (w *Walker) Revision(controller *ownership.Reference, labels map[string]string) string {
	label := ""
	if controller != nil {
		label = (*w.revisions.Load())[controller.GroupKind()]
	}
	return ownership.Revision(labels, label)
}

// PodTemplatePath leads to the template of the pods of objects of a kind; nil if
// that is not known.
func (w *Walker) PodTemplatePath(gk schema.GroupKind) []string {
	if path, found := podTemplates[gk]; found {
		return path
	}
	return (*w.templates.Load())[gk]
}

// Problems returns what is wrong with kinds beside the built-in ones, sorted.
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

// problems are the failures that do not pass by themselves, and those of a kind
// that has not been listed yet.
func (f *informer) problems() map[string]error {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[string]error{}
	for verb, is := range f.failures {
		if is.told {
			out[verb] = is.err
		}
	}
	if f.slow && len(out) == 0 {
		out[verbList] = errSlow
	}
	return out
}

// lasts tells whether somebody has to do something about an error.
func lasts(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }

// note records how a list or a watch ended.
func (f *informer) note(ctx context.Context, verb string, err error) {
	if err != nil && ctx.Err() != nil {
		return // the informer is being ended
	}
	f.mu.Lock()
	was := f.failures[verb]
	is := failure{err, lasts(err) || err != nil && (was.told && was.err != nil || !f.synced.Load())}
	if err == nil {
		delete(f.failures, verb)
	} else {
		f.failures[verb] = is
	}
	f.mu.Unlock()
	switch {
	case is.told != was.told:
		f.tell()
	case err != nil && was.err == nil:
		f.after(f.walker.problemTime, func() bool {
			still, failed := f.failures[verb]
			if !failed || still.told {
				return false
			}
			still.told = true
			f.failures[verb] = still
			return true
		})
	}
}

// after tells of a problem if it is still there after a while; settle, which
// has mu, says so.
func (f *informer) after(d time.Duration, settle func() bool) {
	time.AfterFunc(d, func() {
		f.mu.Lock()
		is := !f.closed && settle()
		f.mu.Unlock()
		if is {
			f.tell()
		}
	})
}

// watchSlowness makes it a problem if the first list takes long.
func (f *informer) watchSlowness() {
	f.after(f.walker.problemTime, func() bool {
		f.slow = !f.synced.Load()
		return f.slow
	})
}

func (f *informer) tell() {
	for _, h := range f.walker.onProblem {
		h()
	}
}

// slim slims an object, and keeps the first that does not say what it should.
func (f *informer) slim(obj any) (*ownership.Object, error) {
	if o, ok := obj.(*ownership.Object); ok {
		return o, nil // Transformer was here
	}
	o, err := f.kind.slim(obj)
	if o == nil || err == nil {
		return o, err
	}
	f.mu.Lock()
	_, told := f.failures[verbNone]
	first := !told
	if first {
		f.failures[verbNone] = failure{fmt.Errorf("reading %s %s/%s: %w", o.Kind, o.Namespace, o.Name, err), true}
	}
	f.mu.Unlock()
	if first {
		f.tell()
	}
	return o, nil
}

// furtherKind reads metadata only, unless something else is asked for.
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
			if w.impatient && isUnserved(err) {
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

var errNoReplicas = errors.New("is no number of pods")

// replicasAt reads the number of pods that an object wants. An object that
// leaves the field out wants none that it says.
func replicasAt(object map[string]any, path []string) (*int32, error) {
	value, found, err := unstructured.NestedFieldNoCopy(object, path...)
	if err != nil {
		return nil, fmt.Errorf(".%s %w: a field on the way to it is no object", strings.Join(path, "."), errNoReplicas)
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
