//go:build unix

package process

import (
	"os/exec"
	"syscall"
)

// OwnGroup has the end of a program that [exec.CommandContext] made be the end of
// what it started, too, where the program is killed. It cannot read from a terminal.
func OwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
