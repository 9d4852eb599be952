package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/atoll-k8s/atoll/devcluster/images"
)

// beside are the programs of the image beside atoll-manager.
var beside = []string{"atoll-hub", "atoll-coordinator"}

// build builds the programs for each architecture, and an image of them.
func build(ctx context.Context, source string, architectures []string, log io.Writer) ([]v1.Image, error) {
	version, err := appVersion(source)
	if err != nil {
		return nil, err
	}
	commit, err := lastCommit(ctx, source)
	if err != nil {
		fmt.Fprintf(log, "the image has no revision: %v\n", err)
	}
	dir, err := os.MkdirTemp("", "atoll-image-")
	if err != nil {
		return nil, fmt.Errorf("building the image: %w", err)
	}
	defer os.RemoveAll(dir)
	var out []v1.Image
	for _, architecture := range architectures {
		fmt.Fprintf(log, "building atoll-manager, atoll-hub and atoll-coordinator for linux/%s\n", architecture)
		program := func(name string) string { return filepath.Join(dir, name+"-"+architecture) }
		others := map[string]string{}
		for _, name := range beside {
			others[name] = program(name)
		}
		for _, name := range append([]string{"atoll-manager"}, beside...) {
			if err := buildStatic(ctx, source, name, architecture, program(name)); err != nil {
				return nil, err
			}
		}
		image, err := images.New(images.Manager{
			Program: program("atoll-manager"), Beside: others, License: filepath.Join(source, "LICENSE"), Architecture: architecture,
			Version: version, Revision: commit.revision, Created: commit.time,
		}.Spec())
		if err != nil {
			return nil, err
		}
		out = append(out, image)
	}
	return out, nil
}

// buildStatic builds a program for Linux into a file.
func buildStatic(ctx context.Context, source, name, architecture, file string) error {
	script, err := filepath.Abs(filepath.Join(source, "hack", "build-static.sh"))
	if err != nil {
		return fmt.Errorf("building %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, script, "./cmd/"+name, file)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+architecture)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s for linux/%s: %w: %s", name, architecture, err, strings.TrimSpace(string(text)))
	}
	return nil
}

// appVersion reads the version of the chart.
func appVersion(source string) (string, error) {
	text, err := os.ReadFile(filepath.Join(source, "charts", "atoll", "Chart.yaml"))
	if err != nil {
		return "", fmt.Errorf("reading the version of the chart: %w", err)
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return "", fmt.Errorf("reading the version of the chart: %w", err)
	}
	return chart.AppVersion, nil
}

// commit is the state of a checkout.
type commit struct {
	// revision is the name of the commit, with -dirty behind it if files differ from it.
	revision string
	time     time.Time
}

// lastCommit asks git for the last commit of a checkout. The image has its time and not that of
// the build, so that the same source gives the same image.
func lastCommit(ctx context.Context, source string) (commit, error) {
	head, err := git(ctx, source, "log", "-1", "--format=%H %ct")
	if err != nil {
		return commit{}, err
	}
	changes, err := git(ctx, source, "status", "--porcelain")
	if err != nil {
		return commit{}, err
	}
	revision, when, _ := strings.Cut(head, " ")
	seconds, err := strconv.ParseInt(when, 10, 64)
	if err != nil {
		return commit{}, fmt.Errorf("reading the time of commit %s: %w", revision, err)
	}
	if changes != "" {
		revision += "-dirty"
	}
	return commit{revision: revision, time: time.Unix(seconds, 0)}, nil
}

func git(ctx context.Context, source string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"--no-optional-locks", "-C", source}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running git %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return strings.TrimSpace(string(out)), nil
}
