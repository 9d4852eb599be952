//go:build unix

package command

import (
	"os/exec"
	"syscall"
)

// detach keeps a Ctrl-C in the terminal from the program.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
