// Package binaries builds the programs that a devcluster runs: etcd, the
// Kubernetes control plane, kubectl, hollow-kubelet and kwok; and for real nodes the
// kubelet, containerd, runc and CNI plugins.
//
// They are built from Go modules with the Go toolchain of the machine, and runc also with its C
// compiler, once for each set of versions, and kept in the user's cache directory. The module
// files that pin the versions are embedded here under names that Go does not read as modules, so
// that importers of devcluster do not get Kubernetes' own dependencies. To move to other
// versions, change those below and run
//
//	go run ./binaries/refresh
//
// The package does not depend on clusters.
package binaries

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/atoll-k8s/atoll/devcluster/internal/filelock"
)

// Versions of the built programs. Those of Kubernetes are in [KubernetesVersions].
const (
	EtcdVersion       = "v3.6.16"
	KwokVersion       = "v0.8.0"
	ContainerdVersion = "v2.4.2"
	RuncVersion       = "v1.5.2"
	CNIVersion        = "v1.9.1"
	CoreDNSVersion    = "v1.15.0"
	FlannelVersion    = "v0.28.10"
)

// CacheDirEnv names the environment variable that replaces the cache directory "<user
// cache>/atoll". It must be an absolute path.
const CacheDirEnv = "ATOLL_CACHE_DIR"

const (
	// completeMark is a file that only a complete set of binaries has. Its modification
	// time is the last use of the set.
	completeMark = ".complete"
	// unusedLifetime is how long an unused set is kept.
	unusedLifetime = 30 * 24 * time.Hour
)

//go:embed kubernetes-*/*.txt kubernetes/*.txt kubernetes/hollow-kubelet/*.txt kwok/*.txt kubelet/*.txt containerd/*.txt runc/*.txt cni/*.txt kube-proxy/*.txt coredns/*.txt coredns/coredns/*.txt flannel/*.txt flannel/flanneld/*.txt
var moduleFiles embed.FS

// module is a group of binaries built by one run of go build.
type module struct {
	name     string // directory of the module's files
	pins     string // directory of its go.mod and go.sum, if another
	packages []string
	ldflags  []string
	// rename maps the file name that go build chooses to the final one.
	rename map[string]string
	// cgo: the programs contain C, so building them needs a C compiler.
	cgo bool
}

// group are modules whose programs are built together.
type group struct {
	what    string // in progress
	modules []module
}

// controlPlane is what [Ensure] builds.
func controlPlane(kubernetes string) group {
	return group{"Kubernetes " + kubernetes + ", etcd " + EtcdVersion + " and kwok " + KwokVersion, []module{
		ofKubernetes(kubernetes, module{name: "kubernetes",
			packages: []string{
				"k8s.io/kubernetes/cmd/kube-apiserver",
				"k8s.io/kubernetes/cmd/kube-controller-manager",
				"k8s.io/kubernetes/cmd/kube-scheduler",
				"k8s.io/kubernetes/cmd/kubectl",
				"go.etcd.io/etcd/server/v3",
				"./hollow-kubelet",
			},
			rename: map[string]string{"server": "etcd", "v3": "etcd"},
		}),
		{
			name:     "kwok",
			packages: []string{"sigs.k8s.io/kwok/cmd/kwok"},
			ldflags:  []string{"-X sigs.k8s.io/kwok/pkg/consts.Version=" + strings.TrimPrefix(KwokVersion, "v")},
		},
	}}
}

const containerdPackage = "github.com/containerd/containerd/v2/"

// realNodes is what [EnsureNodes] builds.
func realNodes(kubernetes string) group {
	return group{"kubelet " + kubernetes + ", containerd " + ContainerdVersion + ", runc " + RuncVersion + " and CNI plugins " + CNIVersion, []module{
		ofKubernetes(kubernetes, module{name: "kubelet", packages: []string{"k8s.io/kubernetes/cmd/kubelet"}}),
		{
			name:     "containerd",
			packages: []string{containerdPackage + "cmd/containerd", containerdPackage + "cmd/containerd-shim-runc-v2", containerdPackage + "cmd/ctr"},
			ldflags:  []string{"-X " + containerdPackage + "version.Version=" + ContainerdVersion},
		},
		// Without the tag seccomp, which needs a C library, runc refuses containers with a
		// seccomp profile: devcluster turns the profile off that a pod may ask for.
		{name: "runc", packages: []string{"github.com/opencontainers/runc"}, ldflags: []string{"-X main.version=" + strings.TrimPrefix(RuncVersion, "v")}, cgo: true},
		{name: "cni", packages: []string{
			"github.com/containernetworking/plugins/plugins/main/ptp", "github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/ipam/host-local", "github.com/containernetworking/plugins/plugins/meta/portmap",
		}},
	}}
}

// nodeClients is what [EnsureClients] builds.
func nodeClients(kubernetes string) group {
	return group{"kube-proxy " + kubernetes + ", CoreDNS " + CoreDNSVersion + " and flannel " + FlannelVersion, []module{
		ofKubernetes(kubernetes, module{name: "kube-proxy", packages: []string{"k8s.io/kubernetes/cmd/kube-proxy"}}),
		{name: "coredns", packages: []string{"./coredns"}},
		{name: "flannel", packages: []string{"./flanneld"}},
	}}
}

// Set is a directory that holds all binaries.
type Set struct{ Dir string }

// Path returns the path of one binary, for example "kube-apiserver".
func (s Set) Path(name string) string { return filepath.Join(s.Dir, name) }

// CacheDir returns the directory in which devcluster keeps everything:
// $ATOLL_CACHE_DIR/devcluster, or else atoll/devcluster in the user's cache
// directory.
func CacheDir() (string, error) {
	if dir := os.Getenv(CacheDirEnv); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("finding the cache directory: %s=%q is not an absolute path", CacheDirEnv, dir)
		}
		return filepath.Join(dir, "devcluster"), nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory (set %s to choose one): %w", CacheDirEnv, err)
	}
	return filepath.Join(dir, "atoll", "devcluster"), nil
}

// Ensure returns the set of binaries for this machine, with Kubernetes of one of
// [KubernetesVersions]. If the cache does not have it, Ensure builds it first, which takes some
// minutes with an empty Go build cache. Progress is written to log, a line every few seconds.
// Several processes may call Ensure at once; one of them builds and the others wait.
func Ensure(ctx context.Context, kubernetes string, log io.Writer) (Set, error) {
	return controlPlane(kubernetes).ensure(ctx, log)
}

// EnsureNodes is Ensure for the programs of real nodes, which need Linux and a C compiler.
func EnsureNodes(ctx context.Context, kubernetes string, log io.Writer) (Set, error) {
	return realNodes(kubernetes).ensure(ctx, log)
}

// EnsureClients is Ensure for the programs of real nodes that devcluster has others for: kube-proxy, CoreDNS and
// flannel.
func EnsureClients(ctx context.Context, kubernetes string, log io.Writer) (Set, error) {
	return nodeClients(kubernetes).ensure(ctx, log)
}

func (g group) ensure(ctx context.Context, log io.Writer) (Set, error) {
	cache, err := CacheDir()
	if err != nil {
		return Set{}, err
	}
	toolchain, err := toolchainVersion(ctx)
	if err != nil {
		return Set{}, err
	}
	key, err := g.computeKey(toolchain)
	if err != nil {
		return Set{}, err
	}
	set := Set{Dir: filepath.Join(cache, "bin", key)}
	if set.complete() {
		set.markUsed()
		return set, nil
	}
	if err := os.MkdirAll(filepath.Join(cache, "bin"), 0o755); err != nil {
		return Set{}, fmt.Errorf("making the directory of binaries: %w", err)
	}
	unlock, err := filelock.Lock(ctx, set.Dir+".lock", func() {
		fmt.Fprintln(log, "devcluster: another process builds the binaries, waiting for it")
	})
	if err != nil {
		return Set{}, err
	}
	defer unlock()
	if set.complete() {
		return set, nil
	}
	if err := g.build(ctx, set, log); err != nil {
		return Set{}, err
	}
	removeUnused(filepath.Dir(set.Dir))
	return set, nil
}

// markUsed records the time of use for removeUnused. Errors are ignored, because the
// cache of a build machine can be read-only.
func (s Set) markUsed() {
	now := time.Now()
	_ = os.Chtimes(filepath.Join(s.Dir, completeMark), now, now)
}

// removeUnused removes the sets, about half a gigabyte each, that were not used for
// unusedLifetime. A set that cannot be removed stays until the next build.
func removeUnused(bin string) {
	marks, err := filepath.Glob(filepath.Join(bin, "*", completeMark))
	if err != nil {
		return
	}
	for _, mark := range marks {
		if info, err := os.Stat(mark); err == nil && time.Since(info.ModTime()) > unusedLifetime {
			_ = os.RemoveAll(filepath.Dir(mark))
		}
	}
}

func (s Set) complete() bool {
	_, err := os.Stat(filepath.Join(s.Dir, completeMark))
	return err == nil
}

// build builds every module into a temporary directory next to the set's own, and renames
// that directory when it is complete.
func (g group) build(ctx context.Context, set Set, log io.Writer) error {
	work := set.Dir + ".partial"
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("clearing an unfinished build: %w", err)
	}
	bin := filepath.Join(work, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("making the directory of a build: %w", err)
	}
	fmt.Fprintf(log, "devcluster: building %s (once, some minutes)\n", g.what)
	for _, m := range g.modules {
		if err := m.build(ctx, work, bin, log); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(bin, completeMark), nil, 0o644); err != nil {
		return fmt.Errorf("marking the build as complete: %w", err)
	}
	if err := os.RemoveAll(set.Dir); err != nil {
		return fmt.Errorf("clearing an incomplete set of binaries: %w", err)
	}
	if err := os.Rename(bin, set.Dir); err != nil {
		return fmt.Errorf("publishing the binaries: %w", err)
	}
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("clearing the build directory: %w", err)
	}
	return nil
}

// files calls visit for each file of the module, in a fixed order, with its path in the
// module, which is the embedded path without ".txt".
func (m module) files(visit func(path string, data []byte) error) error {
	err := fs.WalkDir(moduleFiles, m.name, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name := strings.TrimPrefix(path, m.name+"/")
		if m.pins != "" && (name == "go.mod.txt" || name == "go.sum.txt") {
			path = m.pins + "/" + name
		}
		data, err := moduleFiles.ReadFile(path)
		if err != nil {
			return err
		}
		return visit(strings.TrimSuffix(name, ".txt"), data)
	})
	if err != nil {
		return fmt.Errorf("reading files of module %s: %w", m.name, err)
	}
	return nil
}

// writeTo writes the module's files to dir.
func (m module) writeTo(dir string) error {
	return m.files(func(path string, data []byte) error {
		target := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o644)
	})
}

// computeKey returns a hash of all inputs of the binaries.
func (g group) computeKey(toolchain string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.GOOS, runtime.GOARCH, toolchain)
	for _, m := range g.modules {
		fmt.Fprintln(hash, m.name, m.packages, m.ldflags)
		err := m.files(func(path string, data []byte) error {
			fmt.Fprintln(hash, path, len(data))
			_, err := hash.Write(data)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(hash.Sum(nil))[:16], nil
}

// toolchainVersion returns the version of the go command, which builds the programs, and
// not that of the runtime.
func toolchainVersion(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir = os.TempDir()
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("finding the Go toolchain (install Go 1.26 or newer and put it on the PATH): %w", err)
	}
	if err != nil {
		return "", fmt.Errorf("reading the version of the Go toolchain: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
