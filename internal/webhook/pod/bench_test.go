package pod

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// BenchmarkReview is one request of the API server, from its body to the answer. It
// is a dry run, so that there is always a seat.
func BenchmarkReview(b *testing.B) {
	for name, pod := range map[string]*corev1.Pod{"managed": webPod(), "unmanaged": build.Pod("", build.Container("c", "nginx:1"))} {
		b.Run(name, func(b *testing.B) {
			w, _ := newWebhook(b, ground(build.Bound("p", ""), toHz)...)
			pod = pod.DeepCopy()
			pod.APIVersion, pod.Kind, pod.GenerateName, pod.Namespace, pod.UID = "v1", "Pod", "web-1-", "", ""
			pod.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}}},
			}}}}}
			raw, err := json.Marshal(pod)
			if err != nil {
				b.Fatal(err)
			}
			body, err := json.Marshal(admissionv1.AdmissionReview{
				TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
				Request:  &admissionv1.AdmissionRequest{UID: types.UID("u"), Namespace: build.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw}, DryRun: new(true)},
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequestWithContext(b.Context(), http.MethodPost, Path, bytes.NewReader(body))
				request.Header.Set("Content-Type", "application/json")
				answer := httptest.NewRecorder()
				w.ServeHTTP(answer, request)
				if answer.Code != http.StatusOK {
					b.Fatal(answer.Body)
				}
			}
		})
	}
}
