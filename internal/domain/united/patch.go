package united

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// ours are the fields that a patch may not touch, and who has them.
var ours = []struct {
	path []string
	why  string
}{
	{[]string{"spec", "replicas"}, "set replicas of the pool"},
	{[]string{"spec", "selector"}, "the selector is spec.selector and the pool's name"},
	{[]string{"spec", "updateStrategy", "rollingUpdate", "partition"}, "set partition of the pool"},
}

// patched applies a strategic merge patch. What is no field of the kind is an
// error, as it is when the workload itself is applied.
func patched(w Workload, raw []byte) (out Workload, err error) {
	// A patch is anybody's text, and merging it is reflection all the way down.
	defer func() {
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("it cannot be merged: %v", r)
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

// checkPatch refuses what a pool's workload has from elsewhere.
func checkPatch(raw []byte) error {
	var patch map[string]any
	if err := json.Unmarshal(raw, &patch); err != nil {
		return fmt.Errorf("it is no object: %w", err)
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
	for _, field := range ours {
		var at any = patch
		found := false
		for _, key := range field.path {
			m, _ := at.(map[string]any) // what is no object has no keys
			at, found = m[key]
		}
		if found {
			return fmt.Errorf("%s: %s", dotted(field.path), field.why)
		}
	}
	return nil
}

func dotted(path []string) string {
	out := path[0]
	for _, key := range path[1:] {
		out += "." + key
	}
	return out
}
