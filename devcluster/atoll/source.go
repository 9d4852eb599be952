package atoll

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/untar"
)

// wholeCommit matches the full name of a commit, whose content never changes.
var wholeCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// SourceAt returns a directory with the source of Atoll at an earlier commit of its git
// repository, for [NewRelease]. It is kept in the cache, so the commit must be given by all 40
// digits of its name, and not as a branch or tag.
func SourceAt(ctx context.Context, commit string) (string, error) {
	source, err := sourceDir(ctx)
	if err != nil {
		return "", err
	}
	return sourceAt(ctx, source, commit)
}

func sourceAt(ctx context.Context, repository, commit string) (string, error) {
	if !wholeCommit.MatchString(commit) {
		return "", fmt.Errorf("finding the source of commit %q: give all 40 hexadecimal digits of its name (see git rev-parse), because the source is kept under it", commit)
	}
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "source", commit)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	cmd := exec.CommandContext(ctx, "git", "-C", repository, "archive", commit)
	var content, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &content, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("reading commit %s of %s: %w: %s (a clone without it needs git fetch --unshallow)", commit, repository, err, strings.TrimSpace(errs.String()))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("keeping the source of commit %s: %w", commit, err)
	}
	unpacked, err := os.MkdirTemp(filepath.Dir(dir), "unpacking-")
	if err != nil {
		return "", fmt.Errorf("keeping the source of commit %s: %w", commit, err)
	}
	defer os.RemoveAll(unpacked) // it is gone if all went well
	if err := untar.Unpack(unpacked, &content); err != nil {
		return "", fmt.Errorf("unpacking commit %s: %w", commit, err)
	}
	if err := os.Rename(unpacked, dir); err != nil {
		if _, exists := os.Stat(dir); exists == nil {
			return dir, nil // another process was faster
		}
		return "", fmt.Errorf("keeping the source of commit %s: %w", commit, err)
	}
	return dir, nil
}
