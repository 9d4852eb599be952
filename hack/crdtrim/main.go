// Command crdtrim completes a generated CustomResourceDefinition whose schema contains
// whole types of Kubernetes. It makes the changes that no marker can make to types of
// other projects:
//
//   - A UnitedDeployment contains three pod templates. Their descriptions have two
//     megabytes, more than an object may have. They are removed; Atoll's own stay.
//   - The API server refuses a rule that compares labels unless their number and
//     length are bounded.
//   - A rule on an object without a fixed schema can read only declared fields.
//   - Some required fields of Kubernetes are optional here, and fields that are
//     allowed in a pod but not in a template are removed: the definition must fit
//     into the annotation that kubectl apply writes.
//
// Usage: go run ./hack/crdtrim <file>, which is written in place.
package main

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// node is a schema or a part of one.
type node = map[string]any

const (
	spec      = "spec."
	templates = spec + "workloadTemplate."
	pools     = spec + "topology.pools[]."
)

// workloads are the paths of the templates, each with a whole spec of Kubernetes.
var workloads = []string{"deploymentTemplate", "statefulSetTemplate", "daemonSetTemplate"}

// label is the pattern of label values that the API server accepts.
var label = node{"maxLength": int64(63)}

// bounds are keywords that are added to schemas, by path: fields are joined by dots, []
// means the items of a list, {} the values of a map.
func bounds() map[string]node {
	b := map[string]node{
		spec + "selector.matchLabels":                               {"maxProperties": int64(32)},
		spec + "selector.matchLabels{}":                             label,
		spec + "selector.matchExpressions":                          {"maxItems": int64(32)},
		spec + "selector.matchExpressions[].key":                    {"maxLength": int64(317)},
		spec + "selector.matchExpressions[].operator":               {"maxLength": int64(16)},
		spec + "selector.matchExpressions[].values":                 {"maxItems": int64(32)},
		spec + "selector.matchExpressions[].values[]":               label,
		pools + "tolerations[].key":                                 {"maxLength": int64(317)},
		pools + "tolerations[].value":                               label,
		pools + "tolerations[].operator":                            {"maxLength": int64(16)},
		pools + "tolerations[].effect":                              {"maxLength": int64(32)},
		templates + "statefulSetTemplate.spec.serviceName":          {"maxLength": int64(253)},
		templates + "statefulSetTemplate.spec.podManagementPolicy":  {"maxLength": int64(32)},
		templates + "statefulSetTemplate.spec.volumeClaimTemplates": {"maxItems": int64(32)},
	}
	for _, list := range []string{"matchExpressions", "matchFields"} {
		at := pools + "nodeSelectorTerm." + list
		b[at] = node{"maxItems": int64(16)}
		b[at+"[].key"] = node{"maxLength": int64(317)}
		b[at+"[].operator"] = node{"maxLength": int64(16)}
		b[at+"[].values"] = node{"maxItems": int64(64)}
		b[at+"[].values[]"] = node{"maxLength": int64(253)}
	}
	b[pools+"patch"] = node{"properties": node{
		"metadata": open(node{"name": node{"type": "string", "nullable": true}}),
		"spec":     open(node{"replicas": node{"type": "integer", "nullable": true}, "selector": open(nil)}),
	}}
	for _, w := range workloads {
		b[templates+w+".spec.template.metadata.labels"] = node{"maxProperties": int64(64)}
		b[templates+w+".spec.template.metadata.labels{}"] = label
	}
	return b
}

// open is an object that may have any field; some fields are declared.
func open(properties node) node {
	o := node{"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true}
	if properties != nil {
		o["properties"] = properties
	}
	return o
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: crdtrim <file>")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "trimming %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func run(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	trimmed, err := trim(raw)
	if err != nil {
		return err
	}
	return os.WriteFile(file, trimmed, 0o600)
}

// trim returns the definition without the descriptions of Kubernetes' types, with bounds,
// and with optional selectors.
func trim(raw []byte) ([]byte, error) {
	var crd node
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return nil, err
	}
	versions, _ := crd["spec"].(node)["versions"].([]any)
	for _, version := range versions {
		schema, err := child(version.(node)["schema"].(node), "openAPIV3Schema")
		if err != nil {
			return nil, err
		}
		for _, w := range workloads {
			for _, part := range []string{"spec", "metadata"} {
				at, err := find(schema, templates+w+"."+part)
				if err != nil {
					return nil, err
				}
				for _, value := range at {
					dropDescriptions(value)
				}
			}
			at, err := find(schema, templates+w+".spec")
			if err != nil {
				return nil, err
			}
			at["required"] = []any{"template"}
			pods, err := find(schema, templates+w+".spec.template.spec")
			if err != nil {
				return nil, err
			}
			delete(pods["properties"].(node), "ephemeralContainers")
		}
		for path, keywords := range bounds() {
			at, err := find(schema, path)
			if err != nil {
				return nil, err
			}
			for keyword, value := range keywords {
				at[keyword] = value
			}
		}
	}
	out, err := yaml.Marshal(crd)
	return append([]byte("---\n"), out...), err
}

// find walks from a schema along a path.
func find(schema node, path string) (node, error) {
	var err error
	at := schema
	for _, field := range strings.Split(path, ".") {
		name := strings.TrimRight(field, "[]{}")
		if at, err = child(at, "properties"); err == nil {
			at, err = child(at, name)
		}
		if err == nil && strings.HasSuffix(field, "[]") {
			at, err = child(at, "items")
		}
		if err == nil && strings.HasSuffix(field, "{}") {
			at, err = child(at, "additionalProperties")
		}
		if err != nil {
			return nil, fmt.Errorf("following %s: %w", path, err)
		}
	}
	return at, nil
}

func child(of node, key string) (node, error) {
	next, ok := of[key].(node)
	if !ok {
		return nil, fmt.Errorf("there is no %q", key)
	}
	return next, nil
}

// dropDescriptions drops the descriptions in and below a value. A description is a
// string; a field with the name description is a schema.
func dropDescriptions(value any) {
	switch v := value.(type) {
	case node:
		if _, ok := v["description"].(string); ok {
			delete(v, "description")
		}
		for _, below := range v {
			dropDescriptions(below)
		}
	case []any:
		for _, below := range v {
			dropDescriptions(below)
		}
	}
}
