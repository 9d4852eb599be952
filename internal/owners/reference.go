package owners

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// ObjectReference returns the reference to an object that its events carry. The
// resourceVersion is not set.
func ObjectReference(o *ownership.Object) *corev1.ObjectReference {
	apiVersion, kind := o.ToAPIVersionAndKind()
	return &corev1.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID}
}

// ControllerReference returns the reference to the controller of an object, which must
// have one in its own namespace.
func ControllerReference(o *ownership.Object) *corev1.ObjectReference {
	return ObjectReference(fromReference(o))
}
