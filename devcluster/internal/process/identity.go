// Package process starts, signals and identifies operating system processes.
//
// A process is identified by its id together with its start time, so that no signal
// reaches another process that has got the same id later. The package does not depend on
// clusters.
package process

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Identity identifies one process permanently. The zero value identifies none.
type Identity struct {
	// PID is the process id.
	PID int `json:"pid,omitempty"`
	// StartTime is when the process started, in a unit of the operating system
	// (clock ticks since boot on Linux, microseconds since 1970 on macOS).
	StartTime uint64 `json:"startTime,omitempty"`
}

// Self returns the identity of the running process.
func Self() (Identity, error) {
	return Identify(os.Getpid())
}

// Identify returns the identity of the process that has the id now.
// It fails if there is none.
func Identify(pid int) (Identity, error) {
	start, _, err := inspect(pid)
	if err != nil {
		return Identity{}, fmt.Errorf("identifying process %d: %w", pid, err)
	}
	return Identity{PID: pid, StartTime: start}, nil
}

// Alive reports whether the process still runs. A process that has ended and was not
// collected by its parent yet counts as ended; a stopped process is alive.
func (id Identity) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	start, zombie, err := inspect(id.PID)
	return err == nil && !zombie && start == id.StartTime
}

// Signal sends the signal to the process and to its process group, if it leads
// one. It does nothing if the process is gone.
func (id Identity) Signal(signal syscall.Signal) error {
	if !id.Alive() {
		return nil
	}
	target := id.PID
	if group, err := syscall.Getpgid(id.PID); err == nil && group == id.PID {
		target = -group
	}
	if err := syscall.Kill(target, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %s to process %d: %w", signal, id.PID, err)
	}
	return nil
}

// ChildOf returns the child of a process that runs a program with these arguments.
func ChildOf(parent Identity, path string, args []string) (Identity, bool) {
	for _, pid := range children(parent.PID) {
		if runs(pid, path, args) {
			if id, err := Identify(pid); err == nil && id.Alive() {
				return id, true
			}
		}
	}
	return Identity{}, false
}
