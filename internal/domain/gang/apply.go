package gang

import (
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// Applied is what atoll-manager last wrote to a PodGroup: keys of its spec, labels and
// annotations. All other keys belong to users and to the scheduler and stay. If they change
// one of these keys, their value stays until atoll-manager wants another value than it wrote
// last.
type Applied struct {
	// Owner is the UID of the owner whose pods the PodGroup is for.
	Owner       types.UID         `json:"owner,omitempty"`
	Spec        map[string]any    `json:"spec,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ParseApplied is the inverse of Encode. It returns nil if the text is "" or invalid.
func ParseApplied(text string) *Applied {
	a := &Applied{}
	if text == "" || json.Unmarshal([]byte(text), a) != nil {
		return nil
	}
	return a
}

// Encode returns the value of the annotation AppliedAnnotation. Equal content gives the same
// text.
func (a *Applied) Encode() (string, error) {
	raw, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("encoding the applied keys of a PodGroup: %w", err)
	}
	return string(raw), nil
}

// Applied returns the keys of the PodGroup that atoll-manager writes, without Owner.
func (w *PodGroup) Applied() (*Applied, error) {
	spec := scheduling.PodGroupSpec{
		MinMember: w.MinMember, Queue: w.Queue, PriorityClassName: w.PriorityClassName, NetworkTopology: w.NetworkTopology,
		MinResources: w.MinResources,
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encoding the spec of a PodGroup: %w", err)
	}
	a := &Applied{Annotations: w.Annotations, Labels: w.Labels}
	if err := json.Unmarshal(raw, &a.Spec); err != nil {
		return nil, fmt.Errorf("encoding the spec of a PodGroup: %w", err)
	}
	return a, nil
}

// Changes returns the keys to write, with nil for keys to remove. a is the wanted content,
// last is what was written last, nil if that is not known, and now is the present content.
//
// A key is written if its wanted value differs from the last one, whatever its present value
// is. If last is nil, present values are compared instead and no key is removed.
func (a *Applied) Changes(last *Applied, now *Applied) *Changes {
	known := last != nil
	if !known {
		last = now
	}
	return &Changes{
		Spec:        differences(a.Spec, last.Spec, known),
		Labels:      differences(a.Labels, last.Labels, known),
		Annotations: differences(a.Annotations, last.Annotations, known),
	}
}

// Changes are the parts of a JSON merge patch. A nil value removes its key.
type Changes struct{ Spec, Labels, Annotations map[string]any }

// None reports whether there is nothing to write.
func (c *Changes) None() bool {
	return len(c.Spec) == 0 && len(c.Labels) == 0 && len(c.Annotations) == 0
}

// differences returns the keys of want whose value in last is different or absent. If remove
// is true, it also returns the keys that only last has, with nil.
func differences[V any](want, last map[string]V, remove bool) map[string]any {
	out := map[string]any{}
	for key, value := range want {
		if was, ok := last[key]; !ok || !reflect.DeepEqual(any(was), any(value)) {
			out[key] = whole(any(value), any(was))
		}
	}
	if remove {
		for key := range last {
			if _, ok := want[key]; !ok {
				out[key] = nil
			}
		}
	}
	return out
}

// whole returns a value for a JSON merge patch that replaces was completely. A merge patch
// keeps keys of objects that it does not have, so those become null.
func whole(value, was any) any {
	now, isMap := value.(map[string]any)
	before, wasMap := was.(map[string]any)
	if !isMap || !wasMap {
		return value
	}
	out := make(map[string]any, len(now))
	for key := range before {
		out[key] = nil
	}
	for key, v := range now {
		out[key] = whole(v, before[key])
	}
	return out
}
