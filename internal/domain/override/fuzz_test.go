package override

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// FuzzApply checks that no policy and no pod cause a panic, that a pod is changed
// completely or not at all, that the same input gives the same result, and that forbidden
// fields stay the same.
func FuzzApply(f *testing.F) {
	podText, err := json.Marshal(aPod())
	if err != nil {
		f.Fatal(err)
	}
	for _, rules := range []string{
		`{"overriders":{"imageOverrider":[{"component":"Registry","operator":"replace","value":"hz.io"}]}}`,
		`{"overriders":{"imageOverrider":[{"component":"Tag","operator":"add","value":"-x","predicate":{"path":"/spec/containers/0/image"}}]}}`,
		`{"targetNodeGroup":["Edge"],"overriders":{"argsOverrider":[{"containerName":"web","operator":"add","value":["-x"]}],"commandOverrider":[{"containerName":"web","operator":"remove","value":["-t"]}]}}`,
		`{"overriders":{"plaintext":[{"path":"/spec/containers/0/env","operator":"add","value":[{"name":"a","value":"b"}]},{"path":"/spec/containers/0/env/-","operator":"add","value":{"name":"c"}}]}}`,
		`{"overriders":{"plaintext":[{"path":"/metadata/labels/a~1b","operator":"add","value":"c"},{"path":"/metadata/annotations/x","operator":"add","value":"y"}]}}`,
		`{"overriders":{"plaintext":[{"path":"/spec/containers/-","operator":"add","value":{"name":"x","image":"nginx","ports":[{"containerPort":80}]}}]}}`,
		`{"overriders":{"plaintext":[{"path":"/spec/nodeName","operator":"add","value":"n"}]}}`,
		`{"overriders":{"plaintext":[{"path":"/spec/securityContext","operator":"update","value":{"runAsUser":1e3}}]}}`,
	} {
		f.Add([]byte(`{"overrideRules":[`+rules+`]}`), podText, "edge")
	}
	f.Fuzz(func(t *testing.T, specText, podText []byte, group string) {
		var spec gm.OverrideSpec
		var base corev1.Pod
		if json.Unmarshal(specText, &spec) != nil || json.Unmarshal(podText, &base) != nil {
			return
		}
		rules, problems := Compile(spec)
		if (rules == nil) != (len(problems) > 0) {
			t.Fatalf("rules %v and problems %v", rules, problems)
		}
		for _, problem := range problems {
			if problem.Rule >= len(spec.OverrideRules) || !strings.HasPrefix(problem.Overrider, "spec.overrideRules[") {
				t.Fatalf("problem %+v names no rule", problem)
			}
		}
		_ = rules.Hash(group)
		pod, again := base.DeepCopy(), base.DeepCopy()
		err := rules.Apply(group, pod)
		if err != nil {
			if _, ok := errors.AsType[RuleError](err); !ok {
				t.Fatalf("%v is no RuleError", err)
			}
			if !reflect.DeepEqual(pod, &base) {
				t.Fatalf("the pod changed in spite of %v", err)
			}
			return
		}
		if err := rules.Apply(group, again); err != nil || !reflect.DeepEqual(pod, again) {
			t.Fatalf("from the same base another pod, or %v", err)
		}
		checkUntouched(t, &base, pod)
		images, err := rules.Images(group, baseOf(&base))
		if err != nil {
			t.Fatalf("Apply succeeded, and Images returned %v", err)
		}
		for i, image := range images {
			if image.Image != baseOf(&base)[i].Image {
				if _, err := parseImage(image.Image); err != nil {
					t.Fatalf("a broken image came out: %v", err)
				}
			}
		}
	})
}

func checkUntouched(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	a, b := before.DeepCopy(), after.DeepCopy()
	for _, pod := range []*corev1.Pod{a, b} {
		pod.Labels, pod.Annotations, pod.Finalizers = ours(pod.Labels), ours(pod.Annotations), nil
	}
	if !reflect.DeepEqual(a.ObjectMeta, b.ObjectMeta) || !reflect.DeepEqual(a.Status, b.Status) || a.TypeMeta != b.TypeMeta {
		t.Fatalf("metadata or status changed:\n%+v\n%+v", a.ObjectMeta, b.ObjectMeta)
	}
	if a.Spec.NodeName != b.Spec.NodeName || a.Spec.ServiceAccountName != b.Spec.ServiceAccountName ||
		a.Spec.DeprecatedServiceAccount != b.Spec.DeprecatedServiceAccount || len(a.Spec.EphemeralContainers) != len(b.Spec.EphemeralContainers) {
		t.Fatal("a forbidden field of spec changed")
	}
}

func ours(keys map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range keys {
		if strings.HasPrefix(key, "atoll.dev/") || strings.HasPrefix(key, "groupmanagement.kubeedge.io/") {
			kept[key] = value
		}
	}
	return kept
}

// FuzzParsePointer checks that an accepted pointer, when it is written again, gives the
// same text.
func FuzzParsePointer(f *testing.F) {
	for _, seed := range []string{"", "/", "/spec/a~1b", "/spec/~0~1", "/spec/~", "/spec//x", "spec"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		tokens, err := parsePointer(path)
		if err != nil {
			return
		}
		escape := strings.NewReplacer("~", "~0", "/", "~1")
		var again strings.Builder
		for _, token := range tokens {
			again.WriteString("/" + escape.Replace(token))
		}
		if again.String() != path {
			t.Fatalf("%q came back as %q", path, again.String())
		}
	})
}
