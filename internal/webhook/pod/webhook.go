// Package pod admits new pods: it copies the policy labels of the pod's
// application to the pod, gives pods that need it their seat and their overrides
// (early assignment), holds the pod back with a scheduling gate while a policy
// that the application requires is not bound, no seat is to be had or its owner
// cannot be read for now, names the
// scheduler that asks the extender where that is not the cluster's own, and
// drops what a template wrote under keys that only atoll-manager may write.
//
// It is a thin adapter: it asks the owners' walk and the assigner that hands out
// seats, and decides nothing. It never refuses a pod; what it cannot find out is
// left to the extender and the controllers.
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

// Path is where the webhook is served.
const Path = "/mutate-pods"

// patience bounds one admission: below timeoutSeconds of the webhook, so that a
// pod that cannot be decided about in time waits at the gate and does not go past.
const patience = 1500 * time.Millisecond

// Webhook admits pods.
type Webhook struct {
	Walker *owners.Walker
	// SchedulerName is the scheduler of pods whose application requires a
	// policy. Pods that name one of their own keep it. Unset leaves every pod to
	// the scheduler that it came with.
	SchedulerName string
	// Mark is the extended resource of which managed pods ask for none at all:
	// a kube-scheduler that asks the extender only about pods that name it knows
	// them by that. Unset marks no pod.
	Mark     corev1.ResourceName
	Policies *policies.Resolver
	// Assigner hands out seats at creation.
	Assigner Assigner
	// API is asked about the volumes of pods that have any.
	API kubernetes.Interface
	// Clock tells how old a proof is, and Key is what all replicas make proofs
	// with; nil while there is none.
	Clock clock.PassiveClock
	Key   func() []byte
	// Gangs names the PodGroups of pods; nil names none.
	Gangs *Gangs
}

// Assigner hands out seats (assign.Assigner).
type Assigner interface {
	Assign(ctx context.Context, ask assign.Ask) (assign.Answer, error)
}

// SetupWithManager registers the webhook.
func (w *Webhook) SetupWithManager(mgr ctrl.Manager) {
	mgr.GetWebhookServer().Register(Path, w)
}

// Admit makes a pod that is being created as its policies want it.
func (w *Webhook) Admit(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w.nameGroup(ctx, pod, namespace)
	if w.seenBefore(pod, namespace) {
		w.again(ctx, pod, objectOf(pod, namespace))
		return
	}
	was := maps.Clone(pod.Labels)
	dropStamps(pod)
	object := objectOf(pod, namespace)
	app, owned, err := w.application(ctx, object)
	// Whatever is changed, the pod stays its owner's.
	keep := func() {
		group := pod.Labels[gm.NodeGroupLabel]
		pod.Labels = selectorOf(object, owned).Keep(was, pod.Labels)
		if pod.Labels[gm.NodeGroupLabel] != group { // it cannot say which group it got: it counts once it has its node
			delete(pod.Annotations, gm.SeatAnnotation)
		}
	}
	defer keep()
	if errors.Is(err, owners.ErrOwnerUnread) {
		w.hold(ctx, pod, err)
		return
	}
	if err != nil {
		log.FromContext(ctx).V(2).Info("Pod admitted without looking at policies", "why", err.Error())
		return
	}
	setPolicyLabels(pod, app.Policies())
	share := w.Policies.CapacityOf(owned)
	if app.Managed() || share.On {
		assign.Annotate(&pod.ObjectMeta, gm.AdmittedAnnotation, "true")
	}
	if pod.Spec.NodeName != "" && share.On {
		assign.Annotate(&pod.ObjectMeta, gm.CapacityReasonAnnotation, capacity.NamesNode)
	}
	if pod.Spec.NodeName != "" || !app.Managed() && !share.On {
		return
	}
	token := uuid.NewUUID()
	gate, class := false, capacity.None
	if share.On { // the class first: not every group has nodes of each
		var known bool
		class, known = w.classify(ctx, pod, object, share, token, dryRun)
		gate = !known
	}
	if app.Managed() {
		gate = w.place(ctx, pod, object, app, token, dryRun) || gate
	}
	if !share.Ordinal {
		assign.SetClassCost(pod, class)
	}
	if gate {
		setGate(pod)
	}
	keep()
	w.prove(pod, namespace)
}

// selectorOf is what the direct owner of a pod finds it by; not known while the
// owner is not. A pod without a controller nobody finds.
func selectorOf(pod *ownership.Object, owned []*ownership.Object) ownership.Selector {
	switch {
	case pod.Controller == nil:
		return ownership.SelectorByKeys()
	case len(owned) == 0:
		return ownership.Selector{}
	default:
		return owned[0].Selector
	}
}

// place gives a pod what the policies of its application want, and tells whether
// it is to wait at the gate.
func (w *Webhook) place(ctx context.Context, pod *corev1.Pod, object *ownership.Object, app ownership.Application, token types.UID, dryRun bool) (gate bool) {
	// A pod that gets its seat now has it when its policies are bound.
	standing := w.assign(ctx, pod, object, token, dryRun)
	if managed(app) && standing != settled && standing != pinnedLater {
		w.setScheduler(pod)
		w.mark(pod)
	}
	return standing == waiting || standing == pinnedLater || waits(app.Propagation) || waits(app.Override)
}

func setGate(pod *corev1.Pod) {
	pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gm.PolicyGate})
}

// hold makes a pod wait whose owner cannot be read for now: nobody knows whether
// it requires policies. It is made ready for the case that it does, which
// cannot be done later; without policies it is scheduled just as well.
func (w *Webhook) hold(ctx context.Context, pod *corev1.Pod, why error) {
	assign.Annotate(&pod.ObjectMeta, gm.AdmittedAnnotation, "true")
	if pod.Spec.NodeName != "" {
		return
	}
	log.FromContext(ctx).Info("Pod waits for its owner to be read", "why", why.Error())
	w.setScheduler(pod)
	w.mark(pod)
	setGate(pod)
}

// application is what a pod belongs to, with its owners, the direct one first.
func (w *Webhook) application(ctx context.Context, object *ownership.Object) (app ownership.Application, owned []*ownership.Object, err error) {
	if !w.Walker.HasSynced() {
		return ownership.Application{}, nil, errors.New("owners are not listed yet")
	}
	app, chain, err := w.Walker.Application(ctx, object)
	if err != nil {
		return app, nil, err
	}
	return app, chain[1:], nil
}

// objectOf is the pod as the start of a walk up its owners.
func objectOf(pod *corev1.Pod, namespace string) *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        namespace, Name: pod.Name,
		Policies:      ownership.PoliciesOf(pod.Labels),
		Controller:    owners.ControllerOf(pod.OwnerReferences),
		IgnoreMissing: ownership.IgnoresMissing(pod.Annotations),
	}
}

// dropStamps takes away what only atoll-manager may write. An update of the
// same pod never comes here.
func dropStamps(pod *corev1.Pod) {
	delete(pod.Labels, gm.NodeGroupLabel)
	delete(pod.Labels, gm.CapacityClassLabel)
	for _, key := range []string{
		gm.OriginalImagesAnnotation, gm.RestartingAnnotation, gm.NudgeAnnotation, gm.DeletionCostAnnotation,
		gm.SeatAnnotation, gm.AdmissionAnnotation, gm.AdmittedAnnotation, gm.OverridesAnnotation, gm.CreatedForAnnotation, gm.UnassignedAnnotation,
		gm.CapacityReasonAnnotation,
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

// setPolicyLabels makes the pod's four labels those of its application.
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

// setScheduler hands the pod to the scheduler that asks the extender, unless
// whoever wrote the pod chose another. The API server fills in the default
// scheduler's name before we are asked.
func (w *Webhook) setScheduler(pod *corev1.Pod) {
	free := pod.Spec.SchedulerName == "" || pod.Spec.SchedulerName == corev1.DefaultSchedulerName
	if w.SchedulerName != "" && free && pod.Spec.NodeName == "" {
		pod.Spec.SchedulerName = w.SchedulerName
	}
}

// mark names the resource in the first container. None of it fits every node,
// whoever counts, and no quota.
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

// managed tells whether a policy has a say in the pod: any that the application
// requires, but for one that is missing and may be.
func managed(app ownership.Application) bool {
	says := func(o *ownership.Object, binding func(ownership.Policies) ownership.Binding) bool {
		return o != nil && (!o.IgnoreMissing || binding(o.Policies) == ownership.Bound)
	}
	return says(app.Propagation, ownership.Policies.Propagation) || says(app.Override, ownership.Policies.Override)
}

// waits tells whether the policies that an owner requires are not bound.
func waits(o *ownership.Object) bool {
	if o == nil || o.IgnoreMissing {
		return false
	}
	for _, binding := range []ownership.Binding{o.Policies.Propagation(), o.Policies.Override()} {
		if binding == ownership.Unbound || binding == ownership.Mismatched {
			return true
		}
	}
	return false
}
