//go:build unix

package lockfile

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/gofrs/flock"
)

const (
	lockCall   = "flock(2)"
	otherLocks = " (fcntl and lockf locks do not count)"
	noFollow   = syscall.O_NOFOLLOW
	nonBlock   = syscall.O_NONBLOCK | syscall.O_NOCTTY
)

// checkOwner returns why a file of that owner and mode is not a lock, or "".
func checkOwner(info fs.FileInfo) string {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "has no owner that can be told: use a local file system"
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Sprintf("belongs to uid %d, not to uid %d who runs this: the client and the plugin must run as the same user", st.Uid, uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Sprintf("is writable by others (mode %04o): create it with mode 0600", info.Mode().Perm())
	}
	return ""
}

// reopen returns a flock on the very file that is open, by way of its descriptor:
// flock.Flock opens its file by name, and each time anew, and the name may have come
// to mean another file. The file must stay open as long as the flock is used.
func reopen(file *os.File) *flock.Flock {
	return flock.New(descriptors+strconv.Itoa(int(file.Fd())), flock.SetFlag(os.O_RDONLY|nonBlock))
}

// removeHeld removes path, the file that holder has locked. Removed first and let go
// of afterwards, the name is never seen free.
func removeHeld(path string, _ *os.File, _ *flock.Flock) error { return os.Remove(path) }
