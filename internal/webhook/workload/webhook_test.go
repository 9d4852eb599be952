package workload

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// TestMistakesInLabelsAreWarnedOf: and nothing is refused.
func TestMistakesInLabelsAreWarnedOf(t *testing.T) {
	const propagation, override = "groupmanagement.kubeedge.io/required-propagationpolicy", "groupmanagement.kubeedge.io/required-overridepolicy"
	for name, tc := range map[string]struct {
		kind, object string
		want         []string
	}{
		"labels on the workload":           {"Deployment", `{"metadata":{"labels":{"` + propagation + `":"p"}}}`, nil},
		"a policy that does not exist":     {"Deployment", `{"metadata":{"labels":{"` + propagation + `":"gone"}}}`, []string{`"gone" is absent in "ns"`}},
		"its absence is ignored":           {"Job", `{"metadata":{"labels":{"` + propagation + `":"gone"},"annotations":{"groupmanagement.kubeedge.io/missing-policy":"Ignore"}}}`, []string{`"gone" is absent in "ns", which is ignored`}},
		"in the template of a Deployment":  {"Deployment", `{"spec":{"template":{"metadata":{"labels":{"` + override + `":"o"}}}}}`, []string{"spec.template.metadata.labels[" + override + "] makes every revision a workload of its own there: write it into metadata.labels"}},
		"in the template of a StatefulSet": {"StatefulSet", `{"spec":{"template":{"metadata":{"labels":{"` + propagation + `":"p"}}}}}`, []string{"spec.template.metadata.labels[" + propagation + "] has no effect there: write it into metadata.labels"}},
		"as an annotation":                 {"CronJob", `{"metadata":{"annotations":{"` + propagation + `":"p"}}}`, []string{"metadata.annotations[" + propagation + "] has no effect: write it into metadata.labels"}},
		"no workload":                      {"Deployment", `{"metadata":[]}`, nil},
		"no object":                        {"Deployment", ``, nil},
	} {
		t.Run(name, func(t *testing.T) {
			absent := func(_ context.Context, namespace string, required ownership.Policies, ignores bool) (sentences []string) {
				if required.RequiredPropagation != "gone" {
					return nil
				}
				sentence := `"gone" is absent in "` + namespace + `"`
				if ignores {
					sentence += ", which is ignored"
				}
				return []string{sentence}
			}
			answer := handler(absent).Handle(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
				Namespace: "ns", Kind: metav1.GroupVersionKind{Kind: tc.kind}, Object: runtime.RawExtension{Raw: []byte(tc.object)},
			}})
			if diff := cmp.Diff(tc.want, answer.Warnings); diff != "" || !answer.Allowed {
				t.Errorf("allowed %t; warnings (-want +got):\n%s", answer.Allowed, diff)
			}
		})
	}
}
