//go:build linux

package integration

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// plain opens a proxy for jane at a fake upstream.
func (h *home) jane(u *upstream) plugin {
	h.t.Helper()
	cert, key := h.user("jane", "dev")
	return plugin{server: u.url, ca: suite.cluster.CA.PEM, config: mtls(cert, key), lock: h.lock()}
}

// onLoopback is the same proxy for a client that knows no lock.
func (p plugin) onLoopback(t *testing.T) plugin {
	t.Helper()
	config := object{"upstream": object{"server": p.server, "certificate-authority-data": p.ca}}
	for k, v := range p.config {
		config[k] = v
	}
	return plugin{server: fmt.Sprintf("https://127.0.0.1:%d", freePort(t)), config: config}
}

// TestLockReleaseCuts: whatever is open is cut within a second of the lock's
// coming free.
func TestLockReleaseCuts(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	d := h.open(p)
	watch, err := d.client(t, u.url).Get(u.url + "/watch")
	must(t, err)
	defer func() { _ = watch.Body.Close() }()
	events := bufio.NewReader(watch.Body)
	_, err = events.ReadString('\n')
	must(t, err)
	upgraded, r := d.upgrade(t, u.url, "GET", "/exec", "websocket")
	echoes(t, upgraded, r, "ping")
	idle, _ := d.dial(t, u.url)
	var ends []func()
	for pid := range processes(h.dir) {
		ends = append(ends, processEnd(t, pid))
	}
	if len(ends) != 1 {
		t.Fatalf("%d processes, want the daemon alone", len(ends))
	}

	begin := time.Now()
	p.lock.release()
	if _, err := events.ReadByte(); err == nil {
		t.Error("the watch went on")
	} else if errors.Is(err, io.EOF) {
		t.Error("the watch ended as if it were complete: a cut must not look like an end")
	}
	if _, err := upgraded.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the upgraded connection: %v", err)
	}
	if _, err := idle.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the idle connection: %v", err)
	}
	cut := time.Since(begin)
	ends[0]()
	took := time.Since(begin)
	t.Logf("all connections cut after %v, process gone after %v", cut, took)
	if took > time.Second {
		t.Errorf("it took %v, want at most a second", took)
	}
	h.gone(d.socket(t), time.Millisecond)
}

// TestLastLockDecides: parents share one proxy, the last of them ends it.
func TestLastLockDecides(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	first := h.jane(u)
	d := h.open(first)
	client := d.client(t, u.url)
	others := make([]plugin, 2)
	for i := range others {
		others[i] = first
		others[i].lock = h.lock()
		if again := h.open(others[i]); again.socket(t) != d.socket(t) {
			t.Fatalf("a second proxy: %s, %s", again.text, d.text)
		} else if again.Status.ClientKeyData != d.Status.ClientKeyData {
			t.Error("another pair for the next parent of the same proxy")
		}
	}
	pid := h.proxy().PID
	first.lock.release()
	others[0].lock.release()
	// An end would come within a second of the release.
	end := make(chan struct{})
	wait := processEnd(t, pid)
	go func() { wait(); close(end) }()
	select {
	case <-end:
		t.Fatal("the proxy ended while a parent holds its lock")
	case <-time.After(1500 * time.Millisecond):
	}
	get(t, client, u.url+"/version")
	begin := time.Now()
	others[1].lock.release()
	<-end
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it ended %v after the last lock came free", took)
	}
	h.gone(d.socket(t), time.Second)
}

// TestStoppedParent: a parent that is stopped still holds its lock.
func TestStoppedParent(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	argument, err := json.Marshal(h.libraryRole(suite.cluster.API.URL, suite.cluster.CA.PEM, mtls(cert, key)))
	must(t, err)
	b := h.startCmd(h.role(roleClient, string(argument)))
	b.stdout.await(t, "\n")
	pid := h.proxy().PID
	must(t, syscall.Kill(b.cmd.Process.Pid, syscall.SIGSTOP))
	end := make(chan struct{})
	wait := processEnd(t, pid)
	go func() { wait(); close(end) }()
	select {
	case <-end:
		t.Error("the proxy ended with its parent only stopped")
	case <-time.After(1500 * time.Millisecond):
	}
	b.signal(syscall.SIGKILL)
	<-end
	h.forgetLock()
}

// TestInheritedLock: a lock descriptor that leaks into the plugin must not
// keep the lock alive in the daemon.
func TestInheritedLock(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	cmd := h.command(h.bin, "exec")
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	cmd.ExtraFiles = []*os.File{p.lock.f}
	d := decode(t, h.do(cmd).ok(t))
	get(t, d.client(t, u.url), u.url+"/version")
	p.lock.release()
	h.gone(d.socket(t), 2*time.Second)
}

// TestIdleEnd: without a lock the daemon ends when no client has been
// connected for a while, and not before.
func TestIdleEnd(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	const idle = 2500 * time.Millisecond
	p := h.jane(u).onLoopback(t)
	p.config["idleTimeout"] = idle.String()
	r := h.exec(p)
	d := decode(t, r.ok(t))
	if d.Status.ProxyConfig != nil {
		t.Errorf("proxyConfig for a client that gave no lock: %s", d.text)
	}
	s := h.proxy()
	end := make(chan time.Time, 1)
	wait := processEnd(t, s.PID)
	go func() { wait(); end <- time.Now() }()
	// A connected client, even a silent one, is not idleness.
	watch, err := h.loopback(d, p.server).Get(p.server + "/watch")
	must(t, err)
	select {
	case <-end:
		t.Fatal("it ended with a watch open")
	case <-time.After(2 * idle):
	}
	closed := time.Now()
	_ = watch.Body.Close()
	if took := (<-end).Sub(closed); took < idle-200*time.Millisecond || took > idle+3*time.Second {
		t.Errorf("it ended %v after the last client, want %v", took, idle)
	}
	h.gone(s.Socket, time.Second)
}

// loopback returns a client of the loopback listener with the pair of a
// document; the CA is what `execproxy kubeconfig` would have printed.
func (h *home) loopback(d *document, server string) *http.Client {
	h.t.Helper()
	d.Status.ProxyConfig = &struct {
		URL string
		CA  []byte `json:"certificate-authority-data"`
	}{CA: h.localCA()}
	transport := &http.Transport{TLSClientConfig: d.tls(h.t, server), ForceAttemptHTTP2: true, DisableKeepAlives: true}
	return &http.Client{Transport: transport}
}

// localCA returns the certificate of this home's loopback CA.
func (h *home) localCA() []byte {
	h.t.Helper()
	cert, key := h.user("ca-reader")
	out := h.execproxy("kubeconfig", "--kubeconfig", h.kubeconfig("ca-reader", "https://127.0.0.1:1", cert, key)).ok(h.t)
	return clusterCA(h.t, out)
}

func TestKillNineAndAgain(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	d := h.open(p)
	first := h.proxy()
	end := processEnd(t, first.PID)
	must(t, syscall.Kill(first.PID, syscall.SIGKILL))
	end()
	if _, err := os.Stat(d.socket(t)); err != nil {
		t.Fatalf("a killed daemon cannot have cleaned up: %v", err)
	}
	again := h.open(p)
	if again.socket(t) != d.socket(t) {
		t.Errorf("the next daemon is at %s, the first was at %s", again.socket(t), d.socket(t))
	}
	get(t, again.client(t, u.url), u.url+"/version")
	if s := h.proxy(); s.PID == first.PID {
		t.Errorf("the dead daemon is still shown: %+v", s)
	}
}

// TestFiftyStarts: fifty plugins race over the socket of a dead daemon; there
// is one daemon in the end, and all are served by it.
func TestFiftyStarts(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	h.open(p)
	dead := h.proxy().PID
	end := processEnd(t, dead)
	must(t, syscall.Kill(dead, syscall.SIGKILL))
	end()
	const n = 50
	results := make([]result, n)
	plugins := make([]plugin, n)
	for i := range n {
		plugins[i] = p
		plugins[i].lock = h.lock()
	}
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range n {
		wg.Go(func() { results[i] = h.exec(plugins[i]) })
	}
	wg.Wait()
	t.Logf("%d starts took %v", n, time.Since(begin))
	pairs := map[string]bool{}
	var d *document
	for _, r := range results {
		if r.code != 0 || r.stderr != "" {
			t.Fatal(r)
		}
		d = decode(t, r.stdout)
		pairs[d.socket(t)+d.Status.ClientKeyData+string(d.Status.ProxyConfig.CA)] = true
		get(t, d.client(t, u.url), u.url+"/version")
	}
	if len(pairs) != 1 {
		t.Errorf("%d different answers", len(pairs))
	}
	if left := processes(h.dir); len(left) != 1 {
		t.Errorf("%d daemons: %v", len(left), left)
	}
	if s := h.proxy(); s.Handshakes.Full != 1 {
		t.Errorf("%d full handshakes", s.Handshakes.Full)
	}
}

// TestControlC: it reaches the client's process group, not the daemon.
func TestControlC(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	for name, p := range map[string]plugin{"lock": h.jane(u), "loopback": h.jane(u).onLoopback(t)} {
		cmd := h.command("sh", "-c", `"$0" exec && echo done && read -r line`, h.bin)
		cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
		b := h.startCmd(cmd)
		out := b.stdout.await(t, "done\n")
		before := processes(h.dir)
		b.signal(syscall.SIGINT)
		if code := b.wait(); code != 130 {
			t.Fatalf("%s: the client's shell ended with %d", name, code)
		}
		document, _, _ := strings.Cut(out, "done\n")
		d := decode(t, document)
		if p.lock != nil { // this test holds it, not the shell
			get(t, d.client(t, p.server), p.server+"/version")
		} else {
			get(t, h.loopback(d, p.server), p.server+"/version")
		}
		if after := processes(h.dir); len(after) != len(before) || len(after) == 0 {
			t.Errorf("%s: before Ctrl-C %v, after it %v", name, before, after)
		}
	}
}

// TestPipesAreReleased: a caller that reads stdout and stderr to their ends
// has them at once; the daemon holds neither.
func TestPipesAreReleased(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	for _, what := range []string{"cold", "warm"} {
		r := h.exec(p) // waits for both ends
		r.ok(t)
		t.Logf("%s: stdout and stderr ended after %v", what, r.took)
		if r.took > 5*time.Second {
			t.Errorf("%s: they ended after %v", what, r.took)
		}
	}
	if os.Getuid() != 0 {
		return // the daemon hides the rest from its own user
	}
	pid := h.proxy().PID
	for fd, want := range map[int]string{0: "/dev/null", 1: "/dev/null"} {
		if got, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)); err != nil || got != want {
			t.Errorf("descriptor %d of the daemon is %q, %v; want %s", fd, got, err, want)
		}
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); err != nil || cwd != "/" {
		t.Errorf("the daemon's directory is %q, %v; want /", cwd, err)
	}
}

// TestForeground: the plugin itself serves, and ends with the lock.
func TestForeground(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	p := h.jane(u)
	cmd := h.command(h.bin, "exec", "--foreground")
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	b := h.startCmd(cmd)
	d := decode(t, b.stdout.await(t, "\n"))
	get(t, d.client(t, u.url), u.url+"/version")
	if s := h.proxy(); s.PID != cmd.Process.Pid {
		t.Errorf("process %d serves, want the plugin's own, %d", s.PID, cmd.Process.Pid)
	}
	p.lock.release()
	b.wait()
	h.gone(d.socket(t), time.Second)
}
