package owners

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestSelectorsOfFurtherKinds(t *testing.T) {
	spec := func(selector any) any {
		return &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"selector": selector}}}
	}
	tests := map[string]struct {
		object any
		known  bool
		want   []string
	}{
		"labels": {spec(map[string]any{"matchLabels": map[string]any{"b": "1", "a": "2"}}), true, []string{"a", "b"}},
		"expressions too": {spec(map[string]any{
			"matchLabels":      map[string]any{"b": "1"},
			"matchExpressions": []any{map[string]any{"key": "a", "operator": "Exists"}, map[string]any{"key": "b", "operator": "DoesNotExist"}},
		}), true, []string{"a", "b"}},
		"one that selects everything":  {spec(map[string]any{"matchLabels": map[string]any{}}), true, nil},
		"something else":               {spec(map[string]any{"app": "x"}), false, nil},
		"a text":                       {spec("app=x"), false, nil},
		"none":                         {&unstructured.Unstructured{Object: map[string]any{}}, false, nil},
		"labels with invalid values":   {spec(map[string]any{"matchLabels": map[string]any{"a": int64(1)}}), false, nil},
		"an object with metadata only": {&metav1.PartialObjectMetadata{}, false, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			got := selectorOf(tc.object)
			if diff := cmp.Diff(tc.want, got.Keys()); diff != "" || got.Known() != tc.known {
				t.Errorf("known: %v, keys (-want +got):\n%s", got.Known(), diff)
			}
		})
	}
}
