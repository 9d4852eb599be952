package random

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func definitions(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob("../../charts/atoll/files/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no definitions: ", err)
	}
	all := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(raw, crd); err != nil {
			t.Fatal(err)
		}
		all[crd.Spec.Names.Kind] = crd
	}
	return all
}

// TestTheSameSeedMakesTheSameObjects: a failure can be repeated. Every object can be
// sent, and objects of a kind differ.
func TestTheSameSeedMakesTheSameObjects(t *testing.T) {
	for kind, crd := range definitions(t) {
		t.Run(kind, func(t *testing.T) {
			one, two := NewMaker(crd, 7), NewMaker(crd, 7)
			different := map[string]bool{}
			for range 200 {
				a, _ := one.Object()
				b, _ := two.Object()
				raw, err := json.Marshal(a)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(a, b) {
					t.Fatalf("the same seed made two objects:\n%s\n%s", raw, mustJSON(t, b))
				}
				different[string(raw)] = true
			}
			if len(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties) > 0 && len(different) < 60 {
				t.Errorf("only %d of 200 objects differ", len(different))
			}
		})
	}
}

func mustJSON(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestCandidates: most values of a field are the caller's, and a broken object does not
// change them.
func TestCandidates(t *testing.T) {
	m := NewMaker(definitions(t)["PropagationPolicy"], 7)
	rule := map[string]any{"nodeGroupNames": []any{"beijing"}, "weight": int64(1)}
	m.Values = map[string][]any{"staticWeightList": {[]any{rule}}, "rescheduleAfterSeconds": {int64(77)}}
	before := mustJSON(t, rule)
	lists, times := 0, 0
	for range 400 {
		object, _ := m.Object()
		spec, _ := object.Object["spec"].(map[string]any)
		if mustJSON(t, spec["staticWeightList"]) == "["+before+"]" {
			lists++
		}
		if spec["rescheduleAfterSeconds"] == int64(77) {
			times++
		}
	}
	if lists < 80 || times < 80 {
		t.Errorf("of 400 objects %d have the list and %d the time", lists, times)
	}
	if after := mustJSON(t, rule); after != before {
		t.Errorf("a candidate was changed to %s", after)
	}
}

// TestObjectsAreBounded: no object is larger than an API server takes.
func TestObjectsAreBounded(t *testing.T) {
	for kind, crd := range definitions(t) {
		m := NewMaker(crd, 3)
		for range 500 {
			object, _ := m.Object()
			if raw := mustJSON(t, object); len(raw) > 1<<20 {
				t.Errorf("%s has %d bytes", kind, len(raw))
			}
		}
	}
}
