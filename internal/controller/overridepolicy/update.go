package overridepolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/replacement"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/policies"
	"github.com/atoll-k8s/atoll/internal/survey"
)

// maxRefusal bounds the API server's message in a condition, in bytes.
const maxRefusal = 700

// update changes the images of as many pods of each workload as may be disturbed now.
func (r *Reconciler) update(ctx context.Context, s *scope) error {
	var errs []error
	for _, w := range s.workloads {
		if !w.UpdatesImages() {
			continue
		}
		if err := r.updatePods(ctx, s, w); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) updatePods(ctx context.Context, s *scope, w *workload) error {
	below := r.Walker.Descendants(w.Object.UID)
	version := policies.Version(s.policy)
	var later []error // a conflict, or a refusal in one group, does not delay the other pods
	for _, pod := range w.Due {
		if left, why := r.memory.imagesRefused(w, pod.Group, version, r.Clock.Now()); left > 0 {
			w.refuseImages(why)
			later = append(later, phase.Wait("the API server to accept images", left))
			continue
		}
		settlesAt := r.Ledger.MovedAt(pod.Group).Add(w.Stabilization)
		if left := settlesAt.Sub(r.Clock.Now()); left > 0 {
			return phase.Wait("the NodeGroup to stay as it is", left)
		}
		disturbs := pod.Available() && pod.Change.Restarts()
		if disturbs && w.Refused != "" {
			w.blocked = replacement.ErrRefused
			continue
		}
		if disturbs && !r.Ledger.Disrupt(pod.UID, below, w.Replicas, w.MaxUnavailable) {
			return phase.Wait("other pods of the workload to be available", retryDisruption)
		}
		switch err := r.updatePod(ctx, pod); {
		case apierrors.IsNotFound(err), patch.AnotherOfThatName(err):
		case apierrors.IsConflict(err):
			later = append(later, err)
		case patch.Refused(err):
			why := imageRefusal(s, pod, err)
			w.refuseImages(why)
			left := r.memory.imagesWereRefused(w, pod.Group, version, why, r.Clock.Now())
			later = append(later, phase.Wait("the API server to accept images", left))
			log.FromContext(ctx).Info("The API server refuses images", "pod", pod.Key(), "nodeGroup", pod.Group, "overridePolicy", s.policy.Name, "why", err.Error())
		case err != nil:
			return err
		default:
			r.memory.imagesWereAccepted(w, pod.Group)
			imageUpdatesTotal.Inc()
			log.FromContext(ctx).Info("Changed a pod's images in place", "pod", pod.Key(), "nodeGroup", pod.Group, "overridePolicy", s.policy.Name)
			r.imagesOverridden(s.policy, pod)
		}
	}
	return errors.Join(later...)
}

// refuseImages sets the first refusal of images as the failure of the workload. The
// workload stays bound.
func (w *workload) refuseImages(why error) {
	if w.Failure == nil {
		w.Failure = why
	}
}

// imageRefusal returns the API server's refusal of a pod's images, with the rules that
// change them. Without such a rule the images are the original ones.
func imageRefusal(s *scope, pod survey.DuePod, err error) error {
	paths := policies.ImageRules(s.rules, pod.Group, pod.Pod)
	var status apierrors.APIStatus
	if errors.As(err, &status) { // the text without what updatePod was doing
		err = errors.New(conditions.Truncate(status.Status().Message, maxRefusal))
	}
	return policies.Refusal{RuleError: override.RuleError{
		Overrider: cmp.Or(strings.Join(paths, ", "), "spec.overrideRules"),
		Err:       fmt.Errorf("the API server refuses the images of pod %q in NodeGroup %q: %w", pod.Name, pod.Group, err),
	}}
}

// updatePod patches the images of a pod. If that fails, the pod does not count as
// disturbed any more.
func (r *Reconciler) updatePod(ctx context.Context, pod survey.DuePod) error {
	object := r.Walker.PolicyOwnersOf(pod.Owner())
	raw, err := pod.Change.Patch(r.Policies.PodLabels(object, pod.Pod, pod.Group))
	if err == nil {
		_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	}
	if err != nil {
		r.Ledger.Undisrupt(pod.UID)
		return fmt.Errorf("overriding images of pod %s: %w", pod.Key(), err)
	}
	return nil
}
