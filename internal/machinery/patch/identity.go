package patch

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnotherOfThatName tells whether a patch that carried a UID was refused
// because the object of that name is another one by now. The API server calls
// it a change of an immutable field (422), or a conflict where the UID was a
// precondition (409).
func AnotherOfThatName(err error) bool {
	if apierrors.IsConflict(err) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || !apierrors.IsInvalid(err) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldValueInvalid && cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}
