//go:build linux

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execproxy/execproxy/tests/integration/internal/kubebin"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// userUnit is the template unit for users' own service managers, less where the
// program is installed.
func userUnit(t *testing.T, bin string) string {
	t.Helper()
	root, err := kubebin.Root()
	must(t, err)
	unit, err := os.ReadFile(filepath.Join(root, "../../deploy/systemd/user/execproxy@.service"))
	must(t, err)
	out := strings.ReplaceAll(string(unit), "/usr/bin/execproxy", bin)
	if !strings.Contains(string(unit), "=/usr/bin/execproxy ") {
		t.Fatal("the unit does not start /usr/bin/execproxy")
	}
	return out
}

// TestUserUnitVerifies: systemd finds nothing to say about the unit.
func TestUserUnitVerifies(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		need(t, &token.MissingError{What: "systemd-analyze", Package: "systemd"})
	}
	verify := func(unit string) result {
		dir := h.path("state")
		must(t, os.WriteFile(filepath.Join(dir, "execproxy@prod.service"), []byte(unit), 0o600))
		return h.run("systemd-analyze", "--user", "verify", "--man=no", filepath.Join(dir, "execproxy@prod.service"))
	}
	unit := userUnit(t, h.bin)
	// It succeeds with complaints, too.
	if r := verify(unit); r.code != 0 || r.stdout+r.stderr != "" {
		t.Errorf("systemd-analyze: %s", r)
	}
	if r := verify(strings.Replace(unit, "RestartSec", "RestartSeconds", 1)); r.stderr == "" {
		t.Errorf("it says nothing of a wrong unit either: %s", r)
	}
}

// TestUserUnitStarts: what the unit runs, as a user's manager would run it, serves
// kubectl and plugins.
func TestUserUnitStarts(t *testing.T) {
	t.Parallel()
	alice := newAccount(t, "alice")
	h := alice.home(t)
	cert, key := h.user("alice", "dev")
	for _, dir := range []string{"home/.config", "home/.config/execproxy", "r/execproxy-prod"} {
		must(t, os.Mkdir(h.path(dir), 0o700)) // the last is the manager's, RuntimeDirectory=
		h.own(h.path(dir))
	}
	config := h.file("home/.config/execproxy/prod.yaml", fmt.Sprintf("apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\n"+
		"server: %s\ncertificateAuthority: %s/ca.crt\nauth: mtls\nkey: %s\ncert: %s\n", suite.cluster.API.URL, suite.cluster.Dir, key, cert))
	specifiers := strings.NewReplacer("%E", h.path("home/.config"), "%t", h.path("r"), "%i", "prod")
	settings := map[string]string{}
	for line := range strings.Lines(userUnit(t, h.bin)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		settings[name] = specifiers.Replace(value)
	}
	if settings["RuntimeDirectory"] != "execproxy-prod" || settings["RuntimeDirectoryMode"] != "0700" || settings["AssertPathExists"] != config {
		t.Errorf("the unit's directories: %q", settings)
	}
	s := h.start(strings.Fields(settings["ExecStart"])...)
	kc := h.path("r/execproxy-prod/kubeconfig")
	eventually(t, patience, func() error {
		select {
		case <-s.done:
			t.Fatalf("it ended with %d: %s", s.code, s.stderr)
		default:
		}
		_, err := os.Stat(kc)
		return err
	})
	if got := whoami(t, h, kc); got != "alice" {
		t.Errorf("kubectl auth whoami: %q", got)
	}
	r := h.exec(plugin{server: suite.cluster.API.URL, lock: h.lock(), args: []string{"--socket", h.path("r/execproxy-prod/api.sock")}})
	d := decode(t, r.ok(t))
	get(t, d.client(t, suite.cluster.API.URL), suite.cluster.API.URL+"/api/v1/namespaces")

	// ExecReload, with the shell's words.
	h.run("/bin/sh", "-c", strings.ReplaceAll(settings["ExecReload"], "$MAINPID", fmt.Sprint(s.cmd.Process.Pid))).ok(t)
	if got := whoami(t, h, kc); got != "alice" {
		t.Errorf("after ExecReload: %q", got)
	}
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("stopped, it ended with %d: %s", code, s.stderr)
	}
	for _, left := range []string{kc, d.socket(t)} {
		if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left, %v", left, err)
		}
	}
}
