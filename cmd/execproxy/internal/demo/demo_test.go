package demo

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden file")

// binary is built once, by the first test that needs it.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "demo-test")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "execproxy")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// build returns the real binary.
func build(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	out, err := exec.Command("go", "build", "-o", binary, "github.com/execproxy/execproxy/cmd/execproxy").CombinedOutput()
	if err != nil {
		t.Fatalf("building execproxy: %v\n%s", err, out)
	}
	return binary
}

var (
	times  = regexp.MustCompile(` *\d+\.\d ms`)
	ports  = regexp.MustCompile(`127\.0\.0\.1:\d+`)
	pids   = regexp.MustCompile(`process \d+`)
	socket = regexp.MustCompile(`unix://\S+/execproxy/[0-9a-f]{16}\.sock`)
	proxys = regexp.MustCompile(`\(execproxy: .*\)`) // the proxy's words are not this package's
	sizes  = regexp.MustCompile(`\d+ bytes`)
)

// scrub takes out what differs from run to run.
func scrub(s string) string {
	s = times.ReplaceAllStringFunc(s, func(m string) string {
		if strings.HasPrefix(m, "  ") {
			return "     T ms" // the column
		}
		return " T ms"
	})
	s = ports.ReplaceAllString(s, "127.0.0.1:PORT")
	s = pids.ReplaceAllString(s, "process PID")
	s = socket.ReplaceAllString(s, "unix://DIR/execproxy/ID.sock")
	s = proxys.ReplaceAllString(s, "(execproxy: WORDS)")
	return sizes.ReplaceAllString(s, "N bytes")
}

// The whole exchange, with the real binary, and nothing left behind.
func TestRun(t *testing.T) {
	exe, temp := build(t), shortDir(t)
	t.Setenv("EXECPROXY_SERVER", "https://must.not.be.read.example") // the user's own settings are none of its business
	t.Setenv("AWS_PROFILE", "prod")
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	if err := Run(ctx, Options{Executable: exe, Out: &out, TempDir: temp}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	t.Logf("%v\n%s", time.Since(start), out.String())
	golden(t, "run.golden", scrub(out.String()))
	empty(t, temp)
	none(t)
}

// A plugin that fails is named, together with what it said.
func TestRunFails(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the failing plugin is a shell script")
	}
	temp := shortDir(t)
	exe := filepath.Join(t.TempDir(), "execproxy")
	script := "#!/bin/sh\necho 'execproxy: the dog ate the key' >&2\nexit 1\n"
	if err := os.WriteFile(exe, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Run(t.Context(), Options{Executable: exe, Out: &out, TempDir: temp})
	var se *StepError
	if !errors.As(err, &se) || se.Step != "plugin" {
		t.Fatalf("error %v, want a step error of plugin", err)
	}
	if !strings.Contains(err.Error(), "the dog ate the key") {
		t.Errorf("the plugin's own words are missing: %v", err)
	}
	if strings.Count(out.String(), "✗") != 1 || !strings.Contains(out.String(), "plugin") {
		t.Errorf("output:\n%s", out.String())
	}
	empty(t, temp)
}

// interrupt cancels as soon as a step has been printed.
type interrupt struct {
	bytes.Buffer
	after  string
	cancel context.CancelFunc
}

func (w *interrupt) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(w.after)) {
		w.cancel()
	}
	return w.Buffer.Write(p)
}

// Interrupted at any point, the daemon ends and everything is removed.
func TestRunInterrupted(t *testing.T) {
	exe := build(t)
	for _, after := range []string{"serve ", "key ", "plugin ", "watch ", "status "} {
		t.Run(strings.TrimSpace(after), func(t *testing.T) {
			temp := shortDir(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &interrupt{after: after, cancel: cancel}
			err := Run(ctx, Options{Executable: exe, Out: out, TempDir: temp})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want context.Canceled\n%s", err, out.String())
			}
			empty(t, temp)
			none(t)
		})
	}
}

func TestOptions(t *testing.T) {
	if err := Run(t.Context(), Options{}); err == nil {
		t.Error("ran without a binary and without a place to print")
	}
}

// shortDir is a temporary directory whose name leaves room for a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "xpt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func empty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left behind: %s", e.Name())
	}
}

// none fails if the built binary still runs: a daemon that outlived its lock.
func none(t *testing.T) {
	t.Helper()
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline") // readable even where environ is not
	for _, path := range lines {
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(binary)) {
			t.Errorf("still runs: %s: %q", filepath.Dir(path), b)
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("output differs from %s (run with -update to accept)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}
