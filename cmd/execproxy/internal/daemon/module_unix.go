//go:build unix

package daemon

import (
	"os"

	"golang.org/x/sys/unix"
)

// takeStdio keeps standard input and output for ourselves. What a library prints
// goes to standard error, and what it reads is nothing.
func takeStdio() (in, out *os.File, err error) {
	fds := [2]int{}
	for i := range fds {
		if fds[i], err = unix.FcntlInt(uintptr(i), unix.F_DUPFD_CLOEXEC, 3); err != nil {
			return nil, nil, err
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	if err := dup2(int(null.Fd()), 0); err != nil {
		return nil, nil, err
	}
	if err := dup2(2, 1); err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "requests"), os.NewFile(uintptr(fds[1]), "answers"), nil
}
