//go:build linux

package integration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// server is a running `execproxy serve`.
type server struct {
	*background
	kubeconfig string // what it wrote
	listen     string // https://127.0.0.1:PORT
}

// serve starts it with a loopback listener and waits until it accepts.
func (h *home) serve(args ...string) *server {
	h.t.Helper()
	s := &server{kubeconfig: h.path("serve.kubeconfig"), listen: fmt.Sprintf("https://127.0.0.1:%d", freePort(h.t))}
	s.background = h.start(append([]string{h.bin, "serve", "--listen", s.listen, "--kubeconfig-out", s.kubeconfig}, args...)...)
	eventually(h.t, patience, func() error {
		select {
		case <-s.done:
			h.t.Fatalf("serve ended with exit code %d: %s", s.code, s.stderr)
		default:
		}
		_, err := os.Stat(s.kubeconfig) // written last
		return err
	})
	return s
}

// client is one made of the kubeconfig that serve wrote.
func (s *server) client(t *testing.T) *http.Client {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	must(t, err)
	c, err := rest.HTTPClientFor(config)
	must(t, err)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// upstreamFlags are the flags of a user with a certificate at a server.
func upstreamFlags(url, cert, key string) []string {
	return []string{"--server", url, "--certificate-authority", suite.cluster.Dir + "/ca.crt", "--auth", "mtls", "--cert", cert, "--key", key}
}

func TestServe(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	socket := h.path("r/api.sock")
	s := h.serve(append(upstreamFlags(suite.cluster.API.URL, cert, key), "--listen", "unix://"+socket)...)
	info, err := os.Stat(s.kubeconfig)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("--kubeconfig-out has mode %v, want 0600", info.Mode())
	}
	config, err := clientcmd.LoadFromFile(s.kubeconfig)
	must(t, err)
	for name, user := range config.AuthInfos {
		if user.Exec != nil || user.Token != "" || len(user.ClientCertificateData) == 0 || len(user.ClientKeyData) == 0 {
			t.Errorf("user %s of --kubeconfig-out must have a pair and no plugin", name)
		}
	}
	everyday(t, h, s.kubeconfig, namespace(t), "jane")

	// A plugin beside it answers for it instead of starting another.
	r := h.exec(plugin{server: suite.cluster.API.URL, lock: h.lock(), args: []string{"--socket", socket}})
	r.ok(t)
	d := decode(t, r.stdout)
	if got := d.socket(t); got != socket {
		t.Errorf("exec --socket answers with socket %s, want %s", got, socket)
	}
	get(t, d.client(t, suite.cluster.API.URL), suite.cluster.API.URL+"/api/v1/namespaces")
	p := h.proxy()
	if p.PID != s.cmd.Process.Pid {
		t.Errorf("status shows process %d, serve is %d", p.PID, s.cmd.Process.Pid)
	}
	s.signal(syscall.SIGTERM)
	if code := s.wait(); code != 0 {
		t.Errorf("serve ended with exit code %d after SIGTERM: %s", code, s.stderr)
	}
	if s.stdout.String() != "" {
		t.Errorf("stdout of serve: %s", s.stdout)
	}
	h.gone(socket, time.Second)
}

func TestServeKubeconfigContext(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	cert, key := h.user("jane", "dev")
	s := h.serve("--kubeconfig", h.kubeconfig("plain", suite.cluster.API.URL, cert, key), "--context", "work")
	if got := whoami(t, h, s.kubeconfig); got != "jane" {
		t.Errorf("auth whoami: %q", got)
	}
}

// TestServeRandomPort: port 0 is one that the kubeconfig tells.
func TestServeRandomPort(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	out := h.path("out")
	b := h.start(append([]string{h.bin, "serve", "--listen", "https://127.0.0.1:0", "--kubeconfig-out", out}, upstreamFlags(u.url, cert, key)...)...)
	eventually(t, patience, func() error { _, err := os.Stat(out); return err })
	s := &server{background: b, kubeconfig: out}
	config, err := clientcmd.BuildConfigFromFlags("", out)
	must(t, err)
	if strings.HasSuffix(config.Host, ":0") {
		t.Fatalf("the kubeconfig names %s", config.Host)
	}
	get(t, s.client(t), config.Host+"/version")
}

// TestServeDrains: SIGTERM refuses the new and finishes what it began.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	h, u := newHome(t), newUpstream(t)
	cert, key := h.user("jane", "dev")
	s := h.serve(upstreamFlags(u.url, cert, key)...)
	client := s.client(t)
	want := sha256.Sum256(u.body)

	resp, err := client.Get(s.listen + "/large")
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	<-u.half
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	// The signal has arrived when nobody is let in any more.
	address := strings.TrimPrefix(s.listen, "https://")
	eventually(t, 5*time.Second, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("%s still accepts", address)
		}
		return nil
	})
	select {
	case <-s.done:
		t.Fatalf("serve ended with a request in flight: %s", s.stderr)
	default:
	}
	u.release()
	hash := sha256.New()
	n, err := io.Copy(hash, resp.Body)
	if err != nil || hex.EncodeToString(hash.Sum(nil)) != hex.EncodeToString(want[:]) {
		t.Errorf("the body in flight: %d of %d bytes, %v", n, len(u.body), err)
	}
	if code := s.wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, s.stderr)
	}
}

// TestServeDrainDeadline: what never ends is cut, and a body that was cut is an
// error for its reader, not a short success.
func TestServeDrainDeadline(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]bool{"deadline": false, "second signal": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, u := newHome(t), newUpstream(t)
			cert, key := h.user("jane", "dev")
			timeout := "1s"
			if second {
				timeout = "10m"
			}
			s := h.serve(append(upstreamFlags(u.url, cert, key), "--drain-timeout", timeout)...)
			resp, err := s.client(t).Get(s.listen + "/large")
			must(t, err)
			defer func() { _ = resp.Body.Close() }()
			<-u.half
			must(t, s.cmd.Process.Signal(syscall.SIGTERM))
			if second {
				address := strings.TrimPrefix(s.listen, "https://")
				eventually(t, 5*time.Second, func() error {
					conn, err := net.Dial("tcp", address)
					if err == nil {
						_ = conn.Close()
						return fmt.Errorf("%s still accepts", address)
					}
					return nil
				})
				must(t, s.cmd.Process.Signal(syscall.SIGTERM))
			}
			begin := time.Now()
			s.wait()
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("it ended %v later", took)
			}
			if n, err := io.Copy(io.Discard, resp.Body); err == nil {
				t.Errorf("%d of %d bytes look like a whole body", n, len(u.body))
			}
			h.gone("", time.Second)
		})
	}
}
