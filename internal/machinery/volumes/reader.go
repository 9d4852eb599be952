package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

const (
	// KeptFor is how long is kept where a pod's volumes are. A pod that runs keeps
	// the volumes that it has.
	KeptFor = 10 * time.Minute
	// unboundFor is the same for a pod of which a claim has no volume yet.
	unboundFor = 5 * time.Second
	// MaxReads bounds the pods whose volumes are read for one workload in one pass;
	// the next pass goes on.
	MaxReads = 20
)

// ErrMany: the volumes of other pods were read in this pass.
var ErrMany = errors.New("volumes of more pods are to be read")

// Reader knows on which nodes the PersistentVolumes of pods can be used. It reads
// them from the API server, for the few pods that are to be moved, running or not:
// no cache of all claims is worth that. The zero value is of use.
type Reader struct {
	mu   sync.Mutex
	kept map[types.UID]kept // by pod
}

type kept struct {
	Reach
	until time.Time
}

// Reach is where the bound volumes of a pod can be used: on nodes that meet all required
// node affinities. Selectors are the same, ready for questions.
type Reach struct {
	Required  []*corev1.NodeSelector
	Selectors []*nodeaffinity.NodeSelector
}

// Read returns the node affinities of a pod's bound volumes. reads counts the pods
// that were read. Errors: ErrMany; NotFound of what apierrors knows, where a claim
// is missing; or what kept the API server from answering.
func (v *Reader) Read(ctx context.Context, client kubernetes.Interface, now time.Time, pod types.NamespacedName, uid types.UID, reads *int) (Reach, error) {
	v.mu.Lock()
	known, ok := v.kept[uid]
	v.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.Reach, nil
	}
	if *reads == MaxReads {
		return Reach{}, ErrMany
	}
	*reads++
	reach, bound, err := read(ctx, client, pod)
	if err != nil {
		return Reach{}, fmt.Errorf("reading the volumes of pod %s: %w", pod, err)
	}
	ttl := KeptFor
	if !bound {
		ttl = unboundFor
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for uid, known := range v.kept {
		if !now.Before(known.until) {
			delete(v.kept, uid)
		}
	}
	if v.kept == nil {
		v.kept = map[types.UID]kept{}
	}
	v.kept[uid] = kept{reach, now.Add(ttl)}
	return reach, nil
}

// +kubebuilder:rbac:groups="",resources=pods,verbs=get

func read(ctx context.Context, client kubernetes.Interface, pod types.NamespacedName) (reach Reach, bound bool, err error) {
	live, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return reach, false, err
	}
	if reach.Required, bound, err = Of(ctx, client, pod.Namespace, &live.Spec); err != nil {
		return reach, false, err
	}
	reach.Selectors, err = Selectors(reach.Required)
	return reach, bound, err
}
