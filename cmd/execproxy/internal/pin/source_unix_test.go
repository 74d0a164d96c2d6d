//go:build unix

package pin

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "pin"), canary)
	s := New(Spec{File, path}, Options{What: what})
	for _, mode := range []os.FileMode{0o644, 0o640, 0o660, 0o604, 0o620, 0o601} {
		must(t, os.Chmod(path, mode))
		fails(t, s, ErrUnsafe, "others may get at it (mode 0", ": chmod 600 "+path)
	}
	must(t, os.Chmod(path, 0o400))
	secret(t, s)
	link := filepath.Join(dir, "link") // Kubernetes' secrets are links
	must(t, os.Symlink(path, link))
	secret(t, New(Spec{File, link}, Options{What: what}))

	fifo := filepath.Join(dir, "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	fails(t, New(Spec{File, fifo}, Options{What: what}), ErrUnreadable, "not a regular file")
	fails(t, New(Spec{File, "/dev/null"}, Options{What: what}), ErrUnreadable, "not a regular file")
	loop := filepath.Join(dir, "loop")
	must(t, os.Symlink(loop, loop))
	fails(t, New(Spec{File, loop}, Options{What: what}), ErrUnreadable, "too many levels")

	// systemd's ACL for the service's user shows as a group that may read.
	credential := New(Spec{Credential, "pin"}, Options{What: what, Getenv: func(string) string { return dir }})
	must(t, os.Chmod(path, 0o440))
	secret(t, credential)
	for _, mode := range []os.FileMode{0o444, 0o460} {
		must(t, os.Chmod(path, mode))
		fails(t, credential, ErrUnsafe, "chmod 600 "+path)
	}
	if os.Geteuid() != 0 {
		t.Log("not root: a foreign file is tried in TestFileRefuses only")
		return
	}
	must(t, os.Chmod(path, 0o600))
	must(t, os.Chown(path, 4711, -1))
	fails(t, s, ErrUnsafe, "belongs to uid 4711", "chown")
	fails(t, credential, ErrUnsafe, "belongs to uid 4711")
}

// TestStateIsPrivate: what others could write would undo what is remembered.
func TestStateIsPrivate(t *testing.T) {
	dir := t.TempDir()
	opt := Options{What: what, State: dir, Value: []byte(canary)}
	s := New(Spec{Kind: Value}, opt)
	must(t, os.Mkdir(s.store.dir, 0o777))
	must(t, os.Chmod(s.store.dir, 0o777))
	must(t, s.store.ready())
	if o := ownershipOf(t, s.store.dir); o.mode.Perm() != 0o700 {
		t.Errorf("mode stays %o", o.mode)
	}
	secret(t, s)
	s.Refused()
	// A link is not followed.
	must(t, os.Rename(s.store.marker(), filepath.Join(dir, "marker")))
	must(t, os.Symlink(filepath.Join(dir, "marker"), s.store.marker()))
	if s.store.load() != nil {
		t.Error("a link is taken for a marker")
	}
	must(t, os.Remove(s.store.marker()))
	must(t, syscall.Mkfifo(s.store.marker(), 0o600))
	if s.store.load() != nil {
		t.Error("a FIFO is taken for a marker")
	}
	if os.Geteuid() == 0 {
		must(t, os.Remove(s.store.marker()))
		must(t, os.Rename(filepath.Join(dir, "marker"), s.store.marker()))
		if s.store.load() == nil {
			t.Fatal("no marker")
		}
		must(t, os.Chown(s.store.marker(), 4711, -1))
		if s.store.load() != nil {
			t.Error("a foreign marker is taken")
		}
		must(t, os.Chown(s.store.dir, 4711, -1))
		if s.store.ready() == nil {
			t.Error("a foreign directory is taken")
		}
	}
	must(t, os.RemoveAll(s.store.dir))
	must(t, os.Symlink(t.TempDir(), s.store.dir))
	if err := s.store.ready(); err == nil || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a link is taken for the directory: %v", err)
	}
}

// inherits gives a process a descriptor 3.
func inherits(f *os.File) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{f} }
}

func TestDescriptor(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	theirs, ours := os.NewFile(uintptr(fds[0]), "theirs"), os.NewFile(uintptr(fds[1]), "ours")
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	defer ours.Close()
	p := start(t, "home", "fd:3", t.TempDir(), inherits(theirs))
	must(t, theirs.Close())
	_, err = ours.WriteString("12")
	must(t, err)
	p.tell("secret") // it waits for the rest
	_, err = ours.WriteString("34\n")
	must(t, err)
	must(t, unix.Shutdown(fds[1], unix.SHUT_WR))
	p.expect(`try "1234" human false`)
	if n, err := ours.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the descriptor is still open: %d, %v", n, err)
	}
	p.tell("secret") // what was read is kept
	p.expect(`try "1234"`)
	p.tell("refused")
	p.expect("told")
	p.tell("secret")
	p.expect("refused: " + what + ": descriptor 3 was refused at ")
}

func TestDescriptorRefuses(t *testing.T) {
	dir := t.TempDir()
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	for content, want := range map[string]string{
		"": "it is empty", canary + "\n\n": "it has more than one line", strings.Repeat(canary, 100): "it is longer than 256 bytes",
	} {
		f, err := os.Open(write(t, filepath.Join(dir, "pin"), content))
		must(t, err)
		p := start(t, "home", "fd:3", dir, inherits(f))
		f.Close()
		p.tell("secret")
		line := p.expect("error: " + what + ": descriptor 3 holds no PIN: " + want)
		hides(t, line)
		p.tell("secret") // it is read once, whatever came of it
		hides(t, p.expect("error: "+what+": descriptor 3 does not exist"))
	}
	d, err := os.Open(dir)
	must(t, err)
	p := start(t, "home", "fd:3", dir, inherits(d))
	d.Close()
	p.tell("secret")
	p.expect("error: " + what + ": descriptor 3 cannot be read: is a directory")
	// What Go opened itself is nobody's PIN, and is not closed.
	number := int(null.Fd())
	s := New(Spec{Descriptor, strconv.Itoa(number)}, Options{What: what})
	fails(t, s, ErrMissing, "was not passed on to this process", strconv.Itoa(number)+"<FILE")
	if _, err := null.Stat(); err != nil {
		t.Errorf("a foreign descriptor was closed: %v", err)
	}
	fails(t, New(Spec{Descriptor, "1000000"}, Options{What: what}), ErrMissing)
	fails(t, New(Spec{Descriptor, "x"}, Options{What: what}), ErrMissing)
}

// TestDescriptorWaits: not longer than its caller does.
func TestDescriptorWaits(t *testing.T) {
	r, w, err := os.Pipe()
	must(t, err)
	defer w.Close()
	defer r.Close()
	fd, err := unix.Dup(int(r.Fd())) // without close-on-exec: as if it came from the parent
	must(t, err)
	s := New(Spec{Descriptor, strconv.Itoa(fd)}, Options{What: what})
	ctx, cancel := context.WithCancel(t.Context())
	_, err = w.WriteString(canary)
	must(t, err)
	got := make(chan error, 1)
	go func() { _, err := s.Secret(ctx); got <- err }()
	for poll := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}; ; runtime.Gosched() { // until it has read what there is
		if n, err := unix.Poll(poll, 0); n == 0 && err == nil {
			break
		}
	}
	cancel()
	select {
	case err := <-got:
		if !errors.Is(err, ErrInterrupted) || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		hides(t, err.Error())
	case <-time.After(30 * time.Second):
		t.Fatal("waits for ever")
	}
}
