// Package uniteddeployment reconciles UnitedDeployments (docs/sources.md, P6 to P14): one
// Deployment, StatefulSet or DaemonSet a pool, from one template.
//
//	roll back? ─► revise: ControllerRevisions ─► observe: workloads, NodePools ─► execute: what domain/united plans ─► report ─► trim
//
// A pass begins with the UnitedDeployment as the API server has it: what it
// remembers of its pools decides whether the next may be updated. Of workloads
// an older view will do. Their names are functions of the pool's, so that one
// that is not seen yet is found instead of made twice, and a write to one that
// has changed since is refused.
package uniteddeployment

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// retryFirst and retryLast bound how long is waited before what failed is
	// tried again. No event tells that a quota has room again.
	retryFirst, retryLast = 100 * time.Millisecond, 30 * time.Second
	// concurrency is how many UnitedDeployments are reconciled side by side.
	concurrency = 4
)

// Reconciler keeps the workloads of UnitedDeployments.
type Reconciler struct {
	// Client reads workloads, revisions and NodePools from a cache.
	Client client.Client
	// Live reads what must not be old.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Evictor evicts the pods of removed pools.
	Evictor *eviction.Evictor

	pace pace
}

// scope is what one pass observed.
type scope struct {
	ud *apps.UnitedDeployment
	// before is the UnitedDeployment as it was read.
	before *apps.UnitedDeployment
	// revisions are ours, the newest last; update is the one of the template.
	revisions []*appsv1.ControllerRevision
	update    *appsv1.ControllerRevision
	// templates are what revisions hold, by their short name.
	templates map[string]*apps.WorkloadTemplate
	// observed: what follows is known.
	observed bool
	// nodePools are the NodePools that there are, by name.
	nodePools map[string]*apps.NodePool
	// live are the workloads that concern us, by name.
	live map[string]united.Workload
	// remembered are the pools of status, by name, as they are to be written.
	remembered map[string]*apps.PoolStatus
	state      united.State
	plan       united.Plan
	// leaving are the pods of workloads whose pool is removed, by workload, and
	// waits is why they do not go now.
	leaving map[string][]united.LeavingPod
	waits   map[string]string
	// failures are of pools, by name; failure is of all of them.
	failures map[string]failure
	failure  failure
	// reported: the status is as it is to be.
	reported bool
	// replaced: the spec was written; the next pass goes on from there.
	replaced bool
}

// failure is what PoolFailure tells.
type failure struct{ reason, message string }

// +kubebuilder:rbac:groups=apps.openyurt.io,resources=uniteddeployments,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=apps.openyurt.io,resources=uniteddeployments/status,verbs=patch
// +kubebuilder:rbac:groups=apps.openyurt.io,resources=uniteddeployments/finalizers,verbs=update
// +kubebuilder:rbac:groups=apps.openyurt.io,resources=nodepools,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets;daemonsets;controllerrevisions,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return watch.Add(ctrl.NewControllerManagedBy(mgr), r.watches()).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
		}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for one UnitedDeployment.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ud := &apps.UnitedDeployment{}
	if err := r.Live.Get(ctx, req.NamespacedName, ud); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if ud.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its workloads go, or stay, as whoever deletes it says
	}
	s := &scope{ud: ud, before: ud.DeepCopy(), failures: map[string]failure{}, remembered: map[string]*apps.PoolStatus{}}
	for i := range ud.Status.Pools {
		s.remembered[ud.Status.Pools[i].Name] = ud.Status.Pools[i].DeepCopy()
	}
	return phase.Run(ctx, s, r.revise, r.rollBack, r.observe, r.execute, r.report, r.trim)
}

// fail remembers a failure of everything, for the condition.
func (s *scope) fail(reason, what string, err error) error {
	err = fmt.Errorf("%s: %w", what, err)
	if s.failure.reason == "" {
		s.failure = failure{reason, err.Error()}
	}
	return err
}

// now is a time as the API server keeps it.
func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()).Rfc3339Copy() }
