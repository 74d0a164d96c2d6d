package socket

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// openOwn opens a regular file. Who else can is decided by the access control list that it inherits.
func openOwn(path string, flag int) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, &UnsafeError{path, "is not a regular file", "remove it"}
	}
	return os.OpenFile(path, flag, 0o600)
}

// flock takes the lock without waiting; isHeld knows the error that says another has it.
func flock(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := conn.Control(func(fd uintptr) {
		locked = windows.LockFileEx(windows.Handle(fd), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, new(windows.Overlapped))
	}); err != nil {
		return err
	}
	return locked
}

func isHeld(err error) bool {
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING)
}

// removeLocked leaves the file: Windows does not remove one that is open, and once it is closed it may be another's.
func removeLocked(string) error { return nil }

// syncDir has nothing to do: a directory cannot be synced here.
func syncDir(string) error { return nil }
