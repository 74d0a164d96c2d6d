package lockfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func TestCreate(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS != "windows" && info.Mode() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode())
	}
	if _, err := Create(path); !errors.Is(err, ErrHeld) {
		t.Errorf("Create of a lock that is held: %v, want ErrHeld", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Unlock left the file: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Errorf("second Unlock: %v", err)
	}
}

func TestCreateRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	l := mustCreate(t, "lock")
	if !filepath.IsAbs(l.Path()) {
		t.Errorf("path %q is not absolute", l.Path())
	}
	if p := mustOpen(t, "lock"); p.Path() != l.Path() {
		t.Errorf("paths %q and %q", p.Path(), l.Path())
	}
}

func TestCreateWithoutDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none", "lock")
	if _, err := Create(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("Create: %v", err)
	}
}

// A file that a killed client left behind is replaced; one that holds something is
// not a lock file and is left alone.
func TestCreateOverStale(t *testing.T) {
	path := lockPath(t)
	start(t, "held", "hold", path).kill()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the killed client left no file: %v", err)
	}
	l := mustCreate(t, path)
	mustOpen(t, path)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	var unsafe *UnsafeError
	if _, err := Create(path); !errors.As(err, &unsafe) {
		t.Errorf("Create over a file with contents: %v, want an UnsafeError", err)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
		t.Errorf("the file holds %q now (%v)", data, err)
	}
}

// Of several that want the same stale file exactly one gets it, and what it gets is
// what the path names.
func TestCreateTogether(t *testing.T) {
	for range 50 {
		path := lockPath(t)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		locks := make(chan *Lock, 8)
		var wg sync.WaitGroup
		for range cap(locks) {
			wg.Go(func() {
				l, err := Create(path)
				if err != nil && !errors.Is(err, ErrHeld) {
					t.Error("Create:", err)
				}
				if err == nil {
					locks <- l
				}
			})
		}
		wg.Wait()
		if len(locks) != 1 {
			t.Fatalf("%d have the lock, want 1", len(locks))
		}
		l := <-locks
		mustOpen(t, path)
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUnlockLeavesAnothersFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be moved on Windows")
	}
	path := lockPath(t)
	l := mustCreate(t, path)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("Unlock removed another's file: %v", err)
	}
	// Gone already: nothing to remove, nothing to complain about.
	l = mustCreate(t, path+".new")
	if err := os.Remove(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}
