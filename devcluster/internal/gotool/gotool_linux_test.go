package gotool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/atoll-k8s/atoll/devcluster/internal/process"
)

// ownerEnv makes the test binary run the go command until it is killed.
const ownerEnv = "GOTOOL_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(ownerEnv) != "" {
		_, err := Run(context.Background(), "", "build")
		fmt.Fprintln(os.Stderr, "the go command has ended:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// TestTheGoCommandEndsWithItsOwner, however that ends: a build that goes on would write into the
// directory of a cluster that has been removed.
func TestTheGoCommandEndsWithItsOwner(t *testing.T) {
	dir := t.TempDir()
	started := filepath.Join(dir, "started")
	script := fmt.Sprintf("#!/bin/sh\necho $$ > %[1]s.new && mv %[1]s.new %[1]s\nexec sleep 1000\n", started)
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"=1", "PATH="+dir+":"+os.Getenv("PATH"))
	owner.Stderr = os.Stderr
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = owner.Process.Kill() })
	var id process.Identity
	eventually(t, "the go command has started", func() bool {
		text, err := os.ReadFile(started)
		if err != nil {
			return false
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if id, err = process.Identify(pid); err != nil {
			t.Fatal(err)
		}
		return true
	})
	t.Cleanup(func() { _ = id.Signal(syscall.SIGKILL) })
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = owner.Wait() // it was killed
	eventually(t, "the go command has ended", func() bool { return !id.Alive() })
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return is(), nil })
	if err != nil {
		t.Fatalf("it is not so that %s", what)
	}
}

// TestRun: what the go command prints is returned, and what it says when it fails.
func TestRun(t *testing.T) {
	if out, err := Run(t.Context(), "", "env", "CGO_ENABLED", "GOWORK"); err != nil || strings.Fields(out)[0] != "0" || !strings.HasSuffix(out, "off\n") {
		t.Errorf("its environment is %q, %v", out, err)
	}
	if _, err := Run(t.Context(), t.TempDir(), "build", "."); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("the build of no module: %v", err)
	}
}
