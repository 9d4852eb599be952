package uniteddeployment

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// Reasons of events. The event about a failed pool has the reason of the condition that reports
// the failure.
const (
	// The reasons from ReasonPoolCreated to ReasonPoolDeleted are those of successful writes of a
	// pool's workload. ReasonPoolScaled is also that of each step of a drain.
	ReasonPoolCreated  = "PoolCreated"
	ReasonPoolUpdated  = "PoolUpdated"
	ReasonPoolRestored = "PoolRestored"
	ReasonPoolScaled   = "PoolScaled"
	ReasonPoolAdopted  = "PoolAdopted"
	ReasonPoolDeleted  = "PoolDeleted"
	// ReasonRolledBack: the template was replaced by that of an older revision.
	ReasonRolledBack = "RolledBack"
	// ReasonRollbackRevisionNotFound: the annotation names no existing revision.
	ReasonRollbackRevisionNotFound = "RollbackRevisionNotFound"
)

// eventTexts are the events of the writes after which a workload has the template of a
// revision.
var eventTexts = map[united.Verb]struct{ reason, note string }{
	united.Create:  {ReasonPoolCreated, "Created %q for pool %q at revision %s"},
	united.Update:  {ReasonPoolUpdated, "Updated %q of pool %q to revision %s"},
	united.Restore: {ReasonPoolRestored, "Restored %q of pool %q to revision %s after a hand edit"},
}

// written emits the event of a write. The events of Drain and Delete are emitted by drained and
// deleted.
func (r *Reconciler) written(s *scope, a united.Action, w united.Workload) {
	switch a.Verb {
	case united.Scale:
		pool := s.state.Pools[s.index(a.Pool)]
		r.emit(s.ud, w, ReasonPoolScaled, "Scale", "Scaled %q of pool %q to %d replicas, partition %d", w.GetName(), a.Pool, pool.Replicas, pool.Partition)
	case united.Adopt:
		r.emit(s.ud, w, ReasonPoolAdopted, "Adopt", "Adopted %q for pool %q", w.GetName(), a.Pool)
	default:
		if t, ok := eventTexts[a.Verb]; ok {
			r.emit(s.ud, w, t.reason, string(a.Verb), t.note, w.GetName(), a.Pool, s.long(a.Revision))
		}
	}
}

// drained emits the event of one step of a drain.
func (r *Reconciler) drained(ud *apps.UnitedDeployment, w united.Workload, pool string) {
	if united.IsGated(w) {
		r.emit(ud, w, ReasonPoolScaled, "Drain", "Added a scheduling gate to new pods of %q of the removed pool %q", w.GetName(), pool)
		return
	}
	r.emit(ud, w, ReasonPoolScaled, "Drain", "Scaled %q of the removed pool %q to %d replicas", w.GetName(), pool, united.CountPods(w).Desired)
}

func (r *Reconciler) deleted(ud *apps.UnitedDeployment, w united.Workload, pool string) {
	r.emit(ud, w, ReasonPoolDeleted, "Delete", "Deleted %q of pool %q", w.GetName(), pool)
}

func (r *Reconciler) rolledBack(ud *apps.UnitedDeployment, revision *appsv1.ControllerRevision) {
	r.emit(ud, revision, ReasonRolledBack, "RollBack", "Rolled the template back to revision %d, %q", revision.Revision, revision.Name)
}

func (r *Reconciler) rollbackNotFound(ud *apps.UnitedDeployment, to string) {
	r.Recorder.Eventf(ud, nil, corev1.EventTypeWarning, ReasonRollbackRevisionNotFound, "RollBack", "Found no revision %.100q to roll back to", to)
}

// failed emits the event of a pool's new failure.
func (r *Reconciler) failed(ud *apps.UnitedDeployment, pool string, f failure) {
	r.Recorder.Eventf(ud, nil, corev1.EventTypeWarning, f.reason, "Reconcile", "Pool %q failed: %s", pool, conditions.Truncate(f.message, 800))
}

func (r *Reconciler) emit(ud *apps.UnitedDeployment, about runtime.Object, reason, action, format string, args ...any) {
	r.Recorder.Eventf(ud, about, corev1.EventTypeNormal, reason, action, format, args...)
}
