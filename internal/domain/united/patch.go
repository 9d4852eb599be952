package united

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// unpatchable are the fields that a patch must not set, and what to do instead.
var unpatchable = []struct {
	path []string
	why  string
}{
	{[]string{"spec", "replicas"}, "set replicas of the pool"},
	{[]string{"spec", "selector"}, "the selector is spec.selector and the pool's name"},
	{[]string{"spec", "updateStrategy", "rollingUpdate", "partition"}, "set partition of the pool"},
}

// patched returns a workload with a strategic merge patch applied. A field that the kind
// does not have is an error.
func patched(w Workload, raw []byte) (out Workload, err error) {
	// The text is user input, and the library merges it by reflection: it may panic.
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("merging it failed: %v", r)
		}
	}()
	if err := checkPatch(raw); err != nil {
		return nil, err
	}
	original, err := json.Marshal(w)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, raw, reflect.New(reflect.TypeOf(w).Elem()).Elem().Interface())
	if err != nil {
		return nil, err
	}
	out = reflect.New(reflect.TypeOf(w).Elem()).Interface().(Workload)
	decoder := json.NewDecoder(bytes.NewReader(merged))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(out); err != nil {
		return nil, err
	}
	out.SetLabels(clean(out.GetLabels()))
	out.SetAnnotations(clean(out.GetAnnotations()))
	return out, nil
}

// checkPatch refuses a patch of fields that Build or the user sets elsewhere.
func checkPatch(raw []byte) error {
	var patch map[string]any
	if err := json.Unmarshal(raw, &patch); err != nil {
		return fmt.Errorf("it is not an object: %w", err)
	}
	for key, value := range patch {
		switch key {
		case "spec":
		case "metadata":
			meta, _ := value.(map[string]any)
			for key := range meta {
				if key != "labels" && key != "annotations" {
					return fmt.Errorf("metadata.%s: only labels and annotations can be patched", key)
				}
			}
		default:
			return fmt.Errorf("%s: only metadata and spec can be patched", key)
		}
	}
	for _, field := range unpatchable {
		var at any = patch
		found := false
		for _, key := range field.path {
			m, _ := at.(map[string]any) // nil, without keys, if at is not an object
			at, found = m[key]
		}
		if found {
			return fmt.Errorf("%s: %s", strings.Join(field.path, "."), field.why)
		}
	}
	return nil
}
