// Package lockfile ties the life of a proxy to the life of its parent.
//
// The parent, a client of the exec-proxy protocol (KEP-2718), takes an exclusive
// lock on a file of its own before it runs the plugin ([Create]) and holds it for
// as long as it wants the proxy. The proxy opens that file ([Open]) and waits for
// the lock ([Parent.Wait]). However the parent ends, SIGKILL included, the kernel
// lets go of its lock and the proxy learns of it at once: the wait blocks in the
// kernel, nothing is polled.
//
// The lock is flock(2) on Linux, macOS and the BSDs and LockFileEx on Windows, by
// way of github.com/gofrs/flock. What that means:
//
//   - The lock belongs to the open file, not to the process. A child of the parent
//     that inherits the descriptor holds the lock too, and the proxy lives until
//     the last copy is closed. [Create] opens its file close-on-exec.
//   - A stopped parent holds its lock; a dead one that nobody has waited for (a
//     zombie) does not.
//   - fcntl(2) and lockf(3) locks are of another kind and are not seen. A parent
//     that takes one looks as if it held nothing, which [Open] reports as [ErrFree].
//   - The parent's lock must be exclusive. The proxy waits for a shared one, so that
//     several that look at the same file at the same time are not taken for parents
//     by each other.
//
// A lock path comes from outside, so [Open] trusts nothing about it: the file must
// exist, be a regular one of this user, not be writable by others, not be reached
// through a symbolic link and still be what the path names once it is open. From
// then on only that inode counts; whatever the path comes to name later does not.
package lockfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/gofrs/flock"
)

var (
	// ErrFree says that nobody holds the lock: there is no parent to live for. A
	// parent that holds an fcntl(2) lock looks the same.
	ErrFree = errors.New("nobody holds it: the client must take an exclusive " + lockCall + " lock on it before it runs the plugin" + otherLocks)

	// ErrHeld says that a file cannot be taken for a lock because another process
	// holds the lock on it.
	ErrHeld = errors.New("another process holds it: give each client a lock file of its own")
)

// An UnsafeError says why a file is not accepted as a lock. It is about the file
// itself: its kind, its owner, its mode, its place.
type UnsafeError struct {
	Path   string
	Reason string // what is wrong, and what mends it

	replaced bool
}

func (e *UnsafeError) Error() string { return fmt.Sprintf("lock file %q: %s", e.Path, e.Reason) }

// A Lock is a client's own lock, held from [Create] to [Lock.Unlock] or to the end
// of the process, whichever comes first. Keep it reachable: one that is garbage
// collected is free, and the proxy ends.
type Lock struct {
	path string
	mu   sync.Mutex
	file *flock.Flock
}

// Create makes a new lock file, mode 0600, and takes an exclusive lock on it. The
// descriptor is closed on exec, so that the plugin and other children do not
// inherit the lock. The directory should be the client's alone.
//
// A file that is in the way is replaced if it is what an earlier client left behind
// when it was killed: a regular, empty file of this user that nobody holds. If
// somebody holds it the error is [ErrHeld]; if it is anything else the error is an
// [UnsafeError], and it is left alone.
func Create(path string) (*Lock, error) {
	path, err := absolute(path)
	if err != nil {
		return nil, err
	}
	l, err := create(path)
	if !errors.Is(err, fs.ErrExist) {
		return l, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	if l, err = create(path); errors.Is(err, fs.ErrExist) {
		// Another client was faster.
		return nil, fmt.Errorf("lock file %q: %w", path, ErrHeld)
	}
	return l, err
}

func create(path string) (*Lock, error) {
	f := flock.New(path, flock.SetFlag(os.O_RDWR|os.O_CREATE|os.O_EXCL|noFollow), flock.SetPermissions(0o600))
	switch ok, err := f.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("creating lock file: %w", err)
	case !ok:
		return nil, fmt.Errorf("lock file %q: %w", path, ErrHeld)
	}
	// Between creation and lock another client may have found the file free and
	// taken it for a stale one.
	info, err := f.Stat()
	if err != nil || !names(path, info) {
		_ = f.Unlock()
		return nil, fmt.Errorf("lock file %q: %w", path, ErrHeld)
	}
	return &Lock{path: path, file: f}, nil
}

// removeStale removes the lock file of a client that is gone. It does so under that
// file's lock, so that of several that come to remove it none removes another's
// new one.
func removeStale(path string) error {
	file, info, err := openChecked(path)
	if unsafe := (*UnsafeError)(nil); errors.Is(err, fs.ErrNotExist) || errors.As(err, &unsafe) && unsafe.replaced {
		return nil // by a client that was faster
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if info.Size() != 0 {
		return &UnsafeError{Path: path, Reason: "exists and is not empty, so it is not a lock file: name a path that is free"}
	}
	old := reopen(file)
	switch ok, err := old.TryLock(); {
	case err != nil:
		return fmt.Errorf("taking over lock file %q: %w", path, err)
	case !ok:
		return fmt.Errorf("lock file %q: %w", path, ErrHeld)
	}
	defer old.Unlock()
	if !names(path, info) {
		return nil
	}
	if err := removeHeld(path, file, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replacing lock file: %w", err)
	}
	return nil
}

// Path returns the absolute path of the lock file: what a client puts into
// spec.lockFilePath.
func (l *Lock) Path() string { return l.path }

// Unlock removes the file, if the path still names it, and releases the lock. A
// second call does nothing.
func (l *Lock) Unlock() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.file.Locked() {
		return nil
	}
	info, err := l.file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("releasing lock: %w", err), l.file.Unlock())
	}
	// Between the look and the removal somebody may put another file there; only
	// this user can, in the directory that Create asks for.
	var removal error
	if names(l.path, info) {
		removal = removeHeld(l.path, nil, l.file)
	}
	if errors.Is(removal, fs.ErrNotExist) {
		removal = nil
	}
	return errors.Join(removal, l.file.Unlock())
}

// names reports whether path names the file that info is of.
func names(path string, info fs.FileInfo) bool {
	now, err := os.Lstat(path)
	return err == nil && os.SameFile(now, info)
}

func absolute(path string) (string, error) {
	if path == "" {
		return "", errors.New("lock file: the path is empty: name a file")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("lock file %q: %w", path, err)
	}
	return abs, nil
}
