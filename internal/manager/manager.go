package manager

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacityv1 "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/controller"
	"github.com/atoll-k8s/atoll/internal/controller/workloadkind"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/extender"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/leader"
	"github.com/atoll-k8s/atoll/internal/machinery/memory"
	"github.com/atoll-k8s/atoll/internal/machinery/streamedlist"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/pki"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	webhooks "github.com/atoll-k8s/atoll/internal/webhook"
	podwebhook "github.com/atoll-k8s/atoll/internal/webhook/pod"
	policywebhook "github.com/atoll-k8s/atoll/internal/webhook/policy"
	workloadwebhook "github.com/atoll-k8s/atoll/internal/webhook/workload"
)

// dialTimeout bounds the connection and the TLS handshake to the leader's extender.
const dialTimeout = 3 * time.Second

// lockTimeout is how long the readiness probe waits for the locks of the ledger and the
// walker. A replica in which such a lock is never released must not be Ready.
const lockTimeout = time.Second

// serviceName is the name of the manager's Service in the chart.
const serviceName = "atoll-manager"

// Scheme returns a scheme with the kinds that the manager reads and writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(gm.AddToScheme(scheme))
	utilruntime.Must(apps.AddToScheme(scheme))
	utilruntime.Must(capacityv1.AddToScheme(scheme))
	utilruntime.Must(scheduling.AddToScheme(scheme))
	return scheme
}

// parts are the components that Run creates and connects.
type parts struct {
	config   Config
	mgr      ctrl.Manager
	client   kubernetes.Interface
	keeper   *pki.Keeper
	ledger   *seats.Ledger
	informer *seats.Informer
	walker   *owners.Walker
	policies *policies.Resolver
	nodes    toolscache.ResourceEventHandlerRegistration
	// budgets bound what each namespace takes in the caches.
	budgets budgets
	// assigner hands out seats at creation.
	assigner *assign.Assigner
	// gangs are the components for PodGroups; nil without --gangs.
	gangs *gangParts
	// leader finds the replica that leads.
	leader leaderWatch
	// leading is true while this replica is the leader and all its caches are filled.
	// tenure is the time for which it holds the Lease. It decides only if both allow
	// it: see leads.
	leading atomic.Bool
	tenure  tenure
	// listedOnce is set once all caches have been filled.
	listedOnce atomic.Bool
	probe      lockProbe
	// ready answers the readiness probe. addPorts replaces it once there is a manager.
	ready atomic.Pointer[healthz.Handler]
}

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Run runs the manager until ctx is done.
func Run(ctx context.Context, config *rest.Config, c Config) error {
	memory.Bound(c.MemoryLimit)
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server's priority and fairness is the limit
	p := &parts{config: c, budgets: newBudgets(), tenure: tenure{bounded: c.LeaderElect, duration: c.LeaseDuration, now: time.Now}}
	config.Wrap(p.tenure.fence)
	config.Wrap(streamedlist.Bound(streamedlist.Patience, func(path string, err error) {
		ctrl.Log.WithName("streamedlist").Info("A streamed list has no end; asking for a plain one", "path", path, "error", err.Error())
	}))
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	var err error
	if p.client, err = kubernetes.NewForConfig(protobuf); err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	p.keeper = &pki.Keeper{
		Client: p.client, Namespace: c.Namespace, Names: serverNames(c),
		Clock: clock.RealClock{}, Log: ctrl.Log.WithName("pki"),
	}
	if err := p.keeper.Ensure(ctx); err != nil {
		return fmt.Errorf("preparing certificates: %w", err)
	}
	stopProbes, err := p.serveProbes(ctx)
	if err != nil {
		return err
	}
	defer stopProbes()
	if err := awaitKinds(ctx, kindsFrom(p.client.Discovery()), ownKinds(c.Pools, c.Coordinators), ctrl.Log); err != nil {
		return err
	}
	if p.mgr, err = p.newManager(config); err != nil {
		return err
	}
	p.ledger = seats.NewLedger(clock.RealClock{})
	if p.walker, err = newWalker(config, p.client); err != nil {
		return err
	}
	p.informer = seats.NewInformer(p.ledger, p.client, p.walker.Revision)
	p.walker.OnRevisions(p.informer.Relist)
	bypassed := &bypasses{
		clock: clock.RealClock{}, since: lastAlive(ctx, p.client, c.Namespace, time.Now()),
		policyOwners: p.walker.PolicyOwnersOf, count: bypassesTotal.Inc,
	}
	p.ledger.OnChange(bypassed.observe)
	if err := p.mgr.Add(bypassed); err != nil {
		return fmt.Errorf("adding the count of pods that bypass the webhook: %w", err)
	}
	p.policies = policies.NewResolver(p.mgr.GetClient(), p.walker, p.ledger, clock.RealClock{}, p.config.extenderInUse())
	p.policies.SetBudgets(p.budgets.propagations, p.budgets.overrides)
	if err := errors.Join(p.addCapacity(config), p.addGangs(config)); err != nil {
		return err
	}
	p.assigner = &assign.Assigner{
		Policies: p.policies, Ledger: p.ledger, Leading: p.leads,
		Leader: leader.Leader{Address: p.leader.address, Transport: &http.Transport{
			TLSClientConfig: p.keeper.PeerTLS(), MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		}},
	}
	for _, setup := range []func(context.Context) error{p.connect, p.addControllers, p.addWebhooks, p.addExtender, p.addPorts} {
		if err := setup(ctx); err != nil {
			return err
		}
	}
	return p.mgr.Start(ctx)
}

// addCapacity sets up the capacity classes, if they are in use. It must be called before
// the ledger gets its first pod or node.
func (p *parts) addCapacity(config *rest.Config) error {
	classes, err := p.config.classes()
	if err != nil || classes == nil {
		return err
	}
	p.ledger.SetClasses(classes)
	p.policies.SetClasses(classes)
	p.policies.SetFallback(p.config.CapacityFallback)
	p.policies.Exclude(append([]string{metav1.NamespaceSystem, corev1.NamespaceNodeLease, p.config.Namespace}, p.config.ExcludedNamespaces...)...)
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of metadata: %w", err)
	}
	if err := p.mgr.Add(&policies.Namespaces{Resolver: p.policies, Client: meta}); err != nil {
		return fmt.Errorf("watching namespaces: %w", err)
	}
	return nil
}

// newWalker returns a walker that can watch further kinds at run time.
func newWalker(config *rest.Config, client kubernetes.Interface) (*owners.Walker, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of any kind: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of metadata: %w", err)
	}
	walker := owners.NewWalker(client)
	walker.Extend(objects, meta)
	return walker, nil
}

func (p *parts) newManager(config *rest.Config) (ctrl.Manager, error) {
	c, keeper := p.config, p.keeper
	if _, _, err := splitAddress(c.WebhookAddress); err != nil {
		return nil, fmt.Errorf("reading --webhook-address: %w", err)
	}
	lock, err := p.leaderLock()
	if err != nil {
		return nil, err
	}
	kinds := map[client.Object]cache.ByObject{
		&corev1.Node{}: {Transform: slimNode},
		// Only workloads and revisions of UnitedDeployments are cached.
		&appsv1.Deployment{}: {Label: hasLabel(apps.PoolNameLabel), Transform: ofPool(p.budgets.pools,
			func(m metav1.ObjectMeta) *appsv1.Deployment { return &appsv1.Deployment{ObjectMeta: m} })},
		&appsv1.StatefulSet{}: {Label: hasLabel(apps.PoolNameLabel), Transform: ofPool(p.budgets.pools,
			func(m metav1.ObjectMeta) *appsv1.StatefulSet { return &appsv1.StatefulSet{ObjectMeta: m} })},
		&appsv1.DaemonSet{}: {Label: hasLabel(apps.PoolNameLabel), Transform: ofPool(p.budgets.pools,
			func(m metav1.ObjectMeta) *appsv1.DaemonSet { return &appsv1.DaemonSet{ObjectMeta: m} })},
		&appsv1.ControllerRevision{}: {Label: hasLabel(apps.UnitedDeploymentLabel), Transform: ofPool(p.budgets.pools,
			func(m metav1.ObjectMeta) *appsv1.ControllerRevision { return &appsv1.ControllerRevision{ObjectMeta: m} })},
		&gm.PropagationPolicy{}:  {Transform: ofPropagations(p.budgets.propagations)},
		&gm.OverridePolicy{}:     {Transform: ofOverrides(p.budgets.overrides)},
		&apps.UnitedDeployment{}: {Transform: p.budgets.slimUnitedDeployment},
		// Only the pods of coordinators are cached whole.
		&corev1.Pod{}: {Namespaces: map[string]cache.Config{governance.Namespace: {}}},
		// The pulses of pools, and the heartbeats of nodes.
		&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{governance.Namespace: {}, corev1.NamespaceNodeLease: {}}},
		// The manager has no permission for other ConfigMaps.
		&corev1.ConfigMap{}: {
			Namespaces: map[string]cache.Config{c.Namespace: {}},
			Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, workloadkind.ConfigMapName),
		},
		&certificatesv1.CertificateSigningRequest{}: {Field: fields.OneTermEqualSelector("spec.signerName", governance.HubSigner)},
	}
	renew, retry := c.LeaseDuration*2/3, c.LeaseDuration*2/15
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: Scheme(),
		Logger: ctrl.Log,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject:         kinds,
		},
		WebhookServer: webhooks.NewServer(c.WebhookAddress, serverTLS(keeper), ctrl.Log.WithName(webhooks.Port)),
		// These ports are served by addPorts and serveProbes, which bound what a client can take.
		Metrics:                             metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress:              "0",
		PprofBindAddress:                    "0",
		LeaderElection:                      c.LeaderElect,
		LeaderElectionResourceLockInterface: lock,
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &c.LeaseDuration,
		RenewDeadline:                       &renew,
		RetryPeriod:                         &retry,
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	return mgr, nil
}

func hasLabel(key string) labels.Selector {
	exists, err := labels.NewRequirement(key, selection.Exists, nil)
	utilruntime.Must(err)
	return labels.NewSelector().Add(*exists)
}

func splitAddress(address string) (host string, port int, err error) {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(portText)
	return host, port, err
}

func serverNames(c Config) []string {
	service := serviceName + "." + c.Namespace + ".svc"
	return append([]string{service, service + ".cluster.local"}, c.Names...)
}

// slimNode drops all of a Node that the manager does not read, to save memory. The list
// of images is most of a Node.
func slimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status = corev1.NodeStatus{
			Allocatable: withoutZeros(node.Status.Allocatable),
			Conditions:  ourConditions(node.Status.Conditions),
			Addresses:   internalAddresses(node.Status.Addresses),
		}
	}
	return obj, nil
}

// withoutZeros copies the quantities that are not 0. A node lists each size of huge
// pages, also if it has none.
func withoutZeros(all corev1.ResourceList) corev1.ResourceList {
	some := make(corev1.ResourceList, len(all))
	for key, q := range all {
		if !q.IsZero() {
			some[key] = q
		}
	}
	return some
}

// internalAddresses returns the addresses at which others in the cluster reach a node.
func internalAddresses(all []corev1.NodeAddress) (some []corev1.NodeAddress) {
	for _, a := range all {
		if a.Type == corev1.NodeInternalIP {
			some = append(some, a)
		}
	}
	return some
}

// ourConditions returns the conditions that are read; nil if there is none.
func ourConditions(all []corev1.NodeCondition) (some []corev1.NodeCondition) {
	for _, c := range all {
		if c.Type == corev1.NodeReady || c.Type == connectivity.PodNotWritten {
			some = append(some, c)
		}
	}
	return some
}

// connect passes nodes to the ledger, and pods without an owner from the ledger to the
// walker, because such a pod is its own workload.
func (p *parts) connect(ctx context.Context) error {
	p.ledger.OnChange(func(old, new *seats.Pod) {
		switch {
		case new != nil && new.Controller == nil && new.Active:
			if old == nil || old.Policies != new.Policies || old.IgnoreMissing != new.IgnoreMissing || !old.Active || old.Controller != nil {
				p.walker.Put(new.Object())
			}
		case old != nil && old.Controller == nil:
			p.walker.Drop(old.UID)
		}
	})
	informer, err := p.mgr.GetCache().GetInformer(ctx, &corev1.Node{})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	observe := func(obj any) {
		if node, ok := obj.(*corev1.Node); ok {
			p.ledger.ObserveNode(seats.SlimNode(node))
		}
	}
	p.nodes, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    observe,
		UpdateFunc: func(_, obj any) { observe(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if node, ok := obj.(*corev1.Node); ok {
				p.ledger.ForgetNode(node.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watching nodes: %w", err)
	}
	return errors.Join(p.budgets.watchDeleted(ctx, p.mgr.GetCache(), p.config.Pools), p.mgr.Add(p.walker), p.mgr.Add(p.informer), p.mgr.Add(p.keeper))
}

// freeMemory returns memory to the system once everything has been listed. The caches
// keep about a tenth of what was decoded, and Go returns the rest only slowly.
func (p *parts) freeMemory(ctx context.Context) error {
	if toolscache.WaitForCacheSync(ctx.Done(), p.walker.HasSynced, p.informer.HasSynced, p.nodes.HasSynced) {
		debug.FreeOSMemory()
	}
	return nil
}

// replicaRunnable runs on every replica. A manager.RunnableFunc alone runs on the
// leader only.
type replicaRunnable struct{ manager.RunnableFunc }

func (replicaRunnable) NeedLeaderElection() bool { return false }

func (p *parts) addControllers(context.Context) error {
	return controller.Setup(p.mgr, controller.Deps{
		Gangs:     p.gangs.reconciler(),
		Namespace: p.config.Namespace, Pools: p.config.Pools, Coordinators: p.config.Coordinators, CoordinatorImages: p.config.CoordinatorImages, NodeGrace: p.config.NodeGrace,
		Pods: p.client, Walker: p.walker, Ledger: p.ledger, Policies: p.policies, Synced: p.leading.Load,
		SchedulerName: p.config.SchedulerName, Mark: corev1.ResourceName(p.config.MarkResource),
		Evictor: &eviction.Evictor{
			Client: p.client,
			Pace:   eviction.NewPace(rate.Limit(p.config.EvictionsPerSecond), max(1, int(p.config.EvictionsPerSecond*10))),
			Held:   p.ledger.IsHeld,
		},
	})
}

func (p *parts) addWebhooks(context.Context) error {
	webhook := &podwebhook.Webhook{Walker: p.walker, Policies: p.policies, Assigner: p.assigner, API: p.client, SchedulerName: p.config.SchedulerName, Mark: corev1.ResourceName(p.config.MarkResource), Clock: clock.RealClock{}, Key: p.keeper.SharedKey}
	if p.gangs != nil {
		webhook.Gangs = &podwebhook.Gangs{Resolver: p.gangs.resolver, Store: p.gangs.store}
	}
	webhook.SetupWithManager(p.mgr)
	workloadwebhook.SetupWithManager(p.mgr, p.policies.Absent)
	return policywebhook.SetupWithManager(p.mgr, policywebhook.Options{ExtenderInUse: p.config.extenderInUse(), Fits: p.budgets.fits, AbsentGroups: p.policies.AbsentGroups, Placing: p.policies.Placing})
}

// addExtender adds the server for kube-scheduler, if one calls the extender, and for
// requests that other replicas forward. It runs on every replica. A replica that does
// not lead forwards the requests of kube-scheduler to the leader.
func (p *parts) addExtender(context.Context) error {
	handler := &extender.Handler{
		Policies: p.policies, Ledger: p.ledger, Client: p.client, Wide: p.config.Filter == FilterWide,
		System:  sets.New(metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, p.config.Namespace),
		Leading: p.leads, Leader: &p.assigner.Leader, Log: ctrl.Log.WithName("extender"),
	}
	mux := http.NewServeMux()
	if p.config.extenderInUse() {
		mux = handler.ServeMux()
	}
	mux.Handle(assign.Path, p.assigner)
	server := extender.NewServer(p.config.ExtenderAddress, p.keeper.MutualTLS(pki.ClientName), mux, ctrl.Log.WithName(extender.Port))
	return errors.Join(p.mgr.Add(server), p.mgr.Add(manager.RunnableFunc(p.lead)), p.mgr.Add(replicaRunnable{p.freeMemory}), p.mgr.Add(&p.leader))
}

// lead runs while this replica is elected. It sets leading once all caches are filled
// and the ledger holds everything that the previous leader wrote.
func (p *parts) lead(ctx context.Context) error {
	if err := p.informer.CatchUp(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("catching up before leading: %w", err)
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), p.walker.HasSynced, p.informer.HasSynced, p.nodes.HasSynced) ||
		!p.mgr.GetCache().WaitForCacheSync(ctx) {
		return nil
	}
	p.leading.Store(true)
	ctrl.Log.Info("Leading: the extender answers")
	debug.FreeOSMemory() // as freeMemory does: CatchUp has listed the pods again
	<-ctx.Done()
	p.leading.Store(false)
	return nil
}

// leads returns true if this replica may decide now.
func (p *parts) leads() bool { return p.leading.Load() && p.tenure.holds() }

// listed returns an error until everything has been listed once. When a user adds a
// further kind, its objects are listed while the other caches stay filled, so the
// replica stays Ready.
func (p *parts) listed(*http.Request) error {
	if p.listedOnce.Load() {
		return nil
	}
	if !p.walker.HasSynced() || !p.informer.HasSynced() || !p.nodes.HasSynced() {
		return errors.New("pods, nodes or their owners have not been listed yet")
	}
	p.listedOnce.Store(true)
	return nil
}

// lockProbe takes locks to find out whether they are released. At most one attempt runs
// at a time, however often the readiness probe is called.
type lockProbe struct {
	mu sync.Mutex
	// done is closed when the current attempt ends; nil if there is none.
	done chan struct{}
}

// begin starts an attempt, unless one is running. The returned channel is closed when
// the attempt ends.
func (l *lockProbe) begin(attempt func()) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done != nil {
		return l.done
	}
	done := make(chan struct{})
	l.done = done
	go func() { // ends when the locks are released, or with the process
		attempt()
		l.mu.Lock()
		l.done = nil
		l.mu.Unlock()
		close(done)
	}()
	return done
}

// responsive returns an error while the lock of the ledger or the walker is not released.
func (p *parts) responsive(*http.Request) error {
	done := p.probe.begin(func() {
		p.ledger.GroupsEpoch()
		p.walker.Get("")
	})
	select {
	case <-done:
		return nil
	case <-time.After(lockTimeout):
		return fmt.Errorf("a lock of the ledger or the walker is not released within %s", lockTimeout)
	}
}
