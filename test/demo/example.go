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
	// exampleDir is the directory of the example, relative to the root module.
	exampleDir = "examples/groups"
)

// example has the files of examples/groups, which are applied unchanged.
type example struct {
	// dir is the directory of the root module; the files are relative to it.
	dir string
	// groups are the files with NodeGroups, policies those with the two policies.
	groups, policies []string
}

// findExample finds the example in the source of the root module.
func findExample(ctx context.Context) (*example, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", rootModule)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("finding the source of module %s (run the demo from its test directory): %w: %s", rootModule, err, errs.Bytes())
	}
	return readExample(strings.TrimSpace(out.String()))
}

// readExample sorts the files of the example by the kinds in them.
func readExample(dir string) (*example, error) {
	files, err := filepath.Glob(filepath.Join(dir, exampleDir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("finding the example: %w", err)
	}
	d := &example{dir: dir}
	seen := map[string]bool{}
	for _, file := range files {
		kinds, err := kindsOf(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return nil, fmt.Errorf("finding the example: %w", err)
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
		return nil, fmt.Errorf("reading the example: no file of %s holds a %s",
			filepath.Join(dir, exampleDir), strings.Join(missing, " or a "))
	}
	return d, nil
}

// kindsOf returns the kinds of the objects in a file.
func kindsOf(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the example: %w", err)
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
