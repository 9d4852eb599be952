package pod

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// post sends a review as the API server does, and returns the answer.
func post(t testing.TB, w *Webhook, raw []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	body, err := json.Marshal(admissionv1.AdmissionReview{Request: &admissionv1.AdmissionRequest{
		UID: types.UID("review"), Namespace: build.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: raw},
	}})
	if err != nil {
		t.Fatal(err)
	}
	out := httptest.NewRecorder()
	w.ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, bytes.NewReader(body)))
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(out.Body.Bytes(), &answer); err != nil || answer.Response == nil {
		t.Fatalf("answered %d %s (%v)", out.Code, out.Body, err)
	}
	if r := answer.Response; r.UID != "review" || !r.Allowed || answer.APIVersion != "admission.k8s.io/v1" || answer.Kind != "AdmissionReview" {
		t.Errorf("the answer is %+v", answer)
	}
	return answer.Response
}

// TestThePatchMakesTheAdmittedPod and keeps fields of newer API versions.
func TestThePatchMakesTheAdmittedPod(t *testing.T) {
	for name, tc := range map[string]struct {
		objects []build.Object
		pod     *corev1.Pod
	}{
		"pinned":                 {ground(build.Bound("p", ""), toHz), webPod()},
		"with affinity":          {ground(build.Bound("p", ""), toHz), webPod(requiresDisk)},
		"with images":            {ground(build.Bound("p", "o"), toHz, images), webPod()},
		"with everything":        {ground(build.Bound("p", "o"), toHz, args), webPod(build.Label("app", "web"), build.Annotation("mine", "1"))},
		"at the gate":            {ground(build.Requires("p", "")), webPod()},
		"with stamps of others":  {ground(build.Bound("p", ""), toHz), webPod(build.Seated("bj"), build.Gated())},
		"stamps and no workload": {nil, build.Pod("", build.Seated("bj"), build.Gated())},
		"left alone":             {nil, build.Pod("", build.Label("app", "web"))},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, tc.objects...)
			pod := tc.pod.DeepCopy()
			pod.Namespace, pod.UID = "", ""
			raw, err := json.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			// What a newer API server has.
			raw = bytes.Replace(raw, []byte(`"spec":{`), []byte(`"spec":{"ofTomorrow":{"a":1},`), 1)
			response, is := post(t, w, raw), raw
			if response.Patch != nil {
				patch, err := jsonpatch.DecodePatch(response.Patch)
				if err != nil {
					t.Fatal(err)
				}
				if is, err = patch.Apply(raw); err != nil {
					t.Fatalf("applying %s: %v", response.Patch, err)
				}
			}
			if !bytes.Contains(is, []byte("ofTomorrow")) {
				t.Errorf("an unknown field is lost: %s", response.Patch)
			}
			var got corev1.Pod
			if err := json.Unmarshal(is, &got); err != nil {
				t.Fatal(err)
			}
			other, _ := newWebhook(t, tc.objects...)
			want := admit(t, other, tc.pod, false)
			unique := cmpopts.IgnoreMapEntries(func(key, _ string) bool { return key == gm.SeatAnnotation || key == gm.AdmittedAnnotation })
			if diff := cmp.Diff(want, &got, cmpopts.EquateEmpty(), unique); diff != "" {
				t.Errorf("wrong pod (-want +got):\n%s", diff)
			}
		})
	}
}

var requiresDisk = build.With(func(p *corev1.Pod) {
	p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "disk", Operator: corev1.NodeSelectorOpExists}}}},
	}}}
})

// TestPodIsAllowedAfterAWebhookPanic: the webhook allows the pod after a panic, and logs it.
func TestPodIsAllowedAfterAWebhookPanic(t *testing.T) {
	w, _ := newWebhook(t, ground(build.Bound("p", ""), toHz)...)
	w.Policies = nil
	raw, err := json.Marshal(webPod())
	if err != nil {
		t.Fatal(err)
	}
	if response := post(t, w, raw); response.Patch != nil {
		t.Errorf("patched: %s", response.Patch)
	}
}

func TestAMalformedReviewIsRefused(t *testing.T) {
	w, _ := newWebhook(t)
	for name, body := range map[string]string{
		"nothing": "", "no JSON": "{", "no request": `{"kind":"AdmissionReview"}`, "no pod": `{"request":{"object":[]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			out := httptest.NewRecorder()
			w.ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, strings.NewReader(body)))
			if out.Code != http.StatusBadRequest {
				t.Errorf("answered %d %.100s", out.Code, out.Body)
			}
		})
	}
}
