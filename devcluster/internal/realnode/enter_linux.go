package realnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"
)

// RunIn runs a program in the namespaces of a process, with the standard files of this one.
func RunIn(pid string, command []string) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // else a thread may not change its mounts
		return fmt.Errorf("entering the namespaces of process %s: %w", pid, err)
	}
	// All are opened first, because the last one hides /proc. The process ends soon, and closes
	// them.
	kinds := []string{"cgroup", "ipc", "uts", "net", "pid", "mnt"}
	namespaces := make([]int, len(kinds))
	for i, kind := range kinds {
		var err error
		if namespaces[i], err = unix.Open(filepath.Join("/proc", pid, "ns", kind), unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("entering the namespaces of process %s: %w", pid, err)
		}
	}
	for i, fd := range namespaces {
		if err := unix.Setns(fd, 0); err != nil {
			return fmt.Errorf("entering the namespace %s of process %s: %w", kinds[i], pid, err)
		}
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// Runc executes runc with the arguments, and first takes the seccomp profile out of a new
// container: runc is built without it, because that needs a C library, and would refuse the
// container.
func Runc(args []string) error {
	if i := slices.IndexFunc(args, func(a string) bool { return a == "--bundle" || a == "-b" }); i >= 0 && i+1 < len(args) {
		if err := withoutSeccomp(filepath.Join(args[i+1], "config.json")); err != nil {
			return err
		}
	}
	path, err := exec.LookPath("runc")
	if err != nil {
		return fmt.Errorf("finding runc: %w", err)
	}
	return fmt.Errorf("executing runc: %w", unix.Exec(path, append([]string{path}, args...), os.Environ()))
}

func withoutSeccomp(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // runc says so
	}
	if err != nil {
		return fmt.Errorf("reading the configuration of a container: %w", err)
	}
	var config map[string]json.RawMessage
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("decoding the configuration of a container: %w", err)
	}
	linux := map[string]json.RawMessage{}
	if raw := config["linux"]; raw != nil {
		if err := json.Unmarshal(raw, &linux); err != nil {
			return fmt.Errorf("decoding the configuration of a container: %w", err)
		}
	}
	if linux["seccomp"] == nil {
		return nil
	}
	delete(linux, "seccomp")
	if config["linux"], err = json.Marshal(linux); err == nil {
		data, err = json.Marshal(config)
	}
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("changing the configuration of a container: %w", err)
	}
	return nil
}
