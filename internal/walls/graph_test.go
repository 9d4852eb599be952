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
	// TestImports and XTestImports are what its test files import.
	TestImports  []string
	XTestImports []string
	// Deps is everything that Imports leads to.
	Deps     []string
	Standard bool
	// DepOnly is set on packages that are not of this module.
	DepOnly bool
}

// testImports returns what only the tests of p import.
func (p pkg) testImports() []string {
	return append(append([]string{}, p.TestImports...), p.XTestImports...)
}

// graph is every package that the module leads to, by import path.
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

// chain returns one shortest way of imports from one package to another, for a
// message that a person can act upon.
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

// loadGraph asks the go command for the packages of the module in root.
func loadGraph(root string) (graph, error) {
	list := exec.Command("go", "list", "-deps",
		"-json=ImportPath,Name,Imports,TestImports,XTestImports,Deps,Standard,DepOnly", "./...")
	list.Dir = root
	var complaints bytes.Buffer
	list.Stderr = &complaints
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w\n%s", err, complaints.String())
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

// dependOnSources makes the test's cached result depend on every file of the
// module: go test notices what a test opens itself, not what a command that it
// starts reads.
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
