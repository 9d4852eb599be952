// Package coordinator reconciles YurtCoordinators (docs/sources.md, N1 to N5):
//
//   - observe: reads what decides about all coordinators of the cluster, and decides.
//   - certifyCA: writes the Secret with the CA of the pool.
//   - deploy: writes the UnitedDeployment with a pool for each coordinator that is deployed, and its Service. Without
//     any, it deletes both. With another CA the pod is made anew.
//   - certify: writes the Secrets with the certificates of the coordinator.
//   - delegate: writes what lets the hubs of the pool tell the cloud how the pool is.
//   - replace: deletes the pod of the coordinator if the pool became silent, though the cloud hears from its nodes.
//   - report: writes the status, by which hubs find the coordinator.
//
// What a coordinator has is derived from what exists, in each pass: after a restart nothing has to be remembered, and
// of a coordinator that was deleted meanwhile the UnitedDeployment has no pool after the next pass. The Secrets have
// their YurtCoordinator as owner.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	decide "github.com/atoll-k8s/atoll/internal/domain/coordinator"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/pace"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/machinery/trigger"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// againAfter is when a pass is repeated: certificates get old, and what it writes is not watched, though anybody with
	// the right may delete it.
	againAfter = time.Minute
	// countedAfter is when it is looked again whether the nodes of a new pool are counted.
	countedAfter = time.Second
	// authenticationConfigMap, in kube-system, has the CAs of the cluster's client certificates.
	authenticationConfigMap, clientCAField = "extension-apiserver-authentication", "client-ca-file"
)

// autonomyAnnotations are those of OpenYurt for node autonomy. The first one has the value true, the second one a
// duration.
var autonomyAnnotations = []string{"node.beta.openyurt.io/autonomy", "node.openyurt.io/autonomy-duration"}

// Reconciler deploys coordinators.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server: no Secret is cached.
	Live client.Reader
	// Versions tells the version of the cluster's API server.
	Versions discovery.ServerVersionInterface
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	Images   Images

	// statuses bounds status writes by coordinator.
	statuses pace.ByName
	// pulses are what the pools say, and fallen starts passes for those that are silent.
	pulses pulses
	fallen trigger.Source[ctrl.Request]
}

// scope is what one pass observed and did.
type scope struct {
	// coordinator is the one of the pass; nil if it does not exist.
	coordinator *apps.YurtCoordinator
	// observed is what decides about all coordinators, once isObserved.
	observed   decide.Observed
	isObserved bool
	// workload is the UnitedDeployment, if it exists.
	workload *apps.UnitedDeployment
	exists   bool
	// decision is that about coordinator.
	decision decide.Decision
	// nodes are those of its pool, sorted, and addresses has theirs. heard has those from which the cloud hears.
	nodes     []string
	addresses map[string]string
	heard     map[string]bool
	// states are what the cloud concludes about them.
	states map[string]connectivity.State
	// pod is that of the coordinator; nil if there is none.
	pod *corev1.Pod
	// clusterIP is that of the Service, nodesCA the CAs of nodes' certificates, and ca those of the pool.
	clusterIP   string
	nodesCA, ca []byte
	// caKey is the key of the CA that signs.
	caKey []byte
	// certified: all Secrets are there for the node of the pod.
	certified bool
	// pool is what the pool says; nil if it is silent.
	pool *governance.PoolState
	// failed is the error of a phase, for the condition. isTooEarly: the pool is new, and nothing is reported yet.
	failed     error
	isTooEarly bool
}

// address returns that of the node of the pod; "" if it is not known.
func (s *scope) address() string {
	if s.pod == nil {
		return ""
	}
	return s.addresses[s.pod.Spec.NodeName]
}

// delegated returns the nodes that the cloud hears of through the pool.
func (s *scope) delegated() (nodes []string) {
	for _, node := range s.nodes {
		if state := s.states[node]; state == connectivity.Delegated || state == connectivity.Unobserved {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=apps.openyurt.io,resources=yurtcoordinators,verbs=get;list;watch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=apps.openyurt.io,resources=yurtcoordinators/status,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=apps.openyurt.io,resources=nodepools,verbs=get;list;watch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=nodes,verbs=get;list;watch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups="",resources=pods,verbs=get;list;watch;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups="",resources=secrets,verbs=get;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups="",resources=services,verbs=get;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups=apps.openyurt.io,resources=uniteddeployments,verbs=get;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups="",resources=serviceaccounts,verbs=get;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups="",resources=serviceaccounts/token,verbs=create
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups=rbac.authorization.k8s.io,resources=roles;rolebindings,verbs=get;create;update;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;update;patch;delete
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=atoll-pools,groups=atoll.dev,resources=delegations;delegations/pods,verbs=update
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies;validatingadmissionpolicybindings,resourceNames=atoll-delegates,verbs=get
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=kube-system,groups="",resources=configmaps,resourceNames=extension-apiserver-authentication,verbs=get

// SetupWithManager registers the controller. All passes write the one UnitedDeployment, so there is one at a time.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := mgr.Add(manager.RunnableFunc(r.listen)); err != nil {
		return err
	}
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named("coordinator"), r.watches()).
		WatchesRawSource(&r.fallen).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(phase.Backoff[ctrl.Request](r))
}

// Reconcile runs the phases for one coordinator. A request without a name is for what all of them share.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	s := &scope{coordinator: &apps.YurtCoordinator{}}
	err := r.Client.Get(ctx, req.NamespacedName, s.coordinator)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	if err != nil || s.coordinator.DeletionTimestamp != nil {
		s.coordinator = nil
		r.statuses.Forget(req.Name)
	}
	return phase.Run(ctx, s, r.noting(r.observe), r.noting(r.certifyCA), r.noting(r.deploy), r.noting(r.certify), r.noting(r.delegate), r.noting(r.replace), r.report, r.again)
}

// isOf reports whether a coordinator is that of the pass.
func (s *scope) isOf(c *apps.YurtCoordinator) bool {
	return s.coordinator != nil && c.Name == s.coordinator.Name
}

// noting keeps the error of a phase for the condition.
func (r *Reconciler) noting(run phase.Func[*scope]) phase.Func[*scope] {
	return func(ctx context.Context, s *scope) error {
		err := run(ctx, s)
		if err != nil && s.failed == nil {
			s.failed = err
		}
		return err
	}
}

// observe reads what decides about all coordinators, and what there is of this one.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	version, err := r.Versions.ServerVersion()
	if err != nil {
		return fmt.Errorf("asking for the version of the cluster: %w", err)
	}
	s.observed = decide.Observed{ClusterVersion: version.GitVersion, Pools: map[string]decide.Pool{}}
	var all apps.YurtCoordinatorList
	var pools apps.NodePoolList
	if err := errors.Join(r.Client.List(ctx, &all), r.Client.List(ctx, &pools, client.UnsafeDisableDeepCopy)); err != nil {
		return fmt.Errorf("listing YurtCoordinators and NodePools: %w", err)
	}
	for i := range all.Items {
		if all.Items[i].DeletionTimestamp == nil {
			s.observed.Coordinators = append(s.observed.Coordinators, all.Items[i])
		}
	}
	if err := r.observeWorkload(ctx, s); err != nil {
		return err
	}
	slices.SortFunc(s.observed.Coordinators, func(a, b apps.YurtCoordinator) int { return strings.Compare(a.Name, b.Name) })
	for i := range pools.Items {
		if err := r.observePool(ctx, s, &pools.Items[i]); err != nil {
			return err
		}
	}
	if s.coordinator != nil {
		if err := errors.Join(r.observePod(ctx, s), r.observeClientCA(ctx, s)); err != nil {
			return err
		}
		s.decision = decide.Decide(s.coordinator, &s.observed)
		s.pool = r.pulses.state(s.coordinator.Spec.NodePool, r.Clock.Now())
	}
	s.isObserved = true
	return nil
}

// observeWorkload reads the UnitedDeployment.
func (r *Reconciler) observeWorkload(ctx context.Context, s *scope) error {
	s.workload, s.observed.Deployed = &apps.UnitedDeployment{}, map[string]bool{}
	err := r.Live.Get(ctx, client.ObjectKey{Namespace: governance.Namespace, Name: workloadName}, s.workload)
	if client.IgnoreNotFound(err) != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("reading UnitedDeployment %s/%s: %w", governance.Namespace, workloadName, err)
	}
	s.exists = err == nil
	for _, pool := range s.workload.Spec.Topology.Pools {
		s.observed.Deployed[pool.Name] = true
	}
	return nil
}

// observePool reads a pool that a coordinator is for: the nodes of that of the pass, and the number of others.
func (r *Reconciler) observePool(ctx context.Context, s *scope, pool *apps.NodePool) error {
	if pool.DeletionTimestamp != nil || !slices.ContainsFunc(s.observed.Coordinators, func(c apps.YurtCoordinator) bool { return c.Spec.NodePool == pool.Name }) {
		return nil
	}
	own := s.coordinator != nil && s.coordinator.Spec.NodePool == pool.Name
	if own && pool.Status.ObservedGeneration == 0 {
		s.isTooEarly = true
		return phase.Wait("the nodes of the pool, which are not counted yet", countedAfter)
	}
	if own {
		s.nodes, s.addresses, s.heard = pool.Status.Nodes, map[string]string{}, map[string]bool{}
		s.states = map[string]connectivity.State{}
	}
	observed := decide.Pool{Nodes: len(pool.Status.Nodes)}
	if !own { // what else there is of others matters in their own passes
		s.observed.Pools[pool.Name] = observed
		return nil
	}
	for _, name := range pool.Status.Nodes {
		node := &corev1.Node{}
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading node %q: %w", name, err)
		}
		if isAutonomous(node) {
			observed.Autonomous = append(observed.Autonomous, name)
		}
		s.addresses[name], s.heard[name] = addressOf(node), isHeard(node)
		s.states[name] = connectivity.Parse(node.Annotations[connectivity.Annotation]).State
	}
	s.observed.Pools[pool.Name] = observed
	return nil
}

func isAutonomous(node *corev1.Node) bool {
	return slices.ContainsFunc(autonomyAnnotations, func(key string) bool {
		value := node.Annotations[key]
		return value != "" && value != "false" && value != "0"
	})
}

// isHeard reports whether the cloud hears from a node itself, whatever that says.
func isHeard(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown
	})
}

// addressOf returns the first internal address of a node.
func addressOf(node *corev1.Node) string {
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	return ""
}

// observePod finds the pod of the coordinator that was created last, and is not over.
func (r *Reconciler) observePod(ctx context.Context, s *scope) error {
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.InNamespace(governance.Namespace), client.MatchingLabels{nameLabel: nameValue, apps.PoolNameLabel: s.coordinator.Spec.NodePool}); err != nil {
		return fmt.Errorf("listing the pods of coordinators: %w", err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if s.pod == nil || s.pod.CreationTimestamp.Before(&pod.CreationTimestamp) {
			s.pod = pod
		}
	}
	return nil
}

func (r *Reconciler) observeClientCA(ctx context.Context, s *scope) error {
	configMap := &corev1.ConfigMap{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: authenticationConfigMap}, configMap); err != nil {
		return fmt.Errorf("reading the CAs of nodes' certificates, in the ConfigMap %s/%s: %w", metav1.NamespaceSystem, authenticationConfigMap, err)
	}
	s.nodesCA = []byte(configMap.Data[clientCAField])
	if len(s.nodesCA) == 0 {
		return fmt.Errorf("the ConfigMap %s/%s has no %s: the cluster's API server accepts no client certificates, so hubs have none", metav1.NamespaceSystem, authenticationConfigMap, clientCAField)
	}
	return nil
}

// deploy writes the UnitedDeployment and the Service that all coordinators share. Of the others, the pools stay as they
// are: each coordinator has its own pass.
func (r *Reconciler) deploy(ctx context.Context, s *scope) error {
	if !s.isObserved {
		return nil
	}
	pools, err := r.poolsOf(s)
	if err != nil {
		return err
	}
	if len(pools) == 0 {
		if err := r.deleteService(ctx); err != nil || !s.exists {
			return err
		}
		return client.IgnoreNotFound(r.Client.Delete(ctx, s.workload)) // last: it starts the next pass
	}
	if err := r.writeService(ctx, s); err != nil {
		return err
	}
	wanted := workloadOf(r.Images, pools)
	switch {
	case !s.exists:
		err = r.Client.Create(ctx, &apps.UnitedDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: governance.Namespace, Name: workloadName, Labels: map[string]string{nameLabel: nameValue}}, Spec: wanted})
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) { // nothing else can be missing but its namespace
			s.decision = decide.Decision{Reason: apps.ReasonUnitedDeploymentMissing, Message: fmt.Sprintf("the cluster has no kind UnitedDeployment; apply the CustomResourceDefinitions of the chart: %v", err)}
		}
	case !equality.Semantic.DeepEqual(s.workload.Spec, wanted):
		s.workload.Spec = wanted
		err = r.Client.Update(ctx, s.workload)
	}
	if err != nil {
		return fmt.Errorf("writing UnitedDeployment %s/%s: %w", governance.Namespace, workloadName, err)
	}
	return nil
}

// poolsOf returns the pools of the UnitedDeployment, sorted by name.
func (r *Reconciler) poolsOf(s *scope) (pools []apps.Pool, err error) {
	deployed := map[string]apps.Pool{}
	for _, pool := range s.workload.Spec.Topology.Pools {
		deployed[pool.Name] = pool
	}
	for i := range s.observed.Coordinators {
		c := &s.observed.Coordinators[i]
		pool, isDeployed := deployed[c.Spec.NodePool]
		if s.isOf(c) {
			if !s.decision.IsDeployed || !isDeployed && s.ca == nil {
				continue
			}
			if s.decision.Version != "" && s.ca != nil {
				if pool, err = poolOf(c.Spec.NodePool, r.Images.APIServer+":"+s.decision.Version, s.ca); err != nil {
					return nil, err
				}
			}
		} else if !isDeployed || !decide.Decide(c, &s.observed).IsDeployed {
			continue
		}
		pools = append(pools, pool)
	}
	slices.SortFunc(pools, func(a, b apps.Pool) int { return strings.Compare(a.Name, b.Name) })
	return pools, nil
}

func (r *Reconciler) writeService(ctx context.Context, s *scope) error {
	wanted, service := serviceOf(), &corev1.Service{}
	key := client.ObjectKeyFromObject(wanted)
	err := r.Live.Get(ctx, key, service)
	switch {
	case apierrors.IsNotFound(err):
		service = wanted
		err = r.Client.Create(ctx, service)
	case err == nil && (!equality.Semantic.DeepDerivative(wanted.Spec, service.Spec) || !equality.Semantic.DeepDerivative(wanted.Annotations, service.Annotations)):
		service.Spec.Ports, service.Spec.Selector = wanted.Spec.Ports, wanted.Spec.Selector
		metav1.SetMetaDataAnnotation(&service.ObjectMeta, topologyAnnotation, topology)
		err = r.Client.Update(ctx, service)
	}
	if err != nil {
		return fmt.Errorf("writing Service %s: %w", key, err)
	}
	s.clusterIP = service.Spec.ClusterIP
	return nil
}

func (r *Reconciler) deleteService(ctx context.Context) error {
	service := serviceOf()
	if err := r.Client.Delete(ctx, service); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Service %s: %w", client.ObjectKeyFromObject(service), err)
	}
	return nil
}

// report writes the status if it changed and the pace allows it.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if s.coordinator == nil || s.isTooEarly || apierrors.IsConflict(s.failed) { // another pass comes soon
		return nil
	}
	before := s.coordinator.DeepCopy()
	setStatus(s)
	if equality.Semantic.DeepEqual(before.Status, s.coordinator.Status) {
		return nil
	}
	if delay := r.statuses.Delay(s.coordinator.Name, r.Clock.Now(), pace.StatusEvery, pace.StatusBurst); delay > 0 {
		return phase.Wait("the pace of status writes", delay)
	}
	if err := patch.Status(ctx, r.Client, s.coordinator, before); err != nil {
		return err
	}
	r.tell(before, s.coordinator)
	return nil
}

// again repeats the pass after some time.
func (r *Reconciler) again(_ context.Context, s *scope) error {
	if s.coordinator == nil {
		return nil
	}
	return phase.Wait("certificates that get old", againAfter)
}

func isReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
