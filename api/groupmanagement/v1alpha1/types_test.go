package v1alpha1

import (
	"testing"

	"sigs.k8s.io/yaml"
)

// TestInlineAndNestedOverridersAreRead is docs/sources.md, G17.
func TestInlineAndNestedOverridersAreRead(t *testing.T) {
	for name, doc := range map[string]string{
		"inline, as in the example": `
spec:
  overrideRules:
  - targetNodeGroup: [Beijing]
    imageOverrider: [{component: Registry, operator: replace, value: beijing.registry.io}]`,
		"nested, as in the types": `
spec:
  overrideRules:
  - targetNodeGroup: [Beijing]
    overriders:
      imageOverrider: [{component: Registry, operator: replace, value: beijing.registry.io}]`,
	} {
		t.Run(name, func(t *testing.T) {
			var policy OverridePolicy
			if err := yaml.UnmarshalStrict([]byte(doc), &policy); err != nil {
				t.Fatal(err)
			}
			rule := policy.Spec.OverrideRules[0]
			images := rule.ImageOverrider
			if rule.Overriders != nil {
				images = rule.Overriders.ImageOverrider
			}
			if len(images) != 1 || images[0].Value != "beijing.registry.io" {
				t.Errorf("the rule was read as %+v", rule)
			}
		})
	}
}
