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

// Resolver finds the owner that has the PodGroup of a pod.
type Resolver struct {
	Lineage *owners.Lineage
	// Schedulers are the schedulers whose pods are in PodGroups.
	Schedulers []string
	// AtMostDirectOwner: see ownership.Levels.
	AtMostDirectOwner bool

	current atomic.Pointer[inForce]
}

// inForce are rules, and since when they are in force.
type inForce struct {
	levels ownership.Levels
	since  time.Time
}

// SetLevels puts rules in force.
func (r *Resolver) SetLevels(levels ownership.Levels, now time.Time) {
	levels.AtMostDirectOwner = r.AtMostDirectOwner
	r.current.Store(&inForce{levels, now})
}

// Levels are the rules in force; nil until it is known which.
func (r *Resolver) Levels() *ownership.Levels {
	if current := r.current.Load(); current != nil {
		return &current.levels
	}
	return nil
}

// InForceFor is how long the rules have been in force; 0 if there are none.
func (r *Resolver) InForceFor(now time.Time) time.Duration {
	if current := r.current.Load(); current != nil {
		return now.Sub(current.since)
	}
	return 0
}

// Choice is the owner that has a pod's PodGroup.
type Choice struct {
	// Chain is the pod and its owners, and End why it is no longer; nil if it is whole.
	Chain []*ownership.Object
	End   *owners.End
	ownership.Level
}

// Owner is the one that has the PodGroup; the pod itself may be.
func (c *Choice) Owner() *ownership.Object { return c.Chain[c.Index] }

// Name is the name of the PodGroup.
func (c *Choice) Name() string { return gang.Name(c.Owner().UID) }

// Choose finds the owner for a pod. An error means that another try may do: nothing is
// to be created. It must not be called before there are rules.
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

// Handles tells whether a pod is to have a PodGroup of ours: its scheduler wants one,
// and nobody has named one. What a kubelet has made of a file is scheduled by nobody.
func (r *Resolver) Handles(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return slices.Contains(r.Schedulers, pod.Spec.SchedulerName) && !mirror &&
		pod.Annotations[scheduling.GroupNameAnnotation] == "" && pod.Annotations[scheduling.VolcanoGroupNameAnnotation] == ""
}
