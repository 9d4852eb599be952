package uniteddeployment

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// maxMessage bounds the messages of conditions and pools, and maxMessages those of all pools
// together, in bytes: the status of 1000 pools with failures would be a megabyte.
const maxMessage, maxMessages = 800, 100_000

// statusBurst writes of a status with nothing but progress are not delayed; further ones are
// statusEvery apart. The status of more than manyPools is large: it has no burst, and is written
// less often the more pools there are.
const (
	statusBurst = 5
	statusEvery = time.Second
	manyPools   = 100
)

// report writes the status if it changed, and the pace allows it. The write is refused if the
// object has changed since it was read, because the status decides which pool is updated next.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if s.replaced {
		return nil
	}
	status := &s.ud.Status
	status.ObservedGeneration = s.ud.Generation
	status.TemplateType = s.ud.Spec.WorkloadTemplate.Type()
	if selector, err := metav1.LabelSelectorAsSelector(s.ud.Spec.Selector); err == nil {
		status.LabelSelector = selector.String()
	}
	if s.update != nil {
		status.UpdateRevision = s.update.Name
	}
	var next time.Duration
	if s.observed {
		next = r.setPools(s)
		if s.plan.Complete {
			status.CurrentRevision = s.update.Name
		}
	}
	setConditions(s)
	if !equality.Semantic.DeepEqual(s.before.Status, *status) {
		every, burst := statusEvery, statusBurst
		if pools := len(status.Pools); pools > manyPools {
			every, burst = statusEvery*time.Duration(pools)/manyPools, 1
		}
		early := r.statuses.Delay(client.ObjectKeyFromObject(s.ud).String(), r.Clock.Now(), every, burst)
		if early > 0 && !s.wrote && sameButProgress(&s.before.Status, status) {
			s.reported = true
			return phase.Wait("the pace of status writes", early)
		}
		err := r.Client.Status().Patch(ctx, s.ud, client.MergeFromWithOptions(s.before, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("writing status of UnitedDeployment %q: %w", s.ud.Name, err)
		}
		r.reportEvents(s)
	}
	s.reported = true
	if next > 0 {
		return phase.Wait("a pool's progress deadline", next)
	}
	return nil
}

// sameButProgress reports whether two states differ only in what changes all the time during a
// rollout: counts, and what follows from them.
func sameButProgress(a, b *apps.UnitedDeploymentStatus) bool {
	lasting := func(of *apps.UnitedDeploymentStatus) *apps.UnitedDeploymentStatus {
		of = of.DeepCopy()
		of.Replicas, of.ReadyReplicas, of.UpdatedReplicas, of.PoolReplicas = 0, 0, 0, nil
		for i := range of.Conditions {
			of.Conditions[i].Message = ""
		}
		for i := range of.Pools {
			p := &of.Pools[i]
			of.Pools[i] = apps.PoolStatus{Name: p.Name, Workload: p.Workload, Revision: p.Revision, Reason: p.Reason, Written: p.Written}
		}
		return of
	}
	return equality.Semantic.DeepEqual(lasting(a), lasting(b))
}

// reportEvents emits an event for each new failure of a pool.
func (r *Reconciler) reportEvents(s *scope) {
	for i := range s.ud.Status.Pools {
		p := &s.ud.Status.Pools[i]
		if p.Reason == "" || slices.ContainsFunc(s.before.Status.Pools, func(b apps.PoolStatus) bool {
			return b.Name == p.Name && b.Reason == p.Reason && b.Message == p.Message
		}) {
			continue
		}
		r.failed(s.ud, p.Name, failure{p.Reason, p.Message})
	}
}

// setPools sets the status of all pools and their sums. It returns the time until the
// first progress deadline ends; 0 if there is none.
func (r *Reconciler) setPools(s *scope) (next time.Duration) {
	for i := range s.state.Pools { // recordFailure also marks pools whose write had a conflict
		_, s.state.Pools[i].Refused = s.failures[s.state.Pools[i].Name]
	}
	s.plan = s.state.Plan() // with the results of the writes
	status := &s.ud.Status
	status.Replicas, status.ReadyReplicas, status.UpdatedReplicas = 0, 0, 0
	status.Pools, status.PoolReplicas = nil, nil
	for i, out := range s.plan.Pools {
		p := r.poolStatus(s, i, out)
		status.Pools = append(status.Pools, p)
		if status.PoolReplicas == nil {
			status.PoolReplicas = map[string]int32{}
		}
		status.PoolReplicas[p.Name] = p.Replicas
		status.Replicas += p.Replicas
		status.ReadyReplicas += p.ReadyReplicas
		if p.Revision == status.UpdateRevision {
			status.UpdatedReplicas += p.UpdatedReplicas
		}
		if c := out.Child; c != nil && !c.Complete() && p.Phase != apps.PoolFailed && (out.Busy || !c.Established) && p.LastProgressTime != nil {
			if left := max(r.untilDeadline(s, &p), time.Second); next == 0 || left < next {
				next = left
			}
		}
	}
	return next
}

// poolStatus returns the status of the i-th pool.
func (r *Reconciler) poolStatus(s *scope, i int, out united.Outlook) apps.PoolStatus {
	pool := s.state.Pools[i]
	p := apps.PoolStatus{Name: pool.Name, Phase: out.Phase, DesiredReplicas: pool.Replicas}
	f := s.failures[pool.Name]
	if c := out.Child; c != nil && c.Owner == united.Ours {
		w := s.live[c.Name]
		pods := united.CountPods(w)
		p.Workload, p.Revision = c.Name, s.long(c.Revision)
		p.Replicas, p.ReadyReplicas, p.AvailableReplicas = pods.Total, pods.Ready, pods.Available
		if pods.Current {
			p.UpdatedReplicas = pods.Updated
		}
		if !s.state.HasReplicas {
			p.DesiredReplicas = pods.Desired
		}
		p.Settled, p.Established = c.Settled, c.Established
		if m := s.remembered[pool.Name]; m != nil && m.Workload == c.Name {
			p.Written, p.LastProgressTime = m.Written, m.LastProgressTime
			// The progress deadline of an incomplete workload restarts when its counts
			// change.
			if progressed(m, pods) && !c.Complete() {
				p.LastProgressTime = new(r.now())
			}
			if f.reason == "" {
				f = r.failureOf(s, w, c, m)
			}
		}
	}
	if p.Phase == apps.PoolFailed {
		p.Reason, p.Message = f.reason, conditions.Truncate(f.message, min(maxMessage, maxMessages/len(s.state.Pools)))
	}
	return p
}

// setConditions sets the conditions.
func setConditions(s *scope) {
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		conditions.Set(&s.ud.Status.Conditions, s.ud.Generation, kind, status, reason, conditions.Truncate(message, maxMessage))
	}
	if !s.observed {
		set(apps.PoolProvisioned, metav1.ConditionUnknown, s.failure.reason, s.failure.message)
		set(apps.PoolUpdated, metav1.ConditionUnknown, s.failure.reason, s.failure.message)
		set(apps.PoolFailure, metav1.ConditionTrue, s.failure.reason, s.failure.message)
		setReady(s)
		return
	}
	status, reason, message := provisioned(s)
	set(apps.PoolProvisioned, status, reason, message)
	status, reason, message = updated(s)
	set(apps.PoolUpdated, status, reason, message)

	var failed []string
	first := failure{apps.ReasonNoFailure, "no pool has a failure"}
	for i := range s.ud.Status.Pools {
		if p := &s.ud.Status.Pools[i]; p.Reason != "" {
			if len(failed) == 0 {
				first = failure{p.Reason, p.Message}
			}
			failed = append(failed, p.Name)
		}
	}
	for _, pool := range slices.Sorted(maps.Keys(s.failures)) {
		if s.index(pool) >= 0 {
			continue
		}
		if f := s.failures[pool]; len(failed) == 0 { // pool was removed
			first = f
		}
		failed = append(failed, pool)
	}
	switch len(failed) {
	case 0:
		set(apps.PoolFailure, metav1.ConditionFalse, first.reason, first.message)
	case 1:
		set(apps.PoolFailure, metav1.ConditionTrue, first.reason, fmt.Sprintf("pool %q: %s", failed[0], first.message))
	default:
		set(apps.PoolFailure, metav1.ConditionTrue, first.reason, fmt.Sprintf("pools %s; the first of them: %s", conditions.List(failed), first.message))
	}
	setReady(s)
}

// setReady sets the condition Ready from the others, and from the counts of the pods.
func setReady(s *scope) {
	status := &s.ud.Status
	is, reason, message := metav1.ConditionTrue, apps.ReasonPodsReady, "every pod of every pool is Ready"
	wanted := int32(0)
	for i := range status.Pools {
		wanted += status.Pools[i].DesiredReplicas
	}
	failure := meta.FindStatusCondition(status.Conditions, apps.PoolFailure)
	provisioned, updated := meta.FindStatusCondition(status.Conditions, apps.PoolProvisioned), meta.FindStatusCondition(status.Conditions, apps.PoolUpdated)
	of := func(c *metav1.Condition) { is, reason, message = metav1.ConditionFalse, c.Reason, c.Message }
	switch {
	case !s.observed:
		is, reason, message = metav1.ConditionUnknown, s.failure.reason, failure.Message
	case updated.Reason == apps.ReasonStopped:
		of(updated)
	case failure.Status == metav1.ConditionTrue:
		of(failure)
	case provisioned.Status != metav1.ConditionTrue:
		of(provisioned)
	case updated.Status != metav1.ConditionTrue && updated.Reason != apps.ReasonPartitioned:
		of(updated)
	case status.ReadyReplicas < wanted || status.Replicas > wanted:
		is, reason, message = metav1.ConditionFalse, apps.ReasonPodsNotReady, fmt.Sprintf("%d of %d pods are Ready, and there are %d", status.ReadyReplicas, wanted, status.Replicas)
	case updated.Reason == apps.ReasonPartitioned:
		message += "; partitions keep pods from the update"
	}
	conditions.SetReady(&status.Conditions, s.ud.Generation, is, reason, message, apps.IsStalled(reason))
}

// provisioned returns status, reason and message of the condition PoolProvisioned.
func provisioned(s *scope) (metav1.ConditionStatus, string, string) {
	var pending, orphaned []string
	for i, out := range s.plan.Pools {
		name := s.state.Pools[i].Name
		if !out.Provisioned {
			pending = append(pending, name)
		}
		if s.nodePools[name] == nil {
			orphaned = append(orphaned, name)
		}
	}
	switch draining, surplus := s.plan.Draining, s.plan.Surplus; {
	case len(pending) > 0:
		return metav1.ConditionFalse, apps.ReasonProvisioning, "pools without a workload: " + conditions.List(pending)
	case len(draining) > 0:
		message := "workloads of removed pools whose pods are evicted before they are deleted: " + conditions.List(draining)
		for _, name := range draining {
			if why := s.waits[name]; why != "" {
				return metav1.ConditionFalse, apps.ReasonDraining, fmt.Sprintf("%s; %q: %s", message, name, why)
			}
		}
		return metav1.ConditionFalse, apps.ReasonDraining, message
	case len(surplus) > 0:
		return metav1.ConditionFalse, apps.ReasonProvisioning, "workloads that are being deleted: " + conditions.List(surplus)
	case len(orphaned) > 0:
		return metav1.ConditionFalse, apps.ReasonNodePoolMissing, "there is no NodePool named " + conditions.List(orphaned) + "; their workloads stay"
	}
	return metav1.ConditionTrue, apps.ReasonProvisioned, "every pool has its workload"
}

// updated returns status, reason and message of the condition PoolUpdated.
func updated(s *scope) (metav1.ConditionStatus, string, string) {
	var behind []string
	for i, out := range s.plan.Pools {
		if !out.Updated {
			behind = append(behind, s.state.Pools[i].Name)
		}
	}
	message := "pools that are not updated in full: " + conditions.List(behind)
	switch {
	case len(behind) == 0:
		return metav1.ConditionTrue, apps.ReasonUpdated, "every pool is updated"
	case s.plan.Stopped:
		return metav1.ConditionFalse, apps.ReasonStopped, message + "; a pool failed, see PoolFailure"
	case s.plan.Paused:
		return metav1.ConditionFalse, apps.ReasonPaused, message
	case s.plan.Partitioned:
		return metav1.ConditionFalse, apps.ReasonPartitioned, message
	}
	return metav1.ConditionFalse, apps.ReasonUpdating, message
}
