package v1beta1

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// Facts that several fields of Volcano's schema share.
const (
	aText     = `{"type":"string"}`
	aName     = `{"maxLength":253,"type":"string"}`
	anObject  = `{"type":"object"}`
	aList     = `{"type":"array"}`
	anAtom    = `{"type":"array","x-kubernetes-list-type":"atomic"}`
	aCount    = `{"format":"int32","minimum":0,"type":"integer"}`
	aQuantity = `{"anyOf":[{"type":"integer"},{"type":"string"}],` +
		`"pattern":"^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",` +
		`"x-kubernetes-int-or-string":true}`
)

// volcanos is the schema of PodGroups of Volcano at v1.16.0-alpha.1, without descriptions: by the
// path of a field, where [] is an item of a list and {} a value of a map, everything
// that the schema says of it.
var volcanos = map[string]string{
	"":           anObject,
	"apiVersion": aText,
	"kind":       aText,
	"metadata":   anObject,

	"spec":                                    anObject,
	"spec.minMember":                          aCount,
	"spec.minResources":                       anObject,
	"spec.minResources{}":                     aQuantity,
	"spec.minTaskMember":                      anObject,
	"spec.minTaskMember{}":                    `{"format":"int32","type":"integer"}`,
	"spec.priorityClassName":                  aName,
	"spec.queue":                              `{"default":"default","maxLength":253,"pattern":"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$","type":"string"}`,
	"spec.subGroupPolicy":                     aList,
	"spec.subGroupPolicy[]":                   anObject,
	"spec.networkTopology":                    anObject,
	"spec.networkTopology.mode":               `{"default":"hard","enum":["hard","soft"],"type":"string"}`,
	"spec.networkTopology.highestTierAllowed": `{"minimum":0,"type":"integer"}`,
	"spec.networkTopology.highestTierName":    aName,

	"spec.subGroupPolicy[].name":                               aName,
	"spec.subGroupPolicy[].minSubGroups":                       `{"default":0,"format":"int32","minimum":0,"type":"integer"}`,
	"spec.subGroupPolicy[].subGroupSize":                       `{"default":1,"format":"int32","minimum":1,"type":"integer"}`,
	"spec.subGroupPolicy[].matchLabelKeys":                     anAtom,
	"spec.subGroupPolicy[].matchLabelKeys[]":                   aText,
	"spec.subGroupPolicy[].networkTopology":                    anObject,
	"spec.subGroupPolicy[].networkTopology.mode":               `{"default":"hard","enum":["hard","soft"],"type":"string"}`,
	"spec.subGroupPolicy[].networkTopology.highestTierAllowed": `{"minimum":0,"type":"integer"}`,
	"spec.subGroupPolicy[].networkTopology.highestTierName":    aName,

	"spec.subGroupPolicy[].labelSelector":                             `{"type":"object","x-kubernetes-map-type":"atomic"}`,
	"spec.subGroupPolicy[].labelSelector.matchLabels":                 anObject,
	"spec.subGroupPolicy[].labelSelector.matchLabels{}":               aText,
	"spec.subGroupPolicy[].labelSelector.matchExpressions":            anAtom,
	"spec.subGroupPolicy[].labelSelector.matchExpressions[]":          `{"required":["key","operator"],"type":"object"}`,
	"spec.subGroupPolicy[].labelSelector.matchExpressions[].key":      aText,
	"spec.subGroupPolicy[].labelSelector.matchExpressions[].operator": aText,
	"spec.subGroupPolicy[].labelSelector.matchExpressions[].values":   anAtom,
	"spec.subGroupPolicy[].labelSelector.matchExpressions[].values[]": aText,

	"status":           anObject,
	"status.phase":     `{"enum":["Pending","Running","Unknown","Inqueue","Completed"],"type":"string"}`,
	"status.running":   aCount,
	"status.succeeded": aCount,
	"status.failed":    aCount,

	"status.conditions":                      aList,
	"status.conditions[]":                    anObject,
	"status.conditions[].type":               aText,
	"status.conditions[].status":             aText,
	"status.conditions[].transitionID":       aText,
	"status.conditions[].lastTransitionTime": `{"format":"date-time","type":"string"}`,
	"status.conditions[].reason":             aText,
	"status.conditions[].message":            aText,
}

// TestPodGroupCRDMatchesVolcano: whichever of the two is installed, the API server takes
// the same PodGroups, fills in the same defaults and shows the same columns. Ours shows the owner too.
func TestPodGroupCRDMatchesVolcano(t *testing.T) {
	data, err := os.ReadFile("../../../charts/atoll/files/crds/scheduling.volcano.sh_podgroups.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("there are %d versions", len(crd.Spec.Versions))
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	crd.Spec.Versions[0].Schema = nil

	want := apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "scheduling.volcano.sh",
		Scope: apiextensionsv1.NamespaceScoped,
		Names: apiextensionsv1.CustomResourceDefinitionNames{
			Kind: "PodGroup", ListKind: "PodGroupList", Plural: "podgroups", Singular: "podgroup",
			ShortNames: []string{"pg", "podgroup-v1beta1"},
		},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
			Name: "v1beta1", Served: true, Storage: true,
			// None of them: a write of the object writes its status.
			Subresources: &apiextensionsv1.CustomResourceSubresources{},
			AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
				{Name: "STATUS", Type: "string", JSONPath: ".status.phase"},
				{Name: "minMember", Type: "integer", JSONPath: ".spec.minMember"},
				{Name: "RUNNINGS", Type: "integer", JSONPath: ".status.running"},
				{Name: "AGE", Type: "date", JSONPath: ".metadata.creationTimestamp"},
				{Name: "QUEUE", Type: "string", JSONPath: ".spec.queue", Priority: 1},
				{Name: "OWNER", Type: "string", JSONPath: ".metadata.ownerReferences[0].name"},
				{Name: "OWNER KIND", Type: "string", JSONPath: ".metadata.ownerReferences[0].kind", Priority: 1},
			},
		}},
	}
	if diff := cmp.Diff(want, crd.Spec); diff != "" {
		t.Errorf("the definition (-Volcano's +ours):\n%s", diff)
	}
	if crd.Name != "podgroups.scheduling.volcano.sh" {
		t.Errorf("its name is %s", crd.Name)
	}

	ours := map[string]string{}
	facts(t, *schema, "", ours)
	for _, path := range slices.Sorted(maps.Keys(volcanos)) {
		if ours[path] != volcanos[path] {
			t.Errorf("%s is %s, Volcano's %s", path, ours[path], volcanos[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(ours)) {
		if _, ok := volcanos[path]; !ok {
			t.Errorf("%s is not Volcano's", path)
		}
	}
}

// facts collects what a schema says of each field, without descriptions.
func facts(t *testing.T, schema apiextensionsv1.JSONSchemaProps, path string, into map[string]string) {
	t.Helper()
	for key, property := range schema.Properties {
		inner := path + "." + key
		if path == "" {
			inner = key
		}
		facts(t, property, inner, into)
	}
	if schema.Items != nil {
		facts(t, *schema.Items.Schema, path+"[]", into)
	}
	if schema.AdditionalProperties != nil {
		facts(t, *schema.AdditionalProperties.Schema, path+"{}", into)
	}
	schema.Description, schema.Properties, schema.Items, schema.AdditionalProperties = "", nil, nil, nil
	data, err := json.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	data, err = canonical(data)
	if err != nil {
		t.Fatal(err)
	}
	into[path] = string(data)
}
