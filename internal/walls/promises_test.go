package walls

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPromisesAreTested checks that every test named in docs/guarantees.md and
// docs/security.md exists, so that nobody renames a test without its document, and that
// exactly the tests marked there with ³ run in each form of installation.
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
	for _, name := range []string{"docs/guarantees.md", "docs/security.md"} {
		page, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`(³?)").FindAllSubmatch(page, -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", name)
		}
		for _, match := range named {
			test, marked := string(match[1]), len(match[2]) > 0
			everyForm, ok := inEachForm[test]
			switch {
			case !ok:
				t.Errorf("%s names %s, which does not exist", name, test)
			case everyForm && !marked:
				t.Errorf("%s names %s without ³, but it runs in each form", name, test)
			case !everyForm && marked:
				t.Errorf("%s names %s with ³, but it does not run in each form", name, test)
			}
		}
	}
}
