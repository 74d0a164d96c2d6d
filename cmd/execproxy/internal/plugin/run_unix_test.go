//go:build unix

package plugin

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// script is a plugin.
func script(t *testing.T, text string) Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "issuer")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
		t.Fatal(err)
	}
	return Options{Command: path, APIVersion: v1, Env: []string{"PATH=" + os.Getenv("PATH"), "DIR=" + filepath.Dir(path)}}
}

const good = `printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' `

func TestRun(t *testing.T) {
	o := script(t, `printf '%s' "$KUBERNETES_EXEC_INFO" > "$DIR/asked"; cat > "$DIR/stdin"; echo canary >&2; `+good+`"$A-$1-$2"`)
	o.Args = []string{"x", "y z"}
	o.Env = append(o.Env, "A=first", "A=last", "KUBERNETES_EXEC_INFO=ours")
	o.Cluster = &clientauthentication.Cluster{Server: "https://prod", CertificateAuthorityData: []byte("PEM")}
	_, err := Credential(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "space") { // y z
		t.Errorf("%v", err)
	}
	o.Args[1] = "z"
	s, err := Credential(t.Context(), o)
	if err != nil || s.Token != "last-x-z" {
		t.Fatalf("%v, %v", s, err)
	}
	asked, _ := os.ReadFile(filepath.Join(filepath.Dir(o.Command), "asked"))
	if want := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"cluster":{"server":"https://prod","certificate-authority-data":"UEVN"},"interactive":false}}`; string(asked) != want {
		t.Errorf("asked %s\nwant  %s", asked, want)
	}
	// A user is there: stdin is theirs, and what the plugin says they see.
	var seen bytes.Buffer
	o.Stdin, o.Stderr = strings.NewReader("typed"), &seen
	if _, err := Credential(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	asked, _ = os.ReadFile(filepath.Join(filepath.Dir(o.Command), "asked"))
	typed, _ := os.ReadFile(filepath.Join(filepath.Dir(o.Command), "stdin"))
	if !strings.Contains(string(asked), `"interactive":true`) || string(typed) != "typed" || seen.String() != "canary\n" {
		t.Errorf("asked %s, stdin %q, stderr %q", asked, typed, &seen)
	}
}

func TestFailures(t *testing.T) {
	for name, tt := range map[string]struct {
		o    Options
		want string
	}{
		"exit code":     {script(t, "echo first >&2; echo 'log in first' >&2; exit 7"), "exec plugin issuer: it failed (exit status 7): log in first"},
		"signal":        {script(t, "kill -TERM $$"), "it failed (signal: terminated)"},
		"nothing":       {script(t, ":"), "stdout is empty"},
		"too much":      {script(t, "yes canary"), "printed more than 1048576 bytes"},
		"not installed": {Options{Command: "no-such-plugin-2718", APIVersion: v1}, "exec plugin no-such-plugin-2718: it is not installed"},
		"not there":     {Options{Command: "/does/not/exist", APIVersion: v1}, "it is not installed"},
		"not a program": {Options{Command: os.TempDir(), APIVersion: v1}, "cannot be started: "},
	} {
		s, err := Credential(t.Context(), tt.o)
		var known *Error
		if s != nil || !errors.As(err, &known) || !strings.Contains(err.Error(), tt.want) || strings.ContainsAny(err.Error(), "\n\r") || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v, %v; want %q", name, s, err, tt.want)
		}
	}
}

// A plugin that hangs is killed when its time is over, and so is what it started.
func TestHungPlugin(t *testing.T) {
	t.Parallel()
	o := script(t, `sleep 600 & echo $! > "$DIR/child"; sleep 600`)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // it has begun by then
	defer cancel()
	began := time.Now()
	_, err := Credential(ctx, o)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(o.Command), "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); running(child); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("its child lives")
		}
	}
}

// running reports a process that has not ended; nobody may have waited for it yet.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !bytes.Contains(stat, []byte(") Z "))
}

// What a plugin leaves behind with its pipes holds nobody up.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	o := script(t, good+`token; sleep 600 & echo $! > "$DIR/child"`)
	began := time.Now()
	s, err := Credential(t.Context(), o)
	if err != nil || s.Token != "token" {
		t.Errorf("%v, %v", s, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	text, _ := os.ReadFile(filepath.Join(filepath.Dir(o.Command), "child"))
	if child, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
}
