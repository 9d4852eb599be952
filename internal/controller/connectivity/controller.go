// Package connectivity carries out what the cloud concludes about the nodes of pools that have a coordinator: it hears the
// heartbeats of nodes and the pulses of pools, lets internal/domain/connectivity decide, and does the steps of each node,
// one write at a time.
//
// What was concluded about a node is on the Node itself, so that a manager that starts goes on from there. Times are those
// of receipt.
package connectivity

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// lookEvery is the time between two passes over a pool with a node that is not Direct: pods may come to it, or
	// kube-controller-manager may write their Ready. silentEvery is that over one with a node that is silent.
	lookEvery, silentEvery = 5 * time.Second, 2 * time.Second
	// passes is for how many pools at a time, and writers for how many nodes of a pool and pods of a node.
	passes, writers = 4, 8
	// maxSteps bounds the steps of a node in a pass.
	maxSteps = 8
)

// Reconciler acts on nodes by pool.
type Reconciler struct {
	Client client.Client
	// Live reads from the API server: most pods are not cached, and only parts of nodes.
	Live     client.Reader
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Grace is the --node-monitor-grace-period of kube-controller-manager.
	Grace time.Duration

	mu    sync.Mutex
	pools map[string]*pool
}

// pool is what is heard of a pool.
type pool struct {
	*decide.Pool

	// taintsGone is since when nodes are seen without taints.
	taintsGone map[string]time.Time
	// marked are the nodes that have something of ours, or had it at the last pass.
	marked map[string]bool
}

// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=nodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=nodes/status,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=pods,verbs=list;patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,groups="",resources=pods/status,verbs=patch
// +kubebuilder:rbac:roleName=atoll-manager-coordinator,namespace=kube-node-lease,groups=coordination.k8s.io,resources=leases,verbs=get;list;watch;create;patch

// SetupWithManager registers the controller.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	if err := decide.CheckGrace(r.Grace); err != nil {
		return err
	}
	r.pools = map[string]*pool{}
	if err := mgr.Add(manager.RunnableFunc(r.probe)); err != nil {
		return err
	}
	return watch.Add(ctrl.NewControllerManagedBy(mgr).Named("connectivity"), r.watches()).
		WithOptions(controller.Options{MaxConcurrentReconciles: passes}).
		Complete(r)
}

// Reconcile decides about the nodes of a pool, and does what is left to do. A request without a name is for nodes in no
// pool.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if err := r.observe(ctx, req.Name); err != nil {
		return ctrl.Result{}, err
	}
	r.mu.Lock()
	p := r.pools[req.Name]
	if p == nil {
		r.mu.Unlock()
		return ctrl.Result{}, nil
	}
	now := r.Clock.Now()
	decision := decide.Decide(p.Pool, now)
	type task struct {
		record     decide.Record
		taintsGone time.Time
	}
	tasks := map[string]task{}
	isSilent := false
	for name, record := range decision.Records {
		isSilent = isSilent || record.Silent > 0
		if record.String() != p.Nodes[name].Record.String() || p.marked[name] {
			tasks[name] = task{record, p.taintsGone[name]}
		}
	}
	r.mu.Unlock()

	r.tell(ctx, decision.Verdicts)
	after := decision.Next.Sub(now)
	var mu sync.Mutex
	var failed error
	inParallel(slices.Sorted(maps.Keys(tasks)), func(name string) {
		state, err := r.act(ctx, name, tasks[name].record, tasks[name].taintsGone)
		r.mu.Lock()
		if n := p.Nodes[name]; n != nil && state.isRead {
			n.Record, p.marked[name] = state.record, state.isMarked
		}
		r.mu.Unlock()
		mu.Lock()
		defer mu.Unlock()
		if state.isMarked || state.record.State != decide.Direct {
			after = min(after, lookEvery)
		}
		if err != nil && !apierrors.IsConflict(err) {
			failed = errors.Join(failed, err)
		} else if err != nil {
			after = 0
		}
	})
	if isSilent {
		after = min(after, silentEvery)
	}
	if failed != nil {
		return ctrl.Result{}, failed
	}
	return ctrl.Result{RequeueAfter: max(after, 100*time.Millisecond)}, nil
}

func inParallel[T any](all []T, do func(T)) {
	var running sync.WaitGroup
	room := make(chan struct{}, writers)
	for _, one := range all {
		room <- struct{}{}
		running.Go(func() {
			defer func() { <-room }()
			do(one)
		})
	}
	running.Wait()
}

// observe notes which nodes a pool has, and whether it has a coordinator. Of one without, only nodes count that have
// something of ours.
func (r *Reconciler) observe(ctx context.Context, name string) error {
	coordinator, err := r.coordinatorOf(ctx, name)
	if err != nil {
		return err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	now := r.Clock.Now()
	members, leases := map[string]*corev1.Node{}, map[string]*coordinationv1.Lease{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if node.Labels[apps.NodePoolLabel] != name {
			continue
		}
		lease := &coordinationv1.Lease{}
		if err := r.Client.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node.Name}, lease, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading the Lease of node %q: %w", node.Name, err)
		}
		if coordinator != nil || decide.HasMarks(node) || isAnnotated(lease) {
			members[node.Name], leases[node.Name] = node, lease
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[name]
	if len(members) == 0 {
		delete(r.pools, name)
		return nil
	}
	if p == nil {
		p = &pool{Pool: decide.NewPool(r.Grace, now), taintsGone: map[string]time.Time{}, marked: map[string]bool{}}
		r.pools[name] = p
	}
	p.HasCoordinator, p.FrozenLimit = coordinator != nil, nil
	if coordinator != nil && coordinator.Spec.FrozenLimit != nil {
		p.FrozenLimit = &coordinator.Spec.FrozenLimit.Duration
	}
	for member, node := range members {
		if p.Nodes[member] == nil {
			p.Add(member, decide.Parse(node.Annotations[decide.Annotation]), beatOf(leases[member]), now)
		}
		p.marked[member] = p.marked[member] || decide.HasMarks(node) || isAnnotated(leases[member]) && (coordinator == nil || !isDelegated(leases[member]))
		if decide.HasTaints(node) {
			delete(p.taintsGone, member)
		} else if p.taintsGone[member].IsZero() {
			p.taintsGone[member] = now
		}
	}
	for member := range p.Nodes {
		if members[member] == nil {
			delete(p.Nodes, member)
			delete(p.taintsGone, member)
			delete(p.marked, member)
		}
	}
	return nil
}

// coordinatorOf returns the coordinator that is deployed for a pool; nil if there is none.
func (r *Reconciler) coordinatorOf(ctx context.Context, pool string) (*apps.YurtCoordinator, error) {
	var all apps.YurtCoordinatorList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing YurtCoordinators: %w", err)
	}
	for i := range all.Items {
		if c := &all.Items[i]; pool != "" && c.Spec.NodePool == pool && c.DeletionTimestamp == nil && len(c.Status.CABundle) > 0 {
			return c, nil
		}
	}
	return nil, nil //nolint:nilnil // it is what the doc says
}

// tell emits an event for each transition of a node.
func (r *Reconciler) tell(ctx context.Context, verdicts []decide.Verdict) {
	for _, v := range verdicts {
		node := &corev1.Node{}
		if r.Client.Get(ctx, client.ObjectKey{Name: v.Node}, node, client.UnsafeDisableDeepCopy) != nil {
			continue // it has just gone
		}
		kind := corev1.EventTypeWarning
		if v.To == decide.Direct || v.To == decide.Released {
			kind = corev1.EventTypeNormal
		}
		r.Recorder.Eventf(node, nil, kind, v.Reason, "Conclude", "%s, was %s: %s", v.To, v.From, v.Message)
	}
}

// acted is what a node has after its steps.
type acted struct {
	// isRead: the node was read, so that the rest is known.
	isRead   bool
	record   decide.Record
	isMarked bool
}

// act does the steps of a node, until all are done or one waits.
func (r *Reconciler) act(ctx context.Context, name string, record decide.Record, taintsGone time.Time) (a acted, err error) {
	for range maxSteps {
		o := &decide.Observed{Record: record, Node: &corev1.Node{}, TaintsGone: taintsGone, Now: r.Clock.Now()}
		if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, o.Node); err != nil {
			return a, client.IgnoreNotFound(err)
		}
		a = acted{true, decide.Parse(o.Node.Annotations[decide.Annotation]), decide.HasMarks(o.Node)}
		var pods corev1.PodList
		if err := r.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": name}); err != nil {
			return a, fmt.Errorf("listing the pods of node %q: %w", name, err)
		}
		for i := range pods.Items {
			o.Pods = append(o.Pods, &pods.Items[i])
		}
		steps := decide.Steps(o)
		if len(steps) == 0 {
			if record.State == decide.Direct || record.State == decide.Released {
				return a, r.releaseLease(ctx, name)
			}
			return a, nil
		}
		if steps[0].IsWait {
			return a, nil
		}
		if err := r.do(ctx, o, &steps[0]); err != nil {
			return a, fmt.Errorf("node %q: %s: %w", name, steps[0].Note, err)
		}
	}
	return a, nil
}

// do writes what a step says.
func (r *Reconciler) do(ctx context.Context, o *decide.Observed, step *decide.Step) error {
	if step.Node != nil {
		return r.write(ctx, o.Node, step.Node, step.IsStatus)
	}
	before := map[client.ObjectKey]*corev1.Pod{}
	for _, pod := range o.Pods {
		before[client.ObjectKeyFromObject(pod)] = pod
	}
	var mu sync.Mutex
	var failed error
	inParallel(step.Pods, func(pod *corev1.Pod) {
		err := r.write(ctx, before[client.ObjectKeyFromObject(pod)], pod, step.IsStatus)
		if client.IgnoreNotFound(err) == nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if !apierrors.IsConflict(err) {
			r.Recorder.Eventf(o.Node, pod, corev1.EventTypeWarning, "PodNotWritten", "Conclude", "%s: pod %s/%s: %s", step.Note, pod.Namespace, pod.Name, bounded(err))
		}
		failed = errors.Join(failed, fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err))
	})
	return failed
}

func bounded(err error) string {
	const shown = 700 // bytes; the API server accepts 1024 for the event
	text := err.Error()
	return text[:min(len(text), shown)]
}

// write writes the differences between two versions of an object, if nobody else has changed it meanwhile.
func (r *Reconciler) write(ctx context.Context, before, after client.Object, isStatus bool) error {
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if isStatus {
		return r.Client.Status().Patch(ctx, after, patch)
	}
	return r.Client.Patch(ctx, after, patch)
}

// releaseLease takes the annotation off the Lease of a node of which no heartbeat is forwarded any more: its kubelet goes on
// writing it.
func (r *Reconciler) releaseLease(ctx context.Context, name string) error {
	lease := &coordinationv1.Lease{}
	if err := r.Live.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: name}, lease); err != nil {
		return client.IgnoreNotFound(err)
	}
	if released := decide.ReleasedLease(lease); released != nil {
		return r.write(ctx, lease, released, false)
	}
	return nil
}

// isAnnotated reports whether a heartbeat in a Lease, the last or an earlier one, came through the pool.
func isAnnotated(lease *coordinationv1.Lease) bool {
	_, has := lease.Annotations[decide.DelegatedAnnotation]
	return has
}

// beatOf returns the renewTime of a Lease as text, "" without one.
func beatOf(lease *coordinationv1.Lease) string {
	if lease.Spec.RenewTime == nil {
		return ""
	}
	return lease.Spec.RenewTime.UTC().Format(metav1.RFC3339Micro)
}

// isDelegated reports whether the last heartbeat in a Lease came through the pool.
func isDelegated(lease *coordinationv1.Lease) bool {
	text := lease.Annotations[decide.DelegatedAnnotation]
	return text != "" && text == beatOf(lease)
}

// insideOf returns the nodes of a pool which its pulse does not name as outside.
func insideOf(nodes map[string]*decide.Node, state *governance.PoolState) (inside []string) {
	for name := range nodes {
		if state != nil && !slices.Contains(state.Outside, name) {
			inside = append(inside, name)
		}
	}
	return inside
}
