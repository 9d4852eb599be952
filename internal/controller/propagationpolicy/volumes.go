package propagationpolicy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/machinery/phase"
	pvs "github.com/atoll-k8s/atoll/internal/machinery/volumes"
	"github.com/atoll-k8s/atoll/internal/seats"
)

const (
	// volumesTTL is how long is kept where a pod's volumes are. A pod that runs
	// keeps the volumes that it has.
	volumesTTL = 10 * time.Minute
	// unboundTTL is the same for a pod of which a claim has no volume yet.
	unboundTTL = 5 * time.Second
	// maxVolumeReads bounds the pods whose volumes are read for one workload in
	// one pass; the next pass goes on.
	maxVolumeReads = 20
)

// errManyVolumes: the volumes of other pods were read in this pass.
var errManyVolumes = errors.New("volumes of more pods are to be read")

// volumes knows on which nodes the PersistentVolumes of pods can be used. It
// reads them from the API server, for the few pods that are to leave their group,
// running or not: no cache of all claims is worth that.
type volumes struct {
	mu   sync.Mutex
	kept map[types.UID]keptVolumes // by pod
}

type keptVolumes struct {
	affinity []*nodeaffinity.NodeSelector
	until    time.Time
}

// canTake makes the question that the plan of one workload asks. What keeps it
// from an answer is the workload's unread.
func (r *Reconciler) canTake(ctx context.Context, a *appScope) func(string, *seats.Pod) (bool, fit.Reason) {
	places, reads := r.Ledger.Places(), 0
	return func(group string, pod *seats.Pod) (bool, fit.Reason) {
		var affinity []*nodeaffinity.NodeSelector
		if pod.Demand != nil && pod.Demand.Claims && (pod.Pinned() && pod.Node == "" || pod.Node != "" && a.moved()) {
			if pod.Node == "" { // there may be many: read only where there is room
				if can, why := r.Ledger.CanTake(group, pod); !can {
					return false, why
				}
			}
			var err error
			if affinity, err = r.volumes.of(ctx, r.Pods, r.Clock.Now(), pod, &reads); err != nil {
				a.unread = err
				return false, fit.Unread
			}
		}
		return places.Take(group, pod, affinity)
	}
}

// waitForVolumes is what an unread volume means for the pass: the pod stays for
// now, and is looked at again.
func (a *appScope) waitForVolumes() error {
	switch {
	case a.unread == nil:
		return nil
	case errors.Is(a.unread, errManyVolumes):
		return phase.Wait(a.unread.Error(), time.Millisecond)
	case apierrors.IsNotFound(a.unread):
		return phase.Wait(a.unread.Error(), retryFeasible)
	default:
		return a.unread
	}
}

// of returns the node affinities of a pod's bound volumes. reads counts the
// pods that were read.
func (v *volumes) of(ctx context.Context, client kubernetes.Interface, now time.Time, pod *seats.Pod, reads *int) ([]*nodeaffinity.NodeSelector, error) {
	v.mu.Lock()
	kept, ok := v.kept[pod.UID]
	v.mu.Unlock()
	if ok && now.Before(kept.until) {
		return kept.affinity, nil
	}
	if *reads == maxVolumeReads {
		return nil, errManyVolumes
	}
	*reads++
	affinity, bound, err := readVolumes(ctx, client, pod)
	if err != nil {
		return nil, fmt.Errorf("reading the volumes of pod %s: %w", pod.Key(), err)
	}
	ttl := volumesTTL
	if !bound {
		ttl = unboundTTL
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, kept := range v.kept {
		if !now.Before(kept.until) {
			delete(v.kept, uid)
		}
	}
	if v.kept == nil {
		v.kept = map[types.UID]keptVolumes{}
	}
	v.kept[pod.UID] = keptVolumes{affinity, now.Add(ttl)}
	return affinity, nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

// readVolumes reads where the volumes of a pod can be used; see volumes.Of.
func readVolumes(ctx context.Context, client kubernetes.Interface, pod *seats.Pod) (affinity []*nodeaffinity.NodeSelector, bound bool, err error) {
	live, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}
	required, bound, err := pvs.Of(ctx, client, pod.Namespace, &live.Spec)
	if err != nil {
		return nil, false, err
	}
	affinity, err = pvs.Selectors(required)
	return affinity, bound, err
}
