package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asCommand is the environment variable that makes the test's program run main.
const asCommand = "ATOLL_MANAGER_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// command runs atoll-manager with arguments that end it at once.
func command(t *testing.T, arguments ...string) (stdout, stderr string, code int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var out, failed strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &failed
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), failed.String(), cmd.ProcessState.ExitCode()
}

// TestStartErrorIsTheLastOutputLine: the state of the container shows the end of its log only.
func TestStartErrorIsTheLastOutputLine(t *testing.T) {
	for name, tc := range map[string]struct {
		arguments []string
		error     string
	}{
		"an unknown flag":              {[]string{"--poools=false"}, "poools"},
		"a value of another type":      {[]string{"--evictions-per-second=many"}, "many"},
		"a value that is not allowed":  {[]string{"--assignment=Never"}, "--assignment"},
		"a value after a space":        {[]string{"--pools", "false", "--assignment=Early"}, "\"false\""},
		"a kubeconfig that is missing": {[]string{"--kubeconfig=/nowhere"}, "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			_, stderr, code := command(t, tc.arguments...)
			lines := strings.Split(strings.TrimSpace(stderr), "\n")
			if last := lines[len(lines)-1]; code == 0 || len(lines) > 1 || !strings.HasPrefix(last, "atoll-manager: ") || !strings.Contains(last, tc.error) {
				t.Errorf("it ends with %d and prints %d lines, the last of which is %q", code, len(lines), last)
			}
		})
	}
}

func TestHelpListsTheFlags(t *testing.T) {
	stdout, stderr, code := command(t, "-h")
	if code != 0 || stderr != "" || !strings.Contains(stdout, "-evictions-per-second") || !strings.Contains(stdout, "-kubeconfig") {
		t.Errorf("it ends with %d and prints %q, and as errors %q", code, stdout, stderr)
	}
}
