//go:build unix

package socket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	path := filepath.Join(tempDir(t), "l")
	l, err := TryAcquire(path)
	must(t, err)
	if l.Path() != path {
		t.Errorf("path %q", l.Path())
	}
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	_, err = TryAcquire(path)
	oneLine(t, err, path)
	if !errors.Is(err, ErrHeld) {
		t.Errorf("second: %v", err)
	}
	must(t, l.Release())
	if err := l.Release(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second release: %v", err)
	}
	l, err = TryAcquire(path)
	must(t, err)
	must(t, l.Remove())
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestLockEndsWithItsHolder(t *testing.T) {
	path := filepath.Join(tempDir(t), "l")
	holder := start(t, nil, "lock", path)
	holder.expect("held")
	if _, err := TryAcquire(path); !errors.Is(err, ErrHeld) {
		t.Fatalf("while held: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := Acquire(testContext(t), path)
		if err == nil {
			err = l.Release()
		}
		got <- err
	}()
	select {
	case err := <-got:
		t.Fatalf("did not wait: %v", err)
	case <-time.After(50 * time.Millisecond): // long enough for a waiter that does not wait
	}
	must(t, holder.cmd.Process.Kill())
	must(t, await(t, got))
}

func TestAcquireEndsWithContext(t *testing.T) {
	path := filepath.Join(tempDir(t), "l")
	l, err := TryAcquire(path)
	must(t, err)
	defer l.Release()

	why := errors.New("the user went away")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
	_, err = Acquire(ctx, path)
	oneLine(t, err, path, "held by another process", "went away")
	if !errors.Is(err, why) || !errors.Is(err, ErrHeld) {
		t.Errorf("error is %v", err)
	}
	if _, err := Acquire(ctx, path+"2"); !errors.Is(err, why) {
		t.Errorf("free lock, ended context: %v", err)
	}
}

// A lock on a file that has lost its name excludes nobody.
func TestLockOfReplacedFile(t *testing.T) {
	path := filepath.Join(tempDir(t), "l")
	first, err := TryAcquire(path)
	must(t, err)
	got := make(chan *Lock, 1)
	go func() {
		l, err := Acquire(testContext(t), path)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	must(t, first.Remove())
	second := await(t, got)
	if current, err := second.current(); !current || err != nil {
		t.Errorf("locked a file without a name: %v", err)
	}
	if _, err := TryAcquire(path); !errors.Is(err, ErrHeld) {
		t.Errorf("third beside the second: %v", err)
	}
	must(t, second.Release())

	// What was put in place of the file is not removed.
	l, err := TryAcquire(path)
	must(t, err, os.Remove(path), os.WriteFile(path, []byte("new"), 0o600), l.Remove())
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("removed what was not ours: %v", err)
	}
}

func TestLockRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		build func(path string) error
		want  string
	}{
		{"symbolic link", func(p string) error { return errors.Join(os.WriteFile(p+"x", nil, 0o600), os.Symlink(p+"x", p)) }, "symbolic link"},
		{"dangling link", func(p string) error { return os.Symlink(p+"x", p) }, "symbolic link"},
		{"FIFO", func(p string) error { return syscall.Mkfifo(p, 0o600) }, "not a regular file"},
		{"directory", func(p string) error { return os.Mkdir(p, 0o700) }, "directory"},
		{"readable by others", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o644)) }, "chmod 0600"},
		{"foreign", func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chown(p, nobody, nobody)) }, "uid 65534"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "foreign" {
				needRoot(t)
			}
			path := filepath.Join(tempDir(t), "l")
			must(t, tt.build(path))
			_, err := TryAcquire(path)
			oneLine(t, err, path, tt.want)
			if unsafe := new(UnsafeError); !errors.As(err, &unsafe) {
				t.Errorf("not an *UnsafeError: %v", err)
			}
			if _, err := os.Lstat(path + "x"); tt.name == "dangling link" && err == nil {
				t.Error("made the link's target")
			}
		})
	}
	if _, err := TryAcquire(filepath.Join(tempDir(t), "missing", "l")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestLockOfAnotherUser(t *testing.T) {
	as := asNobody(t)
	path := filepath.Join(tempDir(t), "l")
	l, err := TryAcquire(path)
	must(t, err)
	must(t, l.Release())
	if got := start(t, as, "trylock", path).line(); !strings.Contains(got, "permission denied") {
		t.Errorf("another user took the lock: %s", got)
	}
}

// Counting under the lock: processes that overlap would lose steps.
func TestLockExcludes(t *testing.T) {
	path := filepath.Join(tempDir(t), "l")
	count := path + ".count"
	must(t, os.WriteFile(count, []byte("0"), 0o600))
	done := make(chan error)
	const workers, steps = 8, 25
	for range workers {
		go func() {
			done <- func() error {
				for range steps {
					l, err := Acquire(testContext(t), path)
					if err != nil {
						return err
					}
					b, err := os.ReadFile(count)
					if err != nil {
						return err
					}
					var n int
					if _, err := fmt.Sscan(string(b), &n); err != nil {
						return err
					}
					if err := os.WriteFile(count, fmt.Append(nil, n+1), 0o600); err != nil {
						return err
					}
					if n%2 == 0 { // both ways to end, mixed
						err = l.Remove()
					} else {
						err = l.Release()
					}
					if err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range workers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if b, _ := os.ReadFile(count); string(b) != fmt.Sprint(workers*steps) {
		t.Errorf("counted %s, want %d", b, workers*steps)
	}
}
