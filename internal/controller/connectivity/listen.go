package connectivity

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"

	apps "github.com/atoll-k8s/atoll/api/apps/v1alpha1"
	decide "github.com/atoll-k8s/atoll/internal/domain/connectivity"
	"github.com/atoll-k8s/atoll/internal/governance"
	"github.com/atoll-k8s/atoll/internal/machinery/watch"
)

const (
	// probeName is the Lease in kube-node-lease that the manager writes each probeEvery: while it does not come back
	// through the watch by which heartbeats are heard, nobody counts as silent.
	probeName, probeEvery = "atoll-probe", 5 * time.Second
)

type queue = workqueue.TypedRateLimitingInterface[ctrl.Request]

func requestOf(pool string) ctrl.Request {
	return ctrl.Request{NamespacedName: types.NamespacedName{Name: pool}}
}

// watches returns which changes start a pass over a pool.
func (r *Reconciler) watches() []watch.Watch {
	return []watch.Watch{
		{Object: &apps.YurtCoordinator{}, Handler: handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []ctrl.Request {
			c, _ := o.(*apps.YurtCoordinator)
			return []ctrl.Request{requestOf(c.Spec.NodePool)}
		})},
		{Object: &coordinationv1.Lease{}, Handler: handler.Funcs{
			CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { r.hear(ctx, nil, e.Object, q) },
			UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { r.hear(ctx, e.ObjectOld, e.ObjectNew, q) },
		}},
		{Object: &corev1.Node{}, Handler: handler.Funcs{
			CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { q.Add(requestOf(poolOf(e.Object))) },
			UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
				r.read(e.ObjectOld, e.ObjectNew, q)
				if !nodeChanged(e) {
					return
				}
				q.Add(requestOf(poolOf(e.ObjectOld)))
				q.Add(requestOf(poolOf(e.ObjectNew)))
			},
			DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { q.Add(requestOf(poolOf(e.Object))) },
		}},
	}
}

func poolOf(node client.Object) string { return node.GetLabels()[apps.NodePoolLabel] }

// nodeChanged reports whether an update changes the pool of a node, what of ours it has, its Ready or its taints.
func nodeChanged(e event.UpdateEvent) bool {
	before, isBefore := e.ObjectOld.(*corev1.Node)
	after, is := e.ObjectNew.(*corev1.Node)
	return !is || !isBefore || poolOf(before) != poolOf(after) || !maps.Equal(before.Annotations, after.Annotations) || !maps.Equal(before.Labels, after.Labels) ||
		decide.HasTaints(before) != decide.HasTaints(after) || decide.IsReady(before) != decide.IsReady(after)
}

// read notes a status of a node that its kubelet has written. It starts a pass if the node is not taken for one that reaches the
// cloud.
func (r *Reconciler) read(before, after client.Object, q queue) {
	last, isBefore := before.(*corev1.Node)
	node, is := after.(*corev1.Node)
	if !is || !isBefore || !decide.PostedAt(node).After(decide.PostedAt(last)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.pools[poolOf(node)]
	if p == nil || p.Nodes[node.Name] == nil {
		return
	}
	p.Posted(node.Name, r.Clock.Now())
	if p.Nodes[node.Name].Record.State != decide.Direct {
		q.Add(requestOf(poolOf(node)))
	}
}

// hear notes a Lease that was written: a heartbeat, a pulse, or the probe. It starts a pass if that can change something.
func (r *Reconciler) hear(ctx context.Context, before, after client.Object, q queue) {
	lease, is := after.(*coordinationv1.Lease)
	if !is || lease.Spec.RenewTime == nil {
		return
	}
	now := r.Clock.Now()
	if last, is := before.(*coordinationv1.Lease); is {
		if at := lease.Annotations[governance.CutOffUntilAnnotation]; at != "" && at != last.Annotations[governance.CutOffUntilAnnotation] && lease.Namespace == corev1.NamespaceNodeLease {
			r.confirmed(ctx, lease.Name, now)
		}
		if last.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
			return // it was read again
		}
	}
	pulseOf := governance.PoolOfPulse(lease.Name)
	switch {
	case lease.Namespace == governance.Namespace && pulseOf != "":
		r.mu.Lock()
		defer r.mu.Unlock()
		if p := r.pools[pulseOf]; p != nil {
			p.Pulse(insideOf(p.Nodes, stateIn(lease)), now)
			for _, n := range p.Nodes {
				if n.Record.State != decide.Direct {
					q.Add(requestOf(pulseOf))
					return
				}
			}
		}
	case lease.Namespace == corev1.NamespaceNodeLease && lease.Name == probeName:
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.pools {
			p.Probe(now)
		}
		probeGauge.Set(float64(now.Unix()))
	case lease.Namespace == corev1.NamespaceNodeLease:
		pool, isRegistered := r.poolOfNode(ctx, lease.Name)
		if !isRegistered {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		p := r.pools[pool]
		if p == nil || p.Nodes[lease.Name] == nil {
			if isAnnotated(lease) { // it may be of a pool that has no coordinator any more
				q.Add(requestOf(pool))
			}
			return
		}
		says := decide.Direct
		if isDelegated(lease) {
			says = decide.Delegated
		}
		p.Heartbeat(lease.Name, beatOf(lease), says == decide.Delegated, now)
		if record := p.Nodes[lease.Name].Record; record.State != says || record.Silent > 0 {
			q.Add(requestOf(pool))
		}
	}
}

// confirmed notes that a node says that its pool was right to speak for it.
func (r *Reconciler) confirmed(ctx context.Context, node string, now time.Time) {
	pool, _ := r.poolOfNode(ctx, node)
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.pools[pool]; p != nil {
		p.Confirmed(node, now)
	}
}

// poolOfNode returns the pool of a node, "" if it is in none; false if there is no such node.
func (r *Reconciler) poolOfNode(ctx context.Context, name string) (string, bool) {
	node := &corev1.Node{}
	err := r.Client.Get(ctx, client.ObjectKey{Name: name}, node, client.UnsafeDisableDeepCopy)
	return poolOf(node), err == nil
}

// stateIn returns what a pulse says; nil if it does not say it.
func stateIn(pulse *coordinationv1.Lease) *governance.PoolState {
	state := &governance.PoolState{}
	if text := pulse.Annotations[governance.PulseAnnotation]; text == "" || json.Unmarshal([]byte(text), state) != nil {
		return nil
	}
	return state
}

// probe writes the probe until ctx is done. What fails is tried again with the next one.
func (r *Reconciler) probe(ctx context.Context) error {
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for logged := ""; ; {
		within, cancel := context.WithTimeout(ctx, probeEvery)
		text := ""
		if err := r.writeProbe(within); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		cancel()
		if text != logged {
			ctrl.LoggerFrom(ctx).Info("Whether the Lease can be written without which no node counts as silent has changed", "lease", probeName, "isWritten", text == "", "reason", text)
			logged = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *Reconciler) writeProbe(ctx context.Context) error {
	now := metav1.NewMicroTime(r.Clock.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: probeName}}
	before := client.MergeFrom(lease.DeepCopy())
	lease.Spec.RenewTime = &now
	err := r.Client.Patch(ctx, lease, before)
	if apierrors.IsNotFound(err) {
		lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: probeName}, Spec: coordinationv1.LeaseSpec{RenewTime: &now}}
		err = r.Client.Create(ctx, lease)
	}
	return err
}
