// Package pod is the mutating webhook of new pods. It
//
//   - copies the policy labels of the pod's workload to the pod;
//   - gives the pod its seat, its overrides and its capacity class, if it needs them at
//     creation (early assignment);
//   - adds a scheduling gate if a policy that the workload requires is not bound, if
//     there is no seat, or if an owner cannot be read now;
//   - sets the scheduler that calls the extender, if the cluster's own does not;
//   - removes the labels and annotations of the template that only atoll-manager may
//     write.
//
// It is a thin adapter of the owners' walker and the assigner, and decides nothing. It
// never refuses a pod: what it cannot find out is left to the extender and the
// controllers.
package pod

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
	"github.com/atoll-k8s/atoll/internal/policies"
)

// Path is the HTTP path of the webhook.
const Path = "/mutate-pods"

// admitTimeout bounds one admission. It is below timeoutSeconds of the webhook
// configuration. So a pod for which no decision is made in time gets the gate; after
// timeoutSeconds it would be created without it.
const admitTimeout = 1500 * time.Millisecond

// Webhook admits pods. It is safe for concurrent use.
type Webhook struct {
	Walker *owners.Walker
	// SchedulerName is the scheduler for pods whose workload requires a policy. Pods
	// that name another scheduler than the default one keep theirs. "" changes no pod.
	SchedulerName string
	// Mark is the extended resource that is added to managed pods with a quantity of 0,
	// so that kube-scheduler calls the extender for these pods only. "" adds none.
	Mark     corev1.ResourceName
	Policies *policies.Resolver
	// Assigner assigns seats at creation.
	Assigner Assigner
	// API is used to read the volume claims of pods.
	API kubernetes.Interface
	// Clock is the time for the age of proofs. Key returns the key of proofs, which all
	// replicas share; nil while there is none.
	Clock clock.PassiveClock
	Key   func() []byte
	// Gangs finds the PodGroups of pods; nil without PodGroups.
	Gangs *Gangs
}

// Assigner assigns seats. It is an assign.Assigner.
type Assigner interface {
	Assign(ctx context.Context, ask assign.Request) (assign.Answer, error)
}

// AnswersWithin returns the time from the arrival of a review to its answer, the wait for a turn
// included.
func (w *Webhook) AnswersWithin() time.Duration { return admitTimeout }

// SetupWithManager registers the webhook.
func (w *Webhook) SetupWithManager(mgr ctrl.Manager) {
	mgr.GetWebhookServer().Register(Path, w)
}

// Admit changes a pod that is being created in the given namespace according to its
// policies. With dryRun it reserves no seat.
func (w *Webhook) Admit(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, admitTimeout)
	defer cancel()
	w.nameGroup(ctx, pod, namespace)
	if w.seenBefore(pod, namespace) {
		w.restore(ctx, pod, objectOf(pod, namespace))
		return
	}
	original := maps.Clone(pod.Labels)
	dropStamps(pod)
	object := objectOf(pod, namespace)
	// A replica that has just started, and has not listed all owners yet, reads those that it does not know.
	chain, err := w.Walker.Chain(ctx, object)
	// The labels by which the owner finds the pod must not change.
	keepSelected := func() {
		group := pod.Labels[gm.NodeGroupLabel]
		pod.Labels = selectorOf(object, chain).Restore(original, pod.Labels)
		if pod.Labels[gm.NodeGroupLabel] != group { // the pod cannot carry its group, so its seat counts only once it is on a node
			delete(pod.Annotations, gm.SeatAnnotation)
		}
	}
	defer keepSelected()
	if errors.Is(err, owners.ErrOwnerUnread) {
		w.hold(ctx, pod, err)
		return
	}
	if err != nil {
		log.FromContext(ctx).V(2).Info("Pod admitted without its policies", "why", err.Error())
		return
	}
	policyOwners := ownership.PolicyOwnersOfPod(chain)
	setPolicyLabels(pod, policyOwners.Policies())
	if policyOwners.Managed() && !policyOwners.Propagation.Waits() && !policyOwners.Override.Waits() && policyOwners.Policies().Unbound() {
		assign.Annotate(&pod.ObjectMeta, gm.MissingPolicyAnnotation, gm.MissingPolicyIgnore) // else a hub would not deliver it
	}
	share := w.Policies.CapacityOf(chain[1:])
	if policyOwners.Managed() || share.On {
		assign.Annotate(&pod.ObjectMeta, gm.AdmittedAnnotation, "true")
		if pod.Spec.NodeName != "" {
			assign.Annotate(&pod.ObjectMeta, gm.NamesNodeAnnotation, "true")
		}
	}
	if pod.Spec.NodeName != "" && share.On {
		assign.Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, capacity.NamesNode)
	}
	if !policyOwners.Managed() && !share.On {
		return
	}
	token := uuid.NewUUID()
	if pod.Spec.NodeName != "" {
		w.overrideOnNode(ctx, pod, chain, token, dryRun)
		keepSelected()
		w.prove(pod, namespace)
		return
	}
	gate, class := false, capacity.None
	if share.On { // before the group, because not every group has nodes of each class
		var known bool
		class, known = w.classify(ctx, pod, object, share, token, dryRun)
		gate = !known
	}
	if policyOwners.Managed() {
		gate = w.place(ctx, pod, chain, policyOwners, token, dryRun) || gate
	}
	if !share.Ordinal {
		assign.SetClassCost(pod, class)
	}
	if gate {
		setGate(pod)
	}
	keepSelected() // before the proof, which covers labels
	w.prove(pod, namespace)
}

// selectorOf returns the selector of the direct owner of a pod: an empty one for a pod
// without an owner, an unknown one if the owner is unknown. chain is nil if it could not be read.
func selectorOf(pod *ownership.Object, chain []*ownership.Object) ownership.Selector {
	switch {
	case pod.Controller == nil:
		return ownership.SelectorByKeys()
	case len(chain) < 2:
		return ownership.Selector{}
	default:
		return chain[1].Selector
	}
}

// place applies the policies of the workload to a pod. It returns true if the pod has to
// wait at the gate.
func (w *Webhook) place(ctx context.Context, pod *corev1.Pod, chain []*ownership.Object, policyOwners ownership.PolicyOwners, token types.UID, dryRun bool) (gate bool) {
	// The seat is assigned also if a policy is not bound yet, so that the pod has it when
	// the policy is bound.
	result := w.assign(ctx, pod, chain, token, dryRun)
	if managed(policyOwners) && result != settled && result != pinnedLater {
		w.setScheduler(pod)
		w.mark(pod)
	}
	return result == waiting || result == pinnedLater || policyOwners.Propagation.Waits() || policyOwners.Override.Waits()
}

func setGate(pod *corev1.Pod) {
	pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gm.PolicyGate})
}

// hold makes a pod wait at the gate because one of its owners cannot be read now, so that
// it is unknown whether policies apply. It prepares the pod for the case that they do,
// because its scheduler and its requests cannot change later. A pod without policies can
// be scheduled in the same way.
func (w *Webhook) hold(ctx context.Context, pod *corev1.Pod, why error) {
	assign.Annotate(&pod.ObjectMeta, gm.AdmittedAnnotation, "true")
	if pod.Spec.NodeName != "" {
		assign.Annotate(&pod.ObjectMeta, gm.NamesNodeAnnotation, "true")
		return
	}
	logger := log.FromContext(ctx)
	if errors.Is(why, owners.ErrManyReads) { // any number of requests may need too many
		logger = logger.V(2)
	}
	logger.Info("Pod waits at the gate for its owner to be read", "why", why.Error())
	w.setScheduler(pod)
	w.mark(pod)
	setGate(pod)
}

// objectOf returns the pod in the form in which the walker takes it.
func objectOf(pod *corev1.Pod, namespace string) *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        namespace, Name: pod.Name,
		Policies:      ownership.PoliciesOf(pod.Labels),
		Controller:    owners.ControllerOf(pod.OwnerReferences),
		IgnoreMissing: ownership.IgnoresMissing(pod.Annotations),
	}
}

// dropStamps removes the labels, annotations and gates that only atoll-manager may write,
// so that a template cannot set them. The webhook is not called for updates of the pod.
func dropStamps(pod *corev1.Pod) {
	delete(pod.Labels, gm.NodeGroupLabel)
	delete(pod.Labels, gm.CapacityClassLabel)
	for _, key := range []string{
		gm.OriginalImagesAnnotation, gm.RestartingAnnotation, gm.NudgeAnnotation, gm.DeletionCostAnnotation,
		gm.SeatAnnotation, gm.AdmissionAnnotation, gm.AdmittedAnnotation, gm.OverridesAnnotation, gm.CreatedForAnnotation, gm.UnassignedAnnotation,
		gm.CapacityReasonAnnotation, gm.NamesNodeAnnotation,
	} {
		delete(pod.Annotations, key)
	}
	gates := pod.Spec.SchedulingGates[:0]
	for _, gate := range pod.Spec.SchedulingGates {
		if gate.Name != gm.PolicyGate {
			gates = append(gates, gate)
		}
	}
	pod.Spec.SchedulingGates = gates
}

// setPolicyLabels sets the pod's four policy labels to those of its workload.
func setPolicyLabels(pod *corev1.Pod, want ownership.Policies) {
	if ownership.PoliciesOf(pod.Labels) == want {
		return
	}
	for _, key := range ownership.LabelKeys {
		delete(pod.Labels, key)
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, want.Labels())
}

// setScheduler sets the scheduler that calls the extender, unless the pod names another
// than the default one. The API server fills in the default before it calls the webhook.
func (w *Webhook) setScheduler(pod *corev1.Pod) {
	isDefault := pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == corev1.DefaultSchedulerName
	if w.SchedulerName != "" && isDefault && pod.Spec.NodeName == "" {
		pod.Spec.SchedulerName = w.SchedulerName
	}
}

// mark adds a request of 0 of the extended resource to the first container. A request of
// 0 fits on every node and counts against no quota.
func (w *Webhook) mark(pod *corev1.Pod) {
	if w.Mark == "" || len(pod.Spec.Containers) == 0 {
		return
	}
	resources := &pod.Spec.Containers[0].Resources
	for _, list := range []*corev1.ResourceList{&resources.Requests, &resources.Limits} {
		if *list == nil {
			*list = corev1.ResourceList{}
		}
		(*list)[w.Mark] = resource.Quantity{Format: resource.DecimalSI}
	}
}

// managed returns true if a policy applies to the pod: one that the workload requires,
// unless it is not bound and the workload ignores missing policies.
func managed(policyOwners ownership.PolicyOwners) bool {
	applies := func(o *ownership.Object, binding func(ownership.Policies) ownership.Binding) bool {
		return o != nil && (!o.IgnoreMissing || binding(o.Policies) == ownership.Bound)
	}
	return applies(policyOwners.Propagation, ownership.Policies.Propagation) || applies(policyOwners.Override, ownership.Policies.Override)
}
