// Package workloadkind reconciles the ConfigMap groupmanagement-config: the kinds of
// workloads beside those that are built in (docs/sources.md, G8).
//
//	resolve (parsed? served? namespaced? allowed?) ─► apply: owners.Walker.SetKinds ─► remember ─► reportEvents
//
// The list is in force as a whole or not at all: if one entry is wrong, the kinds in
// force stay, and an event names the entry and the remedy. Kinds that the API server
// does not serve or allow are tried again. The controller runs on every replica, because
// each replica has caches of its own. Only the leader writes to the ConfigMap and emits
// events.
package workloadkind

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// ConfigMapName is the name of the ConfigMap, in the manager's namespace.
const ConfigMapName = "groupmanagement-config"

const (
	// minRetry and maxRetry bound the delay before kinds that the API server does not
	// serve or allow are tried again. The delay doubles with each attempt.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// resolveTimeout bounds the requests about one kind: an aggregated API server may hang.
	resolveTimeout = 3 * time.Second
)

// Reconciler gives the kinds that the ConfigMap names to the Walker.
type Reconciler struct {
	// Client reads the ConfigMap from a cache.
	Client client.Client
	// API reads which kinds are served, and which permissions the manager has.
	API      kubernetes.Interface
	Walker   *owners.Walker
	Recorder events.EventRecorder
	// Namespace is where the ConfigMap is.
	Namespace string
	// Leads reports whether this replica leads. SetupWithManager sets it if it is nil.
	Leads func() bool

	// changed enqueues the ConfigMap for other reasons than its own changes.
	changed *trigger.Source[ctrl.Request]

	// The fields below need no lock: there is one request, so passes never overlap.

	// inForce are the kinds that the Walker has. applied is true once the Walker got
	// its kinds for the first time, even if there were none.
	inForce []owners.Kind
	applied bool
	// retries counts the passes in a row after which kinds have to be tried again.
	retries workqueue.TypedRateLimiter[ctrl.Request]
	// lastEvents are the states for which the last events were emitted, by reason.
	lastEvents map[string]string
}

// scope is what one pass observed.
type scope struct {
	config *corev1.ConfigMap // nil if there is none
	resolution
}

// resolution is the result of resolving a list of kinds.
type resolution struct {
	// good are the kinds that can be used.
	good []owners.Kind
	// bad are the errors of all other entries. badKinds are the kinds of those that
	// could be parsed.
	bad      []error
	badKinds sets.Set[schema.GroupKind]
	// retry is true if a later attempt may succeed although the list does not change.
	retry bool
	// unsure are the kinds about which the API server could not answer. They are also
	// in bad. They have no resource, so the Walker cannot read them.
	unsure []owners.Kind
}

// +kubebuilder:rbac:groups="",namespace=atoll-system,resources=configmaps,resourceNames=groupmanagement-config,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=selfsubjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. It must be called before the Walker starts.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if r.Leads == nil {
		r.Leads = func() bool {
			select {
			case <-mgr.Elected():
				return true
			default:
				return false
			}
		}
	}
	r.changed = &trigger.Source[ctrl.Request]{All: func() []ctrl.Request { return []ctrl.Request{r.request()} }}
	enqueue := func() { r.changed.Add(r.request()) }
	r.Walker.OnProblem(enqueue)
	// A new leader emits the events about what it found before. A RunnableFunc needs
	// leader election. It may start before Elected is closed, so it waits for that.
	whenElected := func(ctx context.Context) error {
		select {
		case <-mgr.Elected():
			enqueue()
		case <-ctx.Done():
		}
		return nil
	}
	if err := mgr.Add(manager.RunnableFunc(whenElected)); err != nil {
		return fmt.Errorf("adding the runnable that waits for the election: %w", err)
	}
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named("workloadkind"), r.watches()).
		WatchesRawSource(r.changed).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for the ConfigMap. A missing ConfigMap is an empty list.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &scope{config: &corev1.ConfigMap{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.config); apierrors.IsNotFound(err) {
		s.config = nil
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading ConfigMap %s: %w", req.NamespacedName, err)
	}
	return phase.Run(ctx, s, r.resolve, r.apply, r.remember, r.reportEvents)
}

// resolve finds the kinds that the list in the ConfigMap names.
func (r *Reconciler) resolve(ctx context.Context, s *scope) error {
	if s.config != nil {
		s.resolution = r.resolveText(ctx, s.config.Data[workloadkind.Key])
	}
	return nil
}

// resolveText parses a list and resolves its entries.
func (r *Reconciler) resolveText(ctx context.Context, text string) resolution {
	out := resolution{badKinds: sets.New[schema.GroupKind]()}
	entries, errs := workloadkind.Parse(text)
	for _, err := range errs {
		out.bad = append(out.bad, err)
	}
	kinds, failures := r.resolveEntries(ctx, entries)
	for i, e := range entries {
		kind, err := kinds[i], failures[i]
		if err == nil {
			out.good = append(out.good, kind)
			continue
		}
		out.bad = append(out.bad, fmt.Errorf("%s (%s): %w", workloadkind.Key, e.GroupKind(), err))
		out.badKinds.Insert(e.GroupKind())
		var refused refusal
		isRefusal := errors.As(err, &refused)
		out.retry = out.retry || !isRefusal || refused.temporary
		if !isRefusal {
			kind.Resource = "" // new pods of the kind wait until the API server answers
			out.unsure = append(out.unsure, kind)
		}
	}
	return out
}

// resolveEntries resolves all entries concurrently, so that a kind whose API server does
// not answer does not delay the others. Both results are in the order of the entries.
func (r *Reconciler) resolveEntries(ctx context.Context, entries []workloadkind.Entry) ([]owners.Kind, []error) {
	kinds, errs := make([]owners.Kind, len(entries)), make([]error, len(entries))
	var running sync.WaitGroup
	for i, e := range entries {
		running.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, resolveTimeout)
			defer cancel()
			kinds[i], errs[i] = r.resolveEntry(bounded, e)
		})
	}
	running.Wait()
	return kinds, errs
}

// apply gives the kinds to the Walker if the whole list is right. Otherwise the kinds in
// force stay. A replica that has just started has none in force. It takes the last list
// that was right or, without one, the right entries of this list. Kinds about which the
// API server could not answer are included then, so that their pods wait.
func (r *Reconciler) apply(ctx context.Context, s *scope) error {
	var retry error
	if r.retries == nil {
		r.retries = workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](minRetry, maxRetry)
	}
	if s.retry {
		retry = phase.Wait("the API server to serve and allow every kind", r.retries.When(r.request()))
	} else {
		r.retries.Forget(r.request())
	}
	kinds := s.good
	switch {
	case len(s.bad) == 0:
	case r.applied:
		kinds = r.inForce
	default:
		start := s.resolution
		if last, ok := s.config.Annotations[gm.LastGoodWorkloadsAnnotation]; ok && last != s.config.Data[workloadkind.Key] {
			start = r.resolveText(ctx, last)
		}
		kinds = slices.Concat(start.good, start.unsure)
	}
	r.Walker.SetKinds(kinds)
	if before, now := namesOf(r.inForce), namesOf(kinds); before != now {
		log.FromContext(ctx).Info("Kinds of workloads beside the built-in ones", "kinds", now, "before", before)
	}
	r.inForce, r.applied = kinds, true
	return retry
}

// remember writes a list that is right to an annotation of the ConfigMap. A replica that
// starts while the list is wrong reads it there.
func (r *Reconciler) remember(ctx context.Context, s *scope) error {
	if s.config == nil || len(s.bad) > 0 || !r.Leads() {
		return nil
	}
	text := s.config.Data[workloadkind.Key]
	if last, ok := s.config.Annotations[gm.LastGoodWorkloadsAnnotation]; ok && last == text {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.config.UID, "resourceVersion": s.config.ResourceVersion,
		"annotations": map[string]string{gm.LastGoodWorkloadsAnnotation: text},
	}})
	if err != nil {
		return fmt.Errorf("encoding a patch of a ConfigMap: %w", err)
	}
	err = r.Client.Patch(ctx, s.config.DeepCopy(), client.RawPatch(types.MergePatchType, raw))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("writing the last good text to ConfigMap %s/%s: %w", s.config.Namespace, s.config.Name, err)
	}
	return nil
}
