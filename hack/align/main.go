// Command align raises every dependency that several modules of this repository have to the
// highest version among them. A package whose dependencies have the same versions everywhere
// is compiled and linted once for all modules; with an empty cache that saves many minutes.
//
//	go run ./hack/align
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// files are the modules that share versions, relative to the root of the repository. Those
// that are missing share little: containerd, runc and the tools follow other versions of
// Kubernetes.
var files = []string{
	"go.mod", "devcluster/go.mod", "test/go.mod", "cmd/kubectl-atoll/go.mod", "hack/chart/go.mod",
	"devcluster/binaries/kubernetes/go.mod.txt", "devcluster/binaries/kubelet/go.mod.txt", "devcluster/binaries/kwok/go.mod.txt",
}

// maxRounds bounds how often modules are tidied: a raised dependency may raise others.
const maxRounds = 5

func main() {
	if err := align("."); err != nil {
		fmt.Fprintln(os.Stderr, "align:", err)
		os.Exit(1)
	}
}

func align(root string) error {
	for range maxRounds {
		changes, err := differences(root)
		if err != nil || len(changes) == 0 {
			return err
		}
		for _, file := range files {
			if err := raise(root, file, changes[file]); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	changes, err := differences(root)
	if err == nil && len(changes) > 0 {
		err = fmt.Errorf("versions still differ: %v", changes)
	}
	return err
}

// differences returns the versions to which each file has to raise its requirements.
func differences(root string) (map[string][]string, error) {
	required := map[string]map[string]string{}
	for _, file := range files {
		versions, err := requirements(filepath.Join(root, file))
		if err != nil {
			return nil, err
		}
		required[file] = versions
	}
	highest := map[string]string{}
	for _, file := range files {
		for path, v := range required[file] {
			if higher, err := isHigher(v, highest[path]); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, path, err)
			} else if higher {
				highest[path] = v
			}
		}
	}
	changes := map[string][]string{}
	for file, versions := range required {
		for path, v := range versions {
			if higher, err := isHigher(highest[path], v); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, path, err)
			} else if higher {
				changes[file] = append(changes[file], path+"@"+highest[path])
			}
		}
	}
	return changes, nil
}

// isHigher reports whether version a is above b. "" is below all others.
func isHigher(a, b string) (bool, error) {
	if a == "" || b == "" {
		return a != "", nil
	}
	x, err := version.ParseSemantic(a)
	y, err2 := version.ParseSemantic(b)
	if err := errors.Join(err, err2); err != nil {
		return false, err
	}
	return y.LessThan(x), nil
}

// requirements returns the versions that a file requires, by path. Those that it replaces
// are left out.
func requirements(file string) (map[string]string, error) {
	out, err := run(".", "mod", "edit", "-json", file)
	if err != nil {
		return nil, err
	}
	var mod struct {
		Require []struct{ Path, Version string }
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	versions := map[string]string{}
	for _, r := range mod.Require {
		versions[r.Path] = r.Version
	}
	for _, r := range mod.Replace {
		delete(versions, r.Old.Path)
	}
	return versions, nil
}

// raise changes requirements of a module and tidies it. The files of an embedded module have
// other names, so it is tidied in a copy where they have their own.
func raise(root, file string, changes []string) error {
	if len(changes) == 0 {
		return nil
	}
	dir := filepath.Join(root, filepath.Dir(file))
	embedded := strings.HasSuffix(file, ".txt")
	work := dir
	if embedded {
		var err error
		if work, err = os.MkdirTemp("", "align-"); err != nil {
			return err
		}
		defer os.RemoveAll(work)
		if err := os.CopyFS(work, os.DirFS(dir)); err != nil {
			return err
		}
		if err := rename(work, func(name string) string { return strings.TrimSuffix(name, ".txt") }); err != nil {
			return err
		}
	}
	args := []string{"mod", "edit"}
	for _, change := range changes {
		fmt.Println(file, change)
		args = append(args, "-require="+change)
	}
	if _, err := run(work, args...); err != nil {
		return err
	}
	if _, err := run(work, "mod", "tidy"); err != nil || !embedded {
		return err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(work, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name+".txt"), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// rename renames all files of a directory and those below.
func rename(dir string, to func(string) string) error {
	return filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return os.Rename(path, to(path))
	})
}

// run runs the go command in a directory and returns what it prints.
func run(dir string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}
