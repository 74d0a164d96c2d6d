//go:build linux

package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// clusterCA takes the CA out of a printed kubeconfig.
func clusterCA(t *testing.T, kubeconfig string) []byte {
	t.Helper()
	config, err := clientcmd.Load([]byte(kubeconfig))
	must(t, err)
	for _, c := range config.Clusters {
		if len(c.CertificateAuthorityData) > 0 {
			return c.CertificateAuthorityData
		}
	}
	t.Fatalf("no CA in %s", kubeconfig)
	return nil
}

// TestAnotherUser: even with the file modes all open, another user is cut off
// before a byte.
func TestAnotherUser(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const other = nobody - 1
	// The daemon must not be root's: root may connect to anybody's.
	h, u := newHomeFor(t, nobody), newUpstream(t)
	d := h.open(h.jane(u))
	socket := d.socket(t)
	for _, dir := range []string{h.dir, h.path("r"), filepath.Dir(socket)} {
		must(t, os.Chmod(dir, 0o755))
	}
	for _, path := range []string{socket, socket + ".ctl"} {
		must(t, os.Chmod(path, 0o666))
		probe := newHomeFor(t, other)
		if out := probe.do(probe.role(roleConnect, path)).ok(t); out != "0 bytes\n" {
			t.Errorf("another user got %q from %s", out, path)
		}
	}
	// The same from the same user gets an answer, so the probe does see bytes.
	if out := h.do(h.role(roleConnect, socket)).ok(t); out == "0 bytes\n" {
		t.Error("the daemon's own user got nothing from its socket")
	}
	get(t, d.client(t, u.url), u.url+"/version")
	must(t, os.Chmod(filepath.Dir(socket), 0o700))
	must(t, os.Chmod(socket, 0o600))
	must(t, os.Chmod(socket+".ctl", 0o600))
}

// TestMemoryIsClosed: the daemon's own user cannot look into it, nor make it
// leave a core file.
func TestMemoryIsClosed(t *testing.T) {
	t.Parallel()
	h, u := newHomeFor(t, commonUser()), newUpstream(t)
	h.open(h.jane(u))
	var pid int
	for pid = range processes(h.dir) {
	}
	probe := func(pid int) map[string]string {
		t.Helper()
		answer := map[string]string{}
		must(t, json.Unmarshal([]byte(h.do(h.role(roleProbe, strconv.Itoa(pid))).ok(t)), &answer))
		return answer
	}
	for what, got := range probe(pid) {
		if got != "denied" {
			t.Errorf("%s of the daemon is %s to its own user", what, got)
		}
	}
	// Without hardening the same probe gets in, or it would show nothing.
	sleep := h.start("sleep", "1000")
	eventually(t, 5*time.Second, func() error {
		if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", sleep.cmd.Process.Pid)); !strings.HasPrefix(string(line), "sleep") {
			return fmt.Errorf("not started: %q", line)
		}
		return nil
	})
	for what, got := range probe(sleep.cmd.Process.Pid) {
		if got != "open" && (what == "environ" || what == "fd" || what == "maps") { // some kernels restrict the rest for all
			t.Errorf("%s of a process without hardening is %s: the probe shows nothing", what, got)
		}
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	must(t, err)
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core file size") && !strings.Contains(line, " 0 ") {
			t.Errorf("core files are possible: %s", line)
		}
	}
}

// TestForeignDaemon: two users of one machine, the same cluster: each has a
// proxy and neither sees the other's.
func TestForeignDaemon(t *testing.T) {
	t.Parallel()
	needRoot(t)
	u := newUpstream(t)
	a, b := newHomeFor(t, nobody), newHomeFor(t, nobody-1)
	a.open(a.jane(u))
	b.open(b.jane(u))
	if x, y := a.proxy(), b.proxy(); x.PID == y.PID || x.Socket == y.Socket {
		t.Errorf("%+v and %+v", x, y)
	}
	// Pointed at the first user's directory, the second is refused.
	b.env["XDG_RUNTIME_DIR"] = a.path("r")
	must(t, os.Chmod(a.dir, 0o755))
	must(t, os.Chmod(a.path("r"), 0o755))
	p := b.jane(u)
	refused(t, b.exec(p), 1, a.dir, fmt.Sprint("uid ", nobody))
	b.env["XDG_RUNTIME_DIR"] = b.path("r")
}
