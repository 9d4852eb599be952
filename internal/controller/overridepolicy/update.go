package overridepolicy

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// update changes the images of as many pods of each workload as may be disturbed now.
func (r *Reconciler) update(ctx context.Context, s *scope) error {
	var errs []error
	for _, w := range s.workloads {
		if w.mode != gm.ReschedulingEvict || w.unusable || w.object.Policies.Override() != ownership.Bound {
			continue
		}
		if err := r.updatePods(ctx, s, w); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) updatePods(ctx context.Context, s *scope, w *workload) error {
	below := r.Walker.Descendants(w.object.UID)
	var conflicts []error // a conflict does not delay the other pods
	for _, pod := range w.due {
		settlesAt := r.Ledger.MovedAt(pod.group).Add(w.stabilization)
		if left := settlesAt.Sub(r.Clock.Now()); left > 0 {
			return phase.Wait("the NodeGroup to stay as it is", left)
		}
		disturbs := pod.Available() && pod.change.Restarts()
		if disturbs && w.refused != "" {
			w.blocked = replacement.ErrRefused
			continue
		}
		if disturbs && !r.Ledger.Disrupt(pod.UID, below, w.replicas, w.maxUnavailable) {
			return phase.Wait("other pods of the workload to be available", retryDisruption)
		}
		switch err := r.updatePod(ctx, pod); {
		case apierrors.IsNotFound(err), patch.AnotherOfThatName(err):
		case apierrors.IsConflict(err):
			conflicts = append(conflicts, err)
		case err != nil:
			return err
		default:
			imageUpdatesTotal.Inc()
			log.FromContext(ctx).Info("Changed a pod's images in place", "pod", pod.Key(), "nodeGroup", pod.group, "overridePolicy", s.policy.Name)
			r.imagesOverridden(s.policy, pod)
		}
	}
	return errors.Join(conflicts...)
}

// updatePod patches the images of a pod. If that fails, the pod does not count as
// disturbed any more.
func (r *Reconciler) updatePod(ctx context.Context, pod duePod) error {
	object := r.Walker.PolicyOwnersOf(pod.Owner())
	raw, err := pod.change.Patch(r.Policies.PodLabels(object, pod.Pod, pod.group))
	if err == nil {
		_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	}
	if err != nil {
		r.Ledger.Undisrupt(pod.UID)
		return fmt.Errorf("overriding images of pod %s: %w", pod.Key(), err)
	}
	return nil
}
