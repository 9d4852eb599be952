// Package workload warns, when a workload is created or updated, of policies that it requires and that
// do not exist, and of policy labels where Atoll does not read them. It refuses nothing, and never
// reads from the API server.
package workload

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/domain/ownership"
)

// Path is the HTTP path of the webhook.
const Path = "/validate-workloads"

// Absent returns one sentence for each policy that an object of a namespace requires and that does
// not exist.
type Absent func(ctx context.Context, namespace string, required ownership.Policies, ignoresMissing bool) []string

// SetupWithManager registers the webhook.
func SetupWithManager(mgr ctrl.Manager, absent Absent) {
	mgr.GetWebhookServer().Register(Path, &webhook.Admission{Handler: handler(absent)})
}

func handler(absent Absent) admission.HandlerFunc {
	return func(ctx context.Context, request admission.Request) admission.Response {
		var w workload
		if err := json.Unmarshal(request.Object.Raw, &w); err != nil {
			return admission.Allowed("") // the API server judges what is no workload
		}
		warnings := w.misplaced(request.Kind.Kind)
		warnings = append(warnings, absent(ctx, request.Namespace, ownership.PoliciesOf(w.Metadata.Labels), ownership.IgnoresMissing(w.Metadata.Annotations))...)
		return admission.Allowed("").WithWarnings(warnings...)
	}
}

// workload has the fields of a workload that are read.
type workload struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Template struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		} `json:"template"`
	} `json:"spec"`
}

// misplaced returns a warning for each policy label that is where Atoll does not read it.
func (w *workload) misplaced(kind string) (warnings []string) {
	inTemplate := "has no effect there"
	if kind == "Deployment" { // it copies the labels to its ReplicaSets
		inTemplate = "makes every revision a workload of its own there"
	}
	for _, key := range []string{gm.RequiredPropagationPolicyLabel, gm.RequiredOverridePolicyLabel} {
		if _, is := w.Metadata.Annotations[key]; is {
			warnings = append(warnings, fmt.Sprintf("metadata.annotations[%s] has no effect: write it into metadata.labels", key))
		}
		if _, is := w.Spec.Template.Metadata.Labels[key]; is {
			warnings = append(warnings, fmt.Sprintf("spec.template.metadata.labels[%s] %s: write it into metadata.labels", key, inTemplate))
		}
	}
	return warnings
}
