package gangs

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
	"github.com/atoll-k8s/atoll/internal/domain/gang"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/owners"
)

// Resolver finds the owner that has the PodGroup of a pod. Safe for concurrent use.
type Resolver struct {
	Lineage *owners.Lineage
	// Schedulers are the names of the gang schedulers (spec.schedulerName).
	Schedulers []string
	// AtMostDirectOwner: see ownership.Levels.
	AtMostDirectOwner bool

	current atomic.Pointer[inForce]
}

// inForce holds the rules, and when they came into force.
type inForce struct {
	levels ownership.Levels
	since  time.Time
}

// SetLevels puts rules into force.
func (r *Resolver) SetLevels(levels ownership.Levels, now time.Time) {
	levels.AtMostDirectOwner = r.AtMostDirectOwner
	r.current.Store(&inForce{levels, now})
}

// Levels returns the rules in force; nil before the first SetLevels.
func (r *Resolver) Levels() *ownership.Levels {
	if current := r.current.Load(); current != nil {
		return &current.levels
	}
	return nil
}

// InForceFor returns how long the rules have been in force; 0 before the first SetLevels.
func (r *Resolver) InForceFor(now time.Time) time.Duration {
	if current := r.current.Load(); current != nil {
		return now.Sub(current.since)
	}
	return 0
}

// Choice is the owner that has the PodGroup of a pod.
type Choice struct {
	// Chain is the pod and its owners. End is why it stops below the topmost owner; nil if
	// it does not.
	Chain []*ownership.Object
	End   *owners.End
	ownership.Level
}

// Owner returns the owner that has the PodGroup. It may be the pod itself.
func (c *Choice) Owner() *ownership.Object { return c.Chain[c.Index] }

// Name returns the name of the PodGroup.
func (c *Choice) Name() string { return gang.Name(c.Owner().UID) }

// Choose finds the owner for a pod. After an error the caller must create nothing and try
// again. It must not be called before the first SetLevels.
func (r *Resolver) Choose(ctx context.Context, pod *ownership.Object) (Choice, error) {
	chain, end, err := r.Lineage.Chain(ctx, pod)
	if err != nil {
		return Choice{}, err
	}
	choice := Choice{Chain: chain, End: end, Level: r.Levels().Select(chain)}
	if choice.Clamped {
		clampedTotal.Inc()
	}
	return choice, nil
}

// Handles reports whether atoll-manager gives the pod a PodGroup: the pod is of a gang
// scheduler and names no PodGroup. Mirror pods are excluded, because no scheduler places
// them.
func (r *Resolver) Handles(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return slices.Contains(r.Schedulers, pod.Spec.SchedulerName) && !mirror &&
		pod.Annotations[scheduling.GroupNameAnnotation] == "" && pod.Annotations[scheduling.VolcanoGroupNameAnnotation] == ""
}
