package v1beta1

// Annotations that tell which PodGroup a pod belongs to.
const (
	// GroupNameAnnotation is put on a pod: the name of its PodGroup, in the pod's
	// namespace. Volcano's scheduler reads it.
	GroupNameAnnotation = "scheduling.k8s.io/group-name"

	// VolcanoGroupNameAnnotation has the same meaning as GroupNameAnnotation.
	VolcanoGroupNameAnnotation = "scheduling.volcano.sh/group-name"
)

// Annotations and labels that users write on pods or on owners of pods, and that
// decide what the PodGroup looks like.
const (
	// MinMemberAnnotation is written on an owner of pods: spec.minMember of the
	// PodGroup, a whole number from 0 to 2147483647.
	MinMemberAnnotation = "scheduling.volcano.sh/group-min-member"

	// QueueNameAnnotation is written on a pod: spec.queue of the PodGroup.
	QueueNameAnnotation = "scheduling.volcano.sh/queue-name"

	// InheritedPrefix begins the keys of the annotations that the PodGroup inherits
	// from an owner of the pods.
	InheritedPrefix = "volcano.sh/"

	// PreemptableKey is the key of an annotation and of a label of a pod: "true" if
	// the scheduler may evict the pods for others.
	PreemptableKey = "volcano.sh/preemptable"

	// CooldownTimeKey is the key of an annotation and of a label of a pod: a Go
	// duration, such as 600s, during which a pod is not evicted after it started.
	CooldownTimeKey = "volcano.sh/cooldown-time"

	// RevocableZoneAnnotation is written on a pod: the zone of revocable nodes that
	// the pods may use.
	RevocableZoneAnnotation = "volcano.sh/revocable-zone"

	// JDBMinAvailableAnnotation is written on a pod: how many pods of the PodGroup the
	// scheduler leaves when it evicts, as a number or a percentage. It wins over
	// JDBMaxUnavailableAnnotation.
	JDBMinAvailableAnnotation = "volcano.sh/jdb-min-available"

	// JDBMaxUnavailableAnnotation is written on a pod: how many pods of the PodGroup
	// the scheduler may evict, as a number or a percentage.
	JDBMaxUnavailableAnnotation = "volcano.sh/jdb-max-unavailable"

	// NetworkTopologyModeAnnotation is written on a pod: spec.networkTopology.mode of
	// the PodGroup.
	NetworkTopologyModeAnnotation = "volcano.sh/network-topology-mode"

	// NetworkTopologyHighestTierAnnotation is written on a pod:
	// spec.networkTopology.highestTierAllowed of the PodGroup, a whole number.
	NetworkTopologyHighestTierAnnotation = "volcano.sh/network-topology-highest-tier"
)

// Keys that atoll-manager writes on PodGroups.
const (
	// AppliedAnnotation is put on a PodGroup: what atoll-manager last wrote into it.
	// A field that differs from it was changed by somebody else.
	AppliedAnnotation = "atoll.dev/podgroup-applied"

	// ManagedByLabel is put on a PodGroup, with the value ManagedByAtoll.
	ManagedByLabel = "app.kubernetes.io/managed-by"

	// ManagedByAtoll is the value of ManagedByLabel on PodGroups that atoll-manager
	// created.
	ManagedByAtoll = "atoll"
)

const (
	// PodGroupNamePrefix begins the name of a PodGroup that was made for pods which
	// named none. The UID of an owner, or of the pod itself, follows.
	PodGroupNamePrefix = "podgroup-"

	// DefaultQueue is spec.queue where nobody names a queue: the API server fills it
	// in.
	DefaultQueue = "default"

	// DefaultSchedulerName is spec.schedulerName of pods that Volcano's scheduler
	// places, unless it was given another name.
	DefaultSchedulerName = "volcano"
)
