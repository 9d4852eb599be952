// Package gotool runs the go command, with which a devcluster builds programs from source.
package gotool

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

// Run runs the go command in a directory, "" for the current one, and returns what it prints.
// Programs are built without C. The command ends with this process (Linux only): a build that goes
// on would write into the directory of a cluster that has been removed.
func Run(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := process.Run(cmd); err != nil {
		return "", fmt.Errorf("running go %s: %w: %s", args[0], err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// SourceDir returns the directory of a module's source, as the go command finds it from this
// module.
func SourceDir(ctx context.Context, module string) (string, error) {
	out, err := Run(ctx, "", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return "", fmt.Errorf("finding the source of %s: %w", module, err)
	}
	return strings.TrimSpace(out), nil
}
