package policy

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/atoll-k8s/atoll/internal/domain/membership"
	"github.com/atoll-k8s/atoll/internal/domain/override"
	"github.com/atoll-k8s/atoll/internal/domain/placement"
	"github.com/atoll-k8s/atoll/internal/testing/build"
)

// FuzzNodeGroup: no NodeGroup causes a panic, and each admitted one can be used.
func FuzzNodeGroup(f *testing.F) {
	for _, spec := range []string{
		`{}`, `{"nodes":["a","a",""]}`, `{"matchLabels":{"":""}}`, `{"matchLabels":{"a":"b"},"nodes":null}`,
		`{"matchExpressions":[{"key":"a","operator":"In"}]}`, `{"matchExpressions":[{"key":"a","operator":"In","values":["b"]},{}]}`,
	} {
		f.Add([]byte(spec))
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		g := build.NodeGroup("g")
		if json.Unmarshal(spec, &g.Spec) != nil {
			return
		}
		admitted := judge(t, g).err == nil
		if _, err := membership.Compile(g); admitted && err != nil {
			t.Errorf("%s is admitted, and then: %v", spec, err)
		}
	})
}

// FuzzPropagationPolicy: no policy causes a panic, and each admitted one can divide any
// number of pods.
func FuzzPropagationPolicy(f *testing.F) {
	for _, spec := range []string{
		`{}`, `{"propagationStrategy":"StaticWeight"}`, `{"propagationStrategy":"NumRange","numRange":[{}]}`,
		`{"staticWeightList":[{"nodeGroupNames":["hz"],"weight":3},{"nodeGroupNames":["bj","HZ",""],"weight":9223372036854775807}]}`,
		`{"numRange":[{"nodeGroupNames":["hz"],"min":"150%","max":-1},{"nodeGroupNames":["bj"],"min":2147483647}]}`,
		`{"propagationStrategy":"x","rescheduleAfterSeconds":-9}`,
	} {
		f.Add([]byte(spec), 5)
	}
	f.Fuzz(func(t *testing.T, spec []byte, replicas int) {
		p := build.PropagationPolicy("p")
		if json.Unmarshal(spec, &p.Spec) != nil {
			return
		}
		admitted := judge(t, p).err == nil
		s, err := placement.New(p.Spec, func(group string) bool { return group != "bj" }, "uid")
		if err != nil {
			if admitted {
				t.Errorf("%s is admitted, and then: %v", spec, err)
			}
			return
		}
		replicas = max(0, min(replicas, 1000))
		sum := 0
		for _, n := range s.Divide(replicas) {
			sum += n
		}
		if sum > replicas {
			t.Errorf("%s: %d pods get %d seats", spec, replicas, sum)
		}
	})
}

// FuzzOverridePolicy: no policy causes a panic. Each admitted one can be applied, or returns
// an error and does not change the pod.
func FuzzOverridePolicy(f *testing.F) {
	for _, spec := range []string{
		`{}`, `{"overrideRules":[{}]}`, `{"overrideRules":[{"overriders":null}]}`,
		`{"overrideRules":[{"targetNodeGroup":["HZ"],"overriders":{"imageOverrider":[{"component":"Tag","operator":"remove","predicate":{"path":"/spec/containers/-1/image"}}]}}]}`,
		`{"overrideRules":[{"overriders":{"argsOverrider":[{"containerName":"","operator":"remove","value":[""]}]}}]}`,
		`{"overrideRules":[{"overriders":{"plaintext":[{"path":"/spec/containers/99999999999999999999","operator":"add","value":{}}]}}]}`,
		`{"overrideRules":[{"overriders":{"plaintext":[{"path":"/metadata/annotations/a~2b","operator":"replace"}]}}]}`,
	} {
		f.Add([]byte(spec))
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: types.UID("a")},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "nginx:1.27", Args: []string{"x"}}}},
	}
	f.Fuzz(func(t *testing.T, spec []byte) {
		p := build.OverridePolicy("o")
		if json.Unmarshal(spec, &p.Spec) != nil {
			return
		}
		admitted := judge(t, p).err == nil
		rules, problems := override.Compile(p.Spec)
		if admitted && len(problems) > 0 {
			t.Errorf("%s is admitted, and then: %v", spec, problems)
		}
		before, after := pod.DeepCopy(), pod.DeepCopy()
		if err := rules.Apply("hz", after); err != nil && !equality.Semantic.DeepEqual(before, after) {
			t.Errorf("%s cannot be applied (%v), and changes the pod", spec, err)
		}
	})
}
