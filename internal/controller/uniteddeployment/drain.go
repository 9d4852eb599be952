package uniteddeployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/united"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// drainEvery is how often is looked whether more pods of a removed pool may go.
// Not every change of a pod changes the status of its workload.
const drainEvery = time.Second

// +kubebuilder:rbac:groups="",resources=pods,verbs=list

// observeLeaving lists the pods of workloads whose pool is removed. Nothing
// else needs pods, so they are asked for and in no cache.
func (r *Reconciler) observeLeaving(ctx context.Context, s *scope) {
	s.leaving, s.waits = map[string][]united.LeavingPod{}, map[string]string{}
	for _, c := range s.state.Leaving() {
		selector, err := metav1.LabelSelectorAsSelector(united.SelectorOf(s.ud.Spec.Selector, c.Pool))
		var pods corev1.PodList
		if err == nil {
			err = r.Live.List(ctx, &pods, client.InNamespace(s.ud.Namespace), client.MatchingLabelsSelector{Selector: selector})
		}
		if err != nil {
			s.failures[c.Pool] = failure{apps.ReasonObservationFailed, fmt.Sprintf("listing the pods of %q: %v", c.Name, err)}
			continue
		}
		w := s.live[c.Name]
		s.leaving[c.Name] = united.LeavingPods(w, pods.Items, r.Clock.Now())
		c.Drained = united.Drained(w, s.leaving[c.Name])
	}
}

// drain lets as many pods of a removed pool go as may now: those that are Ready
// by eviction, and replicas follow. The state of it is the workload's own, so
// a pass goes on from where another ended.
func (r *Reconciler) drain(ctx context.Context, s *scope, a united.Action) error {
	pods, listed := s.leaving[a.Child]
	if !listed {
		return phase.Wait("pods could not be listed", eviction.Retry)
	}
	live := s.live[a.Child]
	if daemons, ok := live.(*appsv1.DaemonSet); ok && !united.IsGated(daemons) {
		after := daemons.DeepCopy()
		united.Gate(after)
		return r.lowered(ctx, s, a, after)
	}
	may, others := r.mayLeave(s, live, pods)
	step := united.NextDrainStep(live, pods, may)
	if len(others) > 0 && len(step.Evict) == 0 {
		s.waits[a.Child] = "waits until the pods of other pools are available: " + conditions.List(others)
	}
	lower, every := step.Replicas, drainEvery
	var failed error
	for _, pod := range step.Evict {
		err := r.Evictor.Evict(ctx, types.NamespacedName{Namespace: s.ud.Namespace, Name: pod.Name}, pod.UID)
		if err == nil {
			lower--
			continue
		}
		switch {
		case errors.Is(err, eviction.ErrGone), errors.Is(err, eviction.ErrPace):
		case errors.Is(err, eviction.ErrRefused), errors.Is(err, eviction.ErrBusy):
			s.waits[a.Child], every = err.Error(), eviction.Retry
		default:
			failed = r.refused(s, a, err)
		}
		break
	}
	wait := phase.Wait("pods of a removed pool", every)
	if united.CountPods(live).Desired == lower || !s.state.HasReplicas {
		return errors.Join(failed, wait)
	}
	after := live.DeepCopyObject().(united.Workload)
	united.ScaleDown(after, lower)
	return errors.Join(failed, r.lowered(ctx, s, a, after), wait)
}

// lowered writes a workload that is emptied.
func (r *Reconciler) lowered(ctx context.Context, s *scope, a united.Action, after united.Workload) error {
	if err := r.Client.Update(ctx, after); err != nil {
		return r.refused(s, a, err)
	}
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(nil)).Inc()
	log.FromContext(ctx).Info("Pool changed", "pool", a.Pool, "action", string(a.Verb), "workload", a.Child)
	r.drained(s.ud, after, a.Pool)
	s.live[a.Child] = after
	return nil
}

// mayLeave is how many pods of a workload may go now: what its update strategy
// lets be unavailable, without those that go already and, where other pools
// take the pods over, without those that these lack. It names these pools.
func (r *Reconciler) mayLeave(s *scope, w united.Workload, pods []united.LeavingPod) (may int32, others []string) {
	of := united.CountPods(w).Desired
	if s.ud.Spec.Replicas != nil {
		of = *s.ud.Spec.Replicas
	}
	may = united.MaxUnavailable(w, of)
	for _, p := range pods {
		if p.Terminating && !p.Overdue {
			may--
		}
	}
	if s.ud.Spec.Replicas == nil {
		return may, nil
	}
	for i, out := range s.plan.Pools {
		lacks := s.state.Pools[i].Replicas
		if c := out.Child; c != nil && c.Owner == united.Ours {
			lacks -= united.CountPods(s.live[c.Name]).Available
		}
		if lacks > 0 {
			may -= lacks
			others = append(others, s.state.Pools[i].Name)
		}
	}
	return may, others
}
