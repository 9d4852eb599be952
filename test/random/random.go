// Package random makes objects of a kind at random, from the schema of its
// CustomResourceDefinition, for tests that no author of an example would think of. It
// knows no kind: the caller gives it the values that make sense in a cluster.
package random

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"pgregory.net/rapid"
)

const (
	// maxNodes bounds the values in one object, so that lists of lists do not grow without
	// end.
	maxNodes = 3000
	// maxText bounds the length of one random text, in characters. Longer texts than a
	// schema allows are made too.
	maxText = 2000
	// maxDepth bounds the nesting of values without a schema.
	maxDepth = 4
)

// Chances, in one of so many.
const (
	leaveOut    = 2  // an optional field is not set
	ownValue    = 4  // a field that has values of the caller gets another one
	fullList    = 40 // a list or map is as long as the schema allows
	oddText     = 6  // a text has characters that are no letters
	brokenOneIn = 4  // an object is changed in one place, whatever the schema says
)

// Maker makes objects of one kind. It is not safe for concurrent use.
type Maker struct {
	// Values are candidates for fields, by the name of the field, for example the names of
	// groups that exist. A list or map field takes candidates for its elements from the
	// same name. Most values of such a field are candidates.
	Values map[string][]any

	crd    *apiextensionsv1.CustomResourceDefinition
	schema *apiextensionsv1.JSONSchemaProps
	rng    *rand.Rand
	nodes  int // values in the object so far
}

// NewMaker returns a Maker for the newest version of a definition. The same seed gives the
// same objects.
func NewMaker(crd *apiextensionsv1.CustomResourceDefinition, seed uint64) *Maker {
	version := crd.Spec.Versions[len(crd.Spec.Versions)-1]
	return &Maker{crd: crd, schema: version.Schema.OpenAPIV3Schema, rng: rand.New(rand.NewPCG(seed, uint64(len(crd.Name))))} //nolint:gosec // not for secrets
}

// Object returns an object without a name. Its fields other than metadata and status are
// random. broken is true if it was changed in one place without regard to the schema; the
// others may be refused too, by rules that are not in the schema.
func (m *Maker) Object() (object *unstructured.Unstructured, broken bool) {
	m.nodes = 0
	content := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(m.schema.Properties)) {
		if name == "metadata" || name == "status" || name == "apiVersion" || name == "kind" {
			continue
		}
		property := m.schema.Properties[name]
		content[name] = m.value(name, &property)
	}
	if m.oneIn(brokenOneIn) {
		broken = m.spoil(content)
	}
	object = &unstructured.Unstructured{Object: content}
	version := m.crd.Spec.Versions[len(m.crd.Spec.Versions)-1].Name
	object.SetAPIVersion(m.crd.Spec.Group + "/" + version)
	object.SetKind(m.crd.Spec.Names.Kind)
	return object, broken
}

func (m *Maker) oneIn(n int) bool { return m.rng.IntN(n) == 0 }

// value returns a value for a field, by the caller's candidates or by the schema.
func (m *Maker) value(field string, s *apiextensionsv1.JSONSchemaProps) any {
	m.nodes++
	if candidates := m.Values[field]; len(candidates) > 0 && !m.oneIn(ownValue) && fits(candidates[0], s) {
		return candidates[m.rng.IntN(len(candidates))]
	}
	switch {
	case len(s.Enum) > 0:
		return strings.Trim(string(s.Enum[m.rng.IntN(len(s.Enum))].Raw), `"`)
	case s.XIntOrString:
		return m.intOrString()
	}
	switch s.Type {
	case "object":
		return m.object(field, s)
	case "array":
		return m.list(field, s)
	case "string":
		return m.text(s)
	case "integer":
		return m.integer(s)
	case "number":
		return m.rng.NormFloat64()
	case "boolean":
		return m.oneIn(2)
	default:
		return m.anything(0)
	}
}

// fits returns whether candidates like this one are for the field itself, and not for its
// elements.
func fits(candidate any, s *apiextensionsv1.JSONSchemaProps) bool {
	switch candidate.(type) {
	case map[string]any:
		return s.Type != "array"
	case []any:
		return s.Type == "array"
	default:
		return s.Type != "array" && s.Type != "object"
	}
}

func (m *Maker) object(field string, s *apiextensionsv1.JSONSchemaProps) any {
	object := map[string]any{}
	if len(s.Properties) == 0 && s.AdditionalProperties == nil {
		for range m.rng.IntN(3) {
			object[m.letters(1+m.rng.IntN(8))] = m.anything(0)
		}
		return object
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if !slices.Contains(s.Required, name) && (m.oneIn(leaveOut) || m.nodes > maxNodes) {
			continue
		}
		property := s.Properties[name]
		object[name] = m.value(name, &property)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		for range m.length(0, s.MaxProperties) {
			object[m.key(field)] = m.value(field, s.AdditionalProperties.Schema)
		}
	}
	return object
}

// key returns a key of a map: a candidate for "<field> key", or a label's key.
func (m *Maker) key(field string) string {
	if keys := m.Values[field+" key"]; len(keys) > 0 && !m.oneIn(ownValue) {
		return fmt.Sprint(keys[m.rng.IntN(len(keys))])
	}
	if m.oneIn(oddText) {
		return m.odd(1 + m.rng.IntN(20))
	}
	return "example.com/" + m.letters(1+m.rng.IntN(8))
}

func (m *Maker) list(field string, s *apiextensionsv1.JSONSchemaProps) any {
	least := int64(0)
	if s.MinItems != nil {
		least = *s.MinItems
	}
	list := []any{}
	for range m.length(least, s.MaxItems) {
		if s.Items == nil || s.Items.Schema == nil {
			list = append(list, m.anything(0))
			continue
		}
		list = append(list, m.value(field, s.Items.Schema))
	}
	return list
}

// length returns the length of a list or map: mostly a small one, sometimes the largest
// that is allowed, or one more.
func (m *Maker) length(least int64, most *int64) int {
	room := max(1, maxNodes-m.nodes)
	switch {
	case most != nil && m.oneIn(fullList):
		return min(int(*most)+m.rng.IntN(2), room)
	default:
		return min(int(least)+m.rng.IntN(3), room)
	}
}

func (m *Maker) integer(s *apiextensionsv1.JSONSchemaProps) any {
	least, most := int64(-1), int64(5)
	if s.Minimum != nil {
		least = int64(*s.Minimum)
	}
	if s.Maximum != nil {
		most = int64(*s.Maximum)
	}
	switch m.rng.IntN(8) {
	case 0:
		return least
	case 1:
		return most
	case 2:
		if s.Format == "int64" {
			return []int64{math.MinInt64, math.MaxInt64, least - 1}[m.rng.IntN(3)]
		}
		return []int64{math.MinInt32, math.MaxInt32, least - 1}[m.rng.IntN(3)]
	default:
		return least + m.rng.Int64N(min(5, max(1, most-least+1)))
	}
}

func (m *Maker) intOrString() any {
	switch m.rng.IntN(8) {
	case 0:
		return m.odd(1 + m.rng.IntN(7))
	case 1:
		return []int64{-1, 0, math.MaxInt32}[m.rng.IntN(3)]
	case 2, 3, 4:
		return fmt.Sprintf("%d%%", m.rng.IntN(102))
	default:
		return int64(m.rng.IntN(5))
	}
}

func (m *Maker) text(s *apiextensionsv1.JSONSchemaProps) string {
	if s.Pattern != "" && !m.oneIn(oddText) {
		return cut(rapid.StringMatching(s.Pattern).Example(m.rng.IntN(1<<30)), 60)
	}
	length := m.rng.IntN(12)
	if s.MinLength != nil {
		length = max(length, int(*s.MinLength))
	}
	if s.MaxLength != nil && m.oneIn(fullList) {
		length = int(min(*s.MaxLength+int64(m.rng.IntN(2)), maxText))
	}
	if m.oneIn(oddText) {
		return m.odd(length)
	}
	return m.letters(length)
}

func cut(text string, most int) string {
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most])
	}
	return text
}

func (m *Maker) letters(n int) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789-"
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[m.rng.IntN(len(alphabet))]
	}
	return string(b)
}

// odd returns a text with separators, control characters and characters of several bytes.
func (m *Maker) odd(n int) string {
	alphabet := []rune("aZ09/.:~*-_@%$\"'\\{}[] \t\n\r\x00\x1b\x7fäß中文😀\u202e\u2028")
	b := make([]rune, n)
	for i := range b {
		b[i] = alphabet[m.rng.IntN(len(alphabet))]
	}
	return string(b)
}

// anything returns a value without a schema.
func (m *Maker) anything(depth int) any {
	m.nodes++
	most := 8
	if depth >= maxDepth || m.nodes > maxNodes {
		most = 6
	}
	switch m.rng.IntN(most) {
	case 0:
		return nil
	case 1:
		return m.oneIn(2)
	case 2:
		return int64(m.rng.IntN(1000)) - 500
	case 3:
		return m.rng.NormFloat64()
	case 4:
		return m.letters(m.rng.IntN(10))
	case 5:
		return m.odd(m.rng.IntN(10))
	case 6:
		list := []any{}
		for range m.rng.IntN(4) {
			list = append(list, m.anything(depth+1))
		}
		return list
	default:
		object := map[string]any{}
		for range m.rng.IntN(4) {
			object[m.letters(1+m.rng.IntN(6))] = m.anything(depth + 1)
		}
		return object
	}
}

// spoil replaces or removes one value of the object, or adds an unknown field. It returns
// false if the object has no value.
func (m *Maker) spoil(content map[string]any) bool {
	type place struct {
		set    func(any)
		remove func()
	}
	var places []place
	var visit func(any)
	visit = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for _, name := range slices.Sorted(maps.Keys(v)) {
				places = append(places, place{set: func(x any) { v[name] = x }, remove: func() { delete(v, name) }})
				visit(v[name])
			}
		case []any:
			for i := range v {
				places = append(places, place{set: func(x any) { v[i] = x }, remove: func() { v[i] = nil }})
				visit(v[i])
			}
		}
	}
	copied := deepCopy(content).(map[string]any) // candidates are shared by all objects
	visit(copied)
	if len(places) == 0 {
		return false
	}
	where := places[m.rng.IntN(len(places))]
	if m.oneIn(3) {
		where.remove()
	} else {
		where.set(m.anything(0))
	}
	clear(content)
	maps.Copy(content, copied)
	return true
}

// deepCopy copies maps and lists.
func deepCopy(value any) any {
	switch v := value.(type) {
	case map[string]any:
		copied := make(map[string]any, len(v))
		for name, element := range v {
			copied[name] = deepCopy(element)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, element := range v {
			copied[i] = deepCopy(element)
		}
		return copied
	default:
		return v
	}
}
