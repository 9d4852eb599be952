package chart

import (
	"slices"
	"strings"
	"testing"
)

// TestWhatCoordinatorsGiveTheManager: no Secret outside of atoll-pools, no signer but our own, and nothing by which it
// would get further rights or act as somebody else.
func TestWhatCoordinatorsGiveTheManager(t *testing.T) {
	on := map[string]any{"coordinator": map[string]any{"enabled": true}}
	more := without(rightsOf(t, "atoll-manager", on), rightsOf(t, "atoll-manager", nil))
	if len(more) == 0 {
		t.Fatal("it gives nothing")
	}
	for right, verbs := range more {
		resource, names, _ := strings.Cut(right.resource, " named ")
		resource, group, _ := strings.Cut(resource, " of ")
		names, inGroup, _ := strings.Cut(names, " of ")
		what := right.where + " " + right.resource
		switch {
		case (resource == "secrets" || resource == "pods") && right.where != "in `atoll-pools`":
			t.Errorf("%s", what)
		case resource == "signers" && (names != "atoll.dev/hub-serving" || inGroup != "certificates.k8s.io"):
			t.Errorf("%s: it can sign for others", what)
		case slices.Contains([]string{"*", "clusterroles", "clusterrolebindings", "roles", "rolebindings", "serviceaccounts", "serviceaccounts/token", "nodes/proxy", "pods/exec", "users", "groups"}, resource), group == "*":
			t.Errorf("%s", what)
		}
		for _, verb := range []string{"*", "bind", "escalate", "impersonate"} {
			if verbs[verb] {
				t.Errorf("%s %s", verb, what)
			}
		}
		if right.where == "everywhere" && !strings.Contains(resource, "certificatesigningrequests/") && resource != "signers" && !strings.HasSuffix(resource, "/status") {
			for verb := range verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					t.Errorf("%s %s", verb, what)
				}
			}
		}
	}
}
