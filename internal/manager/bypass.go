package manager

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// bypassDelay is how long after the first event of a pod its workload is looked
	// up: the caches may get its owners later than the pod.
	bypassDelay = 3 * time.Second
	// maxWaiting bounds the number of pods that wait for this; pods above the bound
	// are not counted.
	maxWaiting = 10_000
	// aliveTimeout bounds the request of lastAlive.
	aliveTimeout = 5 * time.Second
)

// bypasses counts the pods that were created without passing the pod webhook although
// their workload requires a policy. They lack the annotation that the webhook sets.
//
// Pods that exist when a replica starts count only if they were created after the last
// renewal of the Lease by any replica: older ones have been counted, or their workload
// required no policy then.
type bypasses struct {
	clock clock.PassiveClock
	since time.Time
	// policyOwners returns the owners that require policies for the pods of an owner.
	policyOwners func(owner types.UID) ownership.PolicyOwners
	count        func()

	mu      sync.Mutex
	waiting map[types.UID]waitingPod
}

// waitingPod is a pod whose workload is looked up at due.
type waitingPod struct {
	owner types.UID
	due   time.Time
}

// observe is a handler of the ledger: it records new pods without the annotation.
func (b *bypasses) observe(old, new *seats.Pod) {
	if old != nil || new == nil || new.Admitted || !new.Active {
		return
	}
	// Creation times are cut to whole seconds.
	if !new.Created.Add(time.Second).After(b.since) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) < maxWaiting {
		if b.waiting == nil {
			b.waiting = map[types.UID]waitingPod{}
		}
		b.waiting[new.UID] = waitingPod{new.Owner(), b.clock.Now().Add(bypassDelay)}
	}
}

// countDue counts the pods that are due and whose workload requires a policy.
func (b *bypasses) countDue() {
	now := b.clock.Now()
	var due []types.UID
	b.mu.Lock()
	for uid, pod := range b.waiting {
		if !now.Before(pod.due) {
			due = append(due, pod.owner)
			delete(b.waiting, uid)
		}
	}
	b.mu.Unlock()
	for _, owner := range due {
		if b.policyOwners(owner).Managed() {
			b.count()
		}
	}
}

// Start implements manager.Runnable. It counts until ctx is done.
func (b *bypasses) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { b.countDue() }, time.Second)
	return nil
}

// NeedLeaderElection is false: every replica watches pods and counts for itself.
func (b *bypasses) NeedLeaderElection() bool { return false }

// lastAlive returns when any replica of atoll-manager last renewed the Lease. It returns
// now if the Lease cannot be read, holds no time, or holds a time in the future.
func lastAlive(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) time.Time {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil || lease.Spec.RenewTime.After(now) {
		return now
	}
	return lease.Spec.RenewTime.Time
}
