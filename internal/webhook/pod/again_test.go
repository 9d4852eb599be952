package pod

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
	"github.com/atoll-k8s/atoll/internal/assign"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// TestAnyReplicaRecognizesAnAdmittedPod: the API server sends the pod the second time to a
// replica that did not get it the first time. That replica may or may not lead.
func TestAnyReplicaRecognizesAnAdmittedPod(t *testing.T) {
	for name, leads := range map[string]bool{"one that leads": true, "one that finds no leader": false} {
		t.Run(name, func(t *testing.T) {
			objects := ground(build.Bound("p", "o"), toHz, args)
			w, _ := newWebhook(t, objects...)
			first := admit(t, w, webPod(), false)
			other, _ := newWebhook(t, objects...)
			other.Assigner.(*assign.Assigner).Leading = func() bool { return leads }
			if diff := cmp.Diff(first, admit(t, other, first, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted again, the pod changes:\n%s", diff)
			}
			if n := reserved(other); n != 0 {
				t.Errorf("%d seats are reserved in the other replica", n)
			}
		})
	}
}

// TestForgedAdmissionProofIsRejected: copied or changed annotations are no valid proof.
func TestForgedAdmissionProofIsRejected(t *testing.T) {
	objects := ground(build.Bound("p", ""), toHz)
	for name, change := range map[string]func(w *Webhook, p *corev1.Pod){
		"another group":             func(_ *Webhook, p *corev1.Pod) { p.Labels[gm.NodeGroupLabel] = "bj" },
		"other original images":     func(_ *Webhook, p *corev1.Pod) { p.Annotations[gm.OriginalImagesAnnotation] = `{"c":"evil:1"}` },
		"another owner":             func(_ *Webhook, p *corev1.Pod) { p.OwnerReferences[0].UID = "web-2" },
		"an HMAC that is too short": func(_ *Webhook, p *corev1.Pod) { p.Annotations[gm.AdmittedAnnotation] = "zzzzzzz." },
		"a later time of expiry": func(_ *Webhook, p *corev1.Pod) {
			p.Annotations[gm.AdmittedAnnotation] = "z" + p.Annotations[gm.AdmittedAnnotation]
		},
		"an expired proof": func(w *Webhook, _ *corev1.Pod) { w.Clock.(*clocktesting.FakeClock).Step(proofTTL + time.Second) },
		"another key":      func(w *Webhook, _ *corev1.Pod) { w.Key = func() []byte { return []byte("other") } },
		"no key":           func(w *Webhook, _ *corev1.Pod) { w.Key = func() []byte { return nil } },
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, objects...)
			pod := admit(t, w, webPod(), false)
			if !w.seenBefore(pod, build.Namespace) || w.seenBefore(pod, "other") {
				t.Fatal("the proof of the pod is not valid, or is valid in another namespace")
			}
			change(w, pod)
			if w.seenBefore(pod, build.Namespace) {
				t.Errorf("the proof is valid: %v %v", pod.Labels, pod.Annotations)
			}
		})
	}
}

// TestPinRemovedByAnotherWebhookIsRestored: another webhook removes the node affinity of the group.
func TestPinRemovedByAnotherWebhookIsRestored(t *testing.T) {
	arch := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "arch", Operator: corev1.NodeSelectorOpExists}}}
	for name, change := range map[string]func(p *corev1.Pod){
		"sets its own affinity": func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}} },
		"adds a term": func(p *corev1.Pod) {
			required := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, arch)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(build.Bound("p", ""), toHz)...)
			pod := admit(t, w, webPod(), false)
			change(pod)
			again := admit(t, w, pod, false)
			if !placement.Pinned(&again.Spec, gm.NodeGroupLabel, "hz") {
				t.Errorf("the pod is not pinned: %v", again.Spec.Affinity)
			}
			if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted once more, it changes:\n%s", diff)
			}
		})
	}
}

// TestInjectedContainerGetsTheGroupsImage: another webhook adds a sidecar after the first call.
func TestInjectedContainerGetsTheGroupsImage(t *testing.T) {
	w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, images)...)
	pod := admit(t, w, webPod(), false)
	pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "mesh", Image: "mesh:1"})
	again := admit(t, w, pod, false)
	var got []string
	for _, c := range again.Spec.Containers {
		got = append(got, c.Image)
	}
	if !slices.Equal(got, []string{"hz.io/nginx:1", "hz.io/mesh:1"}) {
		t.Errorf("images are %v", got)
	}
	if originals := again.Annotations[gm.OriginalImagesAnnotation]; !strings.Contains(originals, `"mesh":"mesh:1"`) || !strings.Contains(originals, `"c":"nginx:1"`) {
		t.Errorf("the original images are %s", originals)
	}
	if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("admitted once more, it changes:\n%s", diff)
	}
}

// TestImagesChangedByAnotherWebhookStay: another webhook replaces a registry by a mirror. Rules about
// images are applied to its image; other rules leave it as it is.
func TestImagesChangedByAnotherWebhookStay(t *testing.T) {
	onlyArgs := build.OverridePolicy("o", build.Overrides("hz", gm.Overriders{ArgsOverrider: []gm.CommandArgsOverrider{
		{ContainerName: "c", Operator: gm.OverriderOpAdd, Value: []string{"--hz"}},
	}}))
	for name, tc := range map[string]struct {
		rules            *gm.OverridePolicy
		image, originals string
	}{
		"rules about arguments": {onlyArgs, "mirror.io/nginx:1", `{"c":"mirror.io/nginx:1"}`},
		"rules about images":    {images, "hz.io/nginx:1", `{"c":"mirror.io/nginx:1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, ground(build.Bound("p", "o"), toHz, tc.rules)...)
			pod := admit(t, w, webPod(), false)
			pod.Spec.Containers[0].Image = "mirror.io/nginx:1"
			again := admit(t, w, pod, false)
			if got := again.Spec.Containers[0].Image; got != tc.image {
				t.Errorf("the image is %s, want %s", got, tc.image)
			}
			if got := again.Annotations[gm.OriginalImagesAnnotation]; got != tc.originals {
				t.Errorf("the original images are %s, want %s", got, tc.originals)
			}
			if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("admitted once more, it changes:\n%s", diff)
			}
		})
	}
}
