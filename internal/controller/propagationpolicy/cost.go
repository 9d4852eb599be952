package propagationpolicy

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/placement/rebalance"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// maxCostsAPass bounds the deletion costs written in one pass. The next pass, which
	// follows at once, writes more.
	maxCostsAPass = 200
	// costTimeout bounds one write, so that deletion costs do not delay evictions.
	costTimeout = 2 * time.Second
)

// cost writes missing and wrong deletion costs, so that a ReplicaSet that shrinks deletes
// the pods that the policy can spare. New pods get their cost at creation or with their
// node; cost is for older pods, and for seats that other pods have left. It waits while
// pods move, because moves change the costs of other pods and the writes would delay the
// moves.
func (r *Reconciler) cost(ctx context.Context, s *scope) error {
	written := 0
	for _, w := range s.workloads {
		if w.moves() {
			continue // a pod that gets a node triggers a pass
		}
		for _, c := range rebalance.CostsDue(&w.Observed) {
			if written == maxCostsAPass {
				return phase.Wait("more deletion costs to write", time.Millisecond)
			}
			written++
			if err := r.writeCost(ctx, w.Pods[c.Pod], c.Cost); err != nil {
				return err // the next write would probably fail too, after the same timeout
			}
		}
	}
	return nil
}

// moves returns whether pods were evicted in this pass or are on their way to a node.
// Pods that kube-scheduler found unschedulable do not count: they may stay so.
func (w *workload) moves() bool {
	if w.evictions > 0 {
		return true
	}
	for _, c := range w.Cohorts {
		for _, pod := range c.Pods {
			if pod.Node == "" && !pod.Gated && !pod.Unschedulable {
				return true
			}
		}
	}
	return false
}

// writeCost writes the deletion cost of a pod, and the annotation that marks it as written
// by atoll-manager. It returns nil if the pod is gone.
func (r *Reconciler) writeCost(ctx context.Context, pod *seats.Pod, cost int32) error {
	ctx, cancel := context.WithTimeout(ctx, costTimeout)
	defer cancel()
	value := strconv.Itoa(int(cost))
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         pod.UID,
		"annotations": map[string]string{corev1.PodDeletionCost: value, gm.DeletionCostAnnotation: value},
	}})
	if err == nil {
		_, err = r.Pods.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && !patch.AnotherOfThatName(err) {
		return fmt.Errorf("writing the deletion cost of pod %s: %w", pod.Key(), err)
	}
	return nil
}
