package override

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// TestRulesOnJobTrackingFieldsAreRefused checks the finalizer and the annotation by
// which a Job counts its pods. If a pod lost them, the Job would recreate it without end.
func TestRulesOnJobTrackingFieldsAreRefused(t *testing.T) {
	for name, o := range map[string]gm.PlaintextOverrider{
		"finalizers are replaced": plain("replace", "/metadata/finalizers", `[]`),
		"finalizers are removed":  plain("remove", "/metadata/finalizers", ""),
		"a finalizer is removed":  plain("remove", "/metadata/finalizers/0", ""),
		"a Job's annotation":      plain("replace", "/metadata/annotations/batch.kubernetes.io~1job-completion-index", `"0"`),
		"the priority class":      plain("add", "/spec/priorityClassName", `"high"`),
	} {
		if _, problems := Compile(plainRule(o)); len(problems) != 1 {
			t.Errorf("%s: accepted, %v", name, problems)
		}
	}
}

// TestRulesCannotRemoveOwnerIdentity checks that rules fail if they remove something by which a
// controller recognizes the pod, and that finalizers are restored.
func TestRulesCannotRemoveOwnerIdentity(t *testing.T) {
	onNode := func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n"}}}}},
		}}}
	}
	offNode := func(p *corev1.Pod) {
		onNode(p)
		p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Operator = corev1.NodeSelectorOpNotIn
	}
	claim := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
	}
	empty := `[{"name": "data", "emptyDir": {}}]`
	tests := map[string]struct {
		pod  func(*corev1.Pod)
		rule gm.PlaintextOverrider
		want string // of the error; "" is none
	}{
		"a DaemonSet's pod loses its node":         {onNode, plain("remove", "/spec/affinity", ""), "must not change the node affinity"},
		"a DaemonSet's pod keeps it":               {onNode, plain("add", "/spec/affinity/podAntiAffinity", `{}`), ""},
		"another pod's affinity goes":              {func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{} }, plain("remove", "/spec/affinity", ""), ""},
		"a pod that may not be on one node":        {offNode, plain("remove", "/spec/affinity", ""), ""},
		"a StatefulSet's pod loses its claim":      {claim("data-web-0"), plain("replace", "/spec/volumes", empty), `must not change the volume "data"`},
		"a claim that any pod may do without goes": {claim("shared"), plain("replace", "/spec/volumes", empty), ""},
		"the token's volume comes back": {
			func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}}
			},
			plain("replace", "/spec/volumes", empty), "",
		},
		"finalizers are added as a list": {
			func(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} },
			plain("add", "/metadata/finalizers", `["example.com/a"]`), "",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			rules, problems := Compile(plainRule(tc.rule))
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "nginx:1"}}}}
			tc.pod(pod)
			was := pod.DeepCopy()
			err := rules.ApplyTo("hz", pod, Selected{})
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				for _, volume := range was.Spec.Volumes {
					if volume.Projected != nil && !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume.Name }) {
						t.Errorf("volumes are %v, without %s: the API server refuses such a pod", pod.Spec.Volumes, volume.Name)
					}
				}
				for _, finalizer := range was.Finalizers {
					if !strings.Contains(strings.Join(pod.Finalizers, " "), finalizer) {
						t.Errorf("finalizers are %v, without %s", pod.Finalizers, finalizer)
					}
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
			if problem, ok := errors.AsType[RuleError](err); !ok || !strings.Contains(problem.Overrider, "plaintext[0]") {
				t.Errorf("error %v does not name the overrider", err)
			}
			if diff := cmp.Diff(was, pod); diff != "" {
				t.Errorf("what cannot be applied changed the pod (-was +is):\n%s", diff)
			}
		})
	}
}

// TestVolumesThatARuleChanges checks that all volumes are as the rule sets them, except
// for those that a pod cannot run without.
func TestVolumesThatARuleChanges(t *testing.T) {
	token := corev1.Volume{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
	own := corev1.Volume{Name: "config", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}}
	alike := corev1.Volume{Name: "kube-api-access-mine", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}
	claim := corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-web-1"}}}
	more := plain("add", "/spec/volumes/-", `{"name": "more", "emptyDir": {}}`)
	tests := map[string]struct {
		volumes []corev1.Volume
		rule    gm.PlaintextOverrider
		want    []string
	}{
		"one more beside the token":             {[]corev1.Volume{token}, more, []string{"kube-api-access-abcde", "more"}},
		"one more beside a StatefulSet's claim": {[]corev1.Volume{claim}, more, []string{"data", "more"}},
		"a projected one goes":                  {[]corev1.Volume{own, token}, plain("remove", "/spec/volumes/0", ""), []string{"kube-api-access-abcde"}},
		"one named like the token's goes":       {[]corev1.Volume{alike, token}, plain("remove", "/spec/volumes/0", ""), []string{"kube-api-access-abcde"}},
		"the last one goes":                     {[]corev1.Volume{own}, plain("remove", "/spec/volumes/0", ""), nil},
		"the last one beside a claim goes":      {[]corev1.Volume{claim, own}, plain("remove", "/spec/volumes/1", ""), []string{"data"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := aPod(func(p *corev1.Pod) { p.Spec.Volumes = tc.volumes })
			if err := mustCompile(t, plainRule(tc.rule)).ApplyTo("hz", pod, Selected{}); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, v := range pod.Spec.Volumes {
				got = append(got, v.Name)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTheErrorNamesTheOverriderThatCausedIt checks that the error is not about an
// overrider before it.
func TestTheErrorNamesTheOverriderThatCausedIt(t *testing.T) {
	rules := mustCompile(t, plainRule(
		plain("add", "/metadata/labels/volumes", `"few"`), plain("add", "/spec/hostname", `"a"`), plain("remove", "/spec/volumes", "")))
	pod := aPod(func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-web-1"},
		}}}
	})
	err := rules.ApplyTo("hz", pod, Selected{})
	if problem, ok := errors.AsType[RuleError](err); !ok || problem.Overrider != "spec.overrideRules[0].overriders.plaintext[2]" {
		t.Errorf("error is %v, want one about the third overrider", err)
	}
}
