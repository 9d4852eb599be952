package v1alpha1

// Labels that tie a workload to its policies (docs/sources.md, G4 and G5). The
// workload carries them; pods carry copies. A value names a policy in the
// workload's own namespace; an empty value counts as absent.
const (
	// RequiredPropagationPolicyLabel is written by users on a workload: the
	// PropagationPolicy that it wants.
	RequiredPropagationPolicyLabel = "groupmanagement.kubeedge.io/required-propagationpolicy"

	// RequiredOverridePolicyLabel is written by users on a workload: the
	// OverridePolicy that it wants.
	RequiredOverridePolicyLabel = "groupmanagement.kubeedge.io/required-overridepolicy"

	// BindingPropagationPolicyLabel is written by atoll-manager only: the
	// required PropagationPolicy exists and is valid.
	BindingPropagationPolicyLabel = "groupmanagement.kubeedge.io/binding-propagationpolicy"

	// BindingOverridePolicyLabel is written by atoll-manager only: the
	// required OverridePolicy exists and is valid.
	BindingOverridePolicyLabel = "groupmanagement.kubeedge.io/binding-overridepolicy"
)

// Keys of on-demand and spot nodes (docs/sources.md, C2 and C3). Users write them as annotations or labels on a
// workload, its pod template or its namespace; the nearest that says something
// counts, for each key by itself, and an annotation before a label.
const (
	// CapacitySwitchKey is "true" where the workload's pods are divided over
	// on-demand and spot nodes, and "false" where they are not: the default.
	CapacitySwitchKey = "cloudpilot.ai/webhook-scheduler"

	// CapacityCountKey is the number of pods that are to be on on-demand nodes, if
	// there are as many; a whole number from 0 to 2147483647. All others are on spot
	// nodes. Without it all are on-demand.
	CapacityCountKey = "cloudpilot.ai/webhook-scheduler-max-on-demand-count"

	// CapacityOnEmptyKey says what becomes of pods of a class that has had no node for
	// five minutes: Wait, the default, or Fallback to the other class. It is not of the
	// document, and read where its keys are.
	CapacityOnEmptyKey = "atoll.dev/capacity-on-empty-class"
)

// Values of CapacityOnEmptyKey.
const (
	OnEmptyWait     = "Wait"
	OnEmptyFallback = "Fallback"
)

// Keys that atoll-manager writes on nodes and pods. What users write under
// them in a pod template is ignored.
const (
	// NodeGroupLabel is put on every member node: the name of the one
	// NodeGroup that the node belongs to. Put back when changed by hand.
	// Pods carry the same key once they have a seat: the group of the seat.
	NodeGroupLabel = "groupmanagement.kubeedge.io/nodegroup"

	// OriginalImagesAnnotation is put on a pod together with the first image
	// override: a JSON object from container name to the image before it.
	// It is the base that every later override starts from, so that applying
	// rules again changes nothing and a rule taken away gives the old value back.
	OriginalImagesAnnotation = "groupmanagement.kubeedge.io/original-images"

	// RestartingAnnotation is put on a running pod together with a change of
	// its images: a JSON object from container name to its restartCount before
	// the change. The pod counts as disrupted until the counts have moved on.
	RestartingAnnotation = "groupmanagement.kubeedge.io/restarting"

	// DeletionCostAnnotation repeats the value of
	// controller.kubernetes.io/pod-deletion-cost where atoll-manager wrote it. A
	// cost without it, or with another value, is a user's and stays.
	DeletionCostAnnotation = "atoll.dev/deletion-cost"

	// SeatAnnotation is put on a pod that got its seat at creation (early
	// assignment): a token, by which the ledger knows the pod before it has a
	// UID. NodeGroupLabel names the group; the pod can go to no other.
	SeatAnnotation = "atoll.dev/seat"

	// AdmissionAnnotation is put on a pod that was let to kube-scheduler because
	// a seat was open then, of a policy that bounds how many pods there are: a
	// token, by which the ledger knows the pod before it has a UID.
	AdmissionAnnotation = "atoll.dev/admission"

	// CapacityClassLabel is put on a pod that is kept to a class of capacity:
	// on-demand or spot.
	CapacityClassLabel = "atoll.dev/capacity-class"

	// CapacityReasonAnnotation is put on the same pod: why it got its class.
	CapacityReasonAnnotation = "atoll.dev/capacity-reason"

	// AdmittedAnnotation is put on a pod that passed the pod webhook and whose
	// workload requires a policy, or may do so; its value is "true" or, with a seat,
	// what proves to the webhook that the stamps are its own. A pod of such
	// a workload without it was created past the webhook and is counted.
	AdmittedAnnotation = "atoll.dev/admitted"

	// OverridesAnnotation is put on a pod at creation: a hash of what the
	// OverridePolicy changed in fields that cannot change later. A pod whose
	// hash is not what the rules say now is replaced.
	OverridesAnnotation = "atoll.dev/overrides"

	// CreatedForAnnotation is put on a pod that was overridden at creation: the
	// UID of its direct owner. An owner that does not find the pod any more, by
	// its labels, gives it up and makes another one: the annotation tells whose
	// such pods were.
	CreatedForAnnotation = "atoll.dev/created-for"

	// UnassignedAnnotation is put on a pod that was created without what its
	// OverridePolicy wants, because a rule cannot be applied to it: the policy's
	// UID and generation, a space, and the error. The pod waits at PolicyGate
	// and is replaced when the policy has changed.
	UnassignedAnnotation = "atoll.dev/unassigned"

	// JobRestartAnnotation is put on a Job together with spec.suspend, where pods
	// have to be made anew before the Job has started: "suspended" and, once the
	// Job is resumed, "resumed", then the Job's UID and why. A Job that somebody
	// else suspended does not carry the first, and is never resumed by atoll-manager.
	JobRestartAnnotation = "atoll.dev/restart"

	// NudgeAnnotation is changed on a waiting pod to make kube-scheduler try
	// it again after a seat opened; its value means nothing else.
	NudgeAnnotation = "atoll.dev/nudge"

	// LastGoodWorkloadsAnnotation keeps, on the ConfigMap groupmanagement-config,
	// the last list of workload kinds that was right as a whole: atoll-manager
	// starts with it where the list that is there now is not.
	LastGoodWorkloadsAnnotation = "atoll.dev/last-good-workloads"

	// PolicyGate is the scheduling gate that holds a new pod back while a
	// policy that its application requires is not bound.
	PolicyGate = "groupmanagement.kubeedge.io/policy"

	// NodeGroupFinalizer keeps a deleted NodeGroup until its label is off
	// every node.
	NodeGroupFinalizer = "groupmanagement.kubeedge.io/nodegroup"

	// MissingPolicyAnnotation, written by users on a workload, says what
	// becomes of new pods while a required policy is missing or not valid:
	// MissingPolicyIgnore hands them to kube-scheduler as if no policy was
	// required; anything else, and the default, makes them wait.
	MissingPolicyAnnotation = "groupmanagement.kubeedge.io/missing-policy"

	// OverridesStoppedAnnotation is put on a workload that gave up more pods, of
	// those that were overridden when they were created, than it wants to have:
	// its pods get no overrides until a person has looked and takes it off. Its
	// value says what was seen.
	OverridesStoppedAnnotation = "atoll.dev/overrides-stopped"

	// MissingPolicyIgnore is the one meaningful value of MissingPolicyAnnotation.
	MissingPolicyIgnore = "Ignore"
)

// Condition types. Every kind of this package has ConditionReady; it sums the
// others up with the first problem found.
const (
	// ConditionReady: the object is valid and in force everywhere.
	ConditionReady = "Ready"
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
	// ReasonNodesContested: at least one selected node belongs to another
	// NodeGroup or does not exist. status.nodeStatuses says which.
	ReasonNodesContested = "NodesNotSelected"
	// ReasonInvalidSelector: spec.matchLabels or spec.matchExpressions cannot
	// be used as a label selector. Nodes keep the group that they have.
	ReasonInvalidSelector = "InvalidSelector"
)

// Reasons of ConditionReady on policies.
const (
	// ReasonSatisfied: every pod is where, and as, the policy wants it.
	ReasonSatisfied = "Satisfied"
	// ReasonNotUsed: the policy is valid and no workload requires it.
	ReasonNotUsed = "NotUsed"
	// ReasonConverging: pods are being moved, changed or waited for.
	ReasonConverging = "Converging"
	// ReasonGroupsAway: none of a NodeGroup's nodes has been Ready for as long as
	// spec.failover says; the others have its share.
	ReasonGroupsAway = "NodeGroupsAway"
	// ReasonGroupsMissing: a rule names a NodeGroup that does not exist or has
	// no node; it is left out and the others share what it would have had.
	ReasonGroupsMissing = "NodeGroupsMissing"
	// ReasonPodsWaiting: pods wait for a node of the group whose turn it is.
	ReasonPodsWaiting = "PodsWaiting"
	// ReasonBlockedByPDB: an eviction that is due is refused by a PodDisruptionBudget.
	ReasonBlockedByPDB = "BlockedByPDB"
	// ReasonNoFeasibleTarget: pods are surplus in one group, and no node of a
	// group that lacks pods could take them; nothing is evicted.
	ReasonNoFeasibleTarget = "NoFeasibleTarget"
	// ReasonNoPods: workloads require the policy, and none of them has a pod on
	// a node yet: nothing can be said about any.
	ReasonNoPods = "NoPods"
	// ReasonPodsRefused: the API server creates no pod of a workload.
	ReasonPodsRefused = "PodsRefused"
	// ReasonRefused: the API server refuses the pods that the rules make of a
	// workload's template. The workload is not bound to the policy.
	ReasonRefused = "OverrideRefused"
	// ReasonStopped: a workload gave up pods that had been overridden, and made
	// others without end. It gets no overrides until a person has looked.
	ReasonStopped = "OverridesStopped"
	// ReasonNotTried: it could not be found out whether the API server takes
	// the pods that the rules make. The workload stays as it is.
	ReasonNotTried = "OverrideNotTried"
	// ReasonObservationFailed: what a policy is about could not be looked at.
	ReasonObservationFailed = "ObservationFailed"
	// ReasonInvalid: the spec cannot be used; the message names the field.
	// Workloads that require the policy are not bound to it.
	ReasonInvalid = "Invalid"
)
