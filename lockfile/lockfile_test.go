package lockfile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// soon is how long a test waits for what must come.
const soon = 20 * time.Second

func lockPath(t testing.TB) string { return filepath.Join(t.TempDir(), "lock") }

func mustCreate(t testing.TB, path string) *Lock {
	t.Helper()
	l, err := Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	})
	return l
}

func mustOpen(t testing.TB, path string) *Parent {
	t.Helper()
	p, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// waiting starts Wait and returns once its goroutine is on its way.
func waiting(t testing.TB, ctx context.Context, p *Parent) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.Wait(ctx) }()
	return done
}

func mustCome(t testing.TB, done <-chan error, want error) {
	t.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Fatalf("Wait returned %v, want %v", err, want)
		}
	case <-time.After(soon):
		t.Fatal("Wait did not return")
	}
}

func mustBlock(t testing.TB, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("Wait returned %v while the lock was held", err)
	default:
	}
}

// mustRefuse opens path and checks that the error names the path and has the words.
func mustRefuse(t *testing.T, path string, words ...string) error {
	t.Helper()
	type result struct {
		p   *Parent
		err error
	}
	got := make(chan result, 1)
	go func() {
		p, err := Open(path)
		got <- result{p, err}
	}()
	select {
	case r := <-got:
		if r.err == nil {
			_ = r.p.Close()
			t.Fatalf("Open(%q) succeeded, want an error with %q", path, words)
		}
		for _, w := range append(words, filepath.Base(path)) {
			if !strings.Contains(r.err.Error(), w) {
				t.Errorf("Open(%q): %q does not say %q", path, r.err, w)
			}
		}
		if strings.Contains(r.err.Error(), "\n") {
			t.Errorf("more than one line: %q", r.err)
		}
		return r.err
	case <-time.After(time.Second):
		t.Fatalf("Open(%q) hangs", path)
		return nil
	}
}

func TestOpenAbsent(t *testing.T) {
	path := lockPath(t)
	err := mustRefuse(t, path, "create and lock it")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v is not fs.ErrNotExist", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open made the file that was absent: %v", err)
	}
}

func TestOpenEmptyPath(t *testing.T) {
	if _, err := Open(""); err == nil {
		t.Error("Open of an empty path succeeded")
	}
	if _, err := Create(""); err == nil {
		t.Error("Create of an empty path succeeded")
	}
}

func TestOpenFree(t *testing.T) {
	path := lockPath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := mustRefuse(t, path, "nobody holds it", lockCall)
	if !errors.Is(err, ErrFree) {
		t.Errorf("%v is not ErrFree", err)
	}
	// The look must not leave a lock behind.
	mustCreate(t, path)
}

// Several plugins that look at a free lock together must not take each other for
// its holder.
func TestOpenFreeTogether(t *testing.T) {
	path := lockPath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				if p, err := Open(path); !errors.Is(err, ErrFree) {
					t.Errorf("Open: %v, want ErrFree", err)
					if err == nil {
						_ = p.Close()
					}
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestOpenDirectory(t *testing.T) {
	var unsafe *UnsafeError
	if err := mustRefuse(t, t.TempDir(), "is a directory"); !errors.As(err, &unsafe) {
		t.Errorf("%v is not an UnsafeError", err)
	}
}

func TestWait(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)
	if p.Path() != path || l.Path() != path {
		t.Errorf("paths %q and %q, want %q", p.Path(), l.Path(), path)
	}
	first, second := waiting(t, t.Context(), p), waiting(t, t.Context(), p)
	mustBlock(t, first)
	mustBlock(t, second)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, first, nil)
	mustCome(t, second, nil)
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("a later Wait returned %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := p.Wait(t.Context()); err != nil {
		t.Errorf("Wait after Close returned %v, want nil: the lock had come before", err)
	}
}

func TestWaitContext(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)

	ctx, cancel := context.WithCancel(t.Context())
	done := waiting(t, ctx, p)
	mustBlock(t, done)
	cancel()
	mustCome(t, done, context.Canceled)
	if err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context returned %v", err)
	}
	expired, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := p.Wait(expired); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait returned %v after its deadline", err)
	}

	// The lock comes later, when nobody waits: it must not be kept.
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	<-p.gone
	mustCreate(t, path)
	q := mustOpen(t, path)
	if p.Same(q) {
		t.Error("a parent that is gone is the same as a new one")
	}
}

// A lock that comes after Close is let go of as well, and the file that was checked
// stays open until then: its number must not come to name another file.
func TestCloseWhileWaiting(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)
	done := waiting(t, t.Context(), p)
	p.mu.Lock() // Wait may not have begun
	begun := p.started
	p.mu.Unlock()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, os.ErrClosed)
	if err := p.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait after Close returned %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if begun {
		if _, err := p.file.Stat(); err != nil {
			t.Errorf("the file was closed under the wait: %v", err)
		}
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if begun {
		<-p.gone
	}
	if _, err := p.file.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the file is still open: %v", err)
	}
}

// interrupted is a lock whose wait is broken off by signals a few times.
type interrupted struct {
	locker
	left int
}

func (i *interrupted) RLock() error {
	if i.left--; i.left >= 0 {
		return syscall.EINTR
	}
	return i.locker.RLock()
}

func TestWaitInterrupted(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)
	lock := &interrupted{p.lock, 5}
	p.lock = lock
	done := waiting(t, t.Context(), p)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, nil)
	if lock.left != -1 {
		t.Errorf("%d interruptions left", lock.left)
	}
}

type broken struct{ locker }

func (broken) RLock() error { return syscall.EIO }

func TestWaitFails(t *testing.T) {
	path := lockPath(t)
	mustCreate(t, path)
	p := mustOpen(t, path)
	p.lock = broken{p.lock}
	for range 2 {
		if err := p.Wait(t.Context()); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), path) {
			t.Errorf("Wait returned %v", err)
		}
	}
}

func TestSame(t *testing.T) {
	one, two := lockPath(t), lockPath(t)
	mustCreate(t, one)
	mustCreate(t, two)
	a, b, c := mustOpen(t, one), mustOpen(t, one), mustOpen(t, two)
	if !a.Same(b) || !b.Same(a) || !a.Same(a) {
		t.Error("one lock, two parents")
	}
	if a.Same(c) {
		t.Error("two locks, one parent")
	}
}

func TestSameByAnotherName(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	mustCreate(t, one)
	if err := os.Link(one, two); err != nil {
		t.Skip("no hard links here:", err)
	}
	if !mustOpen(t, one).Same(mustOpen(t, two)) {
		t.Error("one inode, two parents")
	}
}

func BenchmarkOpen(b *testing.B) {
	path := lockPath(b)
	mustCreate(b, path)
	for b.Loop() {
		p, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		_ = p.Close()
	}
}

// BenchmarkWake is the time from the release of a lock to the end of Wait.
func BenchmarkWake(b *testing.B) {
	path := lockPath(b)
	for range b.N {
		b.StopTimer()
		l, err := Create(path)
		if err != nil {
			b.Fatal(err)
		}
		p, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		done := waiting(b, b.Context(), p)
		b.StartTimer()
		if err := l.Unlock(); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		_ = p.Close()
		b.StartTimer()
	}
}
