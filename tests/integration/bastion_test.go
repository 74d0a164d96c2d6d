//go:build linux

package integration

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// ownKubeconfig is what a user of a bastion makes for herself: an identity of her
// own, the port that execproxy computes.
func (h *home) ownKubeconfig(name string) string {
	h.t.Helper()
	cert, key := h.user(name, "dev")
	plain := h.kubeconfig("plain", suite.cluster.API.URL, cert, key)
	return h.file("kubeconfig", h.execproxy("kubeconfig", "--kubeconfig", plain, "--command", h.bin).ok(h.t))
}

// serverOf is where a kubeconfig leads.
func serverOf(t *testing.T, kubeconfig string) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(kubeconfig)
	must(t, err)
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
}

// uidOf is the real user of a process. The owner of /proc/PID says nothing of a
// process that hides its memory.
func uidOf(t *testing.T, pid int) (uid int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	_, rest, _ := strings.Cut(string(status), "\nUid:\t")
	if _, err := fmt.Sscan(rest, &uid); err != nil {
		t.Fatalf("/proc/%d/status: %v in %s", pid, err, status)
	}
	return uid
}

// open makes directories of this home as open as a careless administrator would.
func (h *home) openUp(mode fs.FileMode, paths ...string) {
	h.t.Helper()
	for _, p := range append([]string{h.dir}, paths...) {
		must(h.t, os.Chmod(p, mode))
	}
}

// TestBastion: two users of one machine use the same cluster at once, each as
// themselves, through a daemon of their own; neither can use the other's.
func TestBastion(t *testing.T) {
	t.Parallel()
	for name, runtime := range map[string]bool{"with a runtime directory": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alice, bob := newAccount(t, "alice"), newAccount(t, "bob")
			a, b := alice.home(t), bob.home(t)
			if !runtime {
				delete(a.env, "XDG_RUNTIME_DIR")
				delete(b.env, "XDG_RUNTIME_DIR")
			}
			ak, bk := a.ownKubeconfig("alice"), b.ownKubeconfig("bob")
			if x, y := serverOf(t, ak), serverOf(t, bk); x == y {
				t.Fatalf("both users got %s", x)
			}
			whoami := []string{"auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"}
			first := a.start(append([]string{suite.kubectl, "--kubeconfig=" + ak}, whoami...)...)
			second := b.start(append([]string{suite.kubectl, "--kubeconfig=" + bk}, whoami...)...)
			if code := first.wait(); code != 0 || first.stdout.String() != "alice" {
				t.Errorf("alice's whoami: exit code %d, %q, %s", code, first.stdout, first.stderr)
			}
			if code := second.wait(); code != 0 || second.stdout.String() != "bob" {
				t.Errorf("bob's whoami: exit code %d, %q, %s", code, second.stdout, second.stderr)
			}
			x, y := a.proxy(), b.proxy()
			if x.PID == y.PID || uidOf(t, x.PID) != alice.uid || uidOf(t, y.PID) != bob.uid {
				t.Errorf("daemons %+v of uid %d and %+v of uid %d", x, uidOf(t, x.PID), y, uidOf(t, y.PID))
			}
			if !strings.HasPrefix(x.Socket, a.dir+"/") || !strings.HasPrefix(y.Socket, b.dir+"/") {
				t.Errorf("sockets %s and %s", x.Socket, y.Socket)
			}
			if r := b.execproxy("stop", x.ID); r.code != 1 {
				t.Errorf("bob stops alice's: %s", r)
			}

			// Alice has left her home and kubeconfig open; bob copies it.
			a.openUp(0o755)
			must(t, os.Chmod(ak, 0o644))
			stolen, err := os.ReadFile(ak)
			must(t, err)
			copied := b.file("stolen", strings.ReplaceAll(string(stolen), a.bin, b.bin))
			r := b.kubectl(copied, whoami...)
			if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, "alice.key") {
				t.Errorf("with alice's kubeconfig bob is %s", r)
			}
			if p := a.proxy(); p.PID != x.PID || p.Requests != x.Requests {
				t.Errorf("alice's daemon was %+v and is %+v", x, p)
			}
		})
	}
}

// TestHostileNeighbour: whatever another user sends to a daemon's sockets, port
// and process, nothing comes back, nothing reaches the API server, and its own
// user goes on. Even with the modes of all files open.
func TestHostileNeighbour(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	a, m, u := alice.home(t), mallory.home(t), newUpstream(t)
	ca := a.localCA()
	p := a.jane(u).onLoopback(t)
	d := a.open(p)
	client := a.loopback(d, p.server)
	get(t, client, p.server+"/version")
	daemon := a.proxy()
	socket := daemon.Socket
	descriptors := func() (n int) {
		t.Helper()
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", daemon.PID))
		must(t, err)
		return len(entries)
	}
	requests, before := u.count(), descriptors()
	a.openUp(0o755, a.path("r"), filepath.Dir(socket))
	t.Cleanup(func() { must(t, os.Chmod(filepath.Dir(socket), 0o700)) })
	for _, path := range []string{socket, socket + ".ctl"} {
		must(t, os.Chmod(path, 0o666))
		for range 20 {
			if out := m.do(m.role(roleKnock, path)).ok(t); out != "0 bytes\n" {
				t.Errorf("mallory got %q from %s", out, path)
			}
		}
	}

	// By way of the program itself, which would ask nicely.
	r := m.exec(plugin{server: u.url, lock: m.lock(), args: []string{"--socket", socket}})
	refused(t, r, 1, socket)
	m.env["XDG_RUNTIME_DIR"] = a.path("r")
	refused(t, m.execproxy("status"), 1, "XDG_RUNTIME_DIR", fmt.Sprint("uid ", alice.uid))
	refused(t, m.execproxy("stop", "--all"), 1, "XDG_RUNTIME_DIR", fmt.Sprint("uid ", alice.uid))
	refused(t, m.execproxy("stop", daemon.ID), 1, "XDG_RUNTIME_DIR", fmt.Sprint("uid ", alice.uid))
	refused(t, m.exec(p), 1, "XDG_RUNTIME_DIR", fmt.Sprint("uid ", alice.uid))
	m.env["XDG_RUNTIME_DIR"] = m.path("r")

	// Nor does alice take anything from a socket of hers.
	theirs := m.path("r/theirs.sock")
	cert, key := m.user("mallory")
	ms := m.start(append([]string{m.bin, "serve", "--listen", "unix://" + theirs}, upstreamFlags(u.url, cert, key)...)...)
	eventually(t, patience, func() error { _, err := os.Stat(theirs + ".ctl"); return err })
	m.openUp(0o777, m.path("r"), theirs, theirs+".ctl")
	refused(t, a.exec(plugin{server: u.url, lock: a.lock(), args: []string{"--socket", theirs}}), 1, theirs, fmt.Sprint("uid ", mallory.uid))
	m.openUp(0o700, m.path("r"), theirs, theirs+".ctl")
	ms.signal(syscall.SIGTERM)
	ms.wait()

	// The port is open to all; only alice's pair opens anything there.
	mp := m.jane(u).onLoopback(t)
	pair, err := tls.X509KeyPair([]byte(m.open(mp).Status.ClientCertificateData), []byte(m.open(mp).Status.ClientKeyData))
	must(t, err)
	for name, config := range map[string]*tls.Config{
		"no pair":         {RootCAs: poolOf(ca)},
		"mallory's pair":  {RootCAs: poolOf(ca), Certificates: []tls.Certificate{pair}},
		"no CA, no pair":  {InsecureSkipVerify: true},
		"mallory as root": {RootCAs: poolOf(ca), Certificates: []tls.Certificate{pair}, ServerName: "localhost"},
	} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
		resp, err := c.Get(p.server + "/api/v1/secrets")
		if err != nil {
			continue // in the handshake
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 400 || resp.StatusCode >= 500 {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	resp, err := http.Get("http" + strings.TrimPrefix(p.server, "https") + "/api/v1/secrets")
	must(t, err)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("in the clear: %s", resp.Status)
	}

	// The process.
	for _, signal := range []string{"-KILL", "-TERM", "-HUP"} {
		if r := m.run("/bin/sh", "-c", "kill "+signal+" "+strconv.Itoa(daemon.PID)); r.code == 0 {
			t.Errorf("mallory sends %s: %s", signal, r)
		}
	}

	if n := u.count(); n != requests {
		t.Errorf("%d requests reached the API server", n-requests)
	}
	client.CloseIdleConnections()
	eventually(t, patience, func() error {
		if n := descriptors(); n > before {
			return fmt.Errorf("%d descriptors are open, %d were", n, before)
		}
		return nil
	})
	get(t, client, p.server+"/version")
	if now := a.proxy(); now.PID != daemon.PID {
		t.Errorf("another daemon: %+v", now)
	}
	log, err := os.ReadFile(a.path("state/execproxy/log/" + daemon.ID + ".log"))
	must(t, err)
	if !strings.Contains(string(log), "another user") || !strings.Contains(string(log), fmt.Sprint("uid=", mallory.uid)) {
		t.Errorf("the log does not tell who tried:\n%s", log)
	}
}

// TestNobodyLooksIn: nobody but root sees into a daemon, its own user included;
// and whatever the umask, no file of it is open to others.
func TestNobodyLooksIn(t *testing.T) {
	t.Parallel()
	alice, mallory := newAccount(t, "alice"), newAccount(t, "mallory")
	a, m, u := alice.home(t), mallory.home(t), newUpstream(t)
	a.openUp(0o755, a.path("home"), a.path("r"), a.path("state"), a.path("tmp"))
	p := a.jane(u)
	cmd := a.command("/bin/sh", "-c", `umask 000; exec "$0" exec`, a.bin)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	d := decode(t, a.do(cmd).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
	out := a.path("served")
	serve := a.start(append([]string{"/bin/sh", "-c", `umask 000; exec "$0" "$@"`, a.bin, "serve", "--kubeconfig-out", out, "--log-file", a.path("log")},
		upstreamFlags(u.url, a.path("jane.crt"), a.path("jane.key"))...)...)
	eventually(t, patience, func() error { _, err := os.Stat(out); return err })
	var seen int
	for _, top := range []string{a.path("state/execproxy"), a.path("r/execproxy"), out, a.path("log")} {
		must(t, filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			must(t, err)
			info, err := e.Info()
			must(t, err)
			if info.Mode().Perm()&0o077 != 0 || int(info.Sys().(*syscall.Stat_t).Uid) != alice.uid {
				t.Errorf("%s is %v", path, info.Mode())
			}
			if r := m.run("cat", path); !e.IsDir() && (r.code == 0 || r.stdout != "") {
				t.Errorf("mallory reads %s: %s", path, r)
			}
			seen++
			return nil
		}))
	}
	if seen < 10 {
		t.Errorf("only %d files and directories were looked at", seen)
	}
	running := processes(a.dir)
	if len(running) < 2 {
		t.Errorf("only %v run", running)
	}
	for pid := range running {
		for name, h := range map[string]*home{"alice": a, "mallory": m} {
			answer := map[string]string{}
			must(t, json.Unmarshal([]byte(h.do(h.role(roleProbe, strconv.Itoa(pid))).ok(t)), &answer))
			for what, got := range answer {
				if got != "denied" {
					t.Errorf("%s of a daemon is %s to %s", what, got, name)
				}
			}
			if len(answer) < 7 {
				t.Errorf("the probe tried only %v", answer)
			}
		}
		// Arguments are open to everybody, so nothing may stand there.
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err != nil || strings.Contains(string(line), "PRIVATE") || strings.Contains(string(line), d.Status.ClientKeyData) {
			t.Errorf("arguments of a daemon: %q, %v", line, err)
		}
	}
	serve.signal(syscall.SIGTERM)
	serve.wait()
	p.lock.release()
	a.gone(d.socket(t), 2*time.Second)
	must(t, os.Remove(a.path("log")))
}

// TestSharedGroup: alice's primary group is everybody's. What the group may
// write is refused, and what is made is not the group's to read.
func TestSharedGroup(t *testing.T) {
	t.Parallel()
	alice := newAccount(t, "alice")
	mallory := newAccount(t, "mallory", alice)
	staff := newAccount(t, "staff")
	alice.gid, mallory.gid = staff.gid, staff.gid
	a, m, u := alice.home(t), mallory.home(t), newUpstream(t)
	p := a.jane(u)
	must(t, os.Chmod(a.path("r"), 0o770))
	refused(t, a.exec(p), 1, a.path("r"), "chmod go-w", "XDG_RUNTIME_DIR")
	a.openUp(0o755, a.path("r"), a.path("state"))
	cmd := a.command("/bin/sh", "-c", `umask 002; exec "$0" exec`, a.bin)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	d := decode(t, a.do(cmd).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
	for _, dir := range []string{a.path("r/execproxy"), a.path("state/execproxy")} {
		if r := m.run("ls", dir); r.code == 0 || r.stdout != "" {
			t.Errorf("one of the same group sees into %s: %s", dir, r)
		}
	}
	p.lock.release()
	a.gone(d.socket(t), 2*time.Second)
}

// TestInheritedEnvironment: su and sudo hand on the variables of whoever was
// there before. Another user's directories are refused, and left as they are;
// root is no exception.
func TestInheritedEnvironment(t *testing.T) {
	t.Parallel()
	alice, bob := newAccount(t, "alice"), newAccount(t, "bob")
	a, b, u := alice.home(t), bob.home(t), newUpstream(t)
	a.openUp(0o755, a.path("r"), a.path("home"))
	p := b.jane(u).onLoopback(t)
	must(t, os.Chmod(b.dir, 0o755))
	entries := func() string {
		t.Helper()
		var all []string
		must(t, filepath.WalkDir(a.dir, func(path string, _ fs.DirEntry, err error) error {
			if !errors.Is(err, fs.ErrNotExist) {
				must(t, err)
			}
			all = append(all, path)
			return nil
		}))
		return strings.Join(all, "\n")
	}
	before := entries()

	// bob became root by su from alice's session, and bob by the same way.
	su := func(name string, env ...string) result {
		t.Helper()
		cmd := b.command("su", "--preserve-environment", "--shell", "/bin/sh", "--command", b.bin+" exec", name)
		cmd.SysProcAttr.Credential = nil // su is run by root here, who needs no password
		cmd.Env = append(append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info()), env...)
		return b.do(cmd)
	}
	alices := []string{"XDG_RUNTIME_DIR=" + a.path("r"), "XDG_STATE_HOME=" + a.path("home/.local/state"), "HOME=" + a.path("home")}
	theirs := fmt.Sprint("uid ", alice.uid)
	refused(t, su(bob.name, alices...), 1, "XDG_RUNTIME_DIR", theirs)
	refused(t, su(bob.name, alices[1:]...), 1, "XDG_STATE_HOME", theirs)
	refused(t, su("root", append(alices, "SUDO_UID="+strconv.Itoa(alice.uid), "SUDO_USER="+alice.name)...), 1, "XDG_RUNTIME_DIR", theirs)
	refused(t, su("root", append(alices[1:], "XDG_RUNTIME_DIR=", "SUDO_USER="+alice.name)...), 1, "XDG_STATE_HOME", theirs)

	if after := entries(); after != before {
		t.Errorf("alice's home was\n%s\nand is\n%s", before, after)
	}

	// sudo kubectl with alice's kubeconfig: root could read her key, and is not her.
	kc := a.ownKubeconfig("alice")
	before = entries()
	root := newHome(t)
	text, err := os.ReadFile(kc)
	must(t, err)
	r := root.kubectl(root.file("alices", strings.ReplaceAll(string(text), a.bin, root.bin)), "auth", "whoami")
	if r.code == 0 || r.stdout != "" || !strings.Contains(r.stderr, "execproxy kubeconfig") || strings.Count(r.stderr, "\n") > 6 {
		t.Errorf("root with alice's kubeconfig: %s", r)
	}
	if after := entries(); after != before {
		t.Errorf("alice's home was\n%s\nand is\n%s", before, after)
	}
}
