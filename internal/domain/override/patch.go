package override

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// patchStep is one plaintextOverrider: an operation of RFC 6902 (JSON patch). Hash covers
// the exported fields.
type patchStep struct {
	path     string
	Pointer  []string // unescaped tokens, at least two
	Operator gm.OverriderOperator
	Value    any // as decoded from JSON: whole numbers are int64
}

// forbiddenSpec maps the fields of a pod's spec that a policy must not change to the reason.
var forbiddenSpec = map[string]string{
	"priority":            "the API server sets it from the priority class",
	"priorityClassName":   "the API server has set the pod's priority by the class of the template before, and refuses another class",
	"nodeName":            "the scheduler decides where a pod runs",
	"serviceAccountName":  "a policy must not change what a pod may do",
	"serviceAccount":      "a policy must not change what a pod may do",
	"ephemeralContainers": "ephemeral containers are not overridden",
}

func (c *compiler) compilePatch(overriders []gm.PlaintextOverrider, path string) []patchStep {
	steps := make([]patchStep, 0, len(overriders))
	for i := range overriders {
		at := fmt.Sprintf("%s[%d]", path, i)
		if step, ok := c.compileStep(&overriders[i], at); ok {
			steps = append(steps, step)
		}
	}
	return steps
}

func (c *compiler) compileStep(o *gm.PlaintextOverrider, at string) (patchStep, bool) {
	operator, operatorOK := c.operator(o.Operator, at+".operator")
	step := patchStep{path: at, Operator: operator}
	pointer, err := parsePointer(o.Path)
	if err == nil {
		err = checkPointer(pointer)
	}
	pathOK := err == nil
	if !pathOK {
		c.refuse(at+".path", "%.255q: %w", o.Path, err)
	}
	if !operatorOK { // whether there has to be a value depends on the operator
		return step, false
	}
	step.Pointer = pointer
	hasValue := o.Value != nil && len(o.Value.Raw) > 0
	if pathOK && pointer[0] == "metadata" && pointer[1] == fieldFinalizers && operator != gm.OverriderOpAdd {
		c.refuse(at+".operator", "finalizers can only be added: a Job counts its pods by one of theirs")
		return step, false
	}
	if operator == gm.OverriderOpRemove {
		if hasValue {
			c.refuse(at+".value", "value must be empty when operator is remove")
			return step, false
		}
		if pathOK && step.setsImage() {
			c.refuse(at+".operator", "a container must have an image: use replace")
			return step, false
		}
		return step, pathOK
	}
	if !hasValue {
		c.refuse(at+".value", "value must be set when operator is add or replace")
		return step, false
	}
	if !pathOK { // which values are valid depends on the path
		return step, false
	}
	if err := json.Unmarshal(o.Value.Raw, &step.Value); err != nil {
		c.refuse(at+".value", "is not JSON: %w", err)
		return step, false
	}
	if err := step.checkMetadataValue(); err != nil {
		c.refuse(at+".value", "%w", err)
		return step, false
	}
	if step.setsImage() {
		image, isString := step.Value.(string)
		if !isString {
			c.refuse(at+".value", "an image must be a string")
			return step, false
		}
		if _, err := parseImage(image); err != nil {
			c.refuse(at+".value", "%w", err)
			return step, false
		}
	}
	return step, true
}

// parsePointer splits a JSON pointer (RFC 6901) into unescaped tokens.
func parsePointer(path string) ([]string, error) {
	if len(path) > 255 {
		return nil, fmt.Errorf("must be at most 255 characters")
	}
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("must be a JSON pointer into the pod, beginning with /")
	}
	tokens := strings.Split(path[1:], "/")
	for i, token := range tokens {
		for at := 0; at < len(token); at++ {
			if token[at] == '~' && (at+1 == len(token) || token[at+1] != '0' && token[at+1] != '1') {
				return nil, fmt.Errorf("must be a JSON pointer: ~ is written ~0, and / within a key ~1")
			}
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return tokens, nil
}

// checkPointer refuses fields that a policy must not change. It allows single labels and
// annotations, finalizers, and fields of spec. Checking the pointer is enough, because the
// operations move and copy, which read from another place, do not exist.
func checkPointer(pointer []string) error {
	if len(pointer) < 2 || pointer[1] == "" {
		return fmt.Errorf("must point to a field in metadata or spec")
	}
	switch pointer[0] {
	case "metadata":
		return checkMetadata(pointer[1:])
	case "spec":
		if reason, forbidden := forbiddenSpec[pointer[1]]; forbidden {
			return fmt.Errorf("must not be overridden: %s", reason)
		}
		if pointer[1] == "template" {
			return fmt.Errorf("must point into the pod: leave out /spec/template")
		}
		return nil
	}
	return fmt.Errorf("must not be overridden: only metadata and spec can be")
}

func checkMetadata(pointer []string) error {
	switch pointer[0] {
	case fieldFinalizers:
		return nil
	case fieldLabels, fieldAnnotations:
		if len(pointer) != 2 {
			return fmt.Errorf("must point to one key of %s; / within a key is written ~1", pointer[0])
		}
		return checkKey(pointer[0], pointer[1])
	}
	return fmt.Errorf("must not be overridden: of metadata only labels, annotations and finalizers can be")
}

// setsImage reports whether the step writes the image of one container or init container
// and nothing else.
func (s *patchStep) setsImage() bool {
	return len(s.Pointer) == 4 && s.inContainers() && s.Pointer[3] == "image"
}

// bearsOnImages reports whether the step can change the image of a container: it writes the
// image, the name, or the list of containers.
func (s *patchStep) bearsOnImages() bool {
	return s.inContainers() && (len(s.Pointer) < 4 || len(s.Pointer) == 4 && (s.Pointer[3] == "image" || s.Pointer[3] == "name"))
}

func (s *patchStep) inContainers() bool {
	return s.Pointer[0] == "spec" && (s.Pointer[1] == listContainers || s.Pointer[1] == listInitContainers)
}

// apply changes the tree in place. After an error the tree must not be used.
//
// The JSON patch library is not used here: it works on JSON text and does not report which
// of several operations failed.
func (s *patchStep) apply(tree map[string]any) error {
	_, err := s.edit(tree, s.Pointer)
	return err
}

// edit applies the step to node, below which pointer leads, and returns the new node. It
// differs from node if a list had to grow.
func (s *patchStep) edit(node any, pointer []string) (any, error) {
	switch node := node.(type) {
	case map[string]any:
		return s.editObject(node, pointer)
	case []any:
		return s.editList(node, pointer)
	}
	return nil, fmt.Errorf("cannot look up %q in a value that is neither an object nor a list", pointer[0])
}

func (s *patchStep) editObject(node map[string]any, pointer []string) (any, error) {
	key := pointer[0]
	child, exists := node[key]
	if !exists && (len(pointer) > 1 || s.Operator != gm.OverriderOpAdd) {
		return nil, fmt.Errorf("%q does not exist", key)
	}
	if len(pointer) > 1 {
		changed, err := s.edit(child, pointer[1:])
		if err != nil {
			return nil, err
		}
		node[key] = changed
		return node, nil
	}
	if s.Operator == gm.OverriderOpRemove {
		delete(node, key)
	} else {
		node[key] = runtime.DeepCopyJSONValue(s.Value)
	}
	return node, nil
}

func (s *patchStep) editList(node []any, pointer []string) (any, error) {
	last := len(pointer) == 1
	adding := last && s.Operator == gm.OverriderOpAdd
	limit := len(node) // the index must be below
	if adding {
		limit++
	}
	index, ok := len(node), adding && pointer[0] == "-"
	if !ok {
		index, ok = parseIndex(pointer[0])
	}
	if !ok || index >= limit {
		return nil, fmt.Errorf("no element %q in a list of %d", pointer[0], len(node))
	}
	if !last {
		changed, err := s.edit(node[index], pointer[1:])
		if err != nil {
			return nil, err
		}
		node[index] = changed
		return node, nil
	}
	switch s.Operator {
	case gm.OverriderOpAdd:
		return slices.Insert(node, index, runtime.DeepCopyJSONValue(s.Value)), nil
	case gm.OverriderOpReplace:
		node[index] = runtime.DeepCopyJSONValue(s.Value)
		return node, nil
	}
	return slices.Delete(node, index, index+1), nil
}

// parseIndex parses the index of a list as in RFC 6901: digits without a leading zero.
func parseIndex(token string) (int, bool) {
	if len(token) > 1 && token[0] == '0' || strings.Trim(token, "0123456789") != "" {
		return 0, false
	}
	index, err := strconv.Atoi(token)
	return index, err == nil
}
