// Command release makes all files of a release in dist/release: the same source gives the same
// bytes.
//
//	make release
//	make release IMAGE=registry.example/atoll-manager:0.1.0     # what install.yaml and the chart's image are called
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
)

// platform is one that programs are built for.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

var (
	linux    = []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	desktops = append(slices.Clone(linux), platform{"darwin", "amd64"}, platform{"darwin", "arm64"}, platform{"windows", "amd64"}, platform{"windows", "arm64"})
)

// programs are all that there are.
var programs = []struct {
	name, dir string
	// platforms are those with an archive of the program. Without any it is in the image only.
	platforms []platform
	// beside are further files of the archives, relative to dir.
	beside []string
}{
	{"kubectl-atoll", "cmd/kubectl-atoll", desktops, []string{"kubectl_complete-atoll"}},
	{"atoll-hub", "cmd/atoll-hub", linux, nil},
	{"atoll-manager", "cmd/atoll-manager", nil, nil},
	{"atoll-coordinator", "cmd/atoll-coordinator", nil, nil},
}

// versionVariable is the variable of kubectl-atoll that has its version.
const versionVariable = "github.com/atoll-k8s/atoll/cmd/kubectl-atoll/command.version"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is a release that is being made.
type release struct {
	source, out, image, url string
	version                 string
	// made is the time of the last commit, which all files have.
	made time.Time
	log  io.Writer
	// archives are the names of those of kubectl-atoll, by platform.
	archives map[platform]string
	// only are the platforms to build for; nil for all.
	only []string
	// modules are those of all programs, with their versions.
	modules map[string]string
}

func run(ctx context.Context, args []string, log io.Writer) error {
	r := release{log: log, archives: map[platform]string{}}
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.SetOutput(log)
	fs.StringVar(&r.source, "source", "../..", "directory of Atoll's source")
	fs.StringVar(&r.out, "o", filepath.Join("dist", "release"), "directory to write, relative to the source; what is in it is deleted")
	fs.StringVar(&r.image, "image", "", "name of the image, IMAGE of make")
	fs.StringVar(&r.url, "url", "https://github.com/atoll-k8s/atoll/releases/download", "where the files will be, in a directory v<version>: for krew")
	only := fs.String("platforms", "", "platforms of programs and image, separated by commas; unset means all")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *only != "" {
		r.only = strings.Split(*only, ",")
	}
	if fs.NArg() > 0 || r.image == "" {
		return errors.New("want -image, and nothing but flags")
	}
	var err error
	if r.source, err = filepath.Abs(r.source); err != nil {
		return fmt.Errorf("finding the source: %w", err)
	}
	if !filepath.IsAbs(r.out) {
		r.out = filepath.Join(r.source, r.out)
	}
	chart, err := loader.Load(filepath.Join(r.source, "charts", "atoll"))
	if err != nil {
		return fmt.Errorf("reading the version of the chart: %w", err)
	}
	if r.version = chart.AppVersion(); r.version != chart.Metadata.Version {
		return fmt.Errorf("charts/atoll/Chart.yaml has version %s and appVersion %s: want one version for all", chart.Metadata.Version, r.version)
	}
	if r.made, err = commitTime(ctx, r.source); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return fmt.Errorf("emptying %s: %w", r.out, err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", r.out, err)
	}
	for _, step := range []func(context.Context) error{r.programs, r.images, r.chart, r.manifest, r.krew, r.sbom, r.sums} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(log, "wrote %s\n", r.out)
	return nil
}

// commitTime returns the time of the last commit.
func commitTime(ctx context.Context, source string) (time.Time, error) {
	out, err := exec.CommandContext(ctx, "git", "--no-optional-locks", "-C", source, "log", "-1", "--format=%cI").Output()
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the time of the last commit: %w", err)
	}
	made, err := time.Parse(time.RFC3339, strings.TrimSpace(string(out)))
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the time of the last commit: %w", err)
	}
	return made.UTC(), nil
}

// programs builds the programs, and puts each into its archives.
func (r *release) programs(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "atoll-release-")
	if err != nil {
		return fmt.Errorf("building programs: %w", err)
	}
	defer os.RemoveAll(dir)
	for _, p := range programs {
		at := filepath.Join(r.source, p.dir)
		for _, on := range p.platforms {
			if r.only != nil && !slices.Contains(r.only, on.String()) {
				continue
			}
			program, err := r.build(ctx, dir, p.name, at, on)
			if err != nil {
				return err
			}
			files := []file{{filepath.Base(program), program, 0o755}, {"LICENSE", filepath.Join(r.source, "LICENSE"), 0o644}}
			for _, name := range p.beside {
				files = append(files, file{name, filepath.Join(at, name), 0o755})
			}
			archive := fmt.Sprintf("%s_%s_%s_%s.tar.gz", p.name, r.version, on.os, on.arch)
			if err := r.pack(archive, files); err != nil {
				return err
			}
			if p.name == "kubectl-atoll" {
				r.archives[on] = archive
			}
		}
		program, err := r.build(ctx, dir, p.name, at, linux[0])
		if err != nil {
			return err
		}
		if err := r.describe(program); err != nil {
			return err
		}
	}
	return nil
}

// build builds a program, and returns its file.
func (r *release) build(ctx context.Context, dir, name, at string, on platform) (string, error) {
	fmt.Fprintf(r.log, "building %s for %s\n", name, on)
	program := filepath.Join(dir, name)
	if on.os == "windows" {
		program += ".exe"
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X "+versionVariable+"="+r.version, "-o", program, ".")
	cmd.Dir = at
	cmd.Env = append(os.Environ(), "GOOS="+on.os, "GOARCH="+on.arch, "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s for %s: %w: %s", name, on, err, out)
	}
	return program, nil
}

// images makes the image for all platforms.
func (r *release) images(ctx context.Context) error {
	file := filepath.Join(r.out, "atoll-manager-"+r.version+".tar")
	args := []string{"run", "./cmd/image", "-source", r.source, "-image", r.image, "-o", file}
	if r.only != nil {
		args = append(args, "-platforms", strings.Join(r.only, ","))
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(r.source, "hack", "chart")
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	return nil
}

// chart packs the chart, as helm package does, but for the times.
func (r *release) chart(context.Context) error {
	root := filepath.Join(r.source, "charts")
	var files []file
	err := filepath.WalkDir(filepath.Join(root, "atoll"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		files = append(files, file{filepath.ToSlash(name), path, 0o644})
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the chart: %w", err)
	}
	return r.pack("atoll-"+r.version+".tgz", files)
}

// manifest renders install.yaml.
func (r *release) manifest(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "run", "./cmd/manifest", "-o", filepath.Join(r.out, "install.yaml"), "-image", r.image)
	cmd.Dir = filepath.Join(r.source, "hack", "chart")
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("rendering install.yaml: %w", err)
	}
	return nil
}

// sums writes the checksums of all files, for sha256sum -c.
func (r *release) sums(context.Context) error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return fmt.Errorf("listing the files: %w", err)
	}
	var text strings.Builder
	for _, e := range entries {
		sum, err := r.sum(e.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s  %s\n", sum, e.Name())
	}
	return r.write("SHA256SUMS", []byte(text.String()))
}

func (r *release) sum(name string) (string, error) {
	f, err := os.Open(filepath.Join(r.out, name))
	if err != nil {
		return "", fmt.Errorf("summing %s: %w", name, err)
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", fmt.Errorf("summing %s: %w", name, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.out, name), content, 0o644); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}

// platforms returns those of kubectl-atoll, in order.
func (r *release) platforms() (all []platform) {
	for p := range r.archives {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b platform) int { return strings.Compare(a.String(), b.String()) })
	return all
}
