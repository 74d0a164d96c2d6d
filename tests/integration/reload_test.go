//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// reloading is a configuration file that sends a header.
func reloading(u *upstream, value string) string {
	return fmt.Sprintf("apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\nserver: %s\ncertificateAuthority: %s/ca.crt\nauth: headers\nheaders: [%q]\n",
		u.url, suite.cluster.Dir, "X-Identity="+value)
}

// TestServeReload: a changed file is taken over without a word and without dropping
// what is under way; a bad one is not, and SIGHUP says so again.
func TestServeReload(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	file := h.file("config.yaml", reloading(u, "one"))
	s := h.serve("--config", file)
	client := s.client(t)
	who := func() string {
		t.Helper()
		get(t, client, s.listen+"/who")
		return u.last(t, "/who").header.Get("X-Identity")
	}
	if got := who(); got != "one" {
		t.Fatalf("the upstream sees %q", got)
	}
	large, err := client.Get(s.listen + "/large")
	must(t, err)
	defer func() { _ = large.Body.Close() }()
	<-u.half
	watch, events, err := firstLine(t.Context(), client, s.listen+"/watch?watch=true")
	must(t, err)
	defer func() { _ = watch.Body.Close() }()
	stream := s.dial(t, "http/1.1")
	_, err = io.WriteString(stream, "GET /exec HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	must(t, err)
	back := bufio.NewReader(stream)
	if resp, err := http.ReadResponse(back, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}

	h.file("config.yaml", reloading(u, "two"))
	s.stderr.await(t, "configuration reloaded")
	if got := who(); got != "two" {
		t.Errorf("after the change the upstream sees %q", got)
	}
	if _, err := events.ReadByte(); err == nil {
		t.Error("a watch goes on as somebody who we are not any more")
	}
	_, _, err = firstLine(t.Context(), client, s.listen+"/watch?watch=true")
	must(t, err)
	if got := u.last(t, "/watch").header.Get("X-Identity"); got != "two" {
		t.Errorf("the new watch is %q's", got)
	}
	echoes(t, stream, back, "after the reload")
	u.release()
	sum := sha256.New()
	if n, err := io.Copy(sum, large.Body); err != nil || !bytes.Equal(sum.Sum(nil), func() []byte { w := sha256.Sum256(u.body); return w[:] }()) {
		t.Errorf("the body under way: %d of %d bytes, %v", n, len(u.body), err)
	}

	// Bad ones, each told once in the log, by the signal again, and in the status.
	h.file("config.yaml", strings.Replace(reloading(u, "three"), "auth: headers", "auth: nonsense", 1))
	s.stderr.await(t, "nonsense")
	must(t, s.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, patience, func() error {
		if n := strings.Count(s.stderr.String(), "nonsense"); n < 2 {
			return fmt.Errorf("told %d times", n)
		}
		return nil
	})
	if r := h.execproxy("status"); !strings.Contains(r.stderr, "nonsense") || !strings.Contains(r.stderr, "not used") {
		t.Errorf("status says nothing of it: %s", r)
	}
	if got := who(); got != "two" {
		t.Errorf("after a bad change the upstream sees %q", got)
	}
	r := h.execproxy("reload", "--all")
	if r.code != 1 || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "nonsense") {
		t.Errorf("execproxy reload: %s", r)
	}
	h.file("config.yaml", reloading(u, "four"))
	h.execproxy("reload", h.proxy().ID).ok(t)
	if got := who(); got != "four" {
		t.Errorf("after execproxy reload the upstream sees %q", got)
	}
	if r := h.execproxy("status"); strings.Contains(r.stderr, "nonsense") {
		t.Errorf("status remembers what has been mended: %s", r)
	}
	if got := h.proxy().PID; got != s.cmd.Process.Pid {
		t.Errorf("process %d serves", got)
	}
}

// TestHangupWhileDraining: it is not the end, and not a reload.
func TestHangupWhileDraining(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	file := h.file("config.yaml", reloading(u, "one"))
	s := h.serve("--config", file)
	resp, err := s.client(t).Get(s.listen + "/large")
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	<-u.half
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.stderr.await(t, "ending")
	h.file("config.yaml", reloading(u, "two"))
	must(t, s.cmd.Process.Signal(syscall.SIGHUP))
	s.stderr.await(t, "not reloaded, the proxy is ending")
	u.release()
	sum := sha256.New()
	want := sha256.Sum256(u.body)
	if n, err := io.Copy(sum, resp.Body); err != nil || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("the body in flight: %d of %d bytes, %v", n, len(u.body), err)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
}

// listening is a service manager's socket that keeps what it is told, by whom.
type listening struct {
	path string
	conn *net.UnixConn
	mu   sync.Mutex
	told []string
	pids []int
}

func newListening(t *testing.T, path string) *listening {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	raw, err := c.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) }))
	must(t, err)
	l := &listening{path: path, conn: c}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf, oob := make([]byte, 8192), make([]byte, 1024)
		for {
			n, on, _, _, err := c.ReadMsgUnix(buf, oob)
			if err != nil {
				return
			}
			pid := -1
			if messages, err := unix.ParseSocketControlMessage(oob[:on]); err == nil {
				for _, m := range messages {
					if cred, err := unix.ParseUnixCredentials(&m); err == nil {
						pid = int(cred.Pid)
					}
				}
			}
			l.mu.Lock()
			l.told, l.pids = append(l.told, string(buf[:n])), append(l.pids, pid)
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-done; _ = os.Remove(path) })
	return l
}

func (l *listening) all() ([]string, []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told), slices.Clone(l.pids)
}

// await waits for a message with all of the lines, after the first n messages.
func (l *listening) await(t *testing.T, n int, lines ...string) (at int) {
	t.Helper()
	eventually(t, patience, func() error {
		told, _ := l.all()
		for i := n; i < len(told); i++ {
			if !slices.ContainsFunc(lines, func(want string) bool { return !strings.Contains("\n"+told[i], "\n"+want) }) {
				at = i
				return nil
			}
		}
		return fmt.Errorf("no %q after %d in %q", lines, n, told)
	})
	return at
}

// TestNotify: what a service manager is told, by whom, and that nobody whom the
// proxy runs could tell it anything.
func TestNotify(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	seen := h.path("home/environment")
	script := h.path("home/credentials.sh")
	must(t, os.WriteFile(script, []byte(fmt.Sprintf("#!/bin/sh\nenv > %q\nls -l /proc/self/fd > %q\n"+
		`printf '{"Version":1,"AccessKeyId":"AKIATEST","SecretAccessKey":"secret-2718"}'`, seen, seen+".fds")), 0o700))
	h.env["AWS_CONFIG_FILE"] = h.file("aws-config", "[default]\ncredential_process = "+script+"\n")
	h.env["AWS_SHARED_CREDENTIALS_FILE"] = h.path("none")
	l := newListening(t, h.path("notify"))
	h.env["NOTIFY_SOCKET"] = l.path
	h.env["WATCHDOG_USEC"] = "1000000"
	s := &signed{}
	server := startTLS(t, "127.0.0.1", s).URL
	file := h.file("config.yaml", fmt.Sprintf("apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\nserver: %s\ncertificateAuthority: %s/ca.crt\nauth: sigv4\nawsRegion: eu-central-1\nawsService: execute-api\n",
		server, suite.cluster.Dir))
	p := h.serve("--config", file)
	ready := l.await(t, 0, "READY=1", "STATUS="+server+" as AKIATEST (sigv4) at "+p.listen)
	if told, _ := l.all(); ready != 0 {
		t.Errorf("told before it was ready: %q", told[:ready])
	}
	get(t, p.client(t), p.listen+"/version") // READY means that this works
	first := l.await(t, ready, "WATCHDOG=1")
	l.await(t, first+1, "WATCHDOG=1")

	environment, err := os.ReadFile(seen)
	must(t, err)
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_"} {
		if bytes.Contains(environment, []byte(name)) {
			t.Errorf("the credential process has %s:\n%s", name, environment)
		}
	}

	begin := monotonic(t)
	must(t, p.cmd.Process.Signal(syscall.SIGHUP))
	at := l.await(t, 0, "RELOADING=1", "MONOTONIC_USEC=")
	told, _ := l.all()
	_, usec, _ := strings.Cut(told[at], "MONOTONIC_USEC=")
	usec, _, _ = strings.Cut(usec, "\n")
	if n, err := strconv.ParseInt(usec, 10, 64); err != nil || n < begin || n > monotonic(t) {
		t.Errorf("%q was not said between %d and now", told[at], begin)
	}
	l.await(t, at, "READY=1")
	h.file("config.yaml", "nonsense: true\n")
	l.await(t, at+1, "READY=1", "STATUS=the configuration of now is not used")

	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	l.await(t, at, "STOPPING=1")
	told, pids := l.all()
	for i, text := range told {
		if pids[i] != p.cmd.Process.Pid {
			t.Errorf("process %d, not the service's %d, said %q", pids[i], p.cmd.Process.Pid, text)
		}
		if strings.Contains(text, "secret-2718") {
			t.Errorf("a secret: %q", text)
		}
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return now.Nano() / 1000
}

// TestHealthz: it is asked where the metrics are, and says when it is not well.
func TestHealthz(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	port := freePort(t)
	s := h.serveJane(u.url, "--metrics-address", fmt.Sprintf("127.0.0.1:%d", port), "--listen", "unix://"+h.path("r/api.sock"))
	url := fmt.Sprintf("http://127.0.0.1:%d/healthz", port)
	ask := func() (int, string) {
		t.Helper()
		res, err := http.Get(url)
		must(t, err)
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		must(t, err)
		return res.StatusCode, string(text)
	}
	eventually(t, patience, func() error { // what tells us that it serves comes a moment before the end of the start
		if code, text := ask(); code != http.StatusOK || text != "ok\n" {
			return fmt.Errorf("%d %q", code, text)
		}
		return nil
	})
	if n := u.count(); n != 0 {
		t.Errorf("the API server was asked %d times", n)
	}
	// Nobody can reach a socket without a name.
	must(t, os.Remove(h.path("r/api.sock")))
	if code, text := ask(); code != http.StatusServiceUnavailable || !strings.Contains(text, h.path("r/api.sock")) {
		t.Errorf("%d %q", code, text)
	}
	// An API server that is down is not mended by ending the proxy.
	if _, err := net.DialTimeout("tcp", s.address(), time.Second); err != nil {
		t.Error(err)
	}
	if errors.Is(s.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone) {
		t.Error("it ended")
	}
}
