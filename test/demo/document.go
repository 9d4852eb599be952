package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	rootModule = "github.com/atoll-k8s/atoll"
	// exampleDir holds document 000's example, relative to the root module.
	exampleDir = "examples/document-000"
)

// document is the example of document 000 as files, which are applied as they are.
type document struct {
	// dir is the directory of the root module; the files are relative to it.
	dir string
	// groups hold NodeGroups, policies the two policies.
	groups, policies []string
}

// findDocument finds the example in the source of the root module.
func findDocument(ctx context.Context) (*document, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rootModule)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("finding the source of module %s (run the demo from its test directory): %w: %s", rootModule, err, errs.Bytes())
	}
	return readDocument(strings.TrimSpace(out.String()))
}

// readDocument sorts the files of the example by the kinds in them.
func readDocument(dir string) (*document, error) {
	files, err := filepath.Glob(filepath.Join(dir, exampleDir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("finding the example of document 000: %w", err)
	}
	d := &document{dir: dir}
	seen := map[string]bool{}
	for _, file := range files {
		kinds, err := kindsOf(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return nil, fmt.Errorf("finding the example of document 000: %w", err)
		}
		switch {
		case kinds["NodeGroup"]:
			d.groups = append(d.groups, name)
		case kinds["PropagationPolicy"] || kinds["OverridePolicy"]:
			d.policies = append(d.policies, name)
		default:
			continue
		}
		for k := range kinds {
			seen[k] = true
		}
	}
	var missing []string
	for _, k := range []string{"NodeGroup", "PropagationPolicy", "OverridePolicy"} {
		if !seen[k] {
			missing = append(missing, k)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("reading the example of document 000: no file of %s holds a %s",
			filepath.Join(dir, exampleDir), strings.Join(missing, " or a "))
	}
	return d, nil
}

// kindsOf returns the kinds of the objects in a file.
func kindsOf(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the example of document 000: %w", err)
	}
	kinds := map[string]bool{}
	for doc := range strings.SplitSeq("\n"+string(data), "\n---") {
		var object struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			return nil, errors.Join(fmt.Errorf("reading %s", file), err)
		}
		if object.Kind != "" {
			kinds[object.Kind] = true
		}
	}
	return kinds, nil
}
