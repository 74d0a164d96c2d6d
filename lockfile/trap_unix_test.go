//go:build unix

package lockfile

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	mustCreate(t, good)
	for _, trap := range []struct {
		name string
		make func(path string) error
		says string
	}{
		{"fifo", func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		{"symlink", func(path string) error { return os.Symlink(good, path) }, "is a symbolic link"},
		{"dangling", func(path string) error { return os.Symlink(good+"none", path) }, "is a symbolic link"},
		{"directory", func(path string) error { return os.Mkdir(path, 0o700) }, "is a directory"},
		{"socket", func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err == nil {
				l.SetUnlinkOnClose(false)
				err = l.Close()
			}
			return err
		}, "not a regular file"},
		{"writable by all", held(t, 0o666), "writable by others (mode 0666): create it with mode 0600"},
		{"writable by the group", held(t, 0o660), "writable by others (mode 0660)"},
	} {
		t.Run(trap.name, func(t *testing.T) {
			path := filepath.Join(dir, trap.name)
			if err := trap.make(path); err != nil {
				t.Fatal(err)
			}
			var unsafe *UnsafeError
			if err := mustRefuse(t, path, trap.says); !errors.As(err, &unsafe) || unsafe.Path != path {
				t.Errorf("%v is not an UnsafeError of %s", err, path)
			}
			// It may have come there just after Open has looked.
			if trap.name != "socket" { // which cannot be opened at all
				if _, _, err := openLookedAt(path); !errors.As(err, &unsafe) {
					t.Errorf("opened after a look at another file: %v", err)
				}
			}
			// What Open refuses, Create does not take over.
			if _, err := Create(path); !errors.As(err, &unsafe) {
				t.Errorf("Create over it: %v", err)
			}
			if _, err := os.Lstat(path); err != nil {
				t.Errorf("Create removed it: %v", err)
			}
		})
	}
	t.Run("device", func(t *testing.T) { mustRefuse(t, os.DevNull, "not a regular file") })
}

// held makes a lock file of that mode that is held.
func held(t *testing.T, mode fs.FileMode) func(string) error {
	return func(path string) error {
		mustCreate(t, path)
		return os.Chmod(path, mode)
	}
}

func TestOpenForeignOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give a file away")
	}
	path := lockPath(t)
	mustCreate(t, path)
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, path, "belongs to uid 65534", "same user")
}

func TestOpenUnreadable(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	path := lockPath(t)
	mustCreate(t, path)
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, path, "mode 0600")
}

// A directory on the way may be a link, as /tmp is on macOS.
func TestOpenThroughLinkedDirectory(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, filepath.Join(dir, "lock"))
	mustOpen(t, filepath.Join(link, "lock"))
}

func TestOpenFcntl(t *testing.T) {
	path := lockPath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "held", "fcntl", path)
	if err := mustRefuse(t, path, "flock(2)", "fcntl"); !errors.Is(err, ErrFree) {
		t.Errorf("%v is not ErrFree", err)
	}
}

func TestOpenSharedLock(t *testing.T) {
	path := lockPath(t)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "held", "unshared", path)
	mustRefuse(t, path, "exclusive")
}

// replace puts a new file, held by another, where the lock was.
func replace(t *testing.T, path string) *Lock {
	t.Helper()
	other := mustCreate(t, path+".new")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	return other
}

// After the lock was opened its path may come to name what it will.
func TestReplacedAfterOpen(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)
	other := replace(t, path) // before the wait
	if q := mustOpen(t, path); p.Same(q) {
		t.Error("another inode is the same parent")
	}
	done := waiting(t, t.Context(), p)
	again := replace(t, path) // and under it
	for _, l := range []*Lock{other, again} {
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	mustBlock(t, done)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, nil)
}

// A file whose lock came free may be locked anew, by another parent. Who still knows it
// as the old one must not take the new one for that.
func TestLockedAnew(t *testing.T) {
	path := lockPath(t)
	old := start(t, "held", "hold", path)
	p := mustOpen(t, path)
	old.kill()
	if err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	start(t, "held", "share", path).expect("here")
	q := mustOpen(t, path)
	if !os.SameFile(p.info, q.info) {
		t.Fatal("it is another file")
	}
	if p.Same(q) || q.Same(p) {
		t.Error("a parent that is gone is the same as a new one")
	}
}

func TestRemovedAfterOpen(t *testing.T) {
	path := lockPath(t)
	l := mustCreate(t, path)
	p := mustOpen(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	done := waiting(t, t.Context(), p)
	mustBlock(t, done)
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, nil)
}

// The old file is held and the path names a new one, which nobody holds.
func TestReplacedBeforeOpen(t *testing.T) {
	path := lockPath(t)
	mustCreate(t, path)
	if err := replace(t, path).Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mustRefuse(t, path); !errors.Is(err, ErrFree) {
		t.Errorf("%v is not ErrFree", err)
	}
}

// While the path changes under it, Open gives a lock that is held or says why not.
// It never takes the one file for the other, a link included.
func TestReplacedDuringOpen(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "lock"), filepath.Join(dir, "link")
	l := mustCreate(t, filepath.Join(dir, "held"))
	want, err := os.Lstat(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	next := func(i int) error {
		switch i % 3 {
		case 0:
			return os.Link(l.Path(), link)
		case 1:
			return os.WriteFile(link, nil, 0o600)
		default:
			return os.Symlink(l.Path(), link)
		}
	}
	if err := os.Link(l.Path(), path); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Remove(link)
			if err := errors.Join(next(i), os.Rename(link, path)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	opened, refused, unheld := 0, 0, 0
	for deadline := time.Now().Add(soon); opened < 100 || refused < 100 || unheld < 100; {
		if time.Now().After(deadline) {
			t.Fatalf("opened %d times, refused %d times, free %d times", opened, refused, unheld)
		}
		p, err := Open(path)
		var unsafe *UnsafeError
		switch {
		case err == nil:
			opened++
			if !os.SameFile(p.info, want) {
				t.Fatal("opened a file that nobody holds")
			}
			_ = p.Close()
		case errors.As(err, &unsafe):
			refused++
		case errors.Is(err, ErrFree):
			unheld++
		default:
			t.Fatal(err)
		}
	}
}

// A client that lets its children inherit the lock holds it through them.
func TestInheritedDescriptor(t *testing.T) {
	path := lockPath(t)
	holder := start(t, "held", "share", path)
	holder.expect("here")
	p := mustOpen(t, path)
	done := waiting(t, t.Context(), p)
	if err := holder.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	mustBlock(t, done)
	mustOpen(t, path) // by the child
	_ = holder.stdin.Close()
	mustCome(t, done, nil)
}

// What Create takes no child inherits.
func TestCreateIsNotInherited(t *testing.T) {
	path := lockPath(t)
	holder := start(t, "held", "create", path)
	holder.expect("here")
	done := waiting(t, t.Context(), mustOpen(t, path))
	if err := holder.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := holder.cmd.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, nil) // the child lives still: its stdin is open
	_ = holder.stdin.Close()
}

func TestStoppedHolder(t *testing.T) {
	path := lockPath(t)
	holder := start(t, "held", "hold", path)
	done := waiting(t, t.Context(), mustOpen(t, path))
	pid := holder.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			break
		}
		if err != nil && err != syscall.EINTR {
			t.Fatal(err)
		}
	}
	mustBlock(t, done)
	mustOpen(t, path)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	holder.end()
	mustCome(t, done, nil)
}

func TestZombieHolder(t *testing.T) {
	path := lockPath(t)
	holder := start(t, "held", "hold", path)
	done := waiting(t, t.Context(), mustOpen(t, path))
	if err := holder.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	mustCome(t, done, nil)
	// Nobody has waited for it: it is dead and still there.
	if err := syscall.Kill(holder.cmd.Process.Pid, 0); err != nil {
		t.Errorf("the holder was no zombie: %v", err)
	}
}

// Several parents, each with its own lock.
func TestThreeHolders(t *testing.T) {
	var holders []*process
	var waits []<-chan error
	for range 3 {
		path := lockPath(t)
		holders = append(holders, start(t, "held", "hold", path))
		waits = append(waits, waiting(t, t.Context(), mustOpen(t, path)))
	}
	for i := range holders {
		holders[i].kill()
		mustCome(t, waits[i], nil)
		for _, w := range waits[i+1:] {
			mustBlock(t, w)
		}
	}
}

// SIGKILL of the holder is noticed at once. A poll every 100 ms needs 50 on average.
func TestKilledHolder(t *testing.T) {
	var took []time.Duration
	for range 30 {
		path := lockPath(t)
		holder := start(t, "held", "hold", path)
		p := mustOpen(t, path)
		done := waiting(t, t.Context(), p)
		killed := time.Now()
		if err := holder.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		mustCome(t, done, nil)
		took = append(took, time.Since(killed))
		holder.kill()
	}
	slices.Sort(took)
	t.Logf("median %v, slowest %v", took[len(took)/2], took[len(took)-1])
	if median := took[len(took)/2]; median > 25*time.Millisecond {
		t.Errorf("median %v from SIGKILL to the end of Wait", median)
	}
}
