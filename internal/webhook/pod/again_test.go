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

// TestAnyReplicaKnowsAPodAgain: the API server shows it to one that has not seen
// it, leads since a moment ago, or knows of none that does.
func TestAnyReplicaKnowsAPodAgain(t *testing.T) {
	for name, leads := range map[string]bool{"one that leads": true, "one that knows no leader": false} {
		t.Run(name, func(t *testing.T) {
			objects := ground(build.Bound("p", "o"), toHz, args)
			w, _ := newWebhook(t, objects...)
			first := admit(t, w, webPod(), false)
			other, _ := newWebhook(t, objects...)
			other.Assigner.(*assign.Assigner).Leading = func() bool { return leads }
			if diff := cmp.Diff(first, admit(t, other, first, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("looked at again, the pod changes:\n%s", diff)
			}
			if n := reserved(other); n != 0 {
				t.Errorf("%d seats are held there", n)
			}
		})
	}
}

// TestWhatIsNoProof: who copies or changes what only we write is not believed.
func TestWhatIsNoProof(t *testing.T) {
	objects := ground(build.Bound("p", ""), toHz)
	for name, change := range map[string]func(w *Webhook, p *corev1.Pod){
		"another group":            func(_ *Webhook, p *corev1.Pod) { p.Labels[gm.NodeGroupLabel] = "bj" },
		"other images to go back":  func(_ *Webhook, p *corev1.Pod) { p.Annotations[gm.OriginalImagesAnnotation] = `{"c":"evil:1"}` },
		"another pod's owner":      func(_ *Webhook, p *corev1.Pod) { p.OwnerReferences[0].UID = "web-2" },
		"a code that is too short": func(_ *Webhook, p *corev1.Pod) { p.Annotations[gm.AdmittedAnnotation] = "zzzzzzz." },
		"a later end": func(_ *Webhook, p *corev1.Pod) {
			p.Annotations[gm.AdmittedAnnotation] = "z" + p.Annotations[gm.AdmittedAnnotation]
		},
		"it is old":   func(w *Webhook, _ *corev1.Pod) { w.Clock.(*clocktesting.FakeClock).Step(proofTTL + time.Second) },
		"another key": func(w *Webhook, _ *corev1.Pod) { w.Key = func() []byte { return []byte("other") } },
		"no key":      func(w *Webhook, _ *corev1.Pod) { w.Key = func() []byte { return nil } },
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := newWebhook(t, objects...)
			pod := admit(t, w, webPod(), false)
			if !w.seenBefore(pod, build.Namespace) || w.seenBefore(pod, "other") {
				t.Fatal("the pod itself is not known, or in any namespace")
			}
			change(w, pod)
			if w.seenBefore(pod, build.Namespace) {
				t.Errorf("believed: %v %v", pod.Labels, pod.Annotations)
			}
		})
	}
}

// TestOthersTakeThePinAway: another webhook, after us.
func TestOthersTakeThePinAway(t *testing.T) {
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
				t.Errorf("the pod may go anywhere: %v", again.Spec.Affinity)
			}
			if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("looked at once more, it changes:\n%s", diff)
			}
		})
	}
}

// TestContainersOfOthersGetTheirImage: a sidecar that another webhook adds after us.
func TestContainersOfOthersGetTheirImage(t *testing.T) {
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
		t.Errorf("they were %s", originals)
	}
	if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("looked at once more, it changes:\n%s", diff)
	}
}

// TestImagesOfOthersStay: a webhook after us that names a mirror. Rules about
// images start from what it wrote, others leave it alone.
func TestImagesOfOthersStay(t *testing.T) {
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
				t.Errorf("it was %s, want %s", got, tc.originals)
			}
			if diff := cmp.Diff(again, admit(t, w, again, false), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("looked at once more, it changes:\n%s", diff)
			}
		})
	}
}
