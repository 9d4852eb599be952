// Command refresh rewrites the embedded module files of package binaries for the versions
// that it names. Run it in the directory of the devcluster module:
//
//	go run ./binaries/refresh
//
// Then run go run ./hack/align in the root of the repository: it raises what other modules
// have in higher versions.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

const (
	goVersion  = "1.26.0"
	modulePath = "github.com/atoll-k8s/atoll/devcluster/binaries/"
)

func main() {
	newest, etcd := "k8s.io/kubernetes@"+binaries.KubernetesVersions[0], "go.etcd.io/etcd/server/v3@"+binaries.EtcdVersion
	err := errors.Join(
		refresh("kubernetes", newest, etcd),
		refresh("kwok", "sigs.k8s.io/kwok@"+binaries.KwokVersion),
		refresh("kubelet", newest),
		refresh("containerd", "github.com/containerd/containerd/v2@"+binaries.ContainerdVersion),
		refresh("runc", "github.com/opencontainers/runc@"+binaries.RuncVersion),
		refresh("kube-proxy", newest),
		refresh("coredns", "github.com/coredns/coredns@"+binaries.CoreDNSVersion),
		refresh("flannel", "github.com/flannel-io/flannel@"+binaries.FlannelVersion),
		refresh("cni", "github.com/containernetworking/plugins@"+binaries.CNIVersion),
	)
	for _, version := range binaries.KubernetesVersions[1:] {
		err = errors.Join(err, refreshFrom([]string{"kubernetes", "kubelet", "kube-proxy"}, binaries.Pins(version), "k8s.io/kubernetes@"+version, etcd))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "refresh:", err)
		os.Exit(1)
	}
}

// refresh tidies the module in a temporary directory, where its files have
// their real names, and copies go.mod and go.sum back.
func refresh(name string, requirements ...string) error {
	return refreshFrom([]string{name}, name, requirements...)
}

// refreshFrom is refresh for a module that has the sources of several.
func refreshFrom(sources []string, name string, requirements ...string) error {
	work, err := os.MkdirTemp("", "devcluster-refresh-")
	if err != nil {
		return fmt.Errorf("making a directory for module %s: %w", name, err)
	}
	defer os.RemoveAll(work)
	for _, source := range sources {
		if err := copySources(filepath.Join("binaries", source), filepath.Join(work, source)); err != nil {
			return fmt.Errorf("copying module %s: %w", name, err)
		}
	}
	mod := fmt.Sprintf("module %s%s\n\ngo %s\n\n", modulePath, name, goVersion)
	for _, requirement := range requirements {
		mod += "require " + strings.Replace(requirement, "@", " ", 1) + "\n"
	}
	replacements, err := stagingReplacements(work, requirements[0])
	if err != nil {
		return fmt.Errorf("finding replacements of module %s: %w", name, err)
	}
	if err := os.WriteFile(filepath.Join(work, "go.mod"), []byte(mod+replacements), 0o644); err != nil {
		return fmt.Errorf("writing go.mod of module %s: %w", name, err)
	}
	if _, err := run(work, "go", "mod", "tidy"); err != nil {
		return fmt.Errorf("tidying module %s: %w", name, err)
	}
	target := filepath.Join("binaries", name)
	if err := os.MkdirAll(target, 0o755); err != nil {
		return fmt.Errorf("making the directory of module %s: %w", name, err)
	}
	for _, file := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(work, file))
		if err != nil {
			return fmt.Errorf("reading %s of module %s: %w", file, name, err)
		}
		if err := os.WriteFile(filepath.Join(target, file+".txt"), data, 0o644); err != nil {
			return fmt.Errorf("writing %s of module %s: %w", file, name, err)
		}
	}
	return nil
}

// copySources copies the Go files of the module under their real names.
func copySources(source, work string) error {
	return filepath.WalkDir(source, func(path string, entry os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go.txt") {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		target := filepath.Join(work, strings.TrimSuffix(relative, ".txt"))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o644)
	})
}

// stagingReplacements returns a replacement for each module that Kubernetes
// keeps in its own repository and requires at v0.0.0: v1.x.y is published as
// v0.x.y there. Other modules need none.
func stagingReplacements(work, module string) (string, error) {
	path, version, _ := strings.Cut(module, "@")
	if path != "k8s.io/kubernetes" {
		return "", nil
	}
	out, err := run(work, "go", "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var download struct{ GoMod string }
	if err := json.Unmarshal(out, &download); err != nil {
		return "", fmt.Errorf("decoding the answer of go mod download: %w", err)
	}
	out, err = run(work, "go", "mod", "edit", "-json", download.GoMod)
	if err != nil {
		return "", err
	}
	var mod struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return "", fmt.Errorf("decoding the module file: %w", err)
	}
	staging := "v0." + strings.TrimPrefix(version, "v1.")
	var replacements strings.Builder
	replacements.WriteString("\nreplace (\n")
	for _, require := range mod.Require {
		if require.Version == "v0.0.0" {
			fmt.Fprintf(&replacements, "\t%s => %s %s\n", require.Path, require.Path, staging)
		}
	}
	replacements.WriteString(")\n")
	return replacements.String(), nil
}

func run(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderr.String())
	}
	return out, nil
}
