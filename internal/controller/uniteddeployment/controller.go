// Package uniteddeployment reconciles UnitedDeployments (docs/sources.md, P6 to P14): one
// Deployment, StatefulSet or DaemonSet for each pool, from one template.
//
//	revise: ControllerRevisions ─► rollBack ─► observe: workloads, NodePools ─► execute: the plan of domain/united ─► report ─► trim
//
// A pass reads the UnitedDeployment from the API server: its status decides whether the
// next pool may be updated, so it must not be stale. Workloads may be stale. Their names
// follow from the pool's name, so a workload that the cache does not have yet is found
// instead of created twice. The API server refuses writes to a stale version.
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
	"github.com/atoll-k8s/atoll/internal/machinery/fairqueue"
	pacing "github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// retryFirst and retryLast bound the delay before a failed pass is repeated. The bound
	// is short because no event arrives when a quota has room again.
	retryFirst, retryLast = 100 * time.Millisecond, 30 * time.Second
	// concurrency is how many UnitedDeployments are reconciled at a time.
	concurrency = 4
)

// Reconciler writes the workloads of UnitedDeployments.
type Reconciler struct {
	// Client reads workloads, revisions and NodePools from a cache.
	Client client.Client
	// Live reads from the API server what must not be stale.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Evictor evicts the pods of removed pools.
	Evictor *eviction.Evictor

	// changed has the UnitedDeployments whose workloads or revisions changed.
	changed trigger.Source[ctrl.Request]

	pace pace
	// statuses bounds status writes.
	statuses pacing.ByName
}

// scope is what one pass observed.
type scope struct {
	ud *apps.UnitedDeployment
	// before is the UnitedDeployment as it was read.
	before *apps.UnitedDeployment
	// revisions are the ControllerRevisions of ud, the newest last. update is the one with
	// the current template.
	revisions []*appsv1.ControllerRevision
	update    *appsv1.ControllerRevision
	// templates are the templates in the revisions, by short name of the revision.
	templates map[string]*apps.WorkloadTemplate
	// observed is true once the fields below are set.
	observed bool
	// nodePools are the existing NodePools of the spec's pools, by name.
	nodePools map[string]*apps.NodePool
	// live are our workloads and those that can be adopted, by name. They may come from
	// the cache: change a copy.
	live map[string]united.Workload
	// remembered are the entries of status.pools, by name of the pool. remember updates
	// them after a write, and report writes them.
	remembered map[string]*apps.PoolStatus
	state      united.State
	plan       united.Plan
	// leaving are the pods of workloads of removed pools, by workload. waits is why such a
	// workload is not drained further now.
	leaving map[string][]united.LeavingPod
	waits   map[string]string
	// failures are the failures of pools, by name. failure concerns all pools.
	failures map[string]failure
	failure  failure
	// read is the memory of what was read from the API server because the cache has no room
	// for it, in bytes.
	read int64
	// wrote is true if a workload was written: the status remembers that.
	wrote bool
	// reported is true once the status is written or needs no write now.
	reported bool
	// replaced is true if rollBack wrote the spec: the rest is left to the next pass.
	replaced bool
}

// failure is reason and message of the condition PoolFailure.
type failure struct{ reason, message string }

// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=uniteddeployments,verbs=get;list;watch;patch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=uniteddeployments/status,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=uniteddeployments/finalizers,verbs=update
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps.openyurt.io,resources=nodepools,verbs=get;list;watch
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=apps,resources=deployments;statefulsets;daemonsets;controllerrevisions,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-pools,groups=events.k8s.io,resources=events,verbs=create;patch

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return watch.Add(ctrl.NewControllerManagedBy(mgr), r.watches()).
		WatchesRawSource(&r.changed).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: concurrency,
			NewQueue:                fairqueue.ByNamespace,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](retryFirst, retryLast),
		}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for one UnitedDeployment.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	ud := &apps.UnitedDeployment{}
	if err := r.Live.Get(ctx, req.NamespacedName, ud); err != nil {
		if client.IgnoreNotFound(err) == nil {
			r.statuses.Forget(req.String())
			r.changed.Took(req, 0)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if ud.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // the garbage collector deletes or orphans its workloads, by the propagation policy
	}
	s := &scope{ud: ud, before: ud.DeepCopy(), failures: map[string]failure{}, remembered: map[string]*apps.PoolStatus{}}
	for i := range ud.Status.Pools {
		s.remembered[ud.Status.Pools[i].Name] = ud.Status.Pools[i].DeepCopy()
	}
	return phase.Run(ctx, s, r.revise, r.rollBack, r.observe, r.execute, r.report, r.trim)
}

// fail records a failure that concerns all pools, for the condition. It returns the error
// with the action before it. The first failure of a pass is kept.
func (s *scope) fail(reason, action string, err error) error {
	err = fmt.Errorf("%s: %w", action, err)
	if s.failure.reason == "" {
		s.failure = failure{reason, err.Error()}
	}
	return err
}

// now returns the current time with the precision of the API server, which is a second.
func (r *Reconciler) now() metav1.Time { return metav1.NewTime(r.Clock.Now()).Rfc3339Copy() }
