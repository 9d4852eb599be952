package uniteddeployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/budget"
)

// observe sets the planner's input.
func (r *Reconciler) observe(ctx context.Context, s *scope) error {
	if s.update == nil || s.replaced {
		return nil
	}
	began := r.Clock.Now()
	defer func() {
		r.changed.Took(ctrl.Request{NamespacedName: client.ObjectKeyFromObject(s.ud)}, r.Clock.Since(began))
	}()
	if err := r.observeNodePools(ctx, s); err != nil {
		return s.fail(apps.ReasonObservationFailed, "reading NodePools", err)
	}
	workloads, err := r.listWorkloads(ctx, s)
	if err != nil {
		return s.fail(apps.ReasonObservationFailed, "listing the workloads of pools", err)
	}
	s.live = map[string]united.Workload{}
	s.state = united.State{
		Strategy: strategyOf(&s.ud.Spec.UpdateStrategy), Update: s.short(s.update.Name), Current: s.short(s.ud.Status.CurrentRevision),
		HasReplicas: s.ud.Spec.WorkloadTemplate.Type() != apps.DaemonSetTemplateType,
	}
	if s.templates[s.state.Current] != nil {
		s.state.Base = s.state.Current
	}
	for _, w := range workloads {
		if w, err = r.whole(ctx, s, w); err != nil {
			return s.fail(apps.ReasonObservationFailed, "reading the workloads of pools", err)
		}
		if w == nil {
			continue
		}
		if err := r.addChild(s, w); err != nil {
			return s.fail(apps.ReasonObservationFailed, "reading the workloads of pools", err)
		}
	}
	s.makePools()
	r.observeLeaving(ctx, s)
	s.observed = true
	return nil
}

// observeNodePools reads the NodePools of the spec's pools. Missing ones are left out.
func (r *Reconciler) observeNodePools(ctx context.Context, s *scope) error {
	s.nodePools = map[string]*apps.NodePool{}
	for i := range s.ud.Spec.Topology.Pools {
		name := s.ud.Spec.Topology.Pools[i].Name
		pool := &apps.NodePool{}
		err := r.Client.Get(ctx, client.ObjectKey{Name: name}, pool)
		switch {
		case err == nil:
			s.nodePools[name] = pool
		case !apierrors.IsNotFound(err):
			return err
		}
	}
	return nil
}

// listWorkloads lists all workloads in the namespace that have the label of a pool, whoever
// owns them. They are the cache's own objects and must not be changed.
func (r *Reconciler) listWorkloads(ctx context.Context, s *scope) ([]united.Workload, error) {
	var out []united.Workload
	options := []client.ListOption{client.InNamespace(s.ud.Namespace), client.HasLabels{apps.PoolNameLabel}, client.UnsafeDisableDeepCopy}
	switch s.ud.Spec.WorkloadTemplate.Type() {
	case apps.DeploymentTemplateType:
		var list appsv1.DeploymentList
		if err := r.Client.List(ctx, &list, options...); err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
	case apps.StatefulSetTemplateType:
		var list appsv1.StatefulSetList
		if err := r.Client.List(ctx, &list, options...); err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
	case apps.DaemonSetTemplateType:
		var list appsv1.DaemonSetList
		if err := r.Client.List(ctx, &list, options...); err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
	}
	return out, nil
}

// maxRead bounds the memory of the workloads and revisions that a pass reads from the API
// server because the cache has no room for them, in bytes.
const maxRead = 48 << 20

// errTooMuch is returned if a pass would have to read more.
var errTooMuch = fmt.Errorf("the workloads and revisions of UnitedDeployments in the namespace take too much memory: the cache has no room for them, "+
	"and those that this one may own take more than %d MiB: make their templates smaller, or use several namespaces", maxRead>>20)

// count counts what the pass has read beside the cache.
func (s *scope) count(o client.Object) error {
	if s.read += budget.SizeOf(o); s.read > maxRead {
		return errTooMuch
	}
	return nil
}

// whole reads a workload that was left out of the cache from the API server, unless another
// controller owns it. It returns nil for one that does not exist any more.
func (r *Reconciler) whole(ctx context.Context, s *scope, w united.Workload) (united.Workload, error) {
	if owner := metav1.GetControllerOfNoCopy(w); budget.Unread(w) == nil || owner != nil && owner.UID != s.ud.UID {
		return w, nil
	}
	var live united.Workload // an empty one: what is read is added to what is there
	switch w.(type) {
	case *appsv1.Deployment:
		live = &appsv1.Deployment{}
	case *appsv1.StatefulSet:
		live = &appsv1.StatefulSet{}
	default:
		live = &appsv1.DaemonSet{}
	}
	if err := r.Live.Get(ctx, client.ObjectKeyFromObject(w), live); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return live, s.count(live)
}

// ownership returns the kind of owner of a workload, and whether the workload is ours or can
// be adopted.
func (s *scope) ownership(w united.Workload) (united.Owner, bool) {
	if owner := metav1.GetControllerOfNoCopy(w); owner != nil {
		return united.Ours, owner.UID == s.ud.UID
	}
	return united.Unowned, w.GetDeletionTimestamp() == nil && united.IsAdoptable(w, s.ud.Spec.Selector)
}

// addChild adds a workload to the planner's input, or replaces it there, if it is ours or
// can be adopted.
func (r *Reconciler) addChild(s *scope, w united.Workload) error {
	owner, ours := s.ownership(w)
	if !ours {
		return nil
	}
	child := united.ChildOf(w)
	child.Owner = owner
	if child.Pool == "" { // somebody removed the label
		child.Pool = s.poolNamed(w.GetName())
	}
	if m := s.remembered[child.Pool]; m != nil && m.Workload == child.Name {
		written, err := united.WrittenHash(w)
		if err != nil {
			return fmt.Errorf("hashing %q: %w", w.GetName(), err)
		}
		child.Edited = written != m.Written
		child.Settled, child.Established = m.Settled, m.Established
		if child.Complete() {
			child.Established = true
			child.Settled = child.Settled || !child.Edited || m.Written == ""
		}
		child.Failure = r.failureOf(s, w, &child, m).message
	} else {
		child.Edited = true // the hash of the last write is unknown
		child.Settled, child.Established = child.Complete(), child.Complete()
	}
	s.live[w.GetName()] = w
	for i := range s.state.Children {
		if s.state.Children[i].Name == child.Name {
			s.state.Children[i] = child
			return nil
		}
	}
	s.state.Children = append(s.state.Children, child)
	return nil
}

// poolNamed returns the pool whose workload has this name; "" if there is none.
func (s *scope) poolNamed(workload string) string {
	for i := range s.ud.Spec.Topology.Pools {
		pool := s.ud.Spec.Topology.Pools[i].Name
		if plain, hashed := united.Names(s.ud.Name, pool); workload == plain || workload == hashed {
			return pool
		}
	}
	return ""
}

// failureOf returns why an incomplete workload makes no progress: a failure that it reports
// itself, or the progress deadline. The zero value is no failure.
func (r *Reconciler) failureOf(s *scope, w united.Workload, c *united.Child, m *apps.PoolStatus) failure {
	if c.Complete() {
		return failure{}
	}
	if reason, message := united.FailureOf(w); reason != "" {
		return failure{reason, message}
	}
	if left := r.untilDeadline(s, m); c.InRollout(s.state.Current) && m.LastProgressTime != nil && left <= 0 && !progressed(m, united.CountPods(w)) {
		return failure{apps.ReasonProgressDeadlineExceeded, fmt.Sprintf("%s %q made no progress for %s", s.ud.Spec.WorkloadTemplate.Type(), w.GetName(), s.deadline())}
	}
	return failure{}
}

// deadline returns how long a pool may make no progress during an update.
func (s *scope) deadline() time.Duration {
	seconds := apps.DefaultProgressDeadlineSeconds
	if n := s.ud.Spec.UpdateStrategy.ProgressDeadlineSeconds; n != nil {
		seconds = *n
	}
	return time.Duration(seconds) * time.Second
}

// untilDeadline returns how long a pool may stay without progress before it fails. It is
// negative after the deadline.
func (r *Reconciler) untilDeadline(s *scope, m *apps.PoolStatus) time.Duration {
	if m.LastProgressTime == nil {
		return s.deadline()
	}
	return s.deadline() - r.Clock.Since(m.LastProgressTime.Time)
}

// progressed reports whether the numbers of pods differ from those in the last status.
func progressed(m *apps.PoolStatus, pods united.Pods) bool {
	return m.Replicas != pods.Total || m.UpdatedReplicas != pods.Updated || m.AvailableReplicas != pods.Available
}

// strategyOf returns the planner's strategy, with the defaults of the schema.
func strategyOf(u *apps.UnitedDeploymentUpdateStrategy) united.Strategy {
	s := united.Strategy{Paused: u.Paused, MaxUpdating: 1, Continue: u.OnFailure == apps.FailureContinue}
	if u.Partition != nil {
		s.Partition = int(*u.Partition)
	}
	if u.MaxUpdatingPools != nil {
		s.MaxUpdating = max(1, int(*u.MaxUpdatingPools))
	}
	return s
}

// makePools sets the desired state of each pool.
func (s *scope) makePools() {
	spec := &s.ud.Spec
	shares := make([]*intstr.IntOrString, len(spec.Topology.Pools))
	for i := range spec.Topology.Pools {
		shares[i] = spec.Topology.Pools[i].Replicas
	}
	replicas := united.Divide(spec.Replicas, shares)
	for i := range spec.Topology.Pools {
		p := &spec.Topology.Pools[i]
		pool := united.Pool{Name: p.Name}
		if s.state.HasReplicas {
			pool.Replicas = replicas[i]
		}
		if p.Partition != nil && spec.WorkloadTemplate.Type() == apps.StatefulSetTemplateType {
			pool.Partition = *p.Partition
		}
		s.state.Pools = append(s.state.Pools, pool)
		s.makePool(i)
	}
}

// makePool computes the contents of the i-th pool: at the update revision, and at the
// revisions that its workloads have. If its workload cannot be built, it is refused.
func (s *scope) makePool(i int) {
	pool := &s.state.Pools[i]
	target, err := s.build(i, s.state.Update)
	if err != nil {
		pool.Refused = true
		reason := apps.ReasonRefused
		if s.ud.Spec.Topology.Pools[i].Patch != nil {
			reason = apps.ReasonPatchInvalid
		}
		s.failures[pool.Name] = failure{reason, err.Error()}
		return
	}
	pool.Partition = united.ChildOf(target).Partition // 0 if the StatefulSet is updated OnDelete
	pool.Contents = map[string]string{s.state.Update: target.GetAnnotations()[apps.PoolRevisionAnnotation]}
	for j := range s.state.Children {
		c := &s.state.Children[j]
		if c.Pool != pool.Name || pool.Contents[c.Revision] != "" {
			continue
		}
		if at, err := s.build(i, c.Revision); err == nil {
			pool.Contents[c.Revision] = at.GetAnnotations()[apps.PoolRevisionAnnotation]
		}
	}
}

var errNoRevision = errors.New("its ControllerRevision does not exist")

// build returns the workload of the i-th pool at a revision, without a name.
func (s *scope) build(i int, revision string) (united.Workload, error) {
	template := s.templates[revision]
	if template == nil {
		return nil, errNoRevision
	}
	pool := &s.ud.Spec.Topology.Pools[i]
	return united.Build(united.BuildInput{
		Namespace: s.ud.Namespace, Owner: s.ud.Name, Template: template, Revision: revision, Selector: s.ud.Spec.Selector,
		Pool: pool, Taints: s.taints(pool.Name), Replicas: s.state.Pools[i].Replicas, Partition: s.state.Pools[i].Partition,
	})
}

// taints returns the taints of a NodePool or, if it does not exist, its last known taints.
func (s *scope) taints(pool string) []corev1.Taint {
	if np := s.nodePools[pool]; np != nil {
		var taints []corev1.Taint
		for _, t := range np.Spec.Taints {
			taints = append(taints, corev1.Taint{Key: t.Key, Value: string(t.Value), Effect: t.Effect})
		}
		return taints
	}
	for _, w := range s.live {
		if w.GetLabels()[apps.PoolNameLabel] == pool {
			return united.TaintsOf(w)
		}
	}
	return nil
}
