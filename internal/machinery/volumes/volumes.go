// Package volumes reads where the PersistentVolumes of a pod can be used. It asks
// the API server for the one pod in question: no cache of all claims is worth
// that.
package volumes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get

// Of reads the node affinity of each volume that a pod mounts through a claim
// which outlives it. A claim of a generic ephemeral volume goes with the pod, and
// its successor gets another. bound tells whether each claim has its volume. A
// claim that does not exist is an error that apierrors.IsNotFound knows.
func Of(ctx context.Context, client kubernetes.Interface, namespace string, spec *corev1.PodSpec) (affinity []*corev1.NodeSelector, bound bool, err error) {
	bound = true
	for i := range spec.Volumes {
		source := spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		volume, err := volumeOf(ctx, client, namespace, source.ClaimName)
		if err != nil {
			return nil, false, err
		}
		bound = bound && volume != nil
		if volume != nil && volume.Spec.NodeAffinity != nil && volume.Spec.NodeAffinity.Required != nil {
			affinity = append(affinity, volume.Spec.NodeAffinity.Required)
		}
	}
	return affinity, bound, nil
}

func volumeOf(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.PersistentVolume, error) {
	claim, err := client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolumeClaim %s/%s: %w", namespace, name, err)
	}
	if claim.Spec.VolumeName == "" {
		return nil, nil
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading PersistentVolume %s: %w", claim.Spec.VolumeName, err)
	}
	return volume, nil
}

// Selectors makes node affinities ready for questions.
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
