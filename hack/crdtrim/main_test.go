package main

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const definition = "../../charts/atoll/files/crds/apps.openyurt.io_uniteddeployments.yaml"

// TestCommittedCRDIsTrimmed: the definition is small enough to be stored, has the
// descriptions of its own fields, and bounds the fields that its rules read.
func TestCommittedCRDIsTrimmed(t *testing.T) {
	raw, err := os.ReadFile(definition)
	if err != nil {
		t.Fatal(err)
	}
	const limit = 200_000 // kubectl apply writes it into an annotation of at most 256 KiB
	asJSON, err := yaml.YAMLToJSON(raw)
	if err != nil || len(asJSON) > limit {
		t.Fatalf("it has %d bytes (error %v), more than %d", len(asJSON), err, limit)
	}
	again, err := trim(raw)
	if err != nil {
		t.Fatal(err)
	}
	if string(again) != string(raw) {
		t.Error("trimming it again changes it")
	}
	for _, ours := range []string{"strategic merge patch that is applied to this pool's", "the pools have the replicas"} {
		if !strings.Contains(string(raw), ours) {
			t.Errorf("it does not say %q any more", ours)
		}
	}
}

func TestAFieldCalledDescriptionStays(t *testing.T) {
	schema := node{
		"description": "gone",
		"properties":  node{"description": node{"type": "string", "description": "gone"}},
		"anyOf":       []any{node{"description": "gone"}},
	}
	dropDescriptions(schema)
	raw, err := yaml.Marshal(schema)
	if err != nil {
		t.Fatal(err)
	}
	if want := "anyOf:\n- {}\nproperties:\n  description:\n    type: string\n"; string(raw) != want {
		t.Errorf("got\n%s\nwant\n%s", raw, want)
	}
}

func TestMissingSchemaPathIsAnError(t *testing.T) {
	if _, err := trim([]byte("spec: {versions: [{schema: {openAPIV3Schema: {properties: {}}}}]}")); err == nil {
		t.Error("a definition without a template was trimmed")
	}
}
