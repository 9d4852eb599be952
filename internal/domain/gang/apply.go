package gang

import (
	"encoding/json"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	scheduling "github.com/atoll-k8s/atoll/api/scheduling/v1beta1"
)

// Applied is what was last written into a PodGroup: each key of its spec, and its
// labels and annotations. Whatever else is in the PodGroup is somebody else's and
// stays, and so does what somebody else made of these keys, until something else is
// to be written.
type Applied struct {
	// Owner is the UID of the owner for whose pods the PodGroup was made.
	Owner       types.UID         `json:"owner,omitempty"`
	Spec        map[string]any    `json:"spec,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ParseApplied reads what Encode wrote; nil if there is nothing that can be read.
func ParseApplied(text string) *Applied {
	a := &Applied{}
	if text == "" || json.Unmarshal([]byte(text), a) != nil {
		return nil
	}
	return a
}

// Encode writes it for the annotation AppliedAnnotation. The same content is the same
// text.
func (a *Applied) Encode() (string, error) {
	raw, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("encoding what is written into a PodGroup: %w", err)
	}
	return string(raw), nil
}

// Applied is the PodGroup as the keys that are written.
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

// Changes are the keys that are to be written, nil for those that are to go. Nothing
// is written that is as it was written last, whatever it is now. Where it is not known
// what was written last, what differs from now is.
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

// Changes are the parts of a merge patch.
type Changes struct{ Spec, Labels, Annotations map[string]any }

// None tells whether nothing is to be written.
func (c *Changes) None() bool {
	return len(c.Spec) == 0 && len(c.Labels) == 0 && len(c.Annotations) == 0
}

// differences are the keys of want that are otherwise in last; with taken, also those
// that are in last alone, as nil.
func differences[V any](want, last map[string]V, taken bool) map[string]any {
	out := map[string]any{}
	for key, value := range want {
		if was, ok := last[key]; !ok || !reflect.DeepEqual(any(was), any(value)) {
			out[key] = whole(any(value), any(was))
		}
	}
	if taken {
		for key := range last {
			if _, ok := want[key]; !ok {
				out[key] = nil
			}
		}
	}
	return out
}

// whole is a value for a merge patch that leaves nothing of the one before: keys that
// it does not have become null.
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
