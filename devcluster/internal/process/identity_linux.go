package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Indexes among the fields of /proc/<pid>/stat that follow the command's name.
const (
	stateField     = 0
	parentField    = 1
	threadsField   = 17
	startTimeField = 19
)

func inspect(pid int) (start uint64, zombie bool, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The name is in parentheses and may itself contain spaces and parentheses.
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return 0, false, fmt.Errorf("reading state of process %d: unknown format", pid)
	}
	fields := strings.Fields(string(data[end+1:]))
	if len(fields) <= startTimeField {
		return 0, false, fmt.Errorf("reading state of process %d: %d fields", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[startTimeField], 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("reading start time of process %d: %w", pid, err)
	}
	// The state is only that of the main thread. While other threads are still ending,
	// the process holds its ports and files.
	ended := fields[stateField] == "Z" && fields[threadsField] == "1"
	return start, ended || fields[stateField] == "X", nil
}

// WithEnv returns the running processes that were started with the environment entry
// "KEY=value", of those whose environment the caller may read. So it finds processes
// whose record was never written because their starter was killed.
func WithEnv(entry string) []Identity {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var found []Identity
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // ended, or owned by another user
		}
		for _, line := range bytes.Split(data, []byte{0}) {
			if string(line) != entry {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				continue
			}
			if id, err := Identify(pid); err == nil && id.Alive() {
				found = append(found, id)
			}
			break
		}
	}
	return found
}

// attributes put the child into a process group of its own. With
// dieWithParent the kernel kills it when the thread that started it ends. For apart see
// Command.Apart.
func attributes(dieWithParent, apart bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if dieWithParent {
		a = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	}
	if apart {
		a.Cloneflags = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	}
	return a
}

// bound lets the kernel kill the child when the thread that started it ends.
func bound() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// Stopped reports whether every thread of the process is stopped: a stop signal reaches
// the threads one after the other, and each runs until then.
func (id Identity) Stopped() bool {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", id.PID))
	if err != nil {
		return false
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		end := bytes.LastIndexByte(data, ')')
		if end < 0 || end+2 >= len(data) || !strings.ContainsRune("TtZX", rune(data[end+2])) {
			return false
		}
	}
	return true
}

// children returns the children of a process.
func children(pid int) (pids []int) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
		if len(fields) > parentField && fields[parentField] == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// runs reports whether a process runs a program with these arguments.
func runs(pid int, path string, args []string) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && string(data) == strings.Join(append([]string{path}, args...), "\x00")+"\x00"
}

// CanBeApart returns nil if a process can be started with Command.Apart.
func CanBeApart() error {
	cmd := exec.Command("/proc/self/exe", "-h") // any program: it ends at once, or is killed
	cmd.SysProcAttr = attributes(true, true)
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return nil
}
