package manager

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const (
	// leaseName is the Lease by which replicas agree on a leader.
	leaseName = "atoll-manager"
	// leaderInterval is how often a replica looks who leads.
	leaderInterval = time.Second
)

// leaderLock names this replica by the address of its extender, so that the
// others learn from the Lease where to forward to.
func (p *parts) leaderLock() (resourcelock.Interface, error) {
	_, port, err := splitAddress(p.config.ExtenderAddress)
	if err != nil {
		return nil, fmt.Errorf("reading --extender-address: %w", err)
	}
	address := net.JoinHostPort(p.config.AdvertiseAddress, fmt.Sprint(port))
	p.leader = leaderWatch{client: p.client, namespace: p.config.Namespace}
	return lock{&resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: p.config.Namespace, Name: leaseName},
		Client:     p.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: address + "_" + string(uuid.NewUUID())},
	}, &p.tenure}, nil
}

// leaderWatch knows which replica leads, as of a second ago.
type leaderWatch struct {
	client    kubernetes.Interface
	namespace string
	holder    atomic.Pointer[string]
}

// address is the host:port of the leader's extender, or "".
func (l *leaderWatch) address() string {
	if holder := l.holder.Load(); holder != nil {
		address, _, _ := strings.Cut(*holder, "_")
		return address
	}
	return ""
}

// Start looks who leads until ctx is done.
func (l *leaderWatch) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		lease, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, leaseName, metav1.GetOptions{})
		if err == nil {
			l.holder.Store(lease.Spec.HolderIdentity)
		}
	}, leaderInterval)
	return nil
}

// NeedLeaderElection is false: those that do not lead need it.
func (l *leaderWatch) NeedLeaderElection() bool { return false }
