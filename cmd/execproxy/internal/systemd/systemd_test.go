//go:build unix

package systemd

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// environment is a lookup in a map, with our pid for PID.
func environment(vars map[string]string) func(string) string {
	return func(name string) string { return strings.ReplaceAll(vars[name], "PID", strconv.Itoa(os.Getpid())) }
}

func TestTakeNothing(t *testing.T) {
	for name, vars := range map[string]map[string]string{
		"empty":            {},
		"another process":  {"LISTEN_FDS": "1", "LISTEN_PID": "1"},
		"nobody's":         {"LISTEN_FDS": "1"},
		"another watchdog": {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
	} {
		if m, err := Take(environment(vars)); m != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

// What is wrong is named, with its variable.
func TestTakeRefuses(t *testing.T) {
	for want, vars := range map[string]map[string]string{
		"NOTIFY_SOCKET":  {"NOTIFY_SOCKET": "run/notify"},
		"WATCHDOG_USEC":  {"WATCHDOG_USEC": "-1"},
		"number of mic":  {"WATCHDOG_USEC": "99999999999999"},
		"LISTEN_FDS":     {"LISTEN_FDS": "-1", "LISTEN_PID": "PID"},
		"up to 256":      {"LISTEN_FDS": "257", "LISTEN_PID": "PID"},
		"LISTEN_FDNAMES": {"LISTEN_FDS": "1", "LISTEN_PID": "PID", "LISTEN_FDNAMES": "a:b"},
		"is not open":    {"LISTEN_FDS": "250", "LISTEN_PID": "PID"},
	} {
		if m, err := Take(environment(vars)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %+v, %v; want an error with %q", vars, m, err, want)
		}
	}
}

// roleVariable has the test binary play a service: descriptors from 3 up are its own
// only in a process of its own.
const roleVariable = "EXECPROXY_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" {
		vars := map[string]string{"LISTEN_FDS": "2", "LISTEN_PID": "PID", "LISTEN_FDNAMES": "api:second", "NOTIFY_SOCKET": "@x"}
		got, err := Take(environment(vars))
		if err != nil {
			panic(err)
		}
		for _, p := range got.Passed {
			flags, err := unix.FcntlInt(p.File.Fd(), unix.F_GETFD, 0)
			fi, _ := p.File.Stat()
			os.Stdout.WriteString(p.Name + " " + fi.Mode().String()[:1] + " " + strconv.Itoa(flags&unix.FD_CLOEXEC) + "\n")
			if err != nil {
				panic(err)
			}
		}
		if err := got.Close(); err != nil || got.Listens() {
			panic("still there")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestTakePassed(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"=1")
	cmd.ExtraFiles = []*os.File{f, f}
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil || string(out) != "api S 1\nsecond S 1\n" {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m, err := Take(environment(map[string]string{"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "PID"}))
	if err != nil || !m.Told() || m.Watchdog != 2*time.Second || m.Listens() {
		t.Fatalf("%+v, %v", m, err)
	}
	// What a message from elsewhere holds must not become an assignment.
	if err := m.Notify("READY=1", "STATUS=bad\nMAINPID=1\x00"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1024)
	n, err := c.Read(buf)
	if err != nil || string(buf[:n]) != "READY=1\nSTATUS=bad MAINPID=1 " {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	_ = c.Close()
	_ = os.Remove(path)
	if err := m.Notify("WATCHDOG=1"); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("nobody hears: %v", err)
	}
	var none *Manager
	if none.Notify("READY=1") != nil || none.Told() || none.Listens() || none.Close() != nil {
		t.Error("no manager is no error")
	}
	if s := Monotonic(); !strings.HasPrefix(s, "MONOTONIC_USEC=") || s == "MONOTONIC_USEC=0" {
		t.Error(s)
	}
}

func TestForget(t *testing.T) {
	environ := []string{"HOME=/", "NOTIFY_SOCKET=/run/n", "LISTEN_FDS=1", "LISTEN_PID=1", "LISTEN_FDNAMES=a", "WATCHDOG_USEC=1", "WATCHDOG_PID=1", "CREDENTIALS_DIRECTORY=/c"}
	if got := Forget(environ); !slices.Equal(got, []string{"HOME=/", "CREDENTIALS_DIRECTORY=/c"}) {
		t.Errorf("left: %q", got)
	}
	if len(environ) != 8 || environ[1] != "NOTIFY_SOCKET=/run/n" {
		t.Error("the caller's own list was changed")
	}
}

func FuzzTake(f *testing.F) {
	f.Add("/run/notify", "1000000", "0", "a")
	f.Add("@x", "", "300", "a:b:c")
	f.Fuzz(func(t *testing.T, notify, usec, count, names string) {
		if n, err := strconv.Atoi(count); err == nil && n > 0 && n <= maxFDs {
			t.Skip("would take descriptors of the test's")
		}
		m, err := Take(environment(map[string]string{"NOTIFY_SOCKET": notify, "WATCHDOG_USEC": usec, "LISTEN_FDS": count, "LISTEN_PID": "PID", "LISTEN_FDNAMES": names}))
		if err != nil && (m != nil || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%+v, %q", m, err)
		}
		if m != nil && m.Watchdog < 0 {
			t.Errorf("watchdog %v", m.Watchdog)
		}
	})
}
