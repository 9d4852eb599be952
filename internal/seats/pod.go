package seats

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/affinity"
	"github.com/atoll-k8s/atoll/internal/domain/capacity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/machinery/conditions"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Pod is the part of a pod that decisions need: about a twentieth of the object. After
// Observe a Pod is shared and must not be changed.
type Pod struct {
	UID       types.UID
	Namespace string
	Name      string

	// Controller is the direct owner, or nil.
	Controller *ownership.Reference
	// Revision identifies the revision of the owner's template.
	Revision string
	// Policies are the policy labels of the pod itself.
	Policies ownership.Policies
	// IgnoreMissing: the pod's own missing-policy annotation is Ignore.
	IgnoreMissing bool
	// GroupStamp is the NodeGroup in which the pod took a seat, from its label.
	GroupStamp string
	// Seat is the token with which the pod got its seat at creation; "" if it got none then.
	Seat types.UID
	// Admission is the token with which the pod was admitted to kube-scheduler without a
	// seat; "" if its policy does not limit the number of pods.
	Admission types.UID
	// Admitted: the pod passed the pod webhook, and its workload required a policy or could
	// have required one.
	Admitted bool
	// Overrides is a hash of the overrides that were applied at creation and cannot be
	// applied later; "" if there were none.
	Overrides string
	// CreatedFor is the UID of the direct owner that the pod had when it was
	// created with overrides, or "".
	CreatedFor types.UID
	// Unassigned is why the pod was created without overrides: a version of the
	// OverridePolicy and an error; "" if there was no error.
	Unassigned string

	// ClassStamp is the capacity class that the webhook gave the pod. Class is the one that
	// the pod's demands leave to it; Observe sets it.
	ClassStamp, Class capacity.Class
	// NamesNode: the pod's owner created it for one node by spec.nodeName, so its successor
	// comes to the same node.
	NamesNode bool

	// Scheduler is the pod's scheduler; "" for the default one, and for a name that is too long.
	Scheduler string
	// Marks are the extended resources of which a container requests 0, sorted; nil without the flag
	// --mark-resource, with which Atoll's webhook adds such a request.
	Marks []corev1.ResourceName
	// For is the one node that a DaemonSet's pod is for; "" for other pods.
	For string
	// Node is empty until the pod is bound.
	Node string
	// Active: neither finished nor terminating. Only active pods count.
	Active bool
	// Finished: succeeded or failed. A finished pod uses nothing on its node any more; a
	// terminating pod still does.
	Finished bool
	// RunsOnce: a container that ends may not be started again, by the restartPolicy of the
	// pod or of a container. So none may be ended to change its image.
	RunsOnce bool
	// Ready is the pod's Ready condition.
	Ready bool
	// Gated: the pod has our scheduling gate. OtherGate is a gate of another program, "" if the pod
	// has none.
	Gated     bool
	OtherGate string
	// Unschedulable: kube-scheduler has looked at the pod and found no node.
	Unschedulable bool
	// UnschedulableSince is when that began; zero while Unschedulable is false.
	UnschedulableSince time.Time
	// Refused: the extender refused nodes that kube-scheduler had found.
	Refused bool
	// Nominated: kube-scheduler preempts other pods for the pod.
	Nominated bool
	// Claims: the pod uses PersistentVolumeClaims, whose volumes may tie it to nodes.
	Claims bool
	// Nudge is the value of the nudge annotation.
	Nudge string

	Created time.Time
	// DeletionCost is controller.kubernetes.io/pod-deletion-cost; 0 when unset.
	DeletionCost int32
	// HasCost: the annotation is set. OwnCost: atoll-manager has set it.
	HasCost, OwnCost bool
	// Demand is what the pod and its successor demand of a node; nil means nothing. Pods of a
	// cohort with equal demands share one.
	Demand *fit.Demand

	// NoImages: Containers and Originals are not kept, because they are too long.
	NoImages bool
	// Containers are the init containers and the containers, in this order.
	Containers []Container
	// Originals are the images before the first override, by container name.
	Originals map[string]string
}

// Container is one container of a Pod.
type Container struct {
	Name  string
	Init  bool
	Image string
	// Running: the kubelet reports it as running.
	Running bool
	// Restarts is its restartCount.
	Restarts int32
	// Restarting: its image was changed in place, and the kubelet has not restarted it since.
	Restarting bool
	// Unpulled: it has never started, and cannot: the kubelet reports that its image, or that of
	// an init container before it, cannot be pulled.
	Unpulled bool
}

// Owner returns the UID under which the pod is counted: that of its controller, or its own if
// it has none.
func (p *Pod) Owner() types.UID {
	if p.Controller != nil {
		return p.Controller.UID
	}
	return p.UID
}

// cohort returns the cohort with which the pod is counted.
func (p *Pod) cohort() Cohort { return Cohort{Owner: p.Owner(), Revision: p.Revision} }

// Pinned returns whether the pod got its seat at creation: it can only go to the group
// GroupStamp.
func (p *Pod) Pinned() bool { return p.Seat != "" && p.GroupStamp != "" }

// GivenUp returns whether the pod was overridden when it was created and does not belong to
// its owner any more, because it lacks a label with which the owner selects its pods.
func (p *Pod) GivenUp() bool {
	return p.Active && p.CreatedFor != "" && (p.Controller == nil || p.Controller.UID != p.CreatedFor)
}

// UserCost returns whether somebody else has set the pod's deletion cost, so that
// atoll-manager must not write it.
func (p *Pod) UserCost() bool { return p.HasCost && !p.OwnCost }

// terminating returns whether the pod is about to leave its node, and still uses it.
func (p *Pod) terminating() bool { return !p.Active && !p.Finished }

// Key returns the namespace and the name of the pod.
func (p *Pod) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}

// Restarting returns whether a container's image was changed in place and the kubelet has not
// restarted it yet.
func (p *Pod) Restarting() bool {
	for i := range p.Containers {
		if p.Containers[i].Restarting {
			return true
		}
	}
	return false
}

// Available returns whether the pod is active, bound and Ready, and no container is about to
// restart.
func (p *Pod) Available() bool { return p.Active && p.Ready && p.Node != "" && !p.Restarting() }

// Object returns the pod as the start of a walk up its owners.
func (p *Pod) Object() *ownership.Object {
	return &ownership.Object{
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Pod"),
		Namespace:        p.Namespace, Name: p.Name, UID: p.UID,
		Policies: p.Policies, IgnoreMissing: p.IgnoreMissing, Controller: p.Controller, Deleting: !p.Active, Seat: p.Seat,
	}
}

// RevisionOf returns the revision of a pod from its controller, which may be nil, and its
// labels. owners.Walker implements it for all kinds of workloads.
type RevisionOf func(controller *ownership.Reference, labels map[string]string) string

// Slim is SlimBy for pods of the kinds that Kubernetes itself has.
func Slim(pod *corev1.Pod) *Pod {
	return SlimBy(func(_ *ownership.Reference, labels map[string]string) string { return ownership.Revision(labels, "") }, pod)
}

// SlimBy returns the part of a pod that decisions need. revision computes its Revision.
func SlimBy(revision RevisionOf, pod *corev1.Pod) *Pod {
	controller := owners.ControllerOf(pod.OwnerReferences)
	p := &Pod{
		UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name,
		Controller:    controller,
		Revision:      revision(controller, pod.Labels),
		Policies:      ownership.PoliciesOf(pod.Labels),
		IgnoreMissing: ownership.IgnoresMissing(pod.Annotations),
		GroupStamp:    pod.Labels[gm.NodeGroupLabel],
		Seat:          types.UID(short(pod.Annotations[gm.SeatAnnotation])),
		Admission:     types.UID(short(pod.Annotations[gm.AdmissionAnnotation])),
		Admitted:      pod.Annotations[gm.AdmittedAnnotation] != "",
		Overrides:     short(pod.Annotations[gm.OverridesAnnotation]),
		CreatedFor:    types.UID(short(pod.Annotations[gm.CreatedForAnnotation])),
		Unassigned:    conditions.Bounded(pod.Annotations[gm.UnassignedAnnotation]),
		ClassStamp:    capacity.ParseClass(pod.Labels[gm.CapacityClassLabel]),
		NamesNode:     pod.Annotations[gm.NamesNodeAnnotation] != "" || pod.Annotations[gm.CapacityReasonAnnotation] == capacity.NamesNode,
		Marks:         marksOf(&pod.Spec),
		For:           NodeOf(pod),
		Node:          pod.Spec.NodeName,
		Finished:      pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		RunsOnce:      runsOnce(&pod.Spec),
		Nudge:         short(pod.Annotations[gm.NudgeAnnotation]),
		Created:       pod.CreationTimestamp.Time,
	}
	if name := pod.Spec.SchedulerName; name != corev1.DefaultSchedulerName {
		p.Scheduler = short(name)
	}
	p.Active = pod.DeletionTimestamp == nil && !p.Finished
	p.Demand = fit.DemandOf(pod, p.affinity(pod))
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			p.Ready = c.Status == corev1.ConditionTrue
		case corev1.PodScheduled:
			p.Unschedulable = c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
			if p.Unschedulable {
				p.UnschedulableSince = c.LastTransitionTime.Time
				p.Refused = strings.Contains(c.Message, TextOtherGroup) || strings.Contains(c.Message, TextOutsideGroups)
			}
		}
	}
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name == gm.PolicyGate {
			p.Gated = true
		} else {
			p.OtherGate = short(g.Name)
		}
	}
	if v, err := strconv.ParseInt(pod.Annotations[corev1.PodDeletionCost], 10, 32); err == nil {
		p.DeletionCost, p.HasCost = int32(v), true
		p.OwnCost = pod.Annotations[gm.DeletionCostAnnotation] == pod.Annotations[corev1.PodDeletionCost]
	}
	p.Claims, p.Nominated = HasClaims(&pod.Spec), pod.Status.NominatedNodeName != ""
	p.setContainers(pod)
	return p
}

// marksOf returns the extended resources of which a container requests 0.
func marksOf(spec *corev1.PodSpec) (marks []corev1.ResourceName) {
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			for name, quantity := range containers[i].Resources.Requests {
				if quantity.IsZero() && strings.Contains(string(name), "/") {
					marks = append(marks, name)
				}
			}
		}
	}
	slices.Sort(marks)
	marks = slices.Compact(marks)
	return slices.Clip(marks[:min(len(marks), maxMarks)])
}

// maxMarks bounds the marks of a pod that are kept.
const maxMarks = 16

// runsOnce returns whether a container that ends may stay ended.
func runsOnce(spec *corev1.PodSpec) bool {
	if spec.RestartPolicy != "" && spec.RestartPolicy != corev1.RestartPolicyAlways {
		return true
	}
	for i := range spec.Containers {
		if p := spec.Containers[i].RestartPolicy; p != nil && *p != corev1.ContainerRestartPolicyAlways {
			return true
		}
	}
	return false
}

// maxToken bounds the values of annotations that atoll-manager writes: tokens, hashes,
// times. In bytes.
const maxToken = 256

// short returns a value that atoll-manager may have written, "" for one that is too long for
// that.
func short(value string) string {
	if len(value) > maxToken {
		return ""
	}
	return value
}

// size estimates the memory of what users write into a pod and Slim keeps, in bytes.
func (p *Pod) size() int64 {
	n := 0
	for i := range p.Containers {
		n += 56 + len(p.Containers[i].Name) + len(p.Containers[i].Image)
	}
	for name, image := range p.Originals {
		n += 48 + len(name) + len(image)
	}
	for _, mark := range p.Marks {
		n += 16 + len(mark)
	}
	return int64(n+len(p.Scheduler)+len(p.OtherGate)) + p.Demand.Size()
}

// shorten drops what users write and is long. The pod still counts, with its requests, and is
// not moved. Without its marks it gets its group at the gate, if it waits there. If its images are too
// long too, they are not changed.
func (p *Pod) shorten() {
	p.Demand, p.Marks = p.Demand.Shortened(), nil
	if p.size() > freePod {
		p.Containers, p.Originals, p.NoImages = nil, nil, true
	}
}

// HasClaims returns whether a pod uses PersistentVolumeClaims, ephemeral ones included.
func HasClaims(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil || v.Ephemeral != nil
	})
}

func (p *Pod) setContainers(pod *corev1.Pod) {
	if v := pod.Annotations[gm.OriginalImagesAnnotation]; v != "" {
		// A value that cannot be parsed counts as missing: overrides then start from the
		// images that the pod has now.
		_ = json.Unmarshal([]byte(v), &p.Originals)
	}
	var before map[string]int32
	if v := pod.Annotations[gm.RestartingAnnotation]; v != "" {
		_ = json.Unmarshal([]byte(v), &before)
	}
	statuses := make(map[string]*corev1.ContainerStatus, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			statuses[list[i].Name] = &list[i]
		}
	}
	p.Containers = make([]Container, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	blocked := false // by the image of an init container: the next one starts after it
	add := func(c *corev1.Container, init bool) {
		seen := Container{Name: c.Name, Init: init, Image: c.Image}
		if status := statuses[c.Name]; status != nil {
			seen.Restarts, seen.Running = status.RestartCount, status.State.Running != nil
			seen.Unpulled = neverStarted(status) && (blocked || pullFailures.Has(status.State.Waiting.Reason))
			blocked = blocked || init && seen.Unpulled
		}
		was, changed := before[c.Name]
		seen.Restarting = changed && seen.Restarts <= was
		p.Containers = append(p.Containers, seen)
	}
	for i := range pod.Spec.InitContainers {
		add(&pod.Spec.InitContainers[i], true)
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i], false)
	}
}

// pullFailures are the kubelet's reasons for a container that waits because its image cannot be
// pulled (k8s.io/kubernetes/pkg/kubelet/images/types.go).
var pullFailures = sets.New("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed")

// neverStarted returns whether a container waits and has not run before.
func neverStarted(status *corev1.ContainerStatus) bool {
	return status.State.Waiting != nil && status.RestartCount == 0 && status.LastTerminationState.Terminated == nil
}

// affinity returns the required node affinity that the pod and its successor have in
// common. The pin to a group is not part of it, because the successor may be pinned to
// another group. It is nil for a DaemonSet's pod, whose affinity only names its node.
func (p *Pod) affinity(pod *corev1.Pod) *corev1.NodeSelector {
	required := affinity.Required(&pod.Spec)
	switch {
	case p.For != "":
		return nil
	case p.Pinned():
		return placement.Unpin(required, gm.NodeGroupLabel, p.GroupStamp)
	default:
		return required
	}
}

// demand returns Demand; if that is nil, the demand of a pod without requests, which still
// counts as one pod on its node.
func (p *Pod) demand() *fit.Demand {
	if p.Demand == nil {
		return nothing
	}
	return p.Demand
}

var nothing = &fit.Demand{Requests: fit.Amounts{{Name: corev1.ResourcePods, Value: 1}}}

// NodeOf returns the one node that a DaemonSet's pod is for, from the affinity that the
// DaemonSet controller gives it; "" for other pods.
func NodeOf(pod *corev1.Pod) string {
	required, controller := affinity.Required(&pod.Spec), metav1.GetControllerOfNoCopy(pod)
	if required == nil || controller == nil || controller.Kind != "DaemonSet" {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}
