//go:build unix

package process

import (
	"os/exec"
	"syscall"
)

// Apart has the end of a program that is given up be the end of what it started, too.
func Apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
