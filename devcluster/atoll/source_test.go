package atoll

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

// TestSourceAt: the source of a commit is unpacked once, and an unknown commit is named with the
// way out.
func TestSourceAt(t *testing.T) {
	repository := filepath.Join("..", "..")
	t.Setenv(binaries.CacheDirEnv, t.TempDir())
	head, err := exec.CommandContext(t.Context(), "git", "-C", repository, "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(head))
	dir, err := sourceAt(t.Context(), repository, commit)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"go.mod", filepath.Join("charts", "atoll", "Chart.yaml")} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	marker := filepath.Join(dir, "marker")
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := sourceAt(t.Context(), repository, commit); err != nil || again != dir {
		t.Errorf("the second time it is in %s, %v", again, err)
	}
	if _, err := os.Stat(marker); err != nil {
		t.Errorf("it was unpacked again: %v", err)
	}
	const unknown = "0123456789012345678901234567890123456789"
	if _, err := sourceAt(t.Context(), repository, unknown); err == nil || !strings.Contains(err.Error(), unknown) || !strings.Contains(err.Error(), "git fetch --unshallow") {
		t.Errorf("an unknown commit: %v", err)
	}
}

// TestSourceAtNeedsAWholeCommit: what a name of git means changes, and what is in the cache does
// not.
func TestSourceAtNeedsAWholeCommit(t *testing.T) {
	cache := t.TempDir()
	t.Setenv(binaries.CacheDirEnv, cache)
	for _, name := range []string{"", "HEAD", "main", "v1.0.0", "HEAD~1", "0123456", "../0123456", strings.Repeat("A", 40), strings.Repeat("a", 41), strings.Repeat("a", 40) + "^"} {
		if _, err := sourceAt(t.Context(), filepath.Join("..", ".."), name); err == nil || !strings.Contains(err.Error(), "40") {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(cache, "devcluster", "source")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a source is kept: %v", err)
	}
}
