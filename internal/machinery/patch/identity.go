package patch

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused tells whether the API server, or an admission policy or webhook that it
// asks, does not want a change, and will not as long as neither is different. A
// conflict, an object that is gone and a server that is busy are no refusals.
func Refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || AnotherOfThatName(err) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// AnotherOfThatName tells whether a patch that carried a UID was refused
// because the object of that name is another one by now. The API server calls
// it a change of an immutable field (422), or a conflict where the UID was a
// precondition (409). A conflict about anything else is to be tried again: the
// API server gives up a patch of an object that others write all the time.
func AnotherOfThatName(err error) bool {
	if apierrors.IsConflict(err) {
		// Nothing but the text tells the two apart.
		return strings.Contains(err.Error(), "UID in precondition") || strings.Contains(err.Error(), "UID in the precondition")
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
