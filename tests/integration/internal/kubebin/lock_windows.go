package kubebin

import (
	"os"

	"golang.org/x/sys/windows"
)

// lock waits for the exclusive lock of the file and returns its unlock.
func lock(path string) (func() error, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK, 0, 1, 0, &windows.Overlapped{})
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f.Close, nil
}
