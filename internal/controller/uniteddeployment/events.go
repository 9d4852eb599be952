package uniteddeployment

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
)

// Reasons of events beside those of conditions.
const (
	// ReasonCreated and the others after it: a pool's workload was written.
	ReasonCreated  = "PoolCreated"
	ReasonUpdated  = "PoolUpdated"
	ReasonRestored = "PoolRestored"
	ReasonScaled   = "PoolScaled"
	ReasonAdopted  = "PoolAdopted"
	ReasonDeleted  = "PoolDeleted"
	// ReasonRolledBack: the template is that of an older revision again.
	ReasonRolledBack = "RolledBack"
	// ReasonRollbackRevisionNotFound: there is no revision as asked for.
	ReasonRollbackRevisionNotFound = "RollbackRevisionNotFound"
)

var eventTexts = map[united.Verb]struct{ reason, note string }{
	united.Create:  {ReasonCreated, "Created %q for pool %q at revision %s"},
	united.Update:  {ReasonUpdated, "Updated %q of pool %q to revision %s"},
	united.Restore: {ReasonRestored, "Restored %q of pool %q to revision %s after a hand edit"},
}

func (r *Reconciler) did(s *scope, a united.Action, w united.Workload) {
	switch a.Verb {
	case united.Scale:
		pool := s.state.Pools[s.index(a.Pool)]
		r.note(s.ud, w, ReasonScaled, "Scale", "Scaled %q of pool %q to %d replicas, partition %d", w.GetName(), a.Pool, pool.Replicas, pool.Partition)
	case united.Adopt:
		r.note(s.ud, w, ReasonAdopted, "Adopt", "Adopted %q for pool %q", w.GetName(), a.Pool)
	default:
		if t, ok := eventTexts[a.Verb]; ok {
			r.note(s.ud, w, t.reason, string(a.Verb), t.note, w.GetName(), a.Pool, s.long(a.Revision))
		}
	}
}

func (r *Reconciler) drained(ud *apps.UnitedDeployment, w united.Workload, pool string) {
	if united.IsGated(w) {
		r.note(ud, w, ReasonScaled, "Drain", "Let %q of the removed pool %q start no pod any more", w.GetName(), pool)
		return
	}
	r.note(ud, w, ReasonScaled, "Drain", "Scaled %q of the removed pool %q to %d replicas", w.GetName(), pool, united.CountPods(w).Desired)
}

func (r *Reconciler) deleted(ud *apps.UnitedDeployment, w united.Workload, pool string) {
	r.note(ud, w, ReasonDeleted, "Delete", "Deleted %q of pool %q", w.GetName(), pool)
}

func (r *Reconciler) rolledBack(ud *apps.UnitedDeployment, revision *appsv1.ControllerRevision) {
	r.note(ud, revision, ReasonRolledBack, "RollBack", "Rolled the template back to revision %d, %q", revision.Revision, revision.Name)
}

func (r *Reconciler) rollbackNotFound(ud *apps.UnitedDeployment, to string) {
	r.Recorder.Eventf(ud, nil, corev1.EventTypeWarning, ReasonRollbackRevisionNotFound, "RollBack", "Found no revision %.100q to roll back to", to)
}

func (r *Reconciler) failed(ud *apps.UnitedDeployment, pool string, f failure) {
	r.Recorder.Eventf(ud, nil, corev1.EventTypeWarning, f.reason, "Reconcile", "Pool %q failed: %.800s", pool, f.message)
}

func (r *Reconciler) note(ud *apps.UnitedDeployment, about runtime.Object, reason, action, format string, args ...any) {
	r.Recorder.Eventf(ud, about, corev1.EventTypeNormal, reason, action, format, args...)
}
