package walls

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKeysAreDocumented checks that every label and annotation of groupmanagement is in the
// table "All keys" of docs/groups.md.
func TestKeysAreDocumented(t *testing.T) {
	root := filepath.Join("..", "..")
	source, err := os.ReadFile(filepath.Join(root, "api", "groupmanagement", "v1alpha1", "keys.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "groups.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "## All keys")
	if !found {
		t.Fatal(`docs/groups.md has no section "All keys"`)
	}
	keys := regexp.MustCompile(`(?m)^\t\w+ += "([a-z.]+/[a-z-]+)"$`).FindAllSubmatch(source, -1)
	if len(keys) < 15 {
		t.Fatalf("only %d keys were found: the format of keys.go has changed", len(keys))
	}
	for _, match := range keys {
		if key := string(match[1]); !strings.Contains(table, "`"+key+"`") {
			t.Errorf(`%s is missing in docs/groups.md, "All keys"`, key)
		}
	}
}
