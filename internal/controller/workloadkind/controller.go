// Package workloadkind reconciles the ConfigMap groupmanagement-config: the kinds
// of workloads beside those of Kubernetes itself (docs/sources.md, G8).
//
//	resolve (read? served? namespaced? allowed?) ─► force: owners.Walker.SetKinds ─► remember ─► tell
//
// A text that is not right as a whole changes nothing: the kinds in force stay,
// and an event names the entry and the way out. Kinds that are not served, or
// not allowed, are asked about again. It runs on every replica, since each has
// caches of its own; the one that leads writes and tells.
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/workloadkind"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// ConfigMapName is the name of the ConfigMap, in the manager's namespace.
const ConfigMapName = "groupmanagement-config"

const (
	// minRetry and maxRetry bound how long is waited before the API server is
	// asked again about kinds that it does not serve or allow.
	minRetry, maxRetry = time.Second, 30 * time.Second
	// askTime bounds the questions about one kind: an API server behind the API
	// server may hang.
	askTime = 3 * time.Second
)

// Reconciler makes the owners' walk know the kinds that the ConfigMap names.
type Reconciler struct {
	// Client reads the ConfigMap from a cache.
	Client client.Client
	// API is asked which kinds are served and what is allowed.
	API      kubernetes.Interface
	Walker   *owners.Walker
	Recorder events.EventRecorder
	// Namespace is where the ConfigMap is.
	Namespace string
	// Leads tells whether this replica leads: only that one emits events.
	Leads func() bool

	changed *trigger.Source[ctrl.Request]

	// What follows is of one reconcile after the other: there is one ConfigMap.

	// inForce are the kinds that the walk knows; settled once it was told of
	// them, be there none.
	inForce []owners.Kind
	settled bool
	// failures counts the passes in a row that the API server kept from ending well.
	failures int
	// lastEvents are the last event texts, by reason.
	lastEvents map[string]string
}

// scope is what one pass observed.
type scope struct {
	config *corev1.ConfigMap // nil if there is none
	reading
}

// reading is what a text stands for.
type reading struct {
	good []owners.Kind
	// bad are the entries that cannot be used, and badKinds the kinds of those
	// that the API server refuses; retry: another try may do.
	bad      []error
	badKinds map[schema.GroupKind]bool
	retry    bool
	// unsure are the kinds of which the API server could not say anything.
	unsure []owners.Kind
}

// +kubebuilder:rbac:groups="",namespace=atoll-system,resources=configmaps,resourceNames=groupmanagement-config,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=selfsubjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller. Call before the walker is started.
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
	only := ctrl.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: ConfigMapName}}
	r.changed = &trigger.Source[ctrl.Request]{All: func() []ctrl.Request { return []ctrl.Request{only} }}
	again := func() { r.changed.Add(only) }
	r.Walker.OnProblem(again)
	// A runnable that says nothing of leaders runs on the one that leads: it
	// tells what it has found before. It is started before Elected says so.
	leads := func(ctx context.Context) error {
		select {
		case <-mgr.Elected():
			again()
		case <-ctx.Done():
		}
		return nil
	}
	if err := mgr.Add(manager.RunnableFunc(leads)); err != nil {
		return fmt.Errorf("waiting to lead: %w", err)
	}
	isOurs := predicate.NewPredicateFuncs(func(o client.Object) bool { return client.ObjectKeyFromObject(o) == only.NamespacedName })
	return ctrl.NewControllerManagedBy(mgr).
		Named("workloadkind").
		For(&corev1.ConfigMap{}, builder.WithPredicates(isOurs)).
		WatchesRawSource(r.changed).
		WithOptions(controller.Options{NeedLeaderElection: new(false)}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &scope{config: &corev1.ConfigMap{}}
	if err := r.Client.Get(ctx, req.NamespacedName, s.config); apierrors.IsNotFound(err) {
		s.config = nil
	} else if err != nil {
		return ctrl.Result{}, fmt.Errorf("reading ConfigMap %s: %w", req.NamespacedName, err)
	}
	return phase.Run(ctx, s, r.resolve, r.force, r.remember, r.reportEvents)
}

// resolve finds out which kinds the text stands for.
func (r *Reconciler) resolve(ctx context.Context, s *scope) error {
	if s.config != nil {
		s.reading = r.read(ctx, s.config.Data[workloadkind.Key])
	}
	return nil
}

func (r *Reconciler) read(ctx context.Context, text string) reading {
	out := reading{badKinds: map[schema.GroupKind]bool{}}
	entries, errs := workloadkind.Parse(text)
	for _, err := range errs {
		out.bad = append(out.bad, err)
	}
	kinds, refusals := r.ask(ctx, entries)
	for i, e := range entries {
		kind, err := kinds[i], refusals[i]
		if err == nil {
			out.good = append(out.good, kind)
			continue
		}
		out.bad = append(out.bad, fmt.Errorf("%s (%s): %w", workloadkind.Key, e.GroupKind(), err))
		out.badKinds[e.GroupKind()] = true
		var no refusal
		refused := errors.As(err, &no)
		out.retry = out.retry || !refused || no.passes
		if !refused {
			kind.Resource = "" // its pods wait until the API server says what it is
			out.unsure = append(out.unsure, kind)
		}
	}
	return out
}

// ask finds the kinds that entries stand for, side by side: one about which the
// API server does not answer takes no time from the others.
func (r *Reconciler) ask(ctx context.Context, entries []workloadkind.Entry) ([]owners.Kind, []error) {
	kinds, errs := make([]owners.Kind, len(entries)), make([]error, len(entries))
	var asking sync.WaitGroup
	for i, e := range entries {
		asking.Go(func() {
			bounded, cancel := context.WithTimeout(ctx, askTime)
			defer cancel()
			kinds[i], errs[i] = r.kind(bounded, e)
		})
	}
	asking.Wait()
	return kinds, errs
}

// force makes the walk know the kinds, if all of the text is right; else those
// that it knows stay. A replica that has just started begins with the last text
// that was right, or with the entries that are; pods of kinds about which the API
// server could not say anything wait.
func (r *Reconciler) force(ctx context.Context, s *scope) error {
	if s.retry {
		r.failures++
	} else {
		r.failures = 0
	}
	ask := phase.Wait("the API server to serve and allow every kind", backoff(r.failures))
	kinds := s.good
	switch {
	case len(s.bad) == 0:
	case r.settled:
		kinds = r.inForce
	default:
		start := s.reading
		if last, ok := s.config.Annotations[gm.LastGoodWorkloadsAnnotation]; ok && last != s.config.Data[workloadkind.Key] {
			start = r.read(ctx, last)
		}
		kinds = slices.Concat(start.good, start.unsure)
	}
	r.Walker.SetKinds(kinds)
	if before, now := namesOf(r.inForce), namesOf(kinds); before != now {
		log.FromContext(ctx).Info("Kinds of workloads beside the built-in ones", "kinds", now, "before", before)
	}
	r.inForce, r.settled = kinds, true
	if s.retry {
		return ask
	}
	return nil
}

// remember keeps a text that is right where a replica that starts later finds
// it, whatever the text has become by then.
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

func backoff(failures int) time.Duration {
	if failures > 5 {
		return maxRetry
	}
	return min(maxRetry, minRetry<<max(0, failures-1))
}
