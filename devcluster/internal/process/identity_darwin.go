package process

import (
	"errors"
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

// WithEnv returns nothing, because macOS does not show the environment of a process. Here
// leftovers are found only by their records.
func WithEnv(string) []Identity { return nil }

// attributes put the child into a session of its own. On macOS the kernel cannot kill a
// child with its parent; the next sweep does it.
func attributes(_, _ bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true}
}

// bound returns nothing: see attributes.
func bound() *syscall.SysProcAttr { return nil }

// Stopped returns true, because macOS stops a process as a whole.
func (id Identity) Stopped() bool { return true }

// children returns nothing: there are no real nodes on macOS.
func children(int) []int { return nil }

func runs(int, string, []string) bool { return false }

// CanBeApart returns an error: macOS has no namespaces.
func CanBeApart() error { return errors.New("macOS has none") }
