//go:build unix

package pin

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// keepDescriptors keeps what this process inherited from the programs that it starts.
func keepDescriptors() {
	for _, dir := range []string{"/proc/self/fd", "/dev/fd"} {
		open, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range open {
			if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
				unix.CloseOnExec(fd)
			}
		}
		return
	}
}

// apart makes the end of a program that is given up the end of its children, too. A program
// that may ask on the terminal stays in our process group: others cannot read from there.
func apart(cmd *exec.Cmd, apart bool) {
	if !apart {
		return
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
