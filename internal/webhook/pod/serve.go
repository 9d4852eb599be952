package pod

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"runtime/debug"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	kjson "sigs.k8s.io/json"

	"github.com/atoll-k8s/atoll/internal/machinery/bounded"
)

// controller-runtime's handler decodes each pod four times and compares all of it before
// and after, which would be most of the cost of a pod's creation. This handler decodes
// the pod once and compares only the fields that the webhook changes.

// review is an AdmissionReview about a pod that is being created.
type review struct {
	Request *struct {
		UID       types.UID  `json:"uid"`
		Namespace string     `json:"namespace"`
		DryRun    bool       `json:"dryRun"`
		Object    corev1.Pod `json:"object"`
	} `json:"request"`
}

// Weights returns the memory that parts of a review take at most, as measured for
// containers, quantities and labels. A list of containers takes it also for elements that
// are no containers.
func (w *Webhook) Weights() bounded.Weights {
	return bounded.Weights{Byte: 8, Member: 384, Element: 2560, Text: 2560}
}

// ServeHTTP answers an admission review. It always allows the pod, also after errors and
// panics. Only a malformed request gets an HTTP error.
func (w *Webhook) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	body, err := io.ReadAll(in.Body) // the server bounds its length
	if err != nil {
		http.Error(out, "reading the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	var r review
	err = kjson.UnmarshalCaseSensitivePreserveInts(body, &r)
	if err == nil && r.Request == nil {
		err = errors.New("it has no request")
	}
	if err != nil {
		http.Error(out, fmt.Sprintf("decoding the request: it is not an AdmissionReview of a pod: %v", err), http.StatusBadRequest)
		return
	}
	answer := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Response: &admissionv1.AdmissionResponse{UID: r.Request.UID, Allowed: true},
	}
	if patch := w.patch(in.Context(), r.Request.Namespace, r.Request.DryRun, &r.Request.Object); patch != nil {
		answer.Response.Patch, answer.Response.PatchType = patch, new(admissionv1.PatchTypeJSONPatch)
	}
	encoded, err := json.Marshal(answer)
	if err != nil {
		http.Error(out, "encoding the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	out.Header().Set("Content-Type", "application/json")
	_, _ = out.Write(encoded) // a write fails only if the API server has closed the connection
}

// port is the port of the webhooks in metrics.
const port = "webhooks"

// patch returns the JSON patch of the changes that Admit makes; nil if it makes none,
// panics, or the patch cannot be encoded.
func (w *Webhook) patch(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod) (patch []byte) {
	defer func() {
		if p := recover(); p != nil {
			bounded.Panicked(port)
			log.FromContext(ctx).Error(fmt.Errorf("panic: %v", p), "Pod admitted unchanged after a panic", "namespace", namespace, "stack", string(debug.Stack()))
			patch = nil
		}
	}()
	before := pod.DeepCopy()
	w.Admit(ctx, namespace, dryRun, pod)
	patch, err := difference(before, pod)
	if err != nil {
		log.FromContext(ctx).Error(err, "Pod admitted unchanged: its patch cannot be encoded", "namespace", namespace)
		return nil
	}
	return patch
}

// operation is one operation of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// difference returns a JSON patch of the changes; nil if there are none. Fields of newer
// API versions, which are lost in decoding, are not in the patch and so stay as they are.
func difference(before, after *corev1.Pod) ([]byte, error) {
	var ops []operation
	set := func(path string, value any, empty bool) {
		if empty {
			ops = append(ops, operation{Op: "remove", Path: path})
			return
		}
		ops = append(ops, operation{Op: "add", Path: path, Value: value})
	}
	same := *before // gets each changed field of after once that field is in ops
	if !maps.Equal(before.Labels, after.Labels) {
		set("/metadata/labels", after.Labels, len(after.Labels) == 0)
	}
	if !maps.Equal(before.Annotations, after.Annotations) {
		set("/metadata/annotations", after.Annotations, len(after.Annotations) == 0)
	}
	same.Labels, same.Annotations = after.Labels, after.Annotations
	if before.Spec.Affinity == nil && after.Spec.Affinity != nil {
		set("/spec/affinity", after.Spec.Affinity, false)
		same.Spec.Affinity = after.Spec.Affinity
	}
	if before.Spec.SchedulerName != after.Spec.SchedulerName {
		set("/spec/schedulerName", after.Spec.SchedulerName, after.Spec.SchedulerName == "")
		same.Spec.SchedulerName = after.Spec.SchedulerName
	}
	if len(before.Spec.SchedulingGates) == 0 && len(after.Spec.SchedulingGates) > 0 {
		set("/spec/schedulingGates", after.Spec.SchedulingGates, false)
		same.Spec.SchedulingGates = after.Spec.SchedulingGates
	}
	if !reflect.DeepEqual(same.ObjectMeta, after.ObjectMeta) || !reflect.DeepEqual(same.Spec, after.Spec) {
		return wholeDifference(before, after)
	}
	if len(ops) == 0 {
		return nil, nil
	}
	return json.Marshal(ops)
}

// wholeDifference is difference for changes of any field. It is slower.
func wholeDifference(before, after *corev1.Pod) ([]byte, error) {
	old, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encoding the original pod: %w", err)
	}
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encoding the changed pod: %w", err)
	}
	if bytes.Equal(old, changed) {
		return nil, nil
	}
	r := admission.PatchResponseFromRaw(old, changed)
	if len(r.Patches) == 0 {
		return nil, fmt.Errorf("comparing pods: %v", r.Result)
	}
	return json.Marshal(r.Patches)
}
