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
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// lookEvery is the time between two looks at a node that has something of ours, if nothing is heard: pods may come to
	// it, or kube-controller-manager may write their Ready. In a pool with many such nodes it is lookShare for each, so
	// that the API server has to answer 40 looks a second and pool at most.
	lookEvery, lookShare = 5 * time.Second, 25 * time.Millisecond
	// silentEvery is the time between two passes over a pool with a node that is silent: silences grow when the probe
	// comes back.
	silentEvery = 2 * time.Second
	// conflictAfter is the time until a node is looked at again that somebody else has changed meanwhile.
	conflictAfter = 100 * time.Millisecond
	// passes is for how many pools at a time, and writers for how many nodes of a pool and pods of a node.
	passes, writers = 4, 8
	// maxSteps bounds the steps of a node in a pass: a webhook may undo what is written.
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

	// mu guards pools and what is heard of them: Pool and its Nodes. What is seen of nodes belongs to the pass over their
	// pool, and there is one at a time.
	mu    sync.Mutex
	pools map[string]*pool
}

// pool is what is heard of a pool, and seen of its nodes, by name.
type pool struct {
	*decide.Pool

	seen map[string]*seen
	// lookEvery is lookEvery, or longer: see lookShare.
	lookEvery time.Duration
}

// seen is what the passes have seen of a node.
type seen struct {
	// isMarked: the node has something of ours; or its Lease, when its pool has no coordinator.
	isMarked bool
	// taintsGone is since when the node is without taints; zero while it has one.
	taintsGone time.Time
	// version is its resourceVersion.
	version string
	// look is when to look at the node again; zero: when it changes.
	look time.Time
}

// task is a node with something to do.
type task struct {
	*seen

	name string
	// before is the record that the node has, and record the one that it should have.
	before, record decide.Record
	// verdict is nil if the state stays.
	verdict *decide.Verdict
	// isReleased: its pool has no coordinator.
	isReleased bool
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
	p, err := r.observe(ctx, req.Name)
	if p == nil || err != nil {
		return ctrl.Result{}, err
	}
	now := r.Clock.Now()
	tasks, next := r.plan(p, now)
	inParallel(tasks, func(t *task) { r.act(ctx, p, t) })
	r.count(req.Name, p)
	for _, s := range p.seen {
		if !s.look.IsZero() && s.look.Before(next) {
			next = s.look
		}
	}
	return ctrl.Result{RequeueAfter: max(next.Sub(now), conflictAfter)}, nil
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
// something of ours. It returns nil if there are none.
func (r *Reconciler) observe(ctx context.Context, name string) (*pool, error) {
	coordinator, err := r.coordinatorOf(ctx, name)
	if err != nil {
		return nil, err
	}
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	members, leases := map[string]*corev1.Node{}, map[string]*coordinationv1.Lease{}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if poolOf(node) != name {
			continue
		}
		lease := &coordinationv1.Lease{}
		if err := r.Client.Get(ctx, leaseOf(node.Name), lease, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("reading the Lease of node %q: %w", node.Name, err)
		}
		if coordinator != nil || decide.HasMarks(node) || isAnnotated(lease) {
			members[node.Name], leases[node.Name] = node, lease
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(members) == 0 {
		delete(r.pools, name)
		uncount(name)
		return nil, nil //nolint:nilnil // it is what the doc says
	}
	now := r.Clock.Now()
	p := r.pools[name]
	if p == nil {
		p = &pool{Pool: decide.NewPool(r.Grace, now), seen: map[string]*seen{}}
		r.pools[name] = p
	}
	p.HasCoordinator, p.FrozenLimit = coordinator != nil, nil
	if coordinator != nil && coordinator.Spec.FrozenLimit != nil {
		p.FrozenLimit = &coordinator.Spec.FrozenLimit.Duration
	}
	for member, node := range members {
		if p.Nodes[member] == nil {
			p.Add(member, decide.Parse(node.Annotations[decide.Annotation]), beatOf(leases[member]), now)
			p.seen[member] = &seen{}
		}
		p.seen[member].see(node, now)
		if coordinator == nil && isAnnotated(leases[member]) {
			p.seen[member].isMarked = true
		}
	}
	for member := range p.Nodes {
		if members[member] == nil {
			delete(p.Nodes, member)
			delete(p.seen, member)
		}
	}
	return p, nil
}

// see notes how the cache has a node. The cache may be behind what was written: a mark is gone when the API server has
// been asked.
func (s *seen) see(node *corev1.Node, now time.Time) {
	s.isMarked = s.isMarked || decide.HasMarks(node)
	if decide.HasTaints(node) {
		s.taintsGone = time.Time{}
	} else if s.taintsGone.IsZero() {
		s.taintsGone = now
	}
	if s.version != node.ResourceVersion && s.isMarked {
		s.look = now
	}
	s.version = node.ResourceVersion
}

// plan decides, and returns the nodes of which something is to be done now, and when to decide again.
func (r *Reconciler) plan(p *pool, now time.Time) (tasks []*task, next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	decision := decide.Decide(p.Pool, now)
	next = decision.Next
	marked := 0
	for name, record := range decision.Records {
		t := &task{seen: p.seen[name], name: name, before: p.Nodes[name].Record, record: record, isReleased: !p.HasCoordinator}
		if silent := now.Add(silentEvery); record.Silent > 0 && record.State != decide.Lost && silent.Before(next) {
			next = silent
		}
		if t.isMarked {
			marked++
		}
		if i := slices.IndexFunc(decision.Verdicts, func(v decide.Verdict) bool { return v.Node == name }); i >= 0 {
			t.verdict = &decision.Verdicts[i]
		}
		switch {
		case record.String() != t.before.String() || t.isMarked && !now.Before(t.look):
			tasks = append(tasks, t)
		case !t.isMarked:
			t.look = time.Time{} // what failed is not to be done any more
		}
	}
	p.lookEvery = max(lookEvery, time.Duration(marked)*lookShare)
	return tasks, next
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

// act does what is to be done of a node, and notes what the node has then. What fails is done again at the next look: an
// error would delay the whole pool.
func (r *Reconciler) act(ctx context.Context, p *pool, t *task) {
	node, err := r.takeSteps(ctx, t)
	if node != nil {
		have := decide.Parse(node.Annotations[decide.Annotation])
		if have.State != t.before.State && t.verdict != nil {
			r.concluded(node, t.verdict)
		}
		t.isMarked = decide.HasMarks(node)
		r.mu.Lock()
		p.Nodes[t.name].Record = have
		r.mu.Unlock()
	}
	now := r.Clock.Now()
	switch {
	case apierrors.IsConflict(err):
		t.look = now.Add(conflictAfter)
	case err == nil && !t.isMarked:
		t.look = time.Time{}
	default:
		t.look = now.Add(p.lookEvery)
	}
	if err != nil && !apierrors.IsConflict(err) {
		log.FromContext(ctx).V(1).Info("Steps of a node are left", "node", t.name, "state", t.record.State, "reason", err.Error())
	}
}

// takeSteps does the steps of a node until all are done, one waits, or one fails. It returns the node as it is then; nil if
// it could not be read, or there is none.
func (r *Reconciler) takeSteps(ctx context.Context, t *task) (*corev1.Node, error) {
	o := &decide.Observed{Record: t.record, Node: &corev1.Node{}, TaintsGone: t.taintsGone, Now: r.Clock.Now()}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: t.name}, o.Node); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	var pods corev1.PodList
	if err := r.Live.List(ctx, &pods, client.MatchingFields{"spec.nodeName": t.name}); err != nil {
		return nil, fmt.Errorf("listing the pods of node %q: %w", t.name, err)
	}
	for i := range pods.Items {
		o.Pods = append(o.Pods, &pods.Items[i])
	}
	// What keeps pods where they are comes in its order, or not at all. What lets them go does not wait for one pod that
	// somebody refuses to be written.
	letsGo := t.record.State == decide.Lost || t.record.State == decide.Released
	var refused *notWritten
	failed, left, isDone := error(nil), 0, false
	for range maxSteps {
		steps := decide.Steps(o)
		if isDone = len(steps) == 0; isDone && t.isReleased {
			failed = r.releaseLease(ctx, t.name)
			break
		}
		if len(steps) <= left || steps[left].IsWait || left > 0 && steps[left].Node != nil && !steps[left].IsStatus { // the mark goes last
			break
		}
		ofPod, err := r.take(ctx, o, &steps[left])
		if refused == nil {
			refused = ofPod
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", steps[left].Note, err))
			if !letsGo || steps[left].Node != nil {
				break
			}
			left++
		}
	}
	if _ = errors.As(failed, &refused); refused != nil || failed == nil && isDone {
		failed = errors.Join(failed, r.tellPodNotWritten(ctx, o, refused))
	}
	return o.Node, failed
}

// tellPodNotWritten writes the condition of a node of which a pod cannot be written, and removes it if there is none.
func (r *Reconciler) tellPodNotWritten(ctx context.Context, o *decide.Observed, refused *notWritten) error {
	message := ""
	if refused != nil {
		message = refused.Error()
	}
	node := decide.TellPodNotWritten(o.Node, message, o.Now)
	if node == nil {
		return nil
	}
	if err := r.write(ctx, o.Node, node, true); err != nil {
		return fmt.Errorf("the condition %s: %w", decide.PodNotWritten, err)
	}
	o.Node = node
	return nil
}

// notWritten is why a pod cannot be written.
type notWritten struct {
	error

	pod *corev1.Pod
}

// Error names the pod, in no more bytes than an event accepts.
func (n *notWritten) Error() string {
	const shown = 700 // the API server accepts 1024
	return fmt.Sprintf("Pod %s/%s: %s", n.pod.Namespace, n.pod.Name, conditions.Truncate(conditions.Printable(n.error.Error()), shown))
}

// take writes what a step says, and puts what was written in the place of what was observed. A pod that is invalid with what
// the step adds is observed no more, and returned: its author alone can decide that, so that nobody else waits for it.
func (r *Reconciler) take(ctx context.Context, o *decide.Observed, step *decide.Step) (invalid *notWritten, err error) {
	if step.Node != nil {
		if err := r.write(ctx, o.Node, step.Node, step.IsStatus); err != nil {
			return nil, err
		}
		o.Node = step.Node
		return nil, nil
	}
	observed := map[types.UID]int{}
	for i, pod := range o.Pods {
		observed[pod.UID] = i
	}
	errs, alone := make([]error, len(o.Pods)), make(chan *notWritten, len(o.Pods))
	inParallel(step.Pods, func(pod *corev1.Pod) {
		i := observed[pod.UID]
		err := r.write(ctx, o.Pods[i], pod, step.IsStatus)
		switch {
		case err == nil:
			o.Pods[i] = pod
		case apierrors.IsNotFound(err):
			o.Pods[i] = nil
		case apierrors.IsConflict(err), apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsServiceUnavailable(err):
			errs[i] = err // nothing is wrong with the pod
		default:
			refused := &notWritten{fmt.Errorf("%s: %w", step.Note, err), pod}
			r.Recorder.Eventf(o.Node, pod, corev1.EventTypeWarning, "PodNotWritten", "Conclude", "%s", refused.Error())
			if !isInvalid(err) {
				errs[i] = refused
				return
			}
			o.Pods[i] = nil
			alone <- refused
		}
	})
	close(alone)
	o.Pods = slices.DeleteFunc(o.Pods, func(pod *corev1.Pod) bool { return pod == nil })
	return <-alone, errors.Join(errs...)
}

// isInvalid reports whether the API server has refused an object for one of its fields. What admission refuses names none.
func isInvalid(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return c.Field != "" })
}

// write writes the differences between two versions of an object, if nobody else has changed it meanwhile.
func (r *Reconciler) write(ctx context.Context, before, after client.Object, isStatus bool) error {
	patch := client.StrategicMergeFrom(before, client.MergeFromWithOptimisticLock{})
	if isStatus {
		return r.Client.Status().Patch(ctx, after, patch)
	}
	return r.Client.Patch(ctx, after, patch)
}

// releaseLease takes our annotations off the Lease of a node whose pool has no coordinator.
func (r *Reconciler) releaseLease(ctx context.Context, name string) error {
	lease := &coordinationv1.Lease{}
	if err := r.Live.Get(ctx, leaseOf(name), lease); err != nil {
		return client.IgnoreNotFound(err)
	}
	if !isAnnotated(lease) {
		return nil
	}
	released := lease.DeepCopy()
	delete(released.Annotations, governance.DelegatedAnnotation)
	delete(released.Annotations, governance.CutOffUntilAnnotation)
	return r.write(ctx, lease, released, false)
}

// isAnnotated reports whether a Lease has an annotation of ours: a heartbeat, the last or an earlier one, came through the pool.
func isAnnotated(lease *coordinationv1.Lease) bool {
	_, wasDelegated := lease.Annotations[governance.DelegatedAnnotation]
	_, isConfirmed := lease.Annotations[governance.CutOffUntilAnnotation]
	return wasDelegated || isConfirmed
}

func leaseOf(node string) client.ObjectKey {
	return client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: node}
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
	text := lease.Annotations[governance.DelegatedAnnotation]
	return text != "" && text == beatOf(lease)
}

// insideOf returns the nodes of a pool which its pulse does not name as outside: all of them before the coordinator knows it.
func insideOf(nodes map[string]*decide.Node, state *governance.PoolState) (inside []string) {
	for name := range nodes {
		if state == nil || !slices.Contains(state.Outside, name) {
			inside = append(inside, name)
		}
	}
	return inside
}
