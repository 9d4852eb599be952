// Package volumes reads where the PersistentVolumes of a pod can be used. It reads from the
// API server, because few pods are of interest, and a cache of all claims would cost more.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get

// Of returns the required node affinities of the volumes that a pod mounts through claims
// which outlive it. Claims of generic ephemeral volumes are ignored: they are deleted with the
// pod, and its successor gets others. bound is true if every claim is bound. If a claim or its
// volume does not exist, apierrors.IsNotFound is true for the error, and affinity still has
// the affinities of the other volumes.
func Of(ctx context.Context, client kubernetes.Interface, namespace string, spec *corev1.PodSpec) (affinity []*corev1.NodeSelector, bound bool, err error) {
	claims := Claims(spec)
	if len(claims) == 0 {
		return nil, true, nil
	}
	bounded.Outside(ctx, func() { affinity, bound, err = ofClaims(ctx, client, namespace, claims) })
	return affinity, bound, err
}

func ofClaims(ctx context.Context, client kubernetes.Interface, namespace string, claims []string) (affinity []*corev1.NodeSelector, bound bool, err error) {
	bound = true
	var missing error
	for _, claim := range claims {
		volume, err := volumeOf(ctx, client, namespace, claim)
		if apierrors.IsNotFound(err) {
			missing = err
			continue
		}
		if err != nil {
			return nil, false, err
		}
		bound = bound && volume != nil
		if volume != nil && volume.Spec.NodeAffinity != nil && volume.Spec.NodeAffinity.Required != nil {
			affinity = append(affinity, volume.Spec.NodeAffinity.Required)
		}
	}
	return affinity, bound && missing == nil, missing
}

// Claims returns the names of the claims that a pod mounts and that outlive it, each once.
func Claims(spec *corev1.PodSpec) (names []string) {
	for i := range spec.Volumes {
		if source := spec.Volumes[i].PersistentVolumeClaim; source != nil && !slices.Contains(names, source.ClaimName) {
			names = append(names, source.ClaimName)
		}
	}
	return names
}

// errManyReads: requests from one address have needed as many reads as they may.
var errManyReads = errors.New("requests need too many reads of volumes")

// volumeOf returns the volume of a claim; nil if the claim is not bound.
func volumeOf(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.PersistentVolume, error) {
	if !bounded.MayCall(ctx) {
		return nil, errManyReads
	}
	claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	if claim.Spec.VolumeName == "" {
		return nil, nil
	}
	if !bounded.MayCall(ctx) {
		return nil, errManyReads
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	return volume, nil
}

// Selectors compiles node affinities. It fails if one of them is invalid.
func Selectors(affinity []*corev1.NodeSelector) ([]*nodeaffinity.NodeSelector, error) {
	out := make([]*nodeaffinity.NodeSelector, len(affinity))
	for i := range affinity {
		var err error
		if out[i], err = nodeaffinity.NewNodeSelector(affinity[i]); err != nil {
			return nil, fmt.Errorf("reading the node affinity of a volume: %w", err)
		}
	}
	return out, nil
}
