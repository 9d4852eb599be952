package walls

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestKeysAreDocumented: every key that groups write or read is in the table
// "All keys" of docs/groups.md.
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
		t.Fatal(`docs/groups.md has no part "All keys"`)
	}
	keys := regexp.MustCompile(`(?m)^\t\w+ += "([a-z.]+/[a-z-]+)"$`).FindAllSubmatch(source, -1)
	if len(keys) < 15 {
		t.Fatalf("only %d keys were found: keys.go has changed its form", len(keys))
	}
	for _, match := range keys {
		if key := string(match[1]); !strings.Contains(table, "`"+key+"`") {
			t.Errorf(`docs/groups.md, "All keys", does not have %s`, key)
		}
	}
}
