//go:build unix

package client

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// ownGroup keeps the terminal's signals from the plugin: when the user interrupts the
// client, the proxy must outlive what the client still has to say.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// gone reports whether err says that nobody listens on a socket.
func gone(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist)
}

// full reports whether err says that a socket's backlog is full: the proxy lives.
func full(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// reset reports whether err says that the peer went away.
func reset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
