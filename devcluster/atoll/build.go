package atoll

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
)

const module = "github.com/atoll-k8s/atoll"

// sourceDir is where the go command finds Atoll's module from here.
func sourceDir(ctx context.Context) (string, error) {
	out, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("finding the source of Atoll: %w", err)
	}
	return strings.TrimSpace(out), nil
}

// buildManager builds atoll-manager from source; the go command's cache makes
// that quick when nothing has changed.
func buildManager(ctx context.Context, source string, log io.Writer) (string, error) {
	fmt.Fprintln(log, "building atoll-manager")
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	// Each source has its own: a replica that is started again is to be the same.
	dir := filepath.Join(cache, "atoll", fmt.Sprintf("%x", sha256.Sum256([]byte(source)))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("building atoll-manager: %w", err)
	}
	// A name of its own: another process may be running the last one.
	binary, err := os.CreateTemp(dir, "atoll-manager-")
	if err != nil {
		return "", fmt.Errorf("building atoll-manager: %w", err)
	}
	_ = binary.Close()
	if _, err := goCommand(ctx, source, "build", "-o", binary.Name(), "./cmd/atoll-manager"); err != nil {
		return "", fmt.Errorf("building atoll-manager: %w", err)
	}
	final := filepath.Join(dir, "atoll-manager")
	if err := os.Rename(binary.Name(), final); err != nil {
		return "", fmt.Errorf("building atoll-manager: %w", err)
	}
	return final, nil
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running go %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
