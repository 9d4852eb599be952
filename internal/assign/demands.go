package assign

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"github.com/atoll-k8s/atoll/internal/domain/affinity"
	"github.com/atoll-k8s/atoll/internal/domain/fit"
	"github.com/atoll-k8s/atoll/internal/machinery/volumes"
)

// Demands is what a pod requires of a node.
type Demands struct {
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Affinity is the required node affinity.
	Affinity    *corev1.NodeSelector `json:"affinity,omitempty"`
	Tolerations []corev1.Toleration  `json:"tolerations,omitempty"`
	// Requests, Ports and Apart decide in which group the pod has room now.
	Requests fit.Amounts `json:"requests,omitempty"`
	Ports    []fit.Port  `json:"ports,omitempty"`
	Apart    []fit.Apart `json:"apart,omitempty"`
	// Volumes are the node affinities of the PersistentVolumes that the pod has already.
	Volumes []*corev1.NodeSelector `json:"volumes,omitempty"`
}

// DemandsOf returns the demands of a pod that is not pinned yet. If the pod uses
// PersistentVolumeClaims, it reads these and their volumes from the API server.
func DemandsOf(ctx context.Context, client kubernetes.Interface, namespace string, pod *corev1.Pod) (*Demands, error) {
	d := DemandsBy(fit.DemandOf(pod, affinity.Required(&pod.Spec)))
	var err error
	if d.Volumes, _, err = volumes.Of(ctx, client, namespace, &pod.Spec); apierrors.IsNotFound(err) {
		return d, nil // a claim that is created after the pod has no volume yet
	}
	return d, err
}

// DemandsBy returns the demands without those of volumes.
func DemandsBy(d *fit.Demand) *Demands {
	return &Demands{
		NodeSelector: d.NodeSelector, Affinity: d.Affinity, Tolerations: d.Tolerations,
		Requests: d.Requests, Ports: d.Ports, Apart: d.Apart,
	}
}

// Check compiles the demands for comparison with nodes. It returns nil for nil demands.
func (d *Demands) Check() (*fit.Check, error) {
	if d == nil {
		return nil, nil
	}
	reach, err := volumes.Selectors(d.Volumes)
	if err != nil {
		return nil, err
	}
	return fit.NewCheck(&fit.Demand{
		NodeSelector: d.NodeSelector, Affinity: d.Affinity, Tolerations: d.Tolerations,
		Requests: d.Requests, Ports: d.Ports, Apart: d.Apart,
	}, reach), nil
}
