package lockfile

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// undump does what a daemon that holds keys does: PR_SET_DUMPABLE 0. It closes
// /proc/self to others.
func undump() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// A plain user's proxy, undumpable, waits for a plain user's lock.
func TestWaitAsPlainUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	dir, err := os.MkdirTemp("", "lockfile")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "lock")
	l := mustCreate(t, path)
	for _, name := range []string{dir, path} {
		if err := os.Chown(name, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	p := start(t, "waiting", "wait", path, func(cmd *exec.Cmd) {
		cmd.Path = "/proc/self/exe" // the binary's own directory is root's
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	})
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	p.end()
}

// Signals to the thread that waits do not end the wait.
func TestWaitUnderSignals(t *testing.T) {
	path := lockPath(t)
	holder := start(t, "held", "hold", path)
	p := mustOpen(t, path)
	done := waiting(t, t.Context(), p)

	got := make(chan os.Signal, 1)
	signal.Notify(got, syscall.SIGUSR1)
	defer signal.Stop(got)
	for range 100 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				t.Fatal(err)
			}
			_, _, errno := syscall.RawSyscall(syscall.SYS_TGKILL, uintptr(os.Getpid()), uintptr(tid), uintptr(syscall.SIGUSR1))
			if errno != 0 && errno != syscall.ESRCH {
				t.Fatal(errno)
			}
		}
		<-got
	}
	mustBlock(t, done)
	holder.kill()
	mustCome(t, done, nil)
}

// What Open opened is closed again, whatever came of it.
func TestOpenLeaksNothing(t *testing.T) {
	held, free := lockPath(t), lockPath(t)
	mustCreate(t, held)
	if err := os.WriteFile(free, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := count()
	for range 50 {
		p, err := Open(held)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(free); !errors.Is(err, ErrFree) {
			t.Fatal(err)
		}
		if _, err := Open(free + "none"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if _, err := Create(held); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
	}
	if after := count(); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
