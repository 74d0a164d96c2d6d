//go:build unix

package credhelper

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/cmd/execproxy/internal/process"
)

// script puts a helper into PATH.
func script(t *testing.T, name, body string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "docker-credential-"+name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
}

// endAgent ends what a script left behind on purpose.
func endAgent(t *testing.T) {
	dir, _, _ := strings.Cut(os.Getenv("PATH"), ":")
	if data, err := os.ReadFile(filepath.Join(dir, "agent")); err == nil {
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("the agent: %v", err)
		}
	}
}

func TestGet(t *testing.T) {
	for name, c := range map[string]struct{ registry, body, want string }{
		"found":           {"r.example:5000", `[ "$*" = get ] && [ "$(cat)" = r.example:5000 ] && echo '{"ServerURL":"https://r.example:5000/v2/","Username":"u","Secret":"hunter-2718"}'`, ""},
		"without server":  {"r.example", `echo '{"Username":"u","Secret":"hunter-2718"}'`, ""},
		"leaves an agent": {"r.example", `sleep 60 & echo $! > "$(dirname "$0")/agent"; echo '{"Username":"u","Secret":"hunter-2718"}'`, ""},
		"docker hub":      {"docker.io", `[ "$(cat)" = https://index.docker.io/v1/ ] && echo '{"ServerURL":"https://index.docker.io/v1/","Username":"u","Secret":"hunter-2718"}'`, ""},
		"not found":       {"r.example", "echo credentials not found in native keychain; exit 1", "credentials not found"},
		"empty":           {"r.example", `echo '{"Username":"u","Secret":""}'`, "credentials not found"},
		"fails":           {"r.example", "echo hunter-2718; echo hunter-2718 >&2; exit 3", "docker-credential-x failed: exit status 3; try `echo r.example | docker-credential-x get`"},
		"no JSON":         {"r.example", "echo hunter-2718", "answered something else than its JSON"},
		"identity token":  {"r.example", `echo '{"Username":"<token>","Secret":"hunter-2718"}'`, "an identity token for r.example, which kubelet cannot use"},
		"another":         {"r.example", `echo '{"ServerURL":"r.example.evil","Username":"u","Secret":"hunter-2718"}'`, "answered for another registry"},
		"endless":         {"r.example", "yes hunter-2718", "printed more than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			script(t, "x", c.body)
			user, secret, err := Get(t.Context(), "x", c.registry)
			endAgent(t)
			switch {
			case c.want == "" && (err != nil || user != "u" || secret != "hunter-2718"):
				t.Errorf("got %q, %v", user, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter") || secret != ""):
				t.Errorf("got %v, want %s", err, c.want)
			case c.want == ErrNotFound.Error() && !errors.Is(err, ErrNotFound):
				t.Errorf("got %v", err)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		if _, _, err := Get(t.Context(), "x", "r.example"); err == nil || !strings.Contains(err.Error(), "docker-credential-x is not in PATH; install it") {
			t.Errorf("got %v", err)
		}
	})
	for _, name := range []string{"", "../x", "/bin/x", "a b", "-x"} {
		if _, _, err := Get(t.Context(), name, "r.example"); err == nil || !strings.Contains(err.Error(), "is no helper") {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestHelper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"auths":{},"credsStore":"desktop","credHelpers":{"r.example:5000":"a","https://index.docker.io/v1/":"b","bad.example":"../x"}}`)
	for registry, want := range map[string]string{"r.example:5000": "a", "r.example": "", "docker.io": "b", "index.docker.io": "b", "q.example": ""} {
		if got, err := Helper(path, registry); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", registry, got, err, want)
		}
	}
	if _, err := Helper(path, "bad.example"); err == nil || !strings.Contains(err.Error(), "is no helper") {
		t.Errorf("got %v", err)
	}
	write(`{"auths":"hunter-2718"`)
	if _, err := Helper(path, "r.example"); err == nil || strings.Contains(err.Error(), "hunter") {
		t.Errorf("got %v", err)
	}
	// Two ways to write one registry: the same one counts each time.
	write(`{"credHelpers":{"https://r.example":"url","r.example":"exact","https://q.example/v1/":"b","https://q.example":"a"}}`)
	for range 50 {
		for registry, want := range map[string]string{"r.example": "exact", "q.example": "a"} {
			if got, err := Helper(path, registry); err != nil || got != want {
				t.Fatalf("%s: got %q, %v, want %q", registry, got, err, want)
			}
		}
	}
	if err := syscall.Mkfifo(path+".fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Helper(path+".fifo", "r.example"); err == nil || !strings.Contains(err.Error(), "not a readable file") {
		t.Errorf("got %v", err)
	}
	if _, err := Helper(path+"x", "r.example"); err == nil {
		t.Error("a missing file was read")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"credHelpers":{"r.example":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = parse(data) })
}

// TestGroup: a program that takes too long ends with what it started.
func TestGroup(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	script(t, "x", "sleep 600 & echo $! > "+pidFile+".new; mv "+pidFile+".new "+pidFile+"; wait")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for i := 0; i < 3000; i++ {
			if _, err := os.Stat(pidFile); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if _, err := Run(ctx, "docker-credential-x", nil, ""); err == nil {
		t.Error("no error")
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	ended, gone := process.WatchEnd(pid)
	if gone != nil {
		return
	}
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := ended(ctx); err != nil {
		t.Errorf("process %d lives: %v", pid, err)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
