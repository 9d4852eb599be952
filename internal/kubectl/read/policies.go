package read

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// MissingPolicy returns the first policy that an object requires and that is not there, so that its new pods wait; ""
// if there is none. has reports whether its namespace has a policy.
func MissingPolicy(o metav1.Object, has func(kind, name string) bool) (kind, name string) {
	if ownership.IgnoresMissing(o.GetAnnotations()) {
		return "", ""
	}
	required := ownership.PoliciesOf(o.GetLabels())
	for _, policy := range [][2]string{{"PropagationPolicy", required.RequiredPropagation}, {"OverridePolicy", required.RequiredOverride}} {
		if policy[1] != "" && !has(policy[0], policy[1]) {
			return policy[0], policy[1]
		}
	}
	return "", ""
}
