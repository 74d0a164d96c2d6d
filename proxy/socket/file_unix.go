//go:build unix

package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openOwn opens a regular file of our own uid that nobody else can open. It is not led elsewhere by a symbolic link,
// and does not wait for the other end of a FIFO.
func openOwn(path string, flag int) (*os.File, error) {
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EMLINK): // EMLINK: FreeBSD
		return nil, &UnsafeError{path, "is a symbolic link, must be a file", "remove it"}
	case errors.Is(err, unix.EISDIR):
		return nil, &UnsafeError{path, "is a directory, must be a file", "remove it"}
	case err != nil:
		return nil, err
	}
	if err := checkOwn(path, f); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func checkOwn(path string, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return &UnsafeError{path, "is not a regular file", "remove it"}
	}
	if uid, ok := ours(info); !ok {
		return &UnsafeError{path, fmt.Sprintf("belongs to uid %d, not to us (uid %d)", uid, os.Geteuid()), "choose a directory of your own"}
	}
	return checkMode(path, f, info)
}

func checkMode(path string, f *os.File, info fs.FileInfo) error {
	perm := info.Mode().Perm()
	if perm&0o077 != 0 {
		return &UnsafeError{path, fmt.Sprintf("has mode %#o, is open to others", perm), fmt.Sprintf("chmod 0600 %q", path)}
	}
	if perm&0o600 != 0o600 { // just made, under a umask that takes from the owner
		return f.Chmod(0o600)
	}
	return nil
}

// flock takes the lock without waiting; isHeld knows the error that says another has it.
func flock(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	if err := conn.Control(func(fd uintptr) {
		for {
			if locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB); locked != unix.EINTR {
				return
			}
		}
	}); err != nil {
		return err
	}
	return locked
}

func isHeld(err error) bool { return errors.Is(err, unix.EWOULDBLOCK) }

func removeLocked(path string) error { return os.Remove(path) }

// syncDir makes a rename in the directory last through a power cut.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
