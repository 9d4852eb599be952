package patch

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused reports whether the API server, an admission policy or a webhook refuses a write for
// good: the same write will fail again until somebody changes RBAC, the policy or the webhook.
// Conflicts, missing objects, missing authentication and a busy server are not refusals.
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

// AnotherOfThatName reports whether a patch with a UID failed because the object was deleted
// and another one was created with its name. The API server reports that as a change of an
// immutable field (422) or, if the UID was a precondition, as a conflict (409). After
// any other conflict the caller must try the patch again: the API server itself tries it a few
// times only, which is not enough for an object that others write all the time.
func AnotherOfThatName(err error) bool {
	if apierrors.IsConflict(err) {
		// Only the text distinguishes this conflict from others.
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
