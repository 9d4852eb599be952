package pod

import (
	"bytes"
	"context"
	"encoding/json"
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
)

// controller-runtime's handler reads each pod four times over and compares all of
// it before and after, which is most of what the creation of a pod costs us. This
// one reads it once and compares what the webhook changes.

// review is an AdmissionReview about a pod that is being created.
type review struct {
	Request *struct {
		UID       types.UID  `json:"uid"`
		Namespace string     `json:"namespace"`
		DryRun    bool       `json:"dryRun"`
		Object    corev1.Pod `json:"object"`
	} `json:"request"`
}

// ServeHTTP answers the API server. Whatever becomes of us, the pod is allowed.
func (w *Webhook) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	body, err := io.ReadAll(in.Body) // as much as the server lets in
	if err != nil {
		http.Error(out, "reading the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	var r review
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &r); err != nil || r.Request == nil {
		http.Error(out, fmt.Sprintf("decoding the request: it is no AdmissionReview about a pod: %v", err), http.StatusBadRequest)
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
	_, _ = out.Write(encoded) // a failed write means that the API server has gone away
}

// patch is what Admit changes; nil is nothing, also if it panics.
func (w *Webhook) patch(ctx context.Context, namespace string, dryRun bool, pod *corev1.Pod) (patch []byte) {
	defer func() {
		if p := recover(); p != nil {
			log.FromContext(ctx).Error(fmt.Errorf("panic: %v", p), "A pod was admitted without looking at it", "namespace", namespace, "stack", string(debug.Stack()))
			patch = nil
		}
	}()
	before := pod.DeepCopy()
	w.Admit(ctx, namespace, dryRun, pod)
	patch, err := difference(before, pod)
	if err != nil {
		log.FromContext(ctx).Error(err, "A pod was admitted as it came", "namespace", namespace)
		return nil
	}
	return patch
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// difference is a JSON patch of what changed, nil if nothing did. Fields that we
// do not know, of a newer API server, stay as they are.
func difference(before, after *corev1.Pod) ([]byte, error) {
	var ops []operation
	set := func(path string, value any, empty bool) {
		if empty {
			ops = append(ops, operation{Op: "remove", Path: path})
			return
		}
		ops = append(ops, operation{Op: "add", Path: path, Value: value})
	}
	same := *before // but for what is compared here
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

// wholeDifference compares everything.
func wholeDifference(before, after *corev1.Pod) ([]byte, error) {
	was, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod as it came: %w", err)
	}
	is, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod as it is to be: %w", err)
	}
	if bytes.Equal(was, is) {
		return nil, nil
	}
	r := admission.PatchResponseFromRaw(was, is)
	if len(r.Patches) == 0 {
		return nil, fmt.Errorf("comparing pods: %v", r.Result)
	}
	return json.Marshal(r.Patches)
}
