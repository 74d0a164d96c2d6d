//go:build unix

package pin

import (
	"os/exec"
	"syscall"
)

// apart makes the end of a program that is given up the end of its children, too. A program
// that may ask on the terminal stays in our process group: others cannot read from there.
func apart(cmd *exec.Cmd, apart bool) {
	if !apart {
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
