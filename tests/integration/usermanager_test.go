//go:build linux

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestUserManager: a user's own systemd runs the template unit, with all that the
// unit forbids, and kubectl is that user through it.
func TestUserManager(t *testing.T) {
	t.Parallel()
	alice := newAccount(t, "alice")
	h := newHome(t)
	const dir, unit = "/var/lib/alice", "execproxy@prod.service"
	run := "/run/user/" + strconv.Itoa(alice.uid)
	files := h.path("files")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(files, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), mode))
	}
	write("etc/systemd/user/execproxy@.service", userUnit(t, "/usr/bin/execproxy"), 0o644)
	// What user@.service does, less PAM.
	write("etc/execproxy-units/alice.service", fmt.Sprintf("[Service]\nType=notify\nUser=%s\nDelegate=yes\nEnvironment=HOME=%s XDG_RUNTIME_DIR=%s\n"+
		"ExecStart=/usr/lib/systemd/systemd --user\n", alice.name, dir, run), 0o644)
	program, err := os.ReadFile(suite.bin)
	must(t, err)
	write("bin/execproxy", string(program), 0o755)
	m := startSystemd(t, h.dir, files)
	t.Cleanup(m.Stop)
	do := func(args ...string) string {
		t.Helper()
		out, err := m.Run(t.Context(), args...)
		must(t, err)
		return strings.TrimSpace(out)
	}
	do("install", "-d", "-m", "0700", "-o", alice.name, "-g", strconv.Itoa(alice.gid), run, dir, dir+"/.config", dir+"/.config/execproxy")
	cert, key := h.user("alice", "dev")
	for name, from := range map[string]string{"alice.crt": cert, "alice.key": key, "ca.crt": suite.cluster.Dir + "/ca.crt"} {
		data, err := os.ReadFile(from)
		must(t, err)
		must(t, os.WriteFile(m.Path(dir+"/.config/execproxy/"+name), data, 0o600))
	}
	must(t, os.WriteFile(m.Path(dir+"/.config/execproxy/prod.yaml"), fmt.Appendf(nil, "apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\n"+
		"server: %s\ncertificateAuthority: ca.crt\nauth: mtls\nkey: alice.key\ncert: alice.crt\n", suite.cluster.API.URL), 0o600))
	do("chown", "-R", alice.name, dir)
	do("systemctl", "start", "alice.service")
	user := func(args ...string) string {
		t.Helper()
		return do(append([]string{"setpriv", "--reuid", alice.name, "--regid", strconv.Itoa(alice.gid), "--clear-groups",
			"env", "HOME=" + dir, "XDG_RUNTIME_DIR=" + run}, args...)...)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := m.Run(context.Background(), "sh", "-c", "cat /proc/*/comm | sort | uniq -c")
			log, _ := os.ReadFile(h.path("systemd.log"))
			t.Logf("%s\n%s", out, log)
		}
	})

	user("systemctl", "--user", "start", unit) // returns when it is ready
	show := func(property string) string {
		t.Helper()
		return user("systemctl", "--user", "show", "--value", "--property="+property, unit)
	}
	inside := m.Path(run + "/execproxy-prod/kubeconfig")
	kubeconfig := func() string {
		t.Helper()
		data, err := os.ReadFile(inside)
		must(t, err)
		return h.file("kubeconfig", string(data))
	}
	if got := whoami(t, h, kubeconfig()); got != "alice" {
		t.Errorf("kubectl auth whoami: %q", got)
	}
	if got := show("StatusText"); !strings.Contains(got, suite.cluster.API.URL) {
		t.Errorf("status: %q", got)
	}
	pid := show("MainPID")
	status := do("cat", "/proc/"+pid+"/status")
	for _, want := range []string{fmt.Sprintf("Uid:\t%d\t", alice.uid), "NoNewPrivs:\t1\n", "Seccomp:\t2\n"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process is not %q: %s", want, status)
		}
	}

	user("systemctl", "--user", "reload", unit)
	file := m.Path(dir + "/.config/execproxy/prod.yaml")
	good, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte("auth: nonsense\n"), 0o600))
	reload := []string{"setpriv", "--reuid", alice.name, "--regid", strconv.Itoa(alice.gid), "--clear-groups",
		"env", "HOME=" + dir, "XDG_RUNTIME_DIR=" + run, "systemctl", "--user", "reload", unit}
	if out, err := m.Run(t.Context(), reload...); err == nil {
		t.Errorf("a bad configuration was taken over: %s", out)
	}
	must(t, os.WriteFile(file, good, 0o600))
	user("systemctl", "--user", "reload", unit)
	user("systemctl", "--user", "restart", unit)
	if now := show("MainPID"); now == pid {
		t.Errorf("restarted, it is process %s still", now)
	}
	if got := whoami(t, h, kubeconfig()); got != "alice" {
		t.Errorf("after a restart: %q", got)
	}
	user("systemctl", "--user", "stop", unit)
	if _, err := os.Stat(inside); !os.IsNotExist(err) {
		t.Errorf("stopped, its kubeconfig is there: %v", err)
	}
	if got := show("Result"); got != "success" {
		t.Errorf("stopped: %s", got)
	}
}
