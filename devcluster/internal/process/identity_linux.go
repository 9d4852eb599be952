package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Indexes among the fields of /proc/<pid>/stat that follow the command's name.
const (
	stateField     = 0
	threadsField   = 17
	startTimeField = 19
)

func inspect(pid int) (start uint64, zombie bool, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false, err
	}
	// The name stands in parentheses and may hold spaces and parentheses itself.
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
	// The state is that of the main thread alone. While others still end, the
	// process holds its ports and files.
	ended := fields[stateField] == "Z" && fields[threadsField] == "1"
	return start, ended || fields[stateField] == "X", nil
}

// WithEnv returns the running processes, of those that the caller may look
// into, that were started with the environment entry "KEY=value". It finds the
// ones whose record was never written because their starter was killed.
func WithEnv(entry string) []Identity {
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil
	}
	var found []Identity
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // gone, or somebody else's
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
// dieWithParent the kernel kills it when the thread that started it ends.
func attributes(dieWithParent bool) *syscall.SysProcAttr {
	if dieWithParent {
		return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	}
	return &syscall.SysProcAttr{Setsid: true}
}

// Stopped tells whether every thread of the process stands still: a signal to
// stop reaches them one after the other, and those that run go on until then.
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
