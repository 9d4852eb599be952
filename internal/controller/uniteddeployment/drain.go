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
	"github.com/atoll-k8s/atoll/internal/machinery/paged"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// drainEvery is the interval of passes while a removed pool is drained. Watches are not
// enough: not every change of a pod changes the status of its workload.
const drainEvery = time.Second

// +kubebuilder:rbac:roleName=atoll-manager-pools,groups="",resources=pods,verbs=list

// observeLeaving lists the pods of workloads of removed pools from the API server. Nothing
// else in this controller needs pods, so they are not cached.
func (r *Reconciler) observeLeaving(ctx context.Context, s *scope) {
	s.leaving, s.waits = map[string][]united.LeavingPod{}, map[string]string{}
	for _, c := range s.state.Leaving() {
		selector, err := metav1.LabelSelectorAsSelector(united.SelectorOf(s.ud.Spec.Selector, c.Pool))
		w := s.live[c.Name]
		var leaving []united.LeavingPod
		if err == nil {
			list := paged.From(r.Live, client.InNamespace(s.ud.Namespace), client.MatchingLabelsSelector{Selector: selector})
			err = paged.Pods(ctx, list, metav1.ListOptions{}, func(pods []corev1.Pod) bool {
				leaving = append(leaving, united.LeavingPods(w, pods, r.Evictor.IsHeld, r.Clock.Now())...)
				return true
			})
		}
		if err != nil {
			s.failures[c.Pool] = failure{apps.ReasonObservationFailed, fmt.Sprintf("listing the pods of %q: %v", c.Name, err)}
			continue
		}
		s.leaving[c.Name] = leaving
		c.Drained = united.Drained(w, s.leaving[c.Name])
	}
}

// drain removes as many pods of a removed pool as is allowed now. It evicts Ready pods and
// lowers replicas by the evicted ones. All state is in the workload itself, so that another
// pass can continue at any point.
func (r *Reconciler) drain(ctx context.Context, s *scope, a united.Action) error {
	pods, listed := s.leaving[a.Child]
	if !listed {
		return phase.Wait("the list of the pods of a removed pool", eviction.Retry)
	}
	live := s.live[a.Child]
	if daemons, ok := live.(*appsv1.DaemonSet); ok && !united.IsGated(daemons) {
		after := daemons.DeepCopy()
		united.Gate(after)
		return r.updateDraining(ctx, s, a, after)
	}
	allowed, lacking := r.evictable(s, live, pods)
	step := united.NextDrainStep(live, pods, allowed)
	if len(lacking) > 0 && len(step.Evict) == 0 {
		s.waits[a.Child] = "waits until the pods of other pools are available: " + conditions.List(lacking)
	}
	lower, every := step.Replicas, drainEvery
	var failed error
	for _, pod := range step.Evict {
		err := r.Evictor.Evict(ctx, types.NamespacedName{Namespace: s.ud.Namespace, Name: pod.Name}, pod.UID, pod.Node)
		if err == nil {
			lower--
			continue
		}
		switch {
		case errors.Is(err, eviction.ErrGone), errors.Is(err, eviction.ErrPace):
		case errors.Is(err, eviction.ErrRefused), errors.Is(err, eviction.ErrBusy), errors.Is(err, eviction.ErrHeld):
			s.waits[a.Child], every = err.Error(), eviction.Retry
		default:
			failed = r.recordFailure(s, a, err)
		}
		break
	}
	wait := phase.Wait("the pods of a removed pool", every)
	if united.CountPods(live).Desired == lower || !s.state.HasReplicas {
		return errors.Join(failed, wait)
	}
	after := live.DeepCopyObject().(united.Workload)
	united.ScaleDown(after, lower)
	return errors.Join(failed, r.updateDraining(ctx, s, a, after), wait)
}

// updateDraining writes a workload that is being drained.
func (r *Reconciler) updateDraining(ctx context.Context, s *scope, a united.Action, after united.Workload) error {
	if err := r.Client.Update(ctx, after); err != nil {
		return r.recordFailure(s, a, err)
	}
	actionsTotal.WithLabelValues(string(a.Verb), resultOf(nil)).Inc()
	log.FromContext(ctx).Info("Pool changed", "pool", a.Pool, "action", string(a.Verb), "workload", a.Child)
	r.drained(s.ud, after, a.Pool)
	s.live[a.Child] = after
	return nil
}

// evictable returns how many pods of a workload may be evicted now; it may be negative. That
// is the number of pods that the update strategy allows to be unavailable, minus the pods
// that are being deleted. If the spec has a total, other pools replace the pods, and the
// pods that they lack are subtracted too. lacking are the names of these pools.
func (r *Reconciler) evictable(s *scope, w united.Workload, pods []united.LeavingPod) (allowed int32, lacking []string) {
	total := united.CountPods(w).Desired
	if s.ud.Spec.Replicas != nil {
		total = *s.ud.Spec.Replicas
	}
	allowed = united.MaxUnavailable(w, total)
	for _, p := range pods {
		if p.Terminating && !p.Overdue {
			allowed--
		}
	}
	if s.ud.Spec.Replicas == nil {
		return allowed, nil
	}
	for i, out := range s.plan.Pools {
		lacks := s.state.Pools[i].Replicas
		if c := out.Child; c != nil && c.Owner == united.Ours {
			lacks -= united.CountPods(s.live[c.Name]).Available
		}
		if lacks > 0 {
			allowed -= lacks
			lacking = append(lacking, s.state.Pools[i].Name)
		}
	}
	return allowed, lacking
}
