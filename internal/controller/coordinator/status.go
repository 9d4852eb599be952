package coordinator

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
)

// setStatus sets the status from what was observed and done. What could not be observed stays as it is: hubs find the
// coordinator by it.
func setStatus(s *scope) {
	status := &s.coordinator.Status
	status.ObservedGeneration = s.coordinator.Generation
	set := func(kind string, is metav1.ConditionStatus, reason, message string) {
		conditions.Set(&status.Conditions, s.coordinator.Generation, kind, is, reason, conditions.Bounded(message))
	}
	if !s.isObserved {
		for _, kind := range []string{apps.ConditionPending, apps.ConditionCertsReady, apps.ConditionReady, apps.ConditionPodAccess, apps.ConditionFrozen} {
			set(kind, metav1.ConditionUnknown, apps.ReasonObservationFailed, messageOf(s.failed))
		}
		return
	}
	setPlace(status, s)
	pending, pendingReason, pendingMessage := metav1.ConditionFalse, apps.ReasonDeployed, "the pool has its coordinator"
	if s.decision.Reason != "" {
		pending, pendingReason, pendingMessage = metav1.ConditionTrue, s.decision.Reason, s.decision.Message
	}
	set(apps.ConditionPending, pending, pendingReason, pendingMessage)

	certified, certReason, certMessage := metav1.ConditionTrue, apps.ReasonIssued, "the certificates are those for its node"
	switch {
	case !s.decision.IsDeployed:
		certified, certReason, certMessage = metav1.ConditionFalse, pendingReason, pendingMessage
	case s.failed != nil && !s.certified:
		certified, certReason, certMessage = metav1.ConditionFalse, apps.ReasonWriteFailed, messageOf(s.failed)
	case !s.certified:
		certified, certReason, certMessage = metav1.ConditionFalse, apps.ReasonNotScheduled, notScheduled(s)
	}
	set(apps.ConditionCertsReady, certified, certReason, certMessage)

	ready, reason, message := metav1.ConditionTrue, apps.ReasonPodReady, "people can use it"
	switch {
	case certified != metav1.ConditionTrue:
		ready, reason, message = metav1.ConditionFalse, certReason, certMessage
	case !isReady(s.pod):
		ready, reason, message = metav1.ConditionFalse, apps.ReasonPodNotReady, fmt.Sprintf("its pod %q on node %q is not Ready: %s", s.pod.Name, s.pod.Spec.NodeName, whyNotReady(s.pod))
	}
	conditions.SetReady(&status.Conditions, s.coordinator.Generation, ready, reason, conditions.Bounded(message), apps.IsStalled(reason))
	setPool(status, s, set)
	setNodes(status, s, set)
}

// setPool sets what the pool itself says.
func setPool(status *apps.YurtCoordinatorStatus, s *scope, set func(kind string, is metav1.ConditionStatus, reason, message string)) {
	status.OutsidePoolNodes = nil
	switch {
	case !s.decision.IsDeployed:
		set(apps.ConditionPodAccess, metav1.ConditionUnknown, s.decision.Reason, s.decision.Message)
		return
	case s.pool == nil && s.failed != nil:
		set(apps.ConditionPodAccess, metav1.ConditionUnknown, apps.ReasonWriteFailed, messageOf(s.failed))
		return
	case s.pool == nil:
		set(apps.ConditionPodAccess, metav1.ConditionUnknown, apps.ReasonPoolSilent, "no hub of the pool says how it is: the coordinator was started in the last minute, or no hub reaches both it and the cloud")
		return
	}
	for _, node := range s.pool.Outside {
		if s.heard[node] {
			status.OutsidePoolNodes = append(status.OutsidePoolNodes, node)
		}
	}
	var refused []string
	for _, node := range s.pool.Refused {
		if slices.Contains(s.nodes, node) {
			refused = append(refused, node)
		}
	}
	if len(refused) == 0 {
		set(apps.ConditionPodAccess, metav1.ConditionTrue, apps.ReasonKubeletsAccept, "no kubelet of the pool refuses its hub")
		return
	}
	set(apps.ConditionPodAccess, metav1.ConditionFalse, apps.ReasonKubeletsRefuse, fmt.Sprintf(
		"logs and exec do not work on nodes whose kubelets need authentication.webhook.enabled, authorization.mode Webhook, and a kubeconfig that leads to the hub: %s", strings.Join(refused, ", ")))
}

// setNodes sets what the cloud concludes about the nodes of the pool.
func setNodes(status *apps.YurtCoordinatorStatus, s *scope, set func(kind string, is metav1.ConditionStatus, reason, message string)) {
	status.DelegatedNodes = s.delegated()
	var frozen []string
	for _, node := range s.nodes {
		if s.states[node] == connectivity.Frozen {
			frozen = append(frozen, node)
		}
	}
	if !s.decision.IsDeployed {
		set(apps.ConditionFrozen, metav1.ConditionUnknown, s.decision.Reason, s.decision.Message)
		return
	}
	if len(frozen) == 0 {
		set(apps.ConditionFrozen, metav1.ConditionFalse, apps.ReasonNotFrozen, "no node is kept without anybody who knows whether it is dead")
		return
	}
	until := "until they are heard, or their pool is and they are not"
	if limit := s.coordinator.Spec.FrozenLimit; limit != nil {
		until += fmt.Sprintf(", for %s at most (spec.frozenLimit)", limit.Duration)
	}
	set(apps.ConditionFrozen, metav1.ConditionTrue, apps.ReasonPoolSilent, fmt.Sprintf("nothing is heard of these nodes, and nobody knows which of them are dead: their pods are kept %s: %s", until, strings.Join(frozen, ", ")))
}

// setPlace sets where the coordinator is, and what hubs need to find it.
func setPlace(status *apps.YurtCoordinatorStatus, s *scope) {
	if !s.decision.IsDeployed {
		*status = apps.YurtCoordinatorStatus{ObservedGeneration: status.ObservedGeneration, Conditions: status.Conditions}
		return
	}
	if s.decision.Version != "" {
		status.Version = s.decision.Version
	}
	if s.ca != nil {
		status.CABundle = s.ca
	}
	status.NodeName, status.Addresses = "", nil
	if s.pod != nil {
		status.NodeName = s.pod.Spec.NodeName
	}
	if address := s.address(); address != "" {
		status.Addresses = append(status.Addresses, address)
	}
	for _, name := range s.nodes {
		if address := s.addresses[name]; name != status.NodeName && address != "" {
			status.Addresses = append(status.Addresses, address)
		}
	}
	if s.certified {
		status.KubeconfigSecret = kubeconfigOf(s.coordinator.Spec.NodePool)
	}
}

func messageOf(err error) string {
	if err == nil {
		return "it was not looked at yet"
	}
	return conditions.Printable(err.Error())
}

// notScheduled returns why the pod is on no node.
func notScheduled(s *scope) string {
	switch {
	case s.pod == nil:
		return "it has no pod yet: the UnitedDeployment atoll-pools/coordinator makes it"
	case s.pod.Spec.NodeName == "":
		for _, c := range s.pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Message != "" {
				return fmt.Sprintf("its pod %q is on no node: %s", s.pod.Name, conditions.Printable(c.Message))
			}
		}
		return fmt.Sprintf("its pod %q is on no node yet", s.pod.Name)
	default:
		return fmt.Sprintf("the node %q of its pod has no internal address, or is not in the pool", s.pod.Spec.NodeName)
	}
}

// whyNotReady returns the first reason that a container has, or that its node is silent.
func whyNotReady(pod *corev1.Pod) string {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			switch state := &list[i].State; {
			case state.Waiting != nil && state.Waiting.Reason != "PodInitializing":
				return conditions.Printable(fmt.Sprintf("container %q waits: %s %s", list[i].Name, state.Waiting.Reason, state.Waiting.Message))
			case state.Terminated != nil && state.Terminated.Reason != "Completed":
				return conditions.Printable(fmt.Sprintf("container %q has ended: %s %s", list[i].Name, state.Terminated.Reason, state.Terminated.Message))
			case state.Running != nil && !list[i].Ready:
				return fmt.Sprintf("container %q does not answer its probe yet", list[i].Name)
			}
		}
	}
	if len(pod.Status.ContainerStatuses) == 0 {
		return "its containers have not started yet"
	}
	return "the cloud does not hear from its node; people in the pool may still use it"
}

// tell emits an event when a coordinator becomes Ready, or is not any more, or something prevents it.
func (r *Reconciler) tell(before, after *apps.YurtCoordinator) {
	for _, kind := range []string{apps.ConditionPending, apps.ConditionReady} {
		bad := map[string]metav1.ConditionStatus{apps.ConditionReady: metav1.ConditionFalse, apps.ConditionPending: metav1.ConditionTrue}[kind]
		was, is := meta.FindStatusCondition(before.Status.Conditions, kind), meta.FindStatusCondition(after.Status.Conditions, kind)
		if is == nil || was != nil && was.Status == is.Status && (kind == apps.ConditionReady || was.Reason == is.Reason) {
			continue
		}
		kindOfEvent := corev1.EventTypeNormal
		if is.Status == bad {
			kindOfEvent = corev1.EventTypeWarning
		}
		if was == nil && is.Status != bad || was == nil && kind == apps.ConditionReady {
			continue // it has just begun
		}
		const shown = 900 // bytes; the API server accepts 1024
		r.Recorder.Eventf(after, nil, kindOfEvent, is.Reason, "Deploy", "%s is %s: %s", kind, is.Status, conditions.Truncate(is.Message, shown))
	}
}
