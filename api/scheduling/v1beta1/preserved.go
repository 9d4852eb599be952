package v1beta1

import (
	"bytes"
	"encoding/json"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// Preserved holds the part of a JSON object that its Go struct cannot hold: for each
// key for which the struct would write another value, or none, the value as it was
// read. These are
//   - fields that the struct does not have;
//   - fields with an explicit zero, such as minMember: 0, [] or null, which the
//     struct leaves out;
//   - values that Go writes in another notation, such as the quantity 1000m.
//
// Values of Kubernetes' own types (metadata, minResources, labelSelector) are preserved
// as a whole. Preserved is nil for most objects.
//
// When the struct is written, a preserved value takes the place of the struct's own,
// unless the Go field was changed after it was read. So a struct that was not changed
// is written as it was read, and a change of one field changes no other.
//
// To change an object that was read, set its fields. Assigning a whole struct, as in
// group.Spec = PodGroupSpec{…}, drops what the old one preserved. To compare two
// objects, compare their fields: a field that is 0 and one that is absent are the same
// in Go, and differ in Preserved.
type Preserved map[string]json.RawMessage

// decode reads a JSON object into a struct that has no methods, and what the struct
// cannot hold into preserved, which is a field of it.
func decode[Fields any](data []byte, into *Fields, preserved *Preserved) error {
	// Unlike encoding/json, decode keeps nothing of what was there before: a key that
	// is absent now must be absent when the object is written.
	*into = *new(Fields)
	// Unlike encoding/json, this takes a key in another case for another key.
	if err := utiljson.Unmarshal(data, into); err != nil {
		return err
	}
	var read Preserved
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	written, err := encodeFields(into)
	if err != nil {
		return err
	}
	for key, value := range read {
		same, err := isSame(value, written[key])
		if err != nil {
			return err
		}
		if same {
			delete(read, key)
		}
	}
	if len(read) > 0 {
		*preserved = read
	}
	return nil
}

// encode writes a struct that has no methods as a JSON object, together with what
// it preserved.
func encode[Fields any](from *Fields, preserved Preserved) ([]byte, error) {
	if len(preserved) == 0 {
		return json.Marshal(from)
	}
	object, err := encodeFields(from)
	if err != nil {
		return nil, err
	}
	// A preserved value counts as long as the Go field is what was read from it.
	data, err := json.Marshal(preserved)
	if err != nil {
		return nil, err
	}
	var unchanged Fields
	if err := utiljson.Unmarshal(data, &unchanged); err != nil {
		return nil, err
	}
	was, err := encodeFields(&unchanged)
	if err != nil {
		return nil, err
	}
	for key, value := range preserved {
		if bytes.Equal(object[key], was[key]) {
			object[key] = value
		}
	}
	return json.Marshal(object)
}

// encodeFields returns what the Go fields of a struct are written as. A key that
// the struct leaves out is absent.
func encodeFields(fields any) (map[string]json.RawMessage, error) {
	data, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var object map[string]json.RawMessage
	err = json.Unmarshal(data, &object)
	return object, err
}

// isSame tells whether two texts are the same JSON value. Only the order of keys and
// spaces may differ: 1 and 1.0 are not the same.
func isSame(read, written json.RawMessage) (bool, error) {
	if bytes.Equal(read, written) {
		return true, nil
	}
	if len(written) == 0 || written[0] != read[0] {
		return false, nil
	}
	read, err := canonical(read)
	if err != nil {
		return false, err
	}
	written, err = canonical(written)
	return bytes.Equal(read, written), err
}

// canonical returns a JSON value as the API server writes it: without spaces, and the
// keys sorted.
func canonical(data []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // A number keeps its digits.
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// Each struct is converted to a type with the same fields and without the methods
// below, which would call themselves otherwise.

// UnmarshalJSON implements json.Unmarshaler.
func (in *PodGroup) UnmarshalJSON(data []byte) error {
	type fields PodGroup
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in PodGroup) MarshalJSON() ([]byte, error) {
	type fields PodGroup
	return encode((*fields)(&in), in.Preserved)
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *PodGroupSpec) UnmarshalJSON(data []byte) error {
	type fields PodGroupSpec
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in PodGroupSpec) MarshalJSON() ([]byte, error) {
	type fields PodGroupSpec
	return encode((*fields)(&in), in.Preserved)
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *SubGroupPolicySpec) UnmarshalJSON(data []byte) error {
	type fields SubGroupPolicySpec
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in SubGroupPolicySpec) MarshalJSON() ([]byte, error) {
	type fields SubGroupPolicySpec
	return encode((*fields)(&in), in.Preserved)
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *NetworkTopologySpec) UnmarshalJSON(data []byte) error {
	type fields NetworkTopologySpec
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in NetworkTopologySpec) MarshalJSON() ([]byte, error) {
	type fields NetworkTopologySpec
	return encode((*fields)(&in), in.Preserved)
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *PodGroupStatus) UnmarshalJSON(data []byte) error {
	type fields PodGroupStatus
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in PodGroupStatus) MarshalJSON() ([]byte, error) {
	type fields PodGroupStatus
	return encode((*fields)(&in), in.Preserved)
}

// UnmarshalJSON implements json.Unmarshaler.
func (in *PodGroupCondition) UnmarshalJSON(data []byte) error {
	type fields PodGroupCondition
	return decode(data, (*fields)(in), &in.Preserved)
}

// MarshalJSON implements json.Marshaler.
func (in PodGroupCondition) MarshalJSON() ([]byte, error) {
	type fields PodGroupCondition
	return encode((*fields)(&in), in.Preserved)
}
