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
	// bypassDelay is how long a pod waits to be looked at: its owners may be seen
	// later than the pod.
	bypassDelay = 3 * time.Second
	// maxBypassing bounds the pods that wait to be looked at; those beyond are
	// not counted.
	maxBypassing = 10_000
	// aliveTimeout bounds the look for when atoll-manager ran last.
	aliveTimeout = 5 * time.Second
)

// bypasses counts pods of workloads that require a policy that were created
// without passing the pod webhook: they lack the mark that it leaves. Those that
// a replica finds when it starts count if they are younger than the last sign of
// life of any replica; older ones were counted then, or required nothing.
type bypasses struct {
	clock clock.PassiveClock
	since time.Time
	// application is what the pods of an owner belong to.
	application func(owner types.UID) ownership.Application
	count       func()

	mu      sync.Mutex
	waiting map[types.UID]waitingPod
}

type waitingPod struct {
	owner types.UID
	due   time.Time
}

// observe is a handler of the ledger.
func (b *bypasses) observe(old, new *seats.Pod) {
	if old != nil || new == nil || new.Admitted || !new.Active {
		return
	}
	// Times of creation are in whole seconds.
	if !new.Created.Add(time.Second).After(b.since) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) < maxBypassing {
		if b.waiting == nil {
			b.waiting = map[types.UID]waitingPod{}
		}
		b.waiting[new.UID] = waitingPod{new.Owner(), b.clock.Now().Add(bypassDelay)}
	}
}

// look counts the pods that have waited long enough.
func (b *bypasses) look() {
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
		if b.application(owner).Managed() {
			b.count()
		}
	}
}

// Start looks until ctx is done.
func (b *bypasses) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { b.look() }, time.Second)
	return nil
}

// NeedLeaderElection is false: a replica that does not lead sees pods too.
func (b *bypasses) NeedLeaderElection() bool { return false }

// lastAlive is when a replica of atoll-manager renewed its lease last; now, if
// that cannot be known.
func lastAlive(ctx context.Context, client kubernetes.Interface, namespace string, now time.Time) time.Time {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil || lease.Spec.RenewTime.After(now) {
		return now
	}
	return lease.Spec.RenewTime.Time
}
