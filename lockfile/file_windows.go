package lockfile

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/gofrs/flock"
)

const (
	lockCall   = "LockFileEx"
	otherLocks = ""
	noFollow   = 0 // Lstat tells links and junctions; an open file cannot be replaced
	nonBlock   = 0

	sharingViolation syscall.Errno = 32 // ERROR_SHARING_VIOLATION
)

// checkOwner accepts all: who may open or write a file is a matter of the ACL that
// it inherits from its directory, and a client's directory is its user's.
func checkOwner(fs.FileInfo) string { return "" }

// reopen returns a flock on the file that is open. By name, because as long as it is
// open, without FILE_SHARE_DELETE, that name cannot come to mean another file.
func reopen(file *os.File) *flock.Flock {
	return flock.New(file.Name(), flock.SetFlag(os.O_RDONLY))
}

// removeHeld removes path, the file that holder has locked and that guard, if it is
// not nil, keeps open: neither may be open for that. As long as the proxy has the file
// open it cannot be removed; it then stays behind, free, for Create to replace.
func removeHeld(path string, guard *os.File, holder *flock.Flock) error {
	if err := holder.Unlock(); err != nil {
		return err
	}
	if guard != nil {
		_ = guard.Close()
	}
	if err := os.Remove(path); !errors.Is(err, sharingViolation) {
		return err
	}
	return nil
}
