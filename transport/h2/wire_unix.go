//go:build unix

package h2

import (
	"io"
	"os"
	"syscall"
)

// canPoll: sockets are read and written without blocking within RawConn's calls.
const canPoll = true

func readFD(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		switch err {
		case nil:
			return n, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return 0, errAgain
		default:
			return 0, os.NewSyscallError("read", err)
		}
	}
}

func writeFD(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Write(int(fd), p)
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return 0, errAgain
		case err != nil:
			return 0, os.NewSyscallError("write", err)
		case n <= 0:
			return 0, io.ErrUnexpectedEOF
		default:
			return n, nil
		}
	}
}
