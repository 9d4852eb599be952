package walls

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPromisesAreTested checks that every test named in docs/guarantees.md exists, so that
// nobody renames a test without its document, and that exactly the tests marked there with ³
// run in each form of installation.
func TestPromisesAreTested(t *testing.T) {
	root := filepath.Join("..", "..")
	inEachForm := map[string]bool{} // by name
	declared := regexp.MustCompile(`(?s)\nfunc ((?:Test|Fuzz)\w+)\((.*?)\n\}`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(source, -1) {
			body := string(match[2])
			inEachForm[string(match[1])] = strings.Contains(body, "inEachForm(") || strings.Contains(body, "range pairs")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`(³?)").FindAllSubmatch(page, -1)
	if len(named) == 0 {
		t.Error("docs/guarantees.md names no test")
	}
	for _, match := range named {
		name, marked := string(match[1]), len(match[2]) > 0
		everyForm, ok := inEachForm[name]
		switch {
		case !ok:
			t.Errorf("docs/guarantees.md names %s, which does not exist", name)
		case everyForm && !marked:
			t.Errorf("docs/guarantees.md names %s without ³, but it runs in each form", name)
		case !everyForm && marked:
			t.Errorf("docs/guarantees.md names %s with ³, but it does not run in each form", name)
		}
	}
}
