// Package controller registers all controllers.
package controller

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/controller/capacity"
	"github.com/atoll-k8s/atoll/internal/controller/connectivity"
	"github.com/atoll-k8s/atoll/internal/controller/coordinator"
	"github.com/atoll-k8s/atoll/internal/controller/hubserving"
	"github.com/atoll-k8s/atoll/internal/controller/nodegroup"
	"github.com/atoll-k8s/atoll/internal/controller/nodepool"
	"github.com/atoll-k8s/atoll/internal/controller/overridepolicy"
	"github.com/atoll-k8s/atoll/internal/controller/podgroup"
	"github.com/atoll-k8s/atoll/internal/controller/propagationpolicy"
	"github.com/atoll-k8s/atoll/internal/controller/uniteddeployment"
	"github.com/atoll-k8s/atoll/internal/controller/workload"
	"github.com/atoll-k8s/atoll/internal/controller/workloadkind"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/jobs"
	"github.com/atoll-k8s/atoll/internal/machinery/recorder"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// Deps holds what controllers share beside the manager.
type Deps struct {
	// Namespace is the namespace of atoll-manager.
	Namespace string
	// Pools: NodePools and UnitedDeployments are reconciled.
	Pools bool
	// Pods reads and writes objects without a cache: pods, evictions, Jobs, volumes.
	Pods     kubernetes.Interface
	Walker   *owners.Walker
	Ledger   *seats.Ledger
	Policies *policies.Resolver
	// Synced returns whether Walker and Ledger have read everything that exists and this
	// replica is the leader. No controller that uses them reconciles before.
	Synced func() bool
	// SchedulerName and Mark are those of workload.Reconciler.
	SchedulerName string
	Mark          corev1.ResourceName
	// Gangs is the controller of PodGroups; nil runs none. Setup sets its recorders.
	Gangs *podgroup.Reconciler
	// Evictor bounds the evictions of all controllers together.
	Evictor *eviction.Evictor
	// Coordinators: YurtCoordinators are reconciled, their pods have CoordinatorImages, and requests for the certificates of
	// hubs in their pools are signed.
	Coordinators      bool
	CoordinatorImages coordinator.Images
	// NodeGrace is the --node-monitor-grace-period of kube-controller-manager.
	NodeGrace time.Duration
}

// Setup registers every controller with the manager. It must run before Walker and Ledger
// start, because controllers add handlers to them.
func Setup(mgr ctrl.Manager, d Deps) error {
	if err := survey.IndexNodes(mgr.GetFieldIndexer()); err != nil {
		return err
	}
	events := recorder.New(mgr.GetEventRecorder("atoll-manager"), mgr.GetScheme(), clock.RealClock{})
	restarter := &jobs.Restarter{Client: d.Pods, Annotation: gm.JobRestartAnnotation}
	setups := map[string]func(ctrl.Manager) error{
		"nodegroup": (&nodegroup.Reconciler{Client: mgr.GetClient(), Clock: clock.RealClock{}}).SetupWithManager,
		"workload": (&workload.Reconciler{
			Client: mgr.GetClient(), Pods: d.Pods, Walker: d.Walker, Ledger: d.Ledger, Policies: d.Policies, Synced: d.Synced, Recorder: events, Evictor: d.Evictor, Jobs: restarter, Clock: clock.RealClock{},
			SchedulerName: d.SchedulerName, Mark: d.Mark,
		}).SetupWithManager,
		"propagationpolicy": (&propagationpolicy.Reconciler{
			Surveyor: d.surveyor(), Client: mgr.GetClient(), Synced: d.Synced, Recorder: events, Evictor: d.Evictor, Jobs: restarter,
		}).SetupWithManager,
		"overridepolicy": (&overridepolicy.Reconciler{
			Surveyor: d.surveyor(), Client: mgr.GetClient(), Synced: d.Synced, Recorder: events, Evictor: d.Evictor,
		}).SetupWithManager,
		"capacity": (&capacity.Reconciler{
			Client: mgr.GetClient(), Pods: d.Pods, Walker: d.Walker, Ledger: d.Ledger, Policies: d.Policies, Synced: d.Synced, Recorder: events, Evictor: d.Evictor, Clock: clock.RealClock{},
		}).SetupWithManager,
		"workloadkind": (&workloadkind.Reconciler{
			Client: mgr.GetClient(), API: d.Pods, Walker: d.Walker, Recorder: events, Namespace: d.Namespace,
		}).SetupWithManager,
	}
	if d.Pools {
		setups["nodepool"] = (&nodepool.Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: events, Clock: clock.RealClock{},
		}).SetupWithManager
		setups["uniteddeployment"] = (&uniteddeployment.Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: events, Clock: clock.RealClock{}, Evictor: d.Evictor,
		}).SetupWithManager
	}
	if d.Coordinators {
		setups["coordinator"] = (&coordinator.Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Versions: d.Pods.Discovery(), Recorder: events, Clock: clock.RealClock{}, Images: d.CoordinatorImages,
		}).SetupWithManager
		setups["connectivity"] = (&connectivity.Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: events, Clock: clock.RealClock{}, Grace: d.NodeGrace,
		}).SetupWithManager
		setups["hubserving"] = (&hubserving.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}}).SetupWithManager
	}
	if d.Gangs != nil {
		d.Gangs.Recorder, d.Gangs.Rules.Recorder = events, events
		setups["podgroup"] = d.Gangs.SetupWithManager
	}
	for name, setup := range setups {
		if err := setup(mgr); err != nil {
			return fmt.Errorf("registering the %s controller: %w", name, err)
		}
	}
	return nil
}

func (d *Deps) surveyor() *survey.Surveyor {
	return &survey.Surveyor{Pods: d.Pods, Walker: d.Walker, Ledger: d.Ledger, Policies: d.Policies, Clock: clock.RealClock{}}
}
