package process

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// stateZombie is SZOMB of <sys/proc.h>.
const stateZombie = 5

func inspect(pid int) (start uint64, zombie bool, err error) {
	info, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return 0, false, err
	}
	started := info.Proc.P_starttime
	return uint64(started.Sec)*1_000_000 + uint64(started.Usec), info.Proc.P_stat == stateZombie, nil
}

// WithEnv finds nothing here: macOS does not show a process's environment.
// Leftovers are then found by their records only.
func WithEnv(string) []Identity { return nil }

// attributes put the child into a session of its own. macOS has no way to let
// the kernel kill a child with its parent: the next sweep does.
func attributes(bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// Stopped is true: here a process is stopped as a whole.
func (id Identity) Stopped() bool { return true }
