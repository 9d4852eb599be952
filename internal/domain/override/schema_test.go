package override

import (
	"os"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	gm "github.com/atoll-k8s/atoll/api/groupmanagement/v1alpha1"
)

// schemaRule is the CRD's rule for the value of one component.
type schemaRule struct {
	component string
	operators string
	patterns  []*regexp.Regexp
	// not is what the value must not match, or nil.
	not *regexp.Regexp
}

var (
	ruleForm    = regexp.MustCompile(`^!\(self\.component == '(\w+)' && (.*) && has\(self\.value\)\) \|\| (.*)$`)
	patternForm = regexp.MustCompile(`(!?)self\.value\.matches\('([^']*)'\)`)
)

// schemaRules reads the rules about image values from the generated CRD.
func schemaRules(t *testing.T) []schemaRule {
	t.Helper()
	raw, err := os.ReadFile("../../../charts/atoll/files/crds/groupmanagement.kubeedge.io_overridepolicies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		t.Fatal(err)
	}
	rule := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties["overrideRules"].Items.Schema
	var rules []schemaRule
	for _, v := range rule.Properties["imageOverrider"].Items.Schema.XValidations {
		match := ruleForm.FindStringSubmatch(v.Rule)
		if match == nil {
			continue
		}
		r := schemaRule{component: match[1], operators: match[2]}
		for _, pattern := range patternForm.FindAllStringSubmatch(match[3], -1) {
			compiled := regexp.MustCompile(strings.ReplaceAll(pattern[2], `\\`, `\`))
			if pattern[1] != "" {
				r.not = compiled
			} else {
				r.patterns = append(r.patterns, compiled)
			}
		}
		rules = append(rules, r)
	}
	if len(rules) != 6 {
		t.Fatalf("the schema has %d rules about values, want 6: this test reads them by their form", len(rules))
	}
	return rules
}

func schemaAccepts(rules []schemaRule, component gm.ImageComponent, operator gm.OverriderOperator, value string) bool {
	for _, r := range rules {
		if r.component != string(component) || !strings.Contains(r.operators, "'"+string(operator)+"'") {
			continue
		}
		matched := false
		for _, pattern := range r.patterns {
			matched = matched || pattern.MatchString(value)
		}
		if !matched || r.not != nil && r.not.MatchString(value) {
			return false
		}
	}
	return true
}

// eachValue calls a function with every text of up to n of the characters.
func eachValue(signs string, n int, prefix string, visit func(string)) {
	for _, sign := range signs {
		value := prefix + string(sign)
		visit(value)
		if n > 1 {
			eachValue(signs, n-1, value, visit)
		}
	}
}

// TestTheSchemaRefusesWhatTheWebhookDoes checks that the CRD and the webhook accept the
// same values of images, and that an accepted value makes a valid image from a valid one.
func TestTheSchemaRefusesWhatTheWebhookDoes(t *testing.T) {
	rules := schemaRules(t)
	images := []string{"nginx:1", "r.io/nginx:1", "[::1]/nginx:1"}
	for _, component := range []gm.ImageComponent{gm.Registry, gm.Repository, gm.Tag} {
		for _, operator := range []gm.OverriderOperator{gm.OverriderOpAdd, gm.OverriderOpReplace} {
			different := 0
			look := func(value string) {
				change := imageChange{Component: component, Operator: operator, Value: value, Index: everyIndex}
				webhook, schema := checkImageValue(component, operator, value), schemaAccepts(rules, component, operator, value)
				if (webhook == nil) != schema {
					different++
					if different < 10 {
						t.Errorf("%s %s %q: the webhook returns %v, the schema accepts: %v", component, operator, value, webhook, schema)
					}
					return
				}
				if webhook != nil {
					return
				}
				var err error
				for _, image := range images {
					if _, err = change.apply(image); err == nil {
						return
					}
				}
				t.Errorf("%s %s %q is accepted, and no image is valid with it: %v", component, operator, value, err)
			}
			eachValue("aZ1-.:/_[] @", 4, "", look)
			eachValue("a-.:/_", 5, "", look)
			for _, value := range []string{
				"[fd00::1]", "[fd00::1]:5000", "[::]", "[fd00::1", "fd00::1]", "[fd00::1].io", "localhost", "localhost:5000", "hz.io:123456", "hz.io:", "a.b.c-d.io:1",
				"sha256:" + strings.Repeat("a", 64), strings.Repeat("a", 200), strings.Repeat("a/", 100) + "a", "a__b", "a___b", "a--b", "a.-b", "/nginx", "-x", "a//b",
			} {
				look(value)
			}
		}
	}
}

// TestRepositoriesOfWrongShape checks that the message describes the problem.
func TestRepositoriesOfWrongShape(t *testing.T) {
	tests := map[string]struct {
		operator gm.OverriderOperator
		value    string
		want     string
	}{
		"a slash first":             {"replace", "/nginx", "it must not begin with /"},
		"a slash last":              {"replace", "nginx/", "it must not end with /"},
		"a slash last, added":       {"add", "/nginx/", "it must not end with /"},
		"a dash first":              {"replace", "-x", "must begin and end with a letter or a digit"},
		"two slashes":               {"replace", "a//b", "there is nothing between two /"},
		"two dots":                  {"replace", "a..b", "with one of . _ __ or with dashes"},
		"upper case":                {"replace", "Nginx", "of lower case letters, digits"},
		"a slash first, added":      {"add", "/nginx", ""},
		"a dash first, added":       {"add", "-edge", ""},
		"a dash last, added":        {"add", "edge-", "must begin and end with a letter or a digit"},
		"a path":                    {"replace", "team/nginx", ""},
		"a dash between two":        {"replace", "a--b", ""},
		"a path of underscores too": {"replace", "a__b/c_d", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			err := checkImageValue(gm.Repository, tc.operator, tc.value)
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
}

// TestAnIPv6RegistryCanBeAdded checks add; replace accepts it too.
func TestAnIPv6RegistryCanBeAdded(t *testing.T) {
	for _, operator := range []gm.OverriderOperator{gm.OverriderOpAdd, gm.OverriderOpReplace} {
		rules, problems := Compile(imageRule(gm.ImageOverrider{Component: gm.Registry, Operator: operator, Value: "[fd00::1]:5000"}))
		if len(problems) > 0 {
			t.Errorf("%s: %v", operator, problems)
			continue
		}
		images, err := rules.Images("hz", []Image{{Container: "c", Image: "nginx:1"}})
		if err != nil || images[0].Image != "[fd00::1]:5000/nginx:1" {
			t.Errorf("%s makes %v, error %v", operator, images, err)
		}
	}
}
