package binaries

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestModulesAreWrittenUnderTheirRealNames(t *testing.T) {
	var modules []module
	for _, version := range KubernetesVersions {
		modules = slices.Concat(modules, controlPlane(version).modules, realNodes(version).modules)
	}
	for _, m := range modules {
		dir := t.TempDir()
		if err := m.writeTo(dir); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"go.mod", "go.sum", "tools.go"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				t.Errorf("module %s: %v", m.name, err)
			}
		}
		for _, pkg := range m.packages {
			if local, ok := strings.CutPrefix(pkg, "./"); ok {
				if _, err := os.Stat(filepath.Join(dir, local, "main.go")); err != nil {
					t.Errorf("module %s: %v", m.name, err)
				}
			}
		}
	}
}

func TestModuleFilesPinTheVersions(t *testing.T) {
	files := map[string]string{
		"kubernetes/go.mod.txt": "k8s.io/kubernetes " + KubernetesVersions[0],
		"kwok/go.mod.txt":       "sigs.k8s.io/kwok " + KwokVersion,
		"kubelet/go.mod.txt":    "k8s.io/kubernetes " + KubernetesVersions[0],
		"kube-proxy/go.mod.txt": "k8s.io/kubernetes " + KubernetesVersions[0],
		"containerd/go.mod.txt": "github.com/containerd/containerd/v2 " + ContainerdVersion,
		"runc/go.mod.txt":       "github.com/opencontainers/runc " + RuncVersion,
		"cni/go.mod.txt":        "github.com/containernetworking/plugins " + CNIVersion,
	}
	for _, version := range KubernetesVersions[1:] {
		files[Pins(version)+"/go.mod.txt"] = "k8s.io/kubernetes " + version
	}
	for file, want := range files {
		data, err := moduleFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), want) {
			t.Errorf("%s does not require %s; run: go run ./binaries/refresh", file, want)
		}
	}
	for _, dir := range []string{"kubernetes", Pins(KubernetesVersions[1]), Pins(KubernetesVersions[2])} {
		data, err := moduleFiles.ReadFile(dir + "/go.mod.txt")
		if err != nil {
			t.Fatal(err)
		}
		if want := "go.etcd.io/etcd/server/v3 " + EtcdVersion; !strings.Contains(string(data), want) {
			t.Errorf("%s/go.mod.txt does not require %s; run: go run ./binaries/refresh", dir, want)
		}
	}
}

func TestKeyFollowsTheToolchain(t *testing.T) {
	keys := map[string]bool{}
	for _, toolchain := range []string{"go1.26.8", "go1.26.9", "go1.26.8"} {
		key, err := controlPlane(KubernetesVersions[0]).computeKey(toolchain)
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = true
	}
	if len(keys) != 2 {
		t.Errorf("two toolchains make the keys %v", keys)
	}
}

func TestKubernetesIsChosenByItsMinorVersion(t *testing.T) {
	for asked, want := range map[string]string{
		"": "v1.36.3", "1.36": "v1.36.3", "v1.35": "v1.35.4", "1.35.4": "v1.35.4", "v1.34.4": "v1.34.4",
		"1.35.9": "", "1.3": "", "1": "", "latest": "", "v": "", "1.33": "",
	} {
		t.Setenv(KubernetesEnv, "")
		got, err := FindKubernetes(asked)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v, want %q", asked, got, err, want)
		}
		t.Setenv(KubernetesEnv, asked)
		if got, _ := FindKubernetes(""); got != want {
			t.Errorf("%s=%q: %q, want %q", KubernetesEnv, asked, got, want)
		}
	}
	t.Setenv(KubernetesEnv, "1.33")
	if _, err := FindKubernetes(""); err == nil || !strings.Contains(err.Error(), "ATOLL_KUBERNETES=1.33") || !strings.Contains(err.Error(), "v1.34.4") {
		t.Errorf("the error is %v", err)
	}
}

func TestEachVersionOfKubernetesIsASetOfItsOwn(t *testing.T) {
	for name, group := range map[string]func(string) group{"control plane": controlPlane, "real nodes": realNodes, "clients": nodeClients} {
		keys := map[string]string{}
		for _, version := range KubernetesVersions {
			key, err := group(version).computeKey("go1.26.8")
			if err != nil {
				t.Fatal(err)
			}
			if other := keys[key]; other != "" {
				t.Errorf("%s: %s and %s share a set", name, other, version)
			}
			keys[key] = version
		}
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv(CacheDirEnv, "relative")
	if _, err := CacheDir(); err == nil {
		t.Error("a relative cache directory is taken")
	}
	t.Setenv(CacheDirEnv, "/somewhere")
	if dir, err := CacheDir(); err != nil || dir != "/somewhere/devcluster" {
		t.Errorf("cache directory is %q, %v", dir, err)
	}
}

func TestProgressClassifiesDownloadsPackagesAndErrors(t *testing.T) {
	p := &progress{module: "kubernetes", bin: t.TempDir(), started: time.Now()}
	p.read(strings.NewReader(strings.Join([]string{
		"go: downloading k8s.io/kubernetes v1.36.3",
		"internal/goarch",
		"k8s.io/kubernetes/cmd/kubectl",
		"# k8s.io/broken",
		"x.go:3:1: undefined: y",
	}, "\n")))
	if p.downloaded != 1 || p.compiled != 2 || p.last != "k8s.io/kubernetes/cmd/kubectl" {
		t.Errorf("downloaded %d, compiled %d, last %s", p.downloaded, p.compiled, p.last)
	}
	if len(p.other) != 2 {
		t.Errorf("errors are %q", p.other)
	}
	if err := os.WriteFile(filepath.Join(p.bin, "etcd"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if line := p.line(); !strings.Contains(line, "2 packages") || !strings.Contains(line, "finished: etcd") {
		t.Errorf("line is %q", line)
	}
}
