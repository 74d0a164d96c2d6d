//go:build linux

package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
	"github.com/execproxy/execproxy/tests/integration/internal/service"
	"github.com/execproxy/execproxy/tests/integration/internal/token"
)

// unit is deploy/systemd's execproxy@prod under a systemd of this test's own.
type unit struct {
	*service.Manager
	t    *testing.T
	h    *home
	port int
}

const (
	unitName = "execproxy@prod.service"
	unitRun  = "/run/execproxy/prod"
)

// newUnit boots it, with jane's key for server in it. Drop-ins are by their unit's name.
func newUnit(t *testing.T, server string, dropIns map[string]string) *unit {
	t.Helper()
	needRoot(t)
	h := newHome(t)
	u := &unit{t: t, h: h, port: freePort(t)}
	files := h.path("files")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(files, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	units, err := filepath.Glob("../../deploy/systemd/execproxy@.*")
	must(t, err)
	if len(units) != 2 {
		t.Fatalf("units: %q", units)
	}
	for _, name := range units {
		text, err := os.ReadFile(name)
		must(t, err)
		write("etc/execproxy-units/"+filepath.Base(name), string(text))
	}
	write("etc/execproxy-units/execproxy@prod.socket.d/port.conf", fmt.Sprintf("[Socket]\nListenStream=\nListenStream=127.0.0.1:%d\n", u.port))
	write("etc/execproxy-units/"+unitName+".d/log.conf", "[Service]\nStandardError=append:/run/execproxy.log\n")
	for name, text := range dropIns {
		write("etc/execproxy-units/"+name+".d/test.conf", text)
	}
	write("etc/execproxy/ca.crt", string(suite.cluster.CA.PEM))
	for _, user := range []string{"jane", "joan"} {
		pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: user, Organizations: []string{"dev"}})
		must(t, err)
		write("etc/execproxy/"+user+".crt", string(pair.Cert))
		write("etc/execproxy/"+user+".key", string(pair.Key))
		if user == "jane" {
			write("etc/execproxy/prod.key", string(pair.Key))
		}
		for _, name := range []string{user, "prod"} { // root's alone
			_ = os.Chmod(filepath.Join(files, "etc/execproxy", name+".key"), 0o600)
		}
	}
	write("etc/execproxy/prod.yaml", u.config(server, "jane"))
	write("bin/execproxy", "")
	program, err := os.ReadFile(suite.bin)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(files, "bin/execproxy"), program, 0o755))
	must(t, os.Chmod(filepath.Join(files, "bin/execproxy"), 0o755))
	u.Manager = startSystemd(t, h.dir, files)
	t.Cleanup(func() {
		if t.Failed() {
			status, _ := u.Run(context.Background(), "systemctl", "status", "execproxy@prod.socket", unitName)
			log, _ := os.ReadFile(u.Path("/run/execproxy.log"))
			t.Logf("%s\n%s", status, log)
		}
		u.Stop()
	})
	u.must("systemctl", "start", "execproxy@prod.socket")
	return u
}

// startSystemd skips where the machine itself cannot have one, and says so.
func startSystemd(t *testing.T, dir, files string) *service.Manager {
	t.Helper()
	m, err := service.Start(t.Context(), dir, files)
	if errors.Is(err, service.ErrNoGroups) {
		fmt.Fprintf(os.Stderr, "integration: no systemd on this machine, %s is skipped: %v\n", t.Name(), err)
		t.Skip(err)
	}
	need(t, err)
	return m
}

func (u *unit) config(server, user string) string {
	key := "/run/credentials/" + unitName + "/key"
	if user != "jane" {
		key = "/etc/execproxy/" + user + ".pem"
	}
	return fmt.Sprintf(`apiVersion: execproxy.io/v1alpha1
kind: ProxyConfiguration
server: %s
certificateAuthority: ca.crt
auth: mtls
key: %s
cert: /etc/execproxy/%s.crt
drainTimeout: 3s
`, server, key, user)
}

// put puts a file in the place of another inside.
func (u *unit) put(path string, data []byte, mode os.FileMode) {
	u.t.Helper()
	path = u.Path(path)
	must(u.t, os.WriteFile(path+".new", data, mode))
	must(u.t, os.Chmod(path+".new", mode))
	must(u.t, os.Rename(path+".new", path))
}

func (u *unit) must(args ...string) string {
	u.t.Helper()
	out, err := u.Run(u.t.Context(), args...)
	must(u.t, err)
	return strings.TrimSpace(out)
}

func (u *unit) show(property string) string {
	u.t.Helper()
	return u.must("systemctl", "show", "--value", "--property="+property, unitName)
}

func (u *unit) url() string { return fmt.Sprintf("https://127.0.0.1:%d", u.port) }

// kubeconfig is what the service wrote, once it has.
func (u *unit) kubeconfig() string {
	u.t.Helper()
	var data []byte
	eventually(u.t, patience, func() (err error) {
		data, err = os.ReadFile(u.Path(unitRun + "/kubeconfig"))
		return err
	})
	return u.h.file("unit.kubeconfig", string(data))
}

// client is one of the kubeconfig, for HTTP/1.1 alone where it is told so.
func (u *unit) client(http1 bool) *http.Client {
	u.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", u.kubeconfig())
	must(u.t, err)
	c, err := rest.TLSConfigFor(config)
	must(u.t, err)
	tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: !http1, MaxIdleConnsPerHost: 100}
	if http1 {
		c.NextProtos = []string{"http/1.1"}
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	u.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// TestSystemd: the service is started by a connection, tells of itself, runs as
// nobody in particular with a key that only root may read, and reloads.
func TestSystemd(t *testing.T) {
	t.Parallel()
	u := newUnit(t, suite.cluster.API.URL, nil)
	if got := u.show("ActiveState"); got != "inactive" {
		t.Fatalf("before anybody connected it is %s", got)
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(u.url(), "https://"), &tls.Config{InsecureSkipVerify: true})
	must(t, err) // systemd has taken it, and the service answered
	must(t, conn.Close())
	kubeconfig := u.kubeconfig()
	if got := whoami(t, u.h, kubeconfig); got != "jane" {
		t.Errorf("auth whoami: %q", got)
	}
	if state, sub := u.show("ActiveState"), u.show("SubState"); state != "active" || sub != "running" {
		t.Errorf("it is %s (%s)", state, sub)
	}
	if text := u.show("StatusText"); !strings.Contains(text, "jane") || !strings.Contains(text, suite.cluster.API.URL) || !strings.Contains(text, u.url()) {
		t.Errorf("status: %q", text)
	}
	// As a user of its own, without a right that others do not have.
	pid := u.show("MainPID")
	uids := u.must("sh", "-c", "awk '/^Uid:/ {print $2}' /proc/"+pid+"/status")
	if uids == "0" {
		t.Error("it runs as root")
	}
	if caps := u.must("sh", "-c", "awk '/^Cap(Prm|Bnd):/ {print $2}' /proc/"+pid+"/status"); strings.Trim(caps, "0\n") != "" {
		t.Errorf("it has capabilities: %s", caps)
	}

	// Reload: bad, for a restart, good.
	client := u.client(false)
	get(t, client, u.url()+"/version")
	for text, want := range map[string]string{
		"server: []\n": "server",
		u.config(suite.cluster.API.URL, "jane") + "listen: [\"https://127.0.0.1:1\"]\n": "listen: cannot change",
		u.config("https://127.0.0.1:1", "jane"):                                         "server: cannot change",
		u.config(suite.cluster.API.URL, "nobody"):                                       "nobody",
	} {
		if !strings.HasPrefix(text, "apiVersion") {
			text = "apiVersion: execproxy.io/v1alpha1\nkind: ProxyConfiguration\n" + text
		}
		u.put("/etc/execproxy/prod.yaml", []byte(text), 0o644)
		if out, err := u.Run(t.Context(), "systemctl", "reload", unitName); err == nil {
			t.Errorf("systemctl reload succeeded with %q: %s", text, out)
		}
		eventually(t, patience, func() error {
			if got := u.show("StatusText"); !strings.Contains(got, want) {
				return fmt.Errorf("status %q, want %q in it", got, want)
			}
			return nil
		})
		if state := u.show("ActiveState"); state != "active" {
			t.Fatalf("after a bad reload it is %s", state)
		}
		if got := whoami(t, u.h, kubeconfig); got != "jane" {
			t.Errorf("auth whoami: %q", got)
		}
	}
	// Joan's key has to be readable for the service itself, as no restart loads it.
	uid := 0
	_, err = fmt.Sscan(uids, &uid)
	must(t, err)
	key, err := os.ReadFile(u.Path("/etc/execproxy/joan.key"))
	must(t, err)
	u.put("/etc/execproxy/joan.pem", key, 0o600)
	must(t, os.Chown(u.Path("/etc/execproxy/joan.pem"), uid, uid))
	u.put("/etc/execproxy/prod.yaml", []byte(u.config(suite.cluster.API.URL, "joan")), 0o644)
	u.must("systemctl", "reload", unitName)
	if got := whoami(t, u.h, kubeconfig); got != "joan" {
		t.Errorf("auth whoami after the reload: %q", got)
	}
	reused := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
	must(t, fetch(ctx, client, u.url()+"/version"))
	if !reused {
		t.Error("the reload dropped a client's connection")
	}
	if again := u.show("MainPID"); again != pid {
		t.Errorf("process %s became %s", pid, again)
	}
	u.must("systemctl", "stop", "execproxy@prod.socket", unitName)
	if result := u.show("Result"); result != "success" {
		t.Errorf("it ended with %s", result)
	}
}

// TestSystemdWatchdog: a proxy that hangs is exchanged for another.
func TestSystemdWatchdog(t *testing.T) {
	t.Parallel()
	up := newUpstream(t)
	u := newUnit(t, up.url, map[string]string{unitName: "[Service]\nWatchdogSec=4s\n"})
	u.must("systemctl", "start", unitName)
	client := u.client(false)
	get(t, client, u.url()+"/version")
	pid := u.show("MainPID")
	u.must("kill", "-STOP", pid)
	begin := time.Now()
	eventually(t, patience, func() error {
		if now := u.show("MainPID"); now == pid || now == "0" || u.show("ActiveState") != "active" {
			return errors.New("the hanging process is still the service's")
		}
		return nil
	})
	t.Logf("exchanged after %v", time.Since(begin))
	eventually(t, patience, func() error { return fetch(t.Context(), client, u.url()+"/version") })
	if n := u.show("NRestarts"); n != "1" {
		t.Errorf("restarted %s times", n)
	}
	// A live one is left alone, for longer than the watchdog waits.
	pid = u.show("MainPID")
	time.Sleep(9 * time.Second)
	if now := u.show("MainPID"); now != pid {
		t.Error("a proxy that answers was exchanged")
	}
}

// TestSystemdAnalyze: the units are read without a complaint, and are shut.
func TestSystemdAnalyze(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		need(t, &token.MissingError{What: "systemd-analyze", Package: "systemd"})
	}
	h := newHome(t)
	for _, name := range []string{"execproxy@.service", "execproxy@.socket"} {
		text, err := os.ReadFile("../../deploy/systemd/" + name)
		must(t, err)
		// It looks whether the program is there.
		must(t, os.WriteFile(h.path(name), []byte(strings.ReplaceAll(string(text), "/usr/bin/execproxy", h.bin)), 0o644))
	}
	instance := h.path(unitName)
	must(t, os.Symlink(h.path("execproxy@.service"), instance))
	if r := h.run(analyze, "verify", "--man=no", instance); r.code != 0 || r.stderr != "" {
		t.Error(r)
	}
	if r := h.run(analyze, "security", "--offline=true", "--threshold=20", instance); r.code != 0 {
		t.Error(r)
	}
}
