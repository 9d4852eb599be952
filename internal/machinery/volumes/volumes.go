// Package volumes reads where the PersistentVolumes of a pod can be used. It asks
// the API server for the one pod in question: no cache of all claims is worth
// that.
package volumes

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims;persistentvolumes,verbs=get

// Of reads the node affinity of each volume that a pod mounts through a claim
// which outlives it. A claim of a generic ephemeral volume goes with the pod, and
// its successor gets another. bound tells whether each claim has its volume. A
// claim that does not exist is an error that apierrors.IsNotFound knows, and what
// was found of the others is there all the same.
func Of(ctx context.Context, client kubernetes.Interface, namespace string, spec *corev1.PodSpec) (affinity []*corev1.NodeSelector, bound bool, err error) {
	bound = true
	var missing error
	for _, claim := range Claims(spec) {
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

// Claims are the names of the claims that a pod mounts and that outlive it, each
// once.
func Claims(spec *corev1.PodSpec) (names []string) {
	for i := range spec.Volumes {
		if source := spec.Volumes[i].PersistentVolumeClaim; source != nil && !slices.Contains(names, source.ClaimName) {
			names = append(names, source.ClaimName)
		}
	}
	return names
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
