package walls

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// pkg is a package as `go list -json` prints it.
type pkg struct {
	ImportPath string
	Name       string
	Imports    []string
	// TestImports and XTestImports are the imports of its test files.
	TestImports  []string
	XTestImports []string
	// Deps are all packages that it imports, directly or indirectly.
	Deps     []string
	Standard bool
	// DepOnly is true for packages that are not of this module.
	DepOnly bool
}

// testImports returns the imports of the test files of p.
func (p pkg) testImports() []string {
	return append(append([]string{}, p.TestImports...), p.XTestImports...)
}

// graph has every package that the module imports, directly or indirectly, by import path.
type graph map[string]pkg

// own returns the packages of the module itself.
func (g graph) own() []pkg {
	var own []pkg
	for _, p := range g {
		if !p.DepOnly {
			own = append(own, p)
		}
	}
	return own
}

// chain returns a shortest chain of imports from one package to another, for messages.
func (g graph) chain(from, to string) []string {
	before := map[string]string{from: ""}
	queue := []string{from}
	for len(queue) > 0 {
		here := queue[0]
		queue = queue[1:]
		if here == to {
			var chain []string
			for at := to; at != ""; at = before[at] {
				chain = append([]string{at}, chain...)
			}
			return chain
		}
		for _, next := range g[here].Imports {
			if _, seen := before[next]; !seen {
				before[next] = here
				queue = append(queue, next)
			}
		}
	}
	return []string{from, "…", to}
}

// loadGraph lists the packages of the module in root with the go command.
func loadGraph(root string) (graph, error) {
	list := exec.Command("go", "list", "-deps",
		"-json=ImportPath,Name,Imports,TestImports,XTestImports,Deps,Standard,DepOnly", "./...")
	list.Dir = root
	var stderr bytes.Buffer
	list.Stderr = &stderr
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w\n%s", err, stderr.String())
	}
	g := graph{}
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return g, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the list of packages: %w", err)
		}
		g[p.ImportPath] = p
	}
}

// dependOnSources makes the cached result of the test depend on every file of the module. go
// test records the files that a test opens itself, not those that a command reads for it.
func dependOnSources(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name != root {
			if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
				return filepath.SkipDir // Another module.
			}
			if base := path.Base(filepath.ToSlash(name)); strings.HasPrefix(base, ".") || base == "bin" || base == "testdata" {
				return filepath.SkipDir
			}
		}
		_, err = os.ReadDir(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
