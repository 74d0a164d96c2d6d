package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execproxy/execproxy/lockfile"
	"github.com/execproxy/execproxy/proxy/clientauthentication"
)

// The plugin is the proxy: it prints its document and goes on running.
func TestForeground(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	lock := c.lock.Path()
	if err := c.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !c.present().plugin.running() {
		t.Error("the plugin has ended: nothing was to be seen of not waiting for it")
	}
	s := b.get(c, "/api/v1/pods")
	if s.Proto != "HTTP/2.0" || s.Host != "k8s.example:6443" || s.Path != "/api/v1/pods" || s.Client != "session" {
		t.Errorf("the proxy saw %+v", s)
	}
	info, err := clientauthentication.DecodeInfo([]byte(s.Info))
	if err != nil {
		t.Fatal(err)
	}
	if info.Spec.Cluster.Server != "https://k8s.example:6443" || info.Spec.LockFilePath != lock || info.Spec.Interactive {
		t.Errorf("the plugin was told %s", s.Info)
	}
	plugin := c.present().plugin
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if plugin.running() || plugin.err != nil {
		t.Errorf("after Close the plugin runs: %v, ended with %v", plugin.running(), plugin.err)
	}
	for _, path := range []string{lock, filepath.Dir(lock), b.socket} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s was left behind: %v", path, err)
		}
	}
	if _, err := get(c, "/"); !errors.Is(err, ErrClosed) {
		t.Errorf("a request after Close: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	b.executions(1)
}

// The plugin exits and leaves the proxy behind, which ends with the lock.
func TestDetached(t *testing.T) {
	b := newBench(t)
	life := filepath.Join(b.dir, "life")
	c := b.client("detach", env("LIFE="+life))
	b.get(c, "/")
	plugin := c.present().plugin
	<-plugin.done
	b.get(c, "/")
	proxy, err := lockfile.Open(life)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Close()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := proxy.Wait(ctx); err != nil {
		t.Errorf("the proxy lives on: %v", err)
	}
	b.executions(1)
}

// Requests that start together share one execution and one connection.
func TestParallel(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	together(t, 50, func() error {
		s, err := get(c, "/")
		if err == nil && (s.Conns != 1 || s.Proto != "HTTP/2.0") {
			t.Errorf("connection %d, %s", s.Conns, s.Proto)
		}
		return err
	})
	b.executions(1)
}

func together(t *testing.T, n int, f func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A proxy that has died is started again, once for all who wait.
func TestExecutedAgain(t *testing.T) {
	for name, ruin := range map[string]func(b *bench, p *child){
		"refused": func(*bench, *child) {},
		"missing": func(b *bench, _ *child) { _ = os.Remove(b.socket) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			c := b.client("serve")
			first := b.get(c, "/")
			plugin := c.present().plugin
			forget(c)
			if err := plugin.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-plugin.done
			if _, err := os.Lstat(b.socket); err != nil {
				t.Fatalf("no stale socket: %v", err)
			}
			ruin(b, plugin)
			together(t, 50, func() error {
				s, err := get(c, "/")
				if err == nil && (s.PID == first.PID || s.Conns != 1) {
					t.Errorf("process %d, connection %d", s.PID, s.Conns)
				}
				return err
			})
			b.executions(2)
			if c.fails != 0 {
				t.Errorf("%d failures are still counted", c.fails)
			}
		})
	}
}

// The socket is refused and stays so: an error, and not an execution per request.
func TestNeverAnswers(t *testing.T) {
	b := newBench(t)
	a := mustAuthority(t)
	b.listen(a, a, nil).close() // leaves no socket
	b.answer(a.status(b.socket, time.Now().Add(time.Hour)))
	c := b.client("file")
	_, err := get(c, "/")
	mustSay(t, err, b.socket)
	b.executions(2)
	_, err = get(c, "/")
	mustSay(t, err, "next attempt in", "1 failed", b.socket)
	b.executions(2)
}

func TestClosePatience(t *testing.T) {
	b := newBench(t)
	c := b.client("deaf")
	c.grace = 50 * time.Millisecond
	b.get(c, "/")
	plugin := c.present().plugin
	mustSay(t, c.Close(), "ran on for 50ms", "killed")
	if plugin.running() {
		t.Error("the plugin still runs")
	}
}

// Who gives up does not take the plugin from those who wait on.
func TestImpatientCaller(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Start returned %v", err)
	}
	if err := c.Start(t.Context()); err != nil {
		t.Error(err)
	}
	b.executions(1)
}

func TestNew(t *testing.T) {
	cluster := func(server string) clientauthentication.Cluster { return clientauthentication.Cluster{Server: server} }
	for name, o := range map[string]Options{
		"no command":  {Cluster: cluster("https://a")},
		"http":        {Command: "x", Cluster: cluster("http://a")},
		"no host":     {Command: "x", Cluster: cluster("https://")},
		"version":     {Command: "x", APIVersion: "v1"},
		"config":      {Command: "x", Cluster: clientauthentication.Cluster{Server: "https://a", Config: []byte("{")}},
		"no lock dir": {Command: "x", LockFile: filepath.Join(t.TempDir(), "none", "lock")},
	} {
		if c, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
			_ = c.Close()
		}
	}
	lock := filepath.Join(t.TempDir(), "lock")
	c, err := New(Options{Command: "x", LockFile: lock})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Command: "x", LockFile: lock}); !errors.Is(err, lockfile.ErrHeld) {
		t.Errorf("a second client with the same lock file: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(lock); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file was left: %v", err)
	}
	if _, err := os.Lstat(filepath.Dir(lock)); err != nil {
		t.Errorf("its directory is not ours to remove: %v", err)
	}
}

// What a caller gets is its own.
func TestCredential(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	cred, err := c.Credential(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if cred.Status.ProxyConfig.URL != "unix://"+b.socket || cred.Status.ClientKeyData == "" {
		t.Errorf("credential %v", cred)
	}
	cred.Status.ProxyConfig.CertificateAuthorityData[0]++
	cred.Status.ProxyConfig.URL, cred.Status.ClientKeyData = "", ""
	config, err := c.TLSConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	config.RootCAs, config.Certificates = nil, nil
	b.get(c, "/")
	b.executions(1)
}

// DialContext and TLSConfig are the parts of DialTLSContext.
func TestDial(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	raw, err := c.DialContext(t.Context(), "tcp", "k8s.example:6443")
	if err != nil {
		t.Fatal(err)
	}
	config, err := c.TLSConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := tls.Client(raw, config).HandshakeContext(t.Context()); err != nil {
		t.Error(err)
	}
	conn, err := c.DialTLSContext(t.Context(), "tcp", "whatever:1")
	if err != nil {
		t.Fatal(err)
	}
	if state := conn.(*tls.Conn).ConnectionState(); state.NegotiatedProtocol != "h2" || state.ServerName != "k8s.example" {
		t.Errorf("%s for %s", state.NegotiatedProtocol, state.ServerName)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for _, conn := range []interface{ Write([]byte) (int, error) }{raw, conn} {
		if _, err := conn.Write([]byte("x")); err == nil {
			t.Error("Close left a connection open")
		}
	}
	if n := len(c.conns); n != 0 {
		t.Errorf("%d connections are still known", n)
	}
}

// An upgrade needs HTTP/1.1, and the proxy may be another one by then.
func TestDialHTTP1(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	for executions := range 2 {
		conn, err := c.DialHTTP1Context(t.Context(), "tcp", "k8s.example:6443")
		if err != nil {
			t.Fatal(err)
		}
		if state := conn.(*tls.Conn).ConnectionState(); state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("agreed on %q", state.NegotiatedProtocol)
		}
		b.executions(executions + 1)
		plugin := c.present().plugin
		plugin.kill()
		<-plugin.done
	}
	if s := b.get(c, "/"); s.Proto != "HTTP/2.0" {
		t.Errorf("requests are sent in %s", s.Proto)
	}
}

// A plugin gets more of an environment, and less of a cluster, than others.
func TestExtraEnv(t *testing.T) {
	b := newBench(t)
	c := b.client("serve", func(o *Options) {
		o.OmitCluster = true
		o.ExtraEnv = append(o.Env, "SOCKET=/nonexistent", "SOCKET="+b.socket)
		o.Env = nil
	})
	s := b.get(c, "/")
	if strings.Contains(s.Info, "k8s.example") {
		t.Errorf("the plugin was told %s", s.Info)
	}
	if _, err := c.DialTLSContext(t.Context(), "tcp", "k8s.example:6443"); err != nil {
		t.Error(err)
	}
}

// Each execution is told of, once.
func TestExecuted(t *testing.T) {
	b := newBench(t)
	var told []error
	c := b.client("fail", env("STDERR=broken"), func(o *Options) { o.Executed = func(err error) { told = append(told, err) } })
	together(t, 20, func() error {
		mustSay(t, c.Start(t.Context()), "broken")
		return nil
	})
	var failed *PluginError
	if len(told) != 1 || !errors.As(told[0], &failed) {
		t.Errorf("told of %v", told)
	}
	b.executions(1)
}

func TestWithoutCluster(t *testing.T) {
	b := newBench(t)
	c := b.client("serve", func(o *Options) { o.Cluster = clientauthentication.Cluster{} })
	s := b.get(c, "/")
	if strings.Contains(s.Info, "cluster") {
		t.Errorf("the plugin was told %s", s.Info)
	}
	_, err := c.DialTLSContext(t.Context(), "tcp", "other.example:443")
	mustSay(t, err, "other.example")
}

func TestOtherHosts(t *testing.T) {
	b := newBench(t)
	c := b.client("serve")
	for _, url := range []string{"http://k8s.example:6443/", "https://k8s.example/", "https://other.example:6443/", "unix:///x"} {
		r, err := http.NewRequest("POST", url, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := do(c, r); err == nil {
			t.Errorf("a request to %s was sent", url)
		}
	}
	b.executions(0)
	_, err := get(c, "/redirect")
	mustSay(t, err, "elsewhere.example", "alone")
	b.get(c, "/") // and capitals are the same host
	r, _ := http.NewRequest("GET", "https://K8S.example:6443/", nil)
	if _, err := do(c, r); err != nil {
		t.Error(err)
	}
}

// BenchmarkRoundTrip is the client's own cost of a request, and a test proxy's.
func BenchmarkRoundTrip(b *testing.B) {
	w := newBench(b)
	a := mustAuthority(b)
	w.listen(a, a, nil)
	w.answer(a.status(w.socket, time.Now().Add(time.Hour)))
	c := w.client("file")
	w.get(c, "/")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := get(c, "/"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart is the time from New to the plugin's document, and Close.
func BenchmarkStart(b *testing.B) {
	w := newBench(b)
	w.answer(mustAuthority(b).status(w.socket, time.Now().Add(time.Hour)))
	for b.Loop() {
		c := w.client("file")
		if err := c.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
