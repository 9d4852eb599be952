package manager

import (
	"context"
	"crypto/tls"
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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	capacityv1 "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/controller"
	"github.com/atoll-k8s/atoll/internal/controller/workloadkind"
	"github.com/atoll-k8s/atoll/internal/extender"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/pki"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/seats"
	webhooks "github.com/atoll-k8s/atoll/internal/webhook"
	podwebhook "github.com/atoll-k8s/atoll/internal/webhook/pod"
	policywebhook "github.com/atoll-k8s/atoll/internal/webhook/policy"
)

// dialTimeout bounds how long a replica tries to reach the leader's.
const dialTimeout = 3 * time.Second

// lockTimeout bounds how long a replica that is Ready takes to look into its
// ledger and its walk: one of which a lock is held for good answers nobody.
const lockTimeout = time.Second

// serviceName is the name of the Service that the chart puts before the manager.
const serviceName = "atoll-manager"

// Scheme knows the kinds that the manager reads and writes.
func Scheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(gm.AddToScheme(scheme))
	utilruntime.Must(apps.AddToScheme(scheme))
	utilruntime.Must(capacityv1.AddToScheme(scheme))
	utilruntime.Must(scheduling.AddToScheme(scheme))
	return scheme
}

// parts are what Run puts together.
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
	// assigner hands out seats at creation.
	assigner *assign.Assigner
	// gangs are what PodGroups need; nil where nobody wants any.
	gangs *gangParts
	// leader knows which replica leads.
	leader leaderWatch
	// leading is set once this replica knows all that it decides by, and tenure is the
	// time for which it may.
	leading atomic.Bool
	tenure  tenure
	// listedOnce is set once all caches have been filled.
	listedOnce atomic.Bool
	look       look
}

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// Run runs the manager until ctx is done.
func Run(ctx context.Context, config *rest.Config, c Config) error {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server's priority and fairness is the limit
	p := &parts{config: c, tenure: tenure{bounded: c.LeaderElect, lasts: c.LeaseDuration, now: time.Now}}
	config.Wrap(p.tenure.fence)
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
		application: p.walker.ApplicationOfOwner, count: bypassesTotal.Inc,
	}
	p.ledger.OnChange(bypassed.observe)
	if err := p.mgr.Add(bypassed); err != nil {
		return fmt.Errorf("counting pods that went past the webhook: %w", err)
	}
	p.policies = policies.NewResolver(p.mgr.GetClient(), p.walker, p.ledger, clock.RealClock{}, p.config.asked())
	if err := errors.Join(p.addCapacity(config), p.addGangs(config)); err != nil {
		return err
	}
	p.assigner = &assign.Assigner{
		Policies: p.policies, Ledger: p.ledger, Leading: p.leads, Leader: p.leader.address,
		Transport: &http.Transport{
			TLSClientConfig: p.keeper.PeerTLS(), MaxIdleConnsPerHost: 16, IdleConnTimeout: time.Minute,
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		},
	}
	for _, setup := range []func(context.Context) error{p.connect, p.addControllers, p.addWebhooks, p.addExtender, p.addHealth} {
		if err := setup(ctx); err != nil {
			return err
		}
	}
	return p.mgr.Start(ctx)
}

// addCapacity makes classes of capacity known, before anything is fed.
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

// newWalker makes a walk that can be told of further kinds.
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
	host, port, err := splitAddress(c.WebhookAddress)
	if err != nil {
		return nil, fmt.Errorf("reading --webhook-address: %w", err)
	}
	lock, err := p.leaderLock()
	if err != nil {
		return nil, err
	}
	renew, retry := c.LeaseDuration*2/3, c.LeaseDuration*2/15
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: Scheme(),
		Logger: ctrl.Log,
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Node{}: {Transform: slimNode},
				// Of workloads and revisions, those of UnitedDeployments.
				&appsv1.Deployment{}:         {Label: hasLabel(apps.PoolNameLabel)},
				&appsv1.StatefulSet{}:        {Label: hasLabel(apps.PoolNameLabel)},
				&appsv1.DaemonSet{}:          {Label: hasLabel(apps.PoolNameLabel)},
				&appsv1.ControllerRevision{}: {Label: hasLabel(apps.UnitedDeploymentLabel)},
				// The manager may read no other.
				&corev1.ConfigMap{}: {
					Namespaces: map[string]cache.Config{c.Namespace: {}},
					Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, workloadkind.ConfigMapName),
				},
			},
		},
		WebhookServer: &webhooks.Bounded{Server: webhook.NewServer(webhook.Options{Host: host, Port: port, TLSOpts: []func(*tls.Config){keeper.ServerTLS}})},
		Metrics: metricsserver.Options{
			BindAddress: c.MetricsAddress, SecureServing: true, TLSOpts: []func(*tls.Config){keeper.ServerTLS},
			FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		PprofBindAddress:                    c.ProfileAddress,
		HealthProbeBindAddress:              c.HealthAddress,
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

// slimNode drops what nothing here reads; images alone are most of a Node.
func slimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		node.ManagedFields = nil
		node.Status = corev1.NodeStatus{
			Allocatable: keepSome(node.Status.Allocatable),
			Conditions:  readyCondition(node.Status.Conditions),
		}
	}
	return obj, nil
}

// keepSome copies the resources of which there is some: a node that has no huge
// pages names each size of them.
func keepSome(all corev1.ResourceList) corev1.ResourceList {
	kept := make(corev1.ResourceList, len(all))
	for key, q := range all {
		if !q.IsZero() {
			kept[key] = q
		}
	}
	return kept
}

// readyCondition copies the condition Ready, of which there is at most one.
func readyCondition(all []corev1.NodeCondition) []corev1.NodeCondition {
	for _, c := range all {
		if c.Type == corev1.NodeReady {
			return []corev1.NodeCondition{c}
		}
	}
	return nil
}

// connect feeds the ledger with nodes, and the walk with pods that have no owner.
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
	return errors.Join(p.mgr.Add(p.walker), p.mgr.Add(p.informer), p.mgr.Add(p.keeper))
}

// trim gives memory back once everything has been listed: of what was decoded
// a tenth is kept, and Go returns the rest to the system only slowly.
func (p *parts) trim(ctx context.Context) error {
	if toolscache.WaitForCacheSync(ctx.Done(), p.walker.HasSynced, p.informer.HasSynced, p.nodes.HasSynced) {
		debug.FreeOSMemory()
	}
	return nil
}

// replicaRunnable runs on every replica.
type replicaRunnable func(context.Context) error

func (f replicaRunnable) Start(ctx context.Context) error { return f(ctx) }
func (f replicaRunnable) NeedLeaderElection() bool        { return false }

func (p *parts) addControllers(context.Context) error {
	return controller.Setup(p.mgr, controller.Deps{
		Gangs:     p.gangs.deps(),
		Namespace: p.config.Namespace, Pools: p.config.Pools,
		Pods: p.client, Walker: p.walker, Ledger: p.ledger, Policies: p.policies, Synced: p.leading.Load,
		Evictor: &eviction.Evictor{
			Client: p.client,
			Pace:   rate.NewLimiter(rate.Limit(p.config.EvictionsPerSecond), max(1, int(p.config.EvictionsPerSecond*10))),
		},
	})
}

func (p *parts) addWebhooks(context.Context) error {
	webhook := &podwebhook.Webhook{Walker: p.walker, Policies: p.policies, Assigner: p.assigner, API: p.client, SchedulerName: p.config.SchedulerName, Mark: corev1.ResourceName(p.config.MarkResource), Clock: clock.RealClock{}, Key: p.keeper.SharedKey}
	if p.gangs != nil {
		webhook.Gangs = &podwebhook.Gangs{Resolver: p.gangs.resolver, Store: p.gangs.store}
	}
	webhook.SetupWithManager(p.mgr)
	return policywebhook.SetupWithManager(p.mgr, p.config.asked())
}

// addExtender serves the extender on every replica, where somebody asks it, and
// answers to other replicas; only the one that leads gives any.
func (p *parts) addExtender(context.Context) error {
	handler := &extender.Handler{
		Policies: p.policies, Ledger: p.ledger, Client: p.client, Wide: p.config.Filter == FilterWide,
		Leading: p.leads, Log: ctrl.Log.WithName("extender"),
		Forwarder: &extender.Forwarder{
			Leader:    p.leader.address,
			Transport: p.assigner.Transport,
		},
	}
	mux := http.NewServeMux()
	if p.config.asked() {
		mux = handler.ServeMux()
	}
	mux.Handle(assign.Path, p.assigner)
	server := &extender.Server{
		Address: p.config.ExtenderAddress, TLS: p.keeper.MutualTLS(pki.ClientName),
		Handler: mux, Log: ctrl.Log.WithName("extender"),
	}
	return errors.Join(p.mgr.Add(server), p.mgr.Add(leaderRunnable(p.lead)), p.mgr.Add(replicaRunnable(p.trim)), p.mgr.Add(&p.leader))
}

// leaderRunnable runs on the replica that leads.
type leaderRunnable func(context.Context) error

func (f leaderRunnable) Start(ctx context.Context) error { return f(ctx) }
func (f leaderRunnable) NeedLeaderElection() bool        { return true }

// lead opens the extender once everything that it reads has been listed, and
// the ledger knows what the last leader did.
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
	debug.FreeOSMemory() // as trim does, after one more list
	<-ctx.Done()
	p.leading.Store(false)
	return nil
}

// leads tells whether this replica decides now.
func (p *parts) leads() bool { return p.leading.Load() && p.tenure.holds() }

// addHealth: healthy is a process that serves; ready is one that can answer
// webhooks, which every replica does. Neither depends on kinds that somebody
// named: see owners.Walker.HasSynced.
func (p *parts) addHealth(context.Context) error {
	return errors.Join(
		p.mgr.AddHealthzCheck("ping", healthz.Ping),
		p.mgr.AddReadyzCheck("webhooks", p.mgr.GetWebhookServer().StartedChecker()),
		p.mgr.AddReadyzCheck("caches", p.listed),
		p.mgr.AddReadyzCheck("locks", p.responsive),
	)
}

// listed is an error until everything has been listed once. A list that begins
// anew, because somebody named another kind, leaves what is known in place.
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

// look is a look into the ledger and the walk, of which one at most goes on.
type look struct {
	mu sync.Mutex
	// answered is closed when it is over; nil while none goes on.
	answered chan struct{}
}

// begin begins a look, or joins the one that goes on.
func (l *look) begin(at func()) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answered != nil {
		return l.answered
	}
	answered := make(chan struct{})
	l.answered = answered
	go func() { // ends with the locks that it waits for, or with the process
		at()
		l.mu.Lock()
		l.answered = nil
		l.mu.Unlock()
		close(answered)
	}()
	return answered
}

// responsive is an error while the ledger or the walk does not answer.
func (p *parts) responsive(*http.Request) error {
	answered := p.look.begin(func() {
		p.ledger.GroupsEpoch()
		p.walker.Get("")
	})
	select {
	case <-answered:
		return nil
	case <-time.After(lockTimeout):
		return fmt.Errorf("the ledger or the owners' walk does not answer within %s", lockTimeout)
	}
}
