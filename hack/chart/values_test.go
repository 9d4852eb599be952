package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestValuesAreChecked(t *testing.T) {
	object := func(pairs ...any) map[string]any {
		out := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i].(string)] = pairs[i+1]
		}
		return out
	}
	tests := map[string]map[string]any{
		"an unknown key":                     object("replicas", 2),
		"an unknown nested key":              object("manager", object("replica", 2)),
		"a webhook URL without TLS":          object("endpoints", object("webhook", "http://localhost:9443")),
		"a webhook URL with a slash":         object("endpoints", object("webhook", "https://localhost:9443/")),
		"a scheduler mode of tomorrow":       object("scheduler", object("mode", "Shared")),
		"a relative directory":               object("scheduler", object("tlsDir", "extender")),
		"a scheduler image without a tag":    object("scheduler", object("image", object("tag", ""))),
		"a namespace in upper case":          object("webhooks", object("excludedNamespaces", []any{"Default"})),
		"a reader without a namespace":       object("metrics", object("readers", []any{object("name", "prometheus")})),
		"an interval that is a number":       object("metrics", object("serviceMonitor", object("interval", 30))),
		"an interval without a unit":         object("metrics", object("serviceMonitor", object("interval", "30"))),
		"an API server on no port":           object("networkPolicy", object("apiServer", object("ports", []any{}))),
		"gangs that may be on":               object("gangs", object("enabled", "true")),
		"a definition that is always there":  object("gangs", object("crd", "Always")),
		"gangs of no scheduler":              object("gangs", object("schedulerNames", []any{})),
		"a scheduler without a name":         object("gangs", object("schedulerNames", []any{""})),
		"two schedulers in one name":         object("gangs", object("schedulerNames", []any{"volcano,volcano-2"})),
		"a scheduler twice":                  object("gangs", object("schedulerNames", []any{"volcano", "volcano"})),
		"rules in every ConfigMap":           object("gangs", object("config", object("name", "*"))),
		"rules in no ConfigMap":              object("gangs", object("config", object("name", ""))),
		"rules in two namespaces":            object("gangs", object("config", object("namespace", "a/b"))),
		"rules under a key of one's own":     object("gangs", object("config", object("key", "rules"))),
		"a number of Volcano schedulers":     object("gangs", object("multiScheduler", 2)),
		"an environment variable unheard of": object("manager", object("extraEnv", []any{object("name", "A", "vaule", "b")})),
	}
	for name, values := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := renderText(load(t), values); err == nil {
				t.Error("accepted")
			}
		})
	}
}

// schemaNode has the keywords of JSON schema that this test needs.
type schemaNode struct {
	Ref                  string                `json:"$ref"`
	Type                 any                   `json:"type"`
	Properties           map[string]schemaNode `json:"properties"`
	AdditionalProperties any                   `json:"additionalProperties"`
	Items                *schemaNode           `json:"items"`
	Definitions          map[string]schemaNode `json:"definitions"`
}

// TestSchemaNamesEveryValue: values.yaml and the schema name the same keys, and
// the schema refuses all others.
func TestSchemaNamesEveryValue(t *testing.T) {
	read := func(name string) []byte {
		data, err := os.ReadFile(filepath.Join(chartDir, name))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	var schema schemaNode
	if err := json.Unmarshal(read("values.schema.json"), &schema); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(read("values.yaml"), &values); err != nil {
		t.Fatal(err)
	}
	// A key of Helm itself, for charts that include this one.
	delete(schema.Properties, "global")

	var compare func(path string, node schemaNode, value any)
	compare = func(path string, node schemaNode, value any) {
		if name := filepath.Base(node.Ref); node.Ref != "" {
			node = schema.Definitions[name]
		}
		if node.Items != nil {
			compare(path+"[].", *node.Items, nil)
		}
		if node.Properties == nil {
			return
		}
		if node.AdditionalProperties != false {
			t.Errorf("%s: the schema takes any key", path)
		}
		object, _ := value.(map[string]any)
		for key, property := range node.Properties {
			if _, ok := object[key]; !ok && object != nil {
				t.Errorf("%s%s: values.yaml does not say what it is by default", path, key)
			}
			compare(path+key+".", property, object[key])
		}
		for key := range object {
			if _, ok := node.Properties[key]; !ok {
				t.Errorf("%s%s: the schema does not know it", path, key)
			}
		}
	}
	compare("", schema, values)
}
