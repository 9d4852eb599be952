package walls

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPromisesAreTested checks that every test named in docs/guarantees.md, docs/security.md
// and docs/hub.md exists, so that nobody renames a test without its document, and that
// exactly the tests marked there with ³ run in each form of installation, those with ² in
// two, and those with ᵃ in make test-all only.
func TestPromisesAreTested(t *testing.T) {
	root := filepath.Join("..", "..")
	marks := map[string]string{} // by the name of the test
	declared := regexp.MustCompile(`(?s)\nfunc ((?:Test|Fuzz)\w+)\((.*?)\n\}`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range declared.FindAllSubmatch(source, -1) {
			mark, body := "", string(match[2])
			switch {
			case strings.Contains(body, "inEachForm(") || strings.Contains(body, "range pairs"):
				mark = "³"
			case strings.Contains(body, "inBothWays("):
				mark = "²"
			}
			if strings.HasPrefix(body[strings.Index(body, "\n")+1:], "\ttier.All(") {
				mark += "ᵃ"
			}
			marks[string(match[1])] = mark
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"docs/guarantees.md", "docs/security.md", "docs/hub.md"} {
		page, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`([²³]?ᵃ?)").FindAllStringSubmatch(string(page), -1)
		if len(named) == 0 {
			t.Errorf("%s names no test", name)
		}
		for _, match := range named {
			switch mark, ok := marks[match[1]]; {
			case !ok:
				t.Errorf("%s names %s, which does not exist", name, match[1])
			case mark != match[2]:
				t.Errorf("%s names %s with the mark %q, but it is %q: how many forms it runs in, and ᵃ if make test leaves it out", name, match[1], match[2], mark)
			}
		}
	}
}
