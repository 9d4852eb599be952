package delivery

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestDecide: the four situations of both kinds of policies, for pods that the node has and has not
// had, and for pods that are being deleted.
func TestDecide(t *testing.T) {
	propagation := func(required, binding string) map[string]string {
		return map[string]string{gm.RequiredPropagationPolicyLabel: required, gm.BindingPropagationPolicyLabel: binding}
	}
	override := func(required, binding string) map[string]string {
		return map[string]string{gm.RequiredOverridePolicyLabel: required, gm.BindingOverridePolicyLabel: binding}
	}
	ignore := map[string]string{gm.MissingPolicyAnnotation: gm.MissingPolicyIgnore}
	for name, tc := range map[string]struct {
		labels      map[string]string
		annotations map[string]string
		before      Verdict // if the node has not had it
		after       Verdict // if it has
		says        string
	}{
		"no labels":                          {nil, nil, Deliver, Deliver, ""},
		"situation 1":                        {propagation("a", ""), nil, Hold, Freeze, `the PropagationPolicy "a"`},
		"situation 2":                        {propagation("a", "b"), nil, Hold, Freeze, `"b" is bound`},
		"situation 3":                        {propagation("a", "a"), nil, Deliver, Deliver, ""},
		"situation 4":                        {propagation("", "b"), nil, Deliver, Deliver, ""},
		"situation 1 of an OverridePolicy":   {override("a", ""), nil, Hold, Freeze, `the OverridePolicy "a"`},
		"situation 2 of an OverridePolicy":   {override("a", "b"), nil, Hold, Freeze, `OverridePolicy "a"`},
		"situation 3 of an OverridePolicy":   {override("a", "a"), nil, Deliver, Deliver, ""},
		"a missing policy that is ignored":   {propagation("a", ""), ignore, Deliver, Deliver, `the PropagationPolicy "a"`},
		"an annotation with another value":   {propagation("a", ""), map[string]string{gm.MissingPolicyAnnotation: "no"}, Hold, Freeze, `"a"`},
		"a mirror pod":                       {propagation("a", ""), map[string]string{corev1.MirrorPodAnnotationKey: "hash"}, Deliver, Deliver, `"a"`},
		"labels that are not about policies": {map[string]string{"app": "web"}, nil, Deliver, Deliver, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for delivered, want := range map[bool]Verdict{false: tc.before, true: tc.after} {
				p := Pod{Labels: tc.labels, Annotations: tc.annotations, Delivered: delivered}
				if got := Decide(p); got != want {
					t.Errorf("delivered before: %t: %s, want %s", delivered, got, want)
				}
				p.Deleting = true
				if got := Decide(p); got != Deliver {
					t.Errorf("while it is being deleted: %s", got)
				}
			}
			if got := Waiting(tc.labels); (got == "") != (tc.says == "") || !strings.Contains(got, tc.says) {
				t.Errorf("it waits because %q, want %q", got, tc.says)
			}
		})
	}
}
