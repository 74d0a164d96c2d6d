package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// ErrHeld says that another process holds the lock. It is alive: the kernel drops the lock of a dead one.
var ErrHeld = errors.New("lock is held by another process")

// A waiter asks again after a millisecond, then less often. It asks, instead of waiting inside flock(2), because a
// thread in there cannot be called back when the context ends.
const (
	minAsk = time.Millisecond
	maxAsk = 8 * time.Millisecond
)

// Lock is a flock(2) on a file of its own, on Windows a LockFileEx. It ends with the process that holds it.
type Lock struct {
	file *os.File
	path string
}

// TryAcquire takes the lock on the file at path, or returns an error that wraps [ErrHeld] if another process, or
// another Lock of this one, has it.
//
// The file is made with mode 0600 if it is missing. It must be a regular file of our own uid that nobody else can open:
// whoever can open it, even only for reading, could hold the lock. Otherwise the error is an *[UnsafeError].
func TryAcquire(path string) (*Lock, error) {
	for {
		f, err := openOwn(path, os.O_RDWR|os.O_CREATE)
		if err != nil {
			return nil, fmt.Errorf("opening lock: %w", err)
		}
		l, err := try(f, path)
		if l != nil || err != nil {
			return l, err
		}
	}
}

// Acquire is [TryAcquire], waiting for the lock until ctx ends. It notices within 8 ms that the lock came free. When
// ctx ends, the error wraps its cause and [ErrHeld].
func Acquire(ctx context.Context, path string) (*Lock, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("waiting for lock %q: %w", path, context.Cause(ctx))
	}
	wait := minAsk
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		l, err := TryAcquire(path)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %w: %w", err, context.Cause(ctx))
		case <-timer.C:
			wait = min(2*wait, maxAsk)
			timer.Reset(wait)
		}
	}
}

// try returns neither lock nor error if the file at path was replaced before the lock came: then the lock is worth
// nothing, since the next process will lock the new file.
func try(f *os.File, path string) (*Lock, error) {
	if err := flock(f); err != nil {
		_ = f.Close()
		if isHeld(err) {
			return nil, fmt.Errorf("%q: %w", path, ErrHeld)
		}
		return nil, fmt.Errorf("locking %q: %w", path, err)
	}
	l := &Lock{file: f, path: path}
	current, err := l.current()
	if !current || err != nil {
		_ = f.Close()
		return nil, err
	}
	return l, nil
}

// current reports whether path still names the locked file.
func (l *Lock) current() (bool, error) {
	held, err := l.file.Stat()
	if err != nil {
		return false, fmt.Errorf("checking lock: %w", err)
	}
	named, err := os.Lstat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("checking lock: %w", err)
	}
	return os.SameFile(held, named), nil
}

// Path is the path of the lock's file.
func (l *Lock) Path() string { return l.path }

// Release gives the lock up. The file stays. A second Release is an error that wraps [os.ErrClosed].
func (l *Lock) Release() error {
	if err := l.file.Close(); err != nil {
		return fmt.Errorf("releasing lock: %w", err)
	}
	return nil
}

// Remove removes the file, if it is still the locked one, and gives the lock up. A process that waits for the lock
// notices, and locks the file that stands there next.
func (l *Lock) Remove() error {
	current, err := l.current()
	if current {
		err = removeLocked(l.path)
	}
	return both(err, l.Release())
}
