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
	// leaseName is the name of the Lease of the leader election.
	leaseName = "atoll-manager"
	// leaderInterval is how often a replica reads the Lease to find the leader.
	leaderInterval = time.Second
)

// leaderLock returns the lock of the leader election. The identity of a replica begins
// with the host:port of its extender, so that the other replicas find in the Lease where
// to forward requests to.
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

// leaderWatch polls the Lease for the leader. Its answer is about leaderInterval old.
type leaderWatch struct {
	client    kubernetes.Interface
	namespace string
	holder    atomic.Pointer[string]
}

// address returns the host:port of the leader's extender; "" if there is no leader or
// the Lease has not been read yet.
func (l *leaderWatch) address() string {
	if holder := l.holder.Load(); holder != nil {
		address, _, _ := strings.Cut(*holder, "_")
		return address
	}
	return ""
}

// Start implements manager.Runnable. It polls until ctx is done. If the Lease cannot be
// read the last answer stays.
func (l *leaderWatch) Start(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		lease, err := l.client.CoordinationV1().Leases(l.namespace).Get(ctx, leaseName, metav1.GetOptions{})
		if err == nil {
			l.holder.Store(lease.Spec.HolderIdentity)
		}
	}, leaderInterval)
	return nil
}

// NeedLeaderElection is false: the replicas that do not lead need the address.
func (l *leaderWatch) NeedLeaderElection() bool { return false }
