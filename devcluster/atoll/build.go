package atoll

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atoll-k8s/atoll/devcluster/binaries"
	"github.com/atoll-k8s/atoll/devcluster/internal/gotool"
)

const module = "github.com/atoll-k8s/atoll"

// sourceDir returns the directory of Atoll's module.
func sourceDir(ctx context.Context) (string, error) { return gotool.SourceDir(ctx, module) }

// buildManager builds atoll-manager from source.
func buildManager(ctx context.Context, source string, log io.Writer) (string, error) {
	return build(ctx, source, "atoll-manager", log)
}

// build builds a program of Atoll from source. This is fast with the go command's cache when
// nothing has changed.
func build(ctx context.Context, source, program string, log io.Writer) (string, error) {
	fmt.Fprintln(log, "building", program)
	cache, err := binaries.CacheDir()
	if err != nil {
		return "", err
	}
	// Each source directory has its own binary, so that a restarted replica is the same
	// program.
	dir := filepath.Join(cache, "atoll", fmt.Sprintf("%x", sha256.Sum256([]byte(source)))[:16])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	final := filepath.Join(dir, program)
	binary, err := copyOf(final)
	if err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	defer os.Remove(binary) // it is gone if all went well
	if _, err := gotool.Run(ctx, source, "build", "-o", binary, "./cmd/"+program); err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	if err := os.Rename(binary, final); err != nil {
		return "", fmt.Errorf("building %s: %w", program, err)
	}
	return final, nil
}

// copyOf returns the name of a copy of a binary, or of an empty file if there is none. The
// new binary gets a name of its own, because another process may run the previous one, and
// the go command links nothing if the copy is up to date.
func copyOf(binary string) (string, error) {
	to, err := os.CreateTemp(filepath.Dir(binary), filepath.Base(binary)+"-")
	if err != nil {
		return "", err
	}
	from, err := os.Open(binary)
	if err == nil {
		_, err = io.Copy(to, from)
		_ = from.Close()
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return to.Name(), errors.Join(err, to.Chmod(0o755), to.Close()) // the go command does not make an existing file executable
}
