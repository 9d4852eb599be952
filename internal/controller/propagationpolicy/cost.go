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
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	"github.com/atoll-k8s/atoll/internal/seats"
)

// maxCostsAPass bounds the annotations written in one pass; the rest follows.
const maxCostsAPass = 200

// costTimeout bounds one write: costs are no reason to keep other work waiting.
const costTimeout = 2 * time.Second

// cost keeps deletion costs true, so that a ReplicaSet that shrinks takes the
// pods away that the policy can spare. Pods get theirs with their binding; this
// is for pods that ran before, and for seats that came free in between. While
// pods move it waits: they are about to change what the others cost, and the
// writes would slow them down.
func (r *Reconciler) cost(ctx context.Context, s *scope) error {
	written := 0
	for _, a := range s.apps {
		if a.moves() {
			continue // pods that arrive bring us back
		}
		for _, c := range costsDue(a.observed, r.isReplicaSet) {
			if written == maxCostsAPass {
				return phase.Wait("more deletion costs to write", time.Millisecond)
			}
			written++
			if err := r.writeCost(ctx, c); err != nil {
				return err // the next may fail in the same way, and as late
			}
		}
	}
	return nil
}

// moves tells whether pods were evicted in this pass, or are on their way to a
// node. One that kube-scheduler has found none for may stay so.
func (a *appScope) moves() bool {
	if a.evictions > 0 {
		return true
	}
	for _, c := range a.cohorts {
		for _, pod := range c.Pods {
			if pod.Node == "" && !pod.Gated && !pod.Unschedulable {
				return true
			}
		}
	}
	return false
}

func (r *Reconciler) isReplicaSet(owner types.UID) bool {
	o := r.Walker.Get(owner)
	return o != nil && o.Kind == "ReplicaSet"
}

type dueCost struct {
	pod  *seats.Pod
	cost int32
}

// costsDue lists the pods whose cost is not as it should be. A value that a
// user wrote stays.
func costsDue(o observed, isReplicaSet func(types.UID) bool) []dueCost {
	var due []dueCost
	for _, c := range o.cohorts {
		if !o.divided || !isReplicaSet(c.Owner) {
			continue
		}
		byGroup := map[string][]*seats.Pod{}
		for _, pod := range c.Pods {
			if pod.Node != "" && !pod.UserCost() {
				byGroup[pod.Group] = append(byGroup[pod.Group], pod.Pod)
			}
		}
		for group, pods := range byGroup {
			current := make([]*int32, len(pods))
			for i, pod := range pods {
				if pod.HasCost {
					current[i] = &pod.DeletionCost
				}
			}
			for i, cost := range o.spread.Recost(group, current, len(c.Pods)) {
				if current[i] == nil || *current[i] != cost {
					due = append(due, dueCost{pods[i], cost})
				}
			}
		}
	}
	return due
}

func (r *Reconciler) writeCost(ctx context.Context, c dueCost) error {
	ctx, cancel := context.WithTimeout(ctx, costTimeout)
	defer cancel()
	value := strconv.Itoa(int(c.cost))
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":         c.pod.UID,
		"annotations": map[string]string{corev1.PodDeletionCost: value, gm.DeletionCostAnnotation: value},
	}})
	if err == nil {
		_, err = r.Pods.CoreV1().Pods(c.pod.Namespace).Patch(ctx, c.pod.Name, types.MergePatchType, raw, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) && !patch.AnotherOfThatName(err) {
		return fmt.Errorf("writing the deletion cost of pod %s: %w", c.pod.Key(), err)
	}
	return nil
}
