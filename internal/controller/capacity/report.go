package capacity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/atoll-k8s/atoll/api/capacity/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/machinery/eviction"
	"github.com/atoll-k8s/atoll/internal/machinery/patch"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
)

// showTimeout bounds the reads and writes of a CapacitySplit. Workloads are divided even
// if they fail.
const showTimeout = 5 * time.Second

// report writes the CapacitySplit, and records an event if it has become not Ready for a
// reason that a person must act on.
func (r *Reconciler) report(ctx context.Context, s *scope) error {
	if s.capacity.Invalid != nil {
		s.plan.reason, s.plan.message = api.ReasonInvalid, "the annotations or labels of the workload, its pod template or its namespace are invalid: "+s.capacity.Invalid.Error()
	}
	if !s.capacity.On {
		s.plan.want = s.plan.have
	}
	r.tallies.set(s.workload.UID, s.plan)
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	split := &api.CapacitySplit{}
	key := types.NamespacedName{Namespace: s.workload.Namespace, Name: nameOf(s.workload)}
	err := r.Client.Get(ctx, key, split)
	if apierrors.IsNotFound(err) {
		split, err = r.create(ctx, s, key)
	}
	if err != nil || split == nil {
		return wrap("writing", s.workload, err)
	}
	r.show(s.workload.UID, key)
	if !ownedBy(split, s.workload.UID) { // of an earlier workload of the name; the garbage collector may not have run yet
		if err := client.IgnoreNotFound(r.Client.Delete(ctx, split, client.Preconditions{UID: &split.UID})); err != nil {
			return wrap("replacing", s.workload, err)
		}
		return phase.Wait("the CapacitySplit of an earlier workload of the name to be deleted", retryName)
	}
	before := split.DeepCopy()
	ready := setStatus(s, split)
	if was := reasonOf(before); was != ready && (ready == api.ReasonNoNodes || ready == api.ReasonInvalid) {
		r.notReady(s, ready, conditionOf(split).Message)
	}
	return patch.Status(ctx, r.Client, split, before)
}

// create creates the CapacitySplit. It returns nil without an error if the cache does not
// hold the existing one yet, or if the namespace is being deleted.
func (r *Reconciler) create(ctx context.Context, s *scope, key types.NamespacedName) (*api.CapacitySplit, error) {
	split := &api.CapacitySplit{ObjectMeta: metav1.ObjectMeta{
		Namespace: key.Namespace, Name: key.Name,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: s.workload.GroupVersion().String(), Kind: s.workload.Kind, Name: s.workload.Name, UID: s.workload.UID,
		}},
	}}
	err := r.Client.Create(ctx, split)
	if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil, nil
	}
	return split, err
}

// retryName is when the controller tries again to create a CapacitySplit under a name that
// is in use.
const retryName = 200 * time.Millisecond

// cleanUp deletes the CapacitySplit of a workload that was deleted, and forgets the
// workload. The garbage collector does not delete it if the deletion orphaned dependents.
func (r *Reconciler) cleanUp(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	r.mu.Lock()
	key, shown := r.shown[uid]
	r.mu.Unlock()
	if shown {
		split := &api.CapacitySplit{}
		err := r.Client.Get(ctx, key, split)
		if err == nil && (len(split.OwnerReferences) == 0 || ownedBy(split, uid)) {
			err = r.Client.Delete(ctx, split, client.Preconditions{UID: &split.UID})
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting CapacitySplit %s: %w", key, err)
		}
	}
	r.Policies.DropCount(uid)
	r.forget(uid)
	return nil
}

// leave ends the division of a workload that is not divided any more. It keeps the
// CapacitySplit while pods of the workload wait for a node of their class, because a new
// leader finds the workload by it.
func (r *Reconciler) leave(ctx context.Context, s *scope) error {
	if r.isShown(s.workload.UID) {
		if wait, err := r.free(ctx, s); err != nil || wait {
			return cmp.Or(err, phase.Wait("pods with a class to be deleted or to get a node", eviction.Retry))
		}
	}
	return r.hide(ctx, s)
}

// free evicts unschedulable pods that wait for a node of their class: their successors may
// use any node. It reports whether any pods with a class have no node, including those that
// kube-scheduler has not tried yet.
func (r *Reconciler) free(ctx context.Context, s *scope) (wait bool, err error) {
	for _, c := range r.Ledger.View(r.below(s.workload)) {
		for _, pod := range c.Pods {
			if pod.ClassStamp == capacity.None || pod.Node != "" {
				continue
			}
			wait = true
			if !pod.Unschedulable {
				continue
			}
			if err := eviction.Outcome(r.Evictor.Discard(ctx, pod.Key(), pod.UID)); err != nil {
				return true, err
			}
		}
	}
	return wait, nil
}

// hide deletes the CapacitySplit of a workload that is not divided any more.
func (r *Reconciler) hide(ctx context.Context, s *scope) error {
	ctx, cancel := context.WithTimeout(ctx, showTimeout)
	defer cancel()
	split := &api.CapacitySplit{}
	err := r.Client.Get(ctx, types.NamespacedName{Namespace: s.workload.Namespace, Name: nameOf(s.workload)}, split)
	if err == nil && ownedBy(split, s.workload.UID) {
		err = r.Client.Delete(ctx, split, client.Preconditions{UID: &split.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return wrap("deleting", s.workload, err)
	}
	r.forget(s.workload.UID)
	return nil
}

func ownedBy(split *api.CapacitySplit, uid types.UID) bool {
	return len(split.OwnerReferences) == 1 && split.OwnerReferences[0].UID == uid
}

// maxName bounds the name of an object, in bytes.
const maxName = 253

// nameOf returns the name of the CapacitySplit of a workload: kind and name, with the group
// unless it is apps. A name that is too long is cut and gets a hash.
func nameOf(o *ownership.Object) string {
	name := strings.ToLower(o.Kind) + "-" + o.Name
	if o.Group != "apps" {
		name = strings.ToLower(o.GroupKind().String()) + "-" + o.Name
	}
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	end := "-" + hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:maxName-len(end)], ".-") + end
}

// setStatus writes the status from what was observed and planned, and returns the reason of
// the Ready condition.
func setStatus(s *scope, split *api.CapacitySplit) string {
	w, p, o := s.workload, s.plan, s.observed
	status, generation := &split.Status, split.Generation
	status.ObservedGeneration, status.WorkloadGeneration = generation, w.Generation
	status.Workload = api.WorkloadReference{APIVersion: w.GroupVersion().String(), Kind: w.Kind, Name: w.Name}
	status.Count = nil
	if s.capacity.Configured != capacity.MaxCount {
		status.Count = new(int32(s.capacity.Configured))
	}
	of := func(class capacity.Class) api.ClassStatus {
		return api.ClassStatus{
			Want: int32(p.want[class]), Have: int32(p.have[class]), Reserved: int32(o.reserved[class]), Waiting: int32(p.waiting[class]),
		}
	}
	status.OnDemand, status.Spot, status.Other = of(capacity.OnDemand), of(capacity.Spot), int32(p.have[capacity.None]+p.waiting[capacity.None])
	reason, message := p.reason, conditions.Bounded(p.message)
	ready := metav1.ConditionFalse
	switch {
	case reason == api.ReasonSatisfied && o.replicas > 0:
		ready = metav1.ConditionTrue
	case reason == api.ReasonSatisfied:
		ready, message = metav1.ConditionTrue, "the workload has 0 replicas"
	}
	conditions.SetReady(&status.Conditions, generation, ready, reason, message, api.IsStalled(reason))
	return reason
}

func conditionOf(split *api.CapacitySplit) metav1.Condition {
	for _, c := range split.Status.Conditions {
		if c.Type == api.ConditionReady {
			return c
		}
	}
	return metav1.Condition{}
}

func reasonOf(split *api.CapacitySplit) string { return conditionOf(split).Reason }
