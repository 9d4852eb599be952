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
	// KeptFor is how long the Reach of a pod is cached. The volumes of a pod do not change
	// once all of its claims are bound.
	KeptFor = 10 * time.Minute
	// unboundFor is the same for a pod with a claim that is not bound yet.
	unboundFor = 5 * time.Second
	// MaxReads bounds the pods whose volumes are read for one workload in one pass. The next
	// pass continues.
	MaxReads = 20
)

// ErrMany means that MaxReads pods were read in this pass.
var ErrMany = errors.New("volumes of more pods are to be read")

// Reader returns on which nodes the PersistentVolumes of pods can be used. It reads them from
// the API server, and caches the results by pod: it is called for the few pods that may be
// moved, so a cache of all claims would cost more. The zero value is useful. It is safe for
// concurrent use.
type Reader struct {
	mu   sync.Mutex
	kept map[types.UID]kept // by pod
}

type kept struct {
	Reach
	until time.Time
}

// Reach is where the bound volumes of a pod can be used: on nodes that match all of the
// required node affinities. Selectors are Required, compiled.
type Reach struct {
	Required  []*corev1.NodeSelector
	Selectors []*nodeaffinity.NodeSelector
}

// Read returns the node affinities of a pod's bound volumes. Each read of a pod that is not
// cached increases reads. It returns ErrMany if reads is MaxReads, an error for which
// apierrors.IsNotFound is true if the pod, a claim or a volume does not exist, and other
// errors of the API server.
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
