//go:build !windows

package certificate

import (
	"io/fs"
	"os"
	"syscall"
)

const nonblock = syscall.O_NONBLOCK

// keepOwner gives f to the owner of what it takes the place of.
func keepOwner(f *os.File, old fs.FileInfo) error {
	s, ok := old.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if int(s.Uid) == os.Geteuid() {
		_ = f.Chown(-1, int(s.Gid)) // a group that we are not in is not kept
		return nil
	}
	return f.Chown(int(s.Uid), int(s.Gid))
}

// syncDir makes a rename last. Some file systems cannot, and need not.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		_ = d.Close()
	}
}
