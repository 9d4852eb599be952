package v1alpha1

// Labels that tie a workload to its policies (docs/sources.md, G4 and G5). The
// workload carries them; pods carry copies. A value names a policy in the
// workload's own namespace; an empty value counts as absent.
const (
	// RequiredPropagationPolicyLabel is written by users on a workload. Its value is
	// the name of the PropagationPolicy that the workload requires.
	RequiredPropagationPolicyLabel = "groupmanagement.kubeedge.io/required-propagationpolicy"

	// RequiredOverridePolicyLabel is written by users on a workload. Its value is
	// the name of the OverridePolicy that the workload requires.
	RequiredOverridePolicyLabel = "groupmanagement.kubeedge.io/required-overridepolicy"

	// BindingPropagationPolicyLabel is written by atoll-manager only. It says that
	// the required PropagationPolicy exists and is valid.
	BindingPropagationPolicyLabel = "groupmanagement.kubeedge.io/binding-propagationpolicy"

	// BindingOverridePolicyLabel is written by atoll-manager only. It says that the
	// required OverridePolicy exists and is valid.
	BindingOverridePolicyLabel = "groupmanagement.kubeedge.io/binding-overridepolicy"
)

// Keys of on-demand and spot nodes (docs/sources.md, C2 and C3). Users write them as
// annotations or labels on a workload, on its pod template or on its namespace. Each
// key is looked up by itself: the workload comes before its pod template, that before
// the namespace, and an annotation before a label.
const (
	// CapacitySwitchKey is "true" if the workload's pods are divided over on-demand
	// and spot nodes, and "false", the default, if they are not.
	CapacitySwitchKey = "cloudpilot.ai/webhook-scheduler"

	// CapacityCountKey is the largest number of pods on on-demand nodes; a whole
	// number from 0 to 2147483647. All other pods are on spot nodes. Without this key
	// all pods are on on-demand nodes.
	CapacityCountKey = "cloudpilot.ai/webhook-scheduler-max-on-demand-count"

	// CapacityOnEmptyKey says what happens to pods of a class that has had no node for
	// five minutes: Wait, the default, or Fallback to the other class.
	CapacityOnEmptyKey = "atoll.dev/capacity-on-empty-class"
)

// Values of CapacityOnEmptyKey.
const (
	OnEmptyWait     = "Wait"
	OnEmptyFallback = "Fallback"
)

// Keys that atoll-manager writes on nodes and pods. Values in a pod template are
// ignored.
const (
	// NodeGroupLabel is set on every member node. Its value is the name of the
	// NodeGroup. Changes by others are undone. Pods that have a seat have the same
	// label: the group of the seat.
	NodeGroupLabel = "groupmanagement.kubeedge.io/nodegroup"

	// OriginalImagesAnnotation is set on a pod together with the first image
	// override: a JSON object from container name to the image before the override.
	// Every later override starts from these images, so that applying rules again
	// changes nothing, and removing a rule restores the image.
	OriginalImagesAnnotation = "groupmanagement.kubeedge.io/original-images"

	// RestartingAnnotation is set on a running pod together with a change of its
	// images: a JSON object from container name to restartCount before the change.
	// The pod counts as disrupted until each of these counts has increased.
	RestartingAnnotation = "groupmanagement.kubeedge.io/restarting"

	// DeletionCostAnnotation repeats the value of
	// controller.kubernetes.io/pod-deletion-cost that atoll-manager wrote. A cost
	// that differs from it was written by a user and is left as it is.
	DeletionCostAnnotation = "atoll.dev/deletion-cost"

	// SeatAnnotation is set on a pod that got its seat at creation (early
	// assignment). Its value is a token that identifies the pod in the ledger before
	// the pod has a UID. NodeGroupLabel names the group of the seat.
	SeatAnnotation = "atoll.dev/seat"

	// AdmissionAnnotation is set on a pod without a seat whose policy limits the
	// number of pods, if it was created while a seat was free. Its value is a token
	// that identifies the pod in the ledger before the pod has a UID.
	AdmissionAnnotation = "atoll.dev/admission"

	// CapacityClassLabel is set on a pod that may run only on nodes of one class of
	// capacity: on-demand or spot.
	CapacityClassLabel = "atoll.dev/capacity-class"

	// CapacityReasonAnnotation is set on the same pod and says why it has its class.
	CapacityReasonAnnotation = "atoll.dev/capacity-reason"

	// AdmittedAnnotation is put on a pod that passed the pod webhook and whose
	// workload requires a policy, or may do so; its value is "true" or, with a seat,
	// what proves to the webhook that the stamps are its own. A pod of such
	// a workload without it was created past the webhook and is counted.
	AdmittedAnnotation = "atoll.dev/admitted"

	// NamesNodeAnnotation is put on such a pod if it named its node when it was created. It is
	// not moved, because its successor would come to the same node.
	NamesNodeAnnotation = "atoll.dev/names-node"

	// OverridesAnnotation is set on a pod at creation: a hash of the overrides of
	// fields that cannot change later. A pod whose hash differs from that of the
	// current rules is replaced.
	OverridesAnnotation = "atoll.dev/overrides"

	// CreatedForAnnotation is set on a pod that was overridden at creation: the UID
	// of its direct owner. An owner whose selector does not match the pod any more
	// releases it and creates another one; the annotation still names that owner.
	CreatedForAnnotation = "atoll.dev/created-for"

	// UnassignedAnnotation is set on a pod that was created without overrides because
	// a rule cannot be applied to it: the UID and generation of the OverridePolicy, a
	// space, and the error. The pod has PolicyGate and is replaced when the policy
	// has changed.
	UnassignedAnnotation = "atoll.dev/unassigned"

	// JobRestartAnnotation is set on a Job together with spec.suspend, if its pods
	// have to be created again before the Job has started: "suspended" or, after the
	// Job was resumed, "resumed", then the UID of the Job and the reasons. A Job that
	// somebody else suspended has no "suspended" here; atoll-manager never resumes it.
	JobRestartAnnotation = "atoll.dev/restart"

	// NudgeAnnotation is changed on a Pending pod so that kube-scheduler tries the
	// pod again after a seat became free. Its value has no other meaning.
	NudgeAnnotation = "atoll.dev/nudge"

	// LastGoodWorkloadsAnnotation is set on the ConfigMap groupmanagement-config: the
	// last valid list of workload kinds. atoll-manager uses it when it starts and the
	// current list is not valid.
	LastGoodWorkloadsAnnotation = "atoll.dev/last-good-workloads"

	// PolicyGate is the scheduling gate of a new pod whose workload requires a policy
	// that is not bound, or for which nobody can choose a seat yet.
	PolicyGate = "groupmanagement.kubeedge.io/policy"

	// NodeGroupFinalizer keeps a deleted NodeGroup until NodeGroupLabel is removed
	// from all its nodes.
	NodeGroupFinalizer = "groupmanagement.kubeedge.io/nodegroup"

	// MissingPolicyAnnotation is written by users on a workload. It says what happens
	// to new pods while a required policy is missing or not valid. With
	// MissingPolicyIgnore they are scheduled as if no policy were required; with any
	// other value, and by default, they wait.
	MissingPolicyAnnotation = "groupmanagement.kubeedge.io/missing-policy"

	// ConfirmDeletionAnnotation is written by users on a NodeGroup before they delete it: with "true",
	// its deletion is not refused if that moves pods.
	ConfirmDeletionAnnotation = "atoll.dev/confirm-deletion"

	// OverridesStoppedAnnotation is set on a workload that has released more
	// overridden pods than it has replicas. Its pods get no overrides until a person
	// removes the annotation. Its value says what was observed.
	OverridesStoppedAnnotation = "atoll.dev/overrides-stopped"

	// MissingPolicyIgnore is the one meaningful value of MissingPolicyAnnotation.
	MissingPolicyIgnore = "Ignore"
)

// Condition types. Every kind of this package has ConditionReady, which names the
// first problem that was found.
const (
	// ConditionReady: the object is valid and in force everywhere.
	ConditionReady = "Ready"
	// ConditionMembershipProtected, of a NodeGroup: no kubelet can make its node a member
	// by labels that it sets itself.
	ConditionMembershipProtected = "MembershipProtected"
)

// IsStalled returns whether Ready with this reason stays as it is until a person changes the
// object. The condition Stalled is True then, with the same reason and message, and absent
// otherwise: tools that wait for objects read it (kstatus).
func IsStalled(reason string) bool {
	switch reason {
	case ReasonInvalidSelector, ReasonInvalid, ReasonOverrideRefused, ReasonOverridesStopped:
		return true
	}
	return false
}

// Reasons of ConditionMembershipProtected on a NodeGroup; it is Unknown with
// ReasonInvalidSelector.
const (
	// ReasonNodesCannotJoin: the group selects nodes by name, or by labels that the
	// admission plugin NodeRestriction does not allow a kubelet to set.
	ReasonNodesCannotJoin = "NodesCannotJoin"
	// ReasonNodesCanJoin: a kubelet may set the labels that the group selects by, and so
	// receive pods and secrets that are meant for the group.
	ReasonNodesCanJoin = "NodesCanJoin"
	// ReasonLabelGuardUnknown: a kubelet may set the labels that the group selects by, unless
	// an admission policy refuses it, which atoll-manager does not know.
	ReasonLabelGuardUnknown = "LabelGuardUnknown"
)

// Reasons of ConditionReady on a NodeGroup.
const (
	// ReasonMembersReady: every member node is Ready and no node is contested.
	ReasonMembersReady = "MembersReady"
	// ReasonNoMembers: nothing is selected, or nothing that is selected exists.
	ReasonNoMembers = "NoMembers"
	// ReasonMembersNotReady: at least one member node is not Ready. Its share
	// of pods stays with the group.
	ReasonMembersNotReady = "MembersNotReady"
	// ReasonNodesNotSelected: at least one selected node belongs to another
	// NodeGroup, does not exist or cannot be labelled. status.nodeStatuses says
	// which.
	ReasonNodesNotSelected = "NodesNotSelected"
	// ReasonInvalidSelector: spec.matchLabels or spec.matchExpressions cannot
	// be used as a label selector. Nodes keep the group that they have.
	ReasonInvalidSelector = "InvalidSelector"
)

// Reasons of ConditionReady on policies.
const (
	// ReasonSatisfied: every pod is in the group, and has the fields, that the policy
	// wants.
	ReasonSatisfied = "Satisfied"
	// ReasonNotUsed: the policy is valid and no workload requires it.
	ReasonNotUsed = "NotUsed"
	// ReasonConverging: pods are being created, moved or changed.
	ReasonConverging = "Converging"
	// ReasonNodeGroupsAway: none of a NodeGroup's nodes has been Ready for as long as
	// spec.failover says; the others have its share.
	ReasonNodeGroupsAway = "NodeGroupsAway"
	// ReasonNodeGroupsMissing: a rule names a NodeGroup that does not exist or has
	// no node; it is left out and the others share what it would have had.
	ReasonNodeGroupsMissing = "NodeGroupsMissing"
	// ReasonPodsWaiting: pods wait for a node of the group whose turn it is.
	ReasonPodsWaiting = "PodsWaiting"
	// ReasonBlockedByPDB: an eviction that is due is refused by a PodDisruptionBudget.
	ReasonBlockedByPDB = "BlockedByPDB"
	// ReasonNoFeasibleTarget: pods are surplus in one group, and no node of a
	// group that lacks pods could take them; nothing is evicted.
	ReasonNoFeasibleTarget = "NoFeasibleTarget"
	// ReasonNoPods: workloads require the policy, but none of them has a pod on a
	// node yet.
	ReasonNoPods = "NoPods"
	// ReasonPodsRefused: the API server refuses to create pods of a workload.
	ReasonPodsRefused = "PodsRefused"
	// ReasonOverrideRefused: the API server refuses pods of a workload with these overrides,
	// and the workload is not bound to the policy; or it refuses to change the image of a
	// running pod, which keeps its image.
	ReasonOverrideRefused = "OverrideRefused"
	// ReasonOverridesStopped: a workload kept releasing overridden pods and creating others.
	// Its pods get no overrides until a person removes OverridesStoppedAnnotation.
	ReasonOverridesStopped = "OverridesStopped"
	// ReasonOverrideNotTried: it is not known yet whether the API server accepts pods with
	// these overrides. The workload stays as it is.
	ReasonOverrideNotTried = "OverrideNotTried"
	// ReasonObservationFailed: the objects that the policy is about could not be read.
	ReasonObservationFailed = "ObservationFailed"
	// ReasonInvalid: the spec cannot be used; the message names the field.
	// Workloads that require the policy are not bound to it.
	ReasonInvalid = "Invalid"
)
