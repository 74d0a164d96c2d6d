//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// sigv4Flags are the flags of a user with the shared AWS credentials.
func (h *home) sigv4Flags(url string) []string {
	h.t.Helper()
	h.sharedCredentials()
	return []string{"--server", url, "--certificate-authority", suite.cluster.Dir + "/ca.crt",
		"--auth", "sigv4", "--aws-region", "eu-central-1", "--aws-service", "execute-api"}
}

// serveJane starts a proxy for jane's certificate.
func (h *home) serveJane(url string, more ...string) *server {
	h.t.Helper()
	cert, key := h.user("jane", "dev")
	return h.serve(append(upstreamFlags(url, cert, key), more...)...)
}

func (s *server) address() string { return strings.TrimPrefix(s.listen, "https://") }

// tls is what a client makes of the kubeconfig that serve wrote.
func (s *server) tls(t *testing.T, protocols ...string) *tls.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	must(t, err)
	c, err := rest.TLSConfigFor(config)
	must(t, err)
	c.ServerName, c.NextProtos = "127.0.0.1", protocols
	return c
}

// dial opens a connection for raw bytes to the loopback listener.
func (s *server) dial(t *testing.T, protocol string) *tls.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", s.address())
	must(t, err)
	conn := tls.Client(raw, s.tls(t, protocol))
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	must(t, conn.Handshake())
	return conn
}

// http1 and http2 are clients of the loopback listener that speak only that;
// the second sends all it can over one connection.
func (s *server) http1(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: s.tls(t, "http/1.1"), MaxIdleConnsPerHost: 1000}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (s *server) http2(t *testing.T) *http.Client {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: s.tls(t), ForceAttemptHTTP2: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// memoryOf returns a line of /proc/PID/status that is an amount of memory.
func memoryOf(t *testing.T, pid int, name string) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, found := strings.CutPrefix(lines.Text(), name+":"); found {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
			must(t, err)
			return kb << 10
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return 0
}

// bound is an amount of memory that nothing may exceed; the race detector needs
// more for itself.
func bound(bytes int64) int64 {
	if os.Getenv("EXECPROXY_TEST_RACE") != "" {
		return 12 * bytes
	}
	return bytes
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// wire is a piece of network between execproxy and its API server: it can go
// dead, which loses what is sent without telling anybody.
type wire struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	dead  chan struct{} // closed: connections of this wire pass nothing any more
	conns []net.Conn
}

// newWire leads to an address; the URL of its other end is returned with it.
func newWire(t *testing.T, url string) (*wire, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := &wire{listener: l, to: strings.TrimPrefix(url, "https://"), dead: make(chan struct{})}
	t.Cleanup(func() {
		_ = l.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, c := range w.conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", w.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, in, out)
			dead := w.dead
			w.mu.Unlock()
			go carry(out, in, dead)
			go carry(in, out, dead)
		}
	}()
	return w, "https://" + l.Addr().String()
}

// carry passes bytes on until the wire is dead; then it takes them and keeps
// even the end of the connection to itself.
func carry(dst, src net.Conn, dead <-chan struct{}) {
	buf := make([]byte, 32<<10)
	for {
		n, err := src.Read(buf)
		select {
		case <-dead:
			swallow(src, buf)
			return
		default:
		}
		if err != nil {
			_ = dst.Close()
			return
		}
		if _, err := dst.Write(buf[:n]); err != nil {
			_ = src.Close()
			return
		}
	}
}

func swallow(src net.Conn, buf []byte) {
	for {
		if _, err := src.Read(buf); err != nil {
			return
		}
	}
}

// cut makes the wire dead for all connections that there are, and alive for
// those that come when mend is called.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.dead)
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = make(chan struct{})
}

// firstLine opens a watch and reads its first event.
func firstLine(ctx context.Context, client *http.Client, url string) (*http.Response, *bufio.Reader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	r := bufio.NewReaderSize(resp.Body, 512)
	line, err := r.ReadString('\n')
	if err == nil && (resp.StatusCode != http.StatusOK || line != firstEvent) {
		err = fmt.Errorf("%s: %q", resp.Status, line)
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, nil, err
	}
	return resp, r, nil
}

// isTimeout tells a deadline of the test's own from an answer of the peer.
func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
