package walls

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestCitedRulesExist checks that every cited rule exists in docs/sources.md, and that no file
// cites a design document itself, which readers do not have.
func TestCitedRulesExist(t *testing.T) {
	root := filepath.Join("..", "..")
	sources, err := os.ReadFile(filepath.Join(root, "docs", "sources.md"))
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|`).FindAllSubmatch(sources, -1) {
		rules[string(match[1])] = true
	}
	if len(rules) < 70 {
		t.Errorf("docs/sources.md has %d rules", len(rules))
	}
	citation := regexp.MustCompile(`sources\.md(?:#[a-z-]*)?,[\s/#*]+([A-Z]\d+)(?: (?:to|and) ([A-Z]\d+))?`)
	document := regexp.MustCompile(`(?i)\bdocument[\s/]+0\d\d\b`)
	read := []string{".go", ".md", ".yaml", ".tpl"}
	cited := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); name == ".git" || name == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		if !slices.Contains(read, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if found := document.Find(text); found != nil {
			t.Errorf("%s cites %q, which a reader cannot open; cite a rule of docs/sources.md", path, found)
		}
		for _, match := range citation.FindAllSubmatch(text, -1) {
			cited++
			for _, rule := range match[1:] {
				if len(rule) > 0 && !rules[string(rule)] {
					t.Errorf("%s cites rule %s, which docs/sources.md does not have", path, rule)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if cited == 0 {
		t.Error("no file cites docs/sources.md")
	}
}
