package client

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"
)

// Errors of Winsock; package syscall has other numbers by the names of Unix.
const (
	wsaECONNREFUSED syscall.Errno = 10061
	wsaECONNRESET   syscall.Errno = 10054
	wsaECONNABORTED syscall.Errno = 10053
)

// ownGroup keeps the console's signals from the plugin: when the user interrupts the
// client, the proxy must outlive what the client still has to say.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// killGroup ends the process alone; Windows knows no group to kill.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// gone reports whether err says that nobody listens on a socket.
func gone(err error) bool { return errors.Is(err, wsaECONNREFUSED) || errors.Is(err, fs.ErrNotExist) }

// full is not known on Windows: a connect waits there.
func full(error) bool { return false }

// reset reports whether err says that the peer went away.
func reset(err error) bool {
	return errors.Is(err, wsaECONNRESET) || errors.Is(err, wsaECONNABORTED)
}
