//go:build unix

package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stale leaves a socket at path that nobody listens on, as a process does that was killed.
func stale(t testing.TB, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, l.Close())
}

func TestListen(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	l, err := Listen(path)
	must(t, err)
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("mode %s", info.Mode())
	}
	if l.Path() != path || l.Addr().String() != path || l.Addr().Network() != "unix" || !l.Present() {
		t.Errorf("path %q, address %v, present %t", l.Path(), l.Addr(), l.Present())
	}
	done := make(chan struct{})
	go func() { defer close(done); servePID(l) }()
	c, err := Dial(testContext(t), path)
	must(t, err)
	if uid, err := PeerUID(c); err != nil || uid != os.Geteuid() {
		t.Errorf("uid %d, %v", uid, err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != fmt.Sprintln(os.Getpid()) {
		t.Errorf("read %q, %v", line, err)
	}
	must(t, c.Close(), l.Close(), l.Close())
	<-done
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	_, err = Dial(testContext(t), path)
	oneLine(t, err, path)
	if !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Dial after Close: %v", err)
	}
}

// The mode is right from the first moment: bind(2) gives it, whatever the umask.
func TestSocketModeBeforeItsName(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux takes the mode from the socket")
	}
	path := filepath.Join(tempDir(t), "s")
	lc := net.ListenConfig{Control: controlMode}
	l, err := lc.Listen(context.Background(), "unix", path)
	must(t, err)
	defer l.Close()
	info, err := os.Lstat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %s", info.Mode())
	}
}

func TestListenOverStaleSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	stale(t, path)
	_, err := Dial(testContext(t), path)
	oneLine(t, err, path)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("stale socket: %v", err)
	}
	l, err := Listen(path)
	must(t, err)
	must(t, l.Close())
}

func TestListenLeavesAlone(t *testing.T) {
	for _, tt := range []struct {
		name   string
		build  func(t *testing.T, path string)
		want   string
		unsafe bool
	}{
		{"a listener", func(t *testing.T, path string) {
			l, err := Listen(path)
			must(t, err)
			t.Cleanup(func() { _ = l.Close() })
		}, "stop it", false},
		{"a full backlog", func(t *testing.T, path string) { fill(t, path) }, "asking who listens", false},
		{"a datagram socket", func(t *testing.T, path string) {
			c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			must(t, err)
			t.Cleanup(func() { _ = c.Close() })
		}, "asking who listens", false},
		{"a file", func(t *testing.T, path string) { must(t, os.WriteFile(path, nil, 0o600)) }, "not a socket", true},
		{"a directory", func(t *testing.T, path string) { must(t, os.Mkdir(path, 0o700)) }, "not a socket", true},
		{"a FIFO", func(t *testing.T, path string) { must(t, syscall.Mkfifo(path, 0o600)) }, "not a socket", true},
		{"a link to a stale socket", func(t *testing.T, path string) {
			stale(t, path+"x")
			must(t, os.Symlink(path+"x", path))
		}, "not a socket", true},
		{"a foreign stale socket", func(t *testing.T, path string) {
			needRoot(t)
			stale(t, path)
			must(t, os.Chown(path, nobody, nobody))
		}, "uid 65534", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "a full backlog" && runtime.GOOS != "linux" {
				t.Skip("only Linux tells a full backlog from a dead owner")
			}
			path := filepath.Join(tempDir(t), "s")
			tt.build(t, path)
			before, err := os.Lstat(path)
			must(t, err)
			_, err = Listen(path)
			oneLine(t, err, path, tt.want)
			if unsafe := new(UnsafeError); errors.As(err, &unsafe) != tt.unsafe || errors.Is(err, ErrInUse) == tt.unsafe {
				t.Errorf("wrong kind of error: %#v", err)
			}
			after, err := os.Lstat(path)
			must(t, err)
			if !os.SameFile(before, after) {
				t.Error("was replaced")
			}
		})
	}
}

// fill makes a listener whose backlog is full, and returns what makes room in it.
func fill(t testing.TB, path string) (accept func()) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0))
	for n := 0; ; n++ {
		c, err := net.Dial("unix", path)
		if errors.Is(err, syscall.EAGAIN) && n > 0 {
			break
		}
		must(t, err)
		t.Cleanup(func() { _ = c.Close() })
	}
	return func() {
		c, _, err := unix.Accept(fd)
		if err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { _ = unix.Close(c) })
	}
}

func TestDialWaitsForBacklog(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a full backlog from a dead owner")
	}
	path := filepath.Join(tempDir(t), "s")
	accept := fill(t, path)

	// On a machine that stalls, a short time may be over before the first attempt.
	for wait := 20 * time.Millisecond; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		_, err := Dial(ctx, path)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || wait > patience {
			t.Fatalf("full until the context ended: %v", err)
		}
		if errors.Is(err, syscall.EAGAIN) {
			oneLine(t, err, path, "does not accept")
			break
		}
	}

	got := make(chan error, 1)
	go func() {
		c, err := Dial(testContext(t), path)
		if err == nil {
			err = c.Close()
		}
		got <- err
	}()
	room := time.AfterFunc(20*time.Millisecond, accept) // while Dial waits
	defer room.Stop()
	must(t, await(t, got))
}

func TestCloseLeavesAnotherSocket(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	first, err := Listen(path)
	must(t, err)
	must(t, os.Remove(path))
	second, err := Listen(path)
	must(t, err)
	defer second.Close()
	if first.Present() || !second.Present() {
		t.Errorf("present: first %t, second %t", first.Present(), second.Present())
	}
	must(t, first.Close())
	if !second.Present() {
		t.Error("the first listener removed the second's socket")
	}
}

// Killed without a chance to clean up, the owner leaves its socket; the next one takes its place.
func TestKillAndStartAgain(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	for range 3 {
		p := start(t, nil, "serve", path)
		p.expect("serving")
		if who, err := askPID(path); err != nil || who != fmt.Sprintln(p.cmd.Process.Pid) {
			t.Fatalf("served by %q, %v", who, err)
		}
		must(t, p.cmd.Process.Kill())
		_, _ = p.cmd.Process.Wait()
		if _, err := os.Lstat(path); err != nil {
			t.Fatalf("a killed process cleaned up: %v", err)
		}
	}
	p := start(t, nil, "serve", path)
	p.expect("serving")
	must(t, p.stdin.Close())
	for range p.lines {
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after an orderly end: %v", err)
	}
}

// Fifty processes start at once over what a killed one left. One becomes the owner, and it serves all.
func TestRacingStarters(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	stale(t, path)
	const n = 50
	procs := make([]*proc, n)
	for i := range procs {
		procs[i] = start(t, nil, "race", path)
	}
	for _, p := range procs {
		p.expect("ready")
	}
	for _, p := range procs {
		p.say("go")
	}
	owners, served := 0, map[string]int{}
	for _, p := range procs {
		line := p.line()
		if line == "owner" {
			owners++
			line = p.line()
		}
		served[line]++
	}
	if owners != 1 || len(served) != 1 {
		t.Errorf("%d owners; served: %v", owners, served)
	}
	for s, k := range served {
		if k != n || !strings.HasPrefix(s, "served by ") {
			t.Errorf("%d times %q", k, s)
		}
	}
	for _, p := range procs {
		p.say("end")
	}
}

// Without descriptors the server waits, and goes on when there are some.
func TestServerOutlivesLackOfDescriptors(t *testing.T) {
	path := filepath.Join(tempDir(t), "s")
	p := start(t, nil, "hungry", path)
	p.expect("full")
	client := &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, path) },
		DisableKeepAlives: true,
	}}
	const n = 100
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(testContext(t), http.MethodGet, "http://proxy/", nil)
			res, err := client.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if b, err := io.ReadAll(res.Body); string(b) != "fed" {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
	p.expect("logged") // that it cannot accept
	p.say("eat")
	wg.Wait()
	p.say("end")
	must(t, p.stdin.Close())
	for line := range p.lines {
		if strings.HasPrefix(line, "error") {
			t.Error(line)
		}
	}
}

// failing accepts nothing but errors, then what is behind it.
type failing struct {
	net.Listener
	errs []error
}

func (f *failing) Accept() (net.Conn, error) {
	if len(f.errs) > 0 {
		err := f.errs[0]
		f.errs = f.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", err)}
	}
	return f.Listener.Accept()
}

func TestAcceptErrors(t *testing.T) {
	raw, err := net.Listen("unix", filepath.Join(tempDir(t), "s"))
	must(t, err)
	log, lines := lineLog()
	l := newPatient(&failing{raw, []error{syscall.ENOBUFS, syscall.EMFILE, syscall.ENOMEM, syscall.ECONNABORTED}}, log)
	c, err := net.Dial("unix", raw.Addr().String())
	must(t, err)
	defer c.Close()
	got, err := l.Accept()
	must(t, err)
	must(t, got.Close())
	if first, second := await(t, lines), await(t, lines); !strings.Contains(first, "cannot accept") || !strings.Contains(second, "again") {
		t.Errorf("logged %q, %q", first, second)
	}

	// What cannot pass ends the server, and Close ends a wait.
	l.Listener = &failing{raw, []error{syscall.EINVAL}}
	if _, err := l.Accept(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("got %v", err)
	}
	l.Listener = &failing{raw, []error{syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE}}
	ended := make(chan error, 1)
	go func() { _, err := l.Accept(); ended <- err }()
	await(t, lines)
	must(t, l.Close())
	if err := await(t, ended); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
}
