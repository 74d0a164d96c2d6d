package lockfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gofrs/flock"
)

// A Parent is a lock file that the parent of this process holds. Its methods may be
// called from several goroutines.
type Parent struct {
	path string
	info fs.FileInfo
	lock locker

	gone  chan struct{} // closed when the lock has come, been let go again, and err is set
	ended chan struct{} // closed by Close
	free  atomic.Bool
	err   error

	mu      sync.Mutex
	file    *os.File // keeps the inode that was checked; holds no lock itself
	started bool
	blocked bool // between started and gone
	closed  bool
}

// locker is the part of a flock.Flock that waits.
type locker interface {
	RLock() error
	Unlock() error
}

// Open opens a lock file that another process holds. It never creates one and never
// blocks on one, whatever the path names. It waits for nothing: the lock is tried
// once, and if it is free the error is [ErrFree].
//
// A file that cannot be a parent's lock gives an [UnsafeError]: one that is not a
// regular file, that belongs to another user, that others may write, that is reached
// through a symbolic link in the last element of its path, or that is replaced
// meanwhile. An absent one gives an error that is [fs.ErrNotExist].
//
// The caller must Close what it gets.
func Open(path string) (*Parent, error) {
	path, err := absolute(path)
	if err != nil {
		return nil, err
	}
	file, info, err := openChecked(path)
	if err != nil {
		return nil, err
	}
	lock := reopen(file)
	if err := probe(path, lock); err != nil {
		_ = file.Close()
		return nil, err
	}
	// The lock is held, but is it the parent's? If the path names another file by
	// now, the parent may hold that one.
	if !names(path, info) {
		_ = file.Close()
		return nil, replaced(path)
	}
	return &Parent{
		path:  path,
		info:  info,
		lock:  lock,
		file:  file,
		gone:  make(chan struct{}),
		ended: make(chan struct{}),
	}, nil
}

// probe fails unless somebody holds the lock.
func probe(path string, lock *flock.Flock) error {
	for {
		ok, err := lock.TryRLock()
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("trying lock file %q: %w", path, err)
		case !ok:
			return nil
		}
		if err := lock.Unlock(); err != nil {
			return fmt.Errorf("releasing lock file %q: %w", path, err)
		}
		return fmt.Errorf("lock file %q: %w", path, ErrFree)
	}
}

// openChecked opens the file that path names, for reading and without following,
// creating or blocking, and makes sure that what it opened is fit to be a lock. Whether
// the path still names that is for the caller to see, when it knows who holds it.
func openChecked(path string) (*os.File, fs.FileInfo, error) {
	// Looked at before it is opened: opening a device may do something, and a link or a
	// socket is told better.
	info, err := os.Lstat(path)
	if err != nil {
		return nil, nil, absent(path, err)
	}
	if err := check(path, info); err != nil {
		return nil, nil, err
	}
	return openLookedAt(path)
}

// openLookedAt trusts nothing of what was seen: path may name another file by now.
func openLookedAt(path string) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|noFollow|nonBlock, 0)
	if err != nil {
		return nil, nil, absent(path, err)
	}
	info, err := file.Stat()
	if err == nil {
		err = check(path, info)
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// check looks at kind, owner and mode.
func check(path string, info fs.FileInfo) error {
	reason := ""
	switch mode := info.Mode(); {
	case mode&fs.ModeSymlink != 0:
		reason = "is a symbolic link: name the lock file itself"
	case mode.IsDir():
		reason = "is a directory: name a file in it"
	case !mode.IsRegular():
		reason = "is not a regular file: name one"
	default:
		reason = checkOwner(info)
	}
	if reason != "" {
		return &UnsafeError{Path: path, Reason: reason}
	}
	return nil
}

func replaced(path string) error {
	return &UnsafeError{
		Path:     path,
		Reason:   "was replaced while it was being opened: the client must keep its lock file as long as it holds it",
		replaced: true,
	}
}

func absent(path string, err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	cure := ""
	switch {
	case errors.Is(err, syscall.ELOOP): // by O_NOFOLLOW, so it has become a link just now
		return replaced(path)
	case errors.Is(err, fs.ErrNotExist):
		cure = ": the client must create and lock it before it runs the plugin"
	case errors.Is(err, fs.ErrPermission):
		cure = ": it must be this user's own file, mode 0600"
	}
	return fmt.Errorf("opening lock file %q: %w%s", path, err, cure)
}

// Path returns the absolute path of the lock file.
func (p *Parent) Path() string { return p.path }

// Same reports whether p and q stand for the same parent: the same inode, and neither
// has been seen to come free. After a lock came free its file may be locked anew,
// by another parent.
func (p *Parent) Same(q *Parent) bool {
	return p == q || os.SameFile(p.info, q.info) && !p.free.Load() && !q.free.Load()
}

// Wait blocks until the lock has come free, and returns nil: the parent is gone. It
// returns ctx.Err() if ctx ends first and [os.ErrClosed] after [Parent.Close]. Any
// other error is the operating system's and final; it means that nobody can tell any
// more whether the parent lives.
//
// The lock is not kept. It is let go of as soon as it has come, whether or not
// somebody still waits, so that a file may be locked anew.
//
// The first call starts a goroutine that blocks in flock(2), on a thread of its own.
// No call ends that wait from outside, nor does closing the descriptor (a signal
// would, but only without SA_RESTART, which the Go runtime sets for all of them), so
// the goroutine ends when the parent lets go, and not with ctx or Close. It costs a
// parked thread and no time. One goroutine serves all calls.
func (p *Parent) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p.mu.Lock()
	if !p.started && !p.closed {
		p.started, p.blocked = true, true
		go p.block()
	}
	p.mu.Unlock()
	select {
	case <-p.gone:
		return p.err
	default:
	}
	select {
	case <-p.gone:
		return p.err
	case <-p.ended:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *Parent) block() {
	err := p.lock.RLock()
	for errors.Is(err, syscall.EINTR) {
		err = p.lock.RLock()
	}
	// Before the lock is let go of: who locks the file next is another parent, and
	// must not be taken for this one.
	p.free.Store(true)
	if err == nil {
		err = p.lock.Unlock()
	}
	if err != nil {
		p.err = fmt.Errorf("waiting for lock file %q: %w", p.path, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = false
	if p.closed {
		_ = p.file.Close()
	}
	close(p.gone)
}

// Close ends all calls of Wait. The parent's lock is not touched.
func (p *Parent) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	close(p.ended)
	if p.blocked {
		// The goroutine that waits goes by this descriptor's number. Closed now, the
		// number could come to name another file. It is closed at that wait's end.
		return nil
	}
	return p.file.Close()
}
