//go:build linux

package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// object is JSON as a test writes it.
type object map[string]any

// lock is a lock file held as a client holds it, made with the system call alone.
type lock struct{ f *os.File }

var locks atomic.Int64

func (h *home) lock() *lock {
	h.t.Helper()
	path := h.path("lock" + strconv.FormatInt(locks.Add(1), 10))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	must(h.t, err)
	h.own(path)
	must(h.t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	l := &lock{f}
	h.t.Cleanup(l.release)
	return l
}

func (l *lock) path() string { return l.f.Name() }
func (l *lock) release()     { _ = l.f.Close() }
func (l *lock) unlock()      { _ = syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN) }

// plugin is one call of the plugin by a client.
type plugin struct {
	server  string
	ca      []byte // of the server
	config  object // the kubeconfig's exec extension
	lock    *lock
	version string   // default v1
	args    []string // after exec
	raw     string   // the whole KUBERNETES_EXEC_INFO, instead of the rest
}

func (p plugin) info() string {
	if p.raw != "" {
		return p.raw
	}
	if p.version == "" {
		p.version = "v1"
	}
	spec := object{"interactive": false}
	if p.lock != nil {
		spec["lockFilePath"] = p.lock.path()
	}
	if p.server != "" {
		c := object{"server": p.server, "config": p.config}
		if p.ca != nil {
			c["certificate-authority-data"] = p.ca
		}
		spec["cluster"] = c
	}
	out, err := json.Marshal(object{"apiVersion": "client.authentication.k8s.io/" + p.version, "kind": "ExecCredential", "spec": spec})
	if err != nil {
		panic(err)
	}
	return string(out)
}

// exec runs the plugin as a client does and returns what became of it.
func (h *home) exec(p plugin) result {
	h.t.Helper()
	cmd := h.command(append([]string{h.bin, "exec"}, p.args...)...)
	cmd.Env = append(cmd.Env, "KUBERNETES_EXEC_INFO="+p.info())
	return h.do(cmd)
}

// open runs the plugin, which must succeed, and decodes its answer.
func (h *home) open(p plugin) *document {
	h.t.Helper()
	r := h.exec(p)
	if r.code != 0 || r.stderr != "" {
		h.t.Fatalf("the plugin must succeed and print nothing on stderr: %s", r)
	}
	return decode(h.t, r.stdout)
}

// document is the plugin's answer.
type document struct {
	APIVersion, Kind string
	Status           struct {
		ExpirationTimestamp                  time.Time
		Token                                *string
		ClientCertificateData, ClientKeyData string
		ProxyConfig                          *struct {
			URL string
			CA  []byte `json:"certificate-authority-data"`
		}
	}
	text string
}

func decode(t *testing.T, text string) *document {
	t.Helper()
	d := &document{text: text}
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(d); err != nil {
		t.Fatalf("the plugin's answer: %v in %q", err, text)
	}
	if _, err := dec.Token(); err != io.EOF {
		t.Fatalf("more than one document: %q", text)
	}
	if strings.Contains(text, "null") || strings.Contains(text, `""`) {
		t.Errorf("null or empty field in %s", text)
	}
	if left := time.Until(d.Status.ExpirationTimestamp); left < 50*time.Second || left > 10*time.Minute {
		t.Errorf("expires in %v", left)
	}
	return d
}

// socket returns the path of the proxy's socket.
func (d *document) socket(t *testing.T) string {
	t.Helper()
	if d.Status.ProxyConfig == nil {
		t.Fatalf("no proxyConfig in %s", d.text)
	}
	path, found := strings.CutPrefix(d.Status.ProxyConfig.URL, "unix://")
	if !found || !filepath.IsAbs(path) {
		t.Fatalf("proxyConfig.url is %q", d.Status.ProxyConfig.URL)
	}
	return path
}

// tls is the configuration that a client makes of the answer.
func (d *document) tls(t *testing.T, server string, protocols ...string) *tls.Config {
	t.Helper()
	u, err := url.Parse(server)
	must(t, err)
	pair, err := tls.X509KeyPair([]byte(d.Status.ClientCertificateData), []byte(d.Status.ClientKeyData))
	must(t, err)
	pool := x509.NewCertPool()
	if d.Status.ProxyConfig == nil || !pool.AppendCertsFromPEM(d.Status.ProxyConfig.CA) {
		t.Fatalf("no proxyConfig with a CA in %s", d.text)
	}
	return &tls.Config{RootCAs: pool, ServerName: u.Hostname(), Certificates: []tls.Certificate{pair}, NextProtos: protocols}
}

// client returns an HTTP client that speaks to server through the proxy; it
// shares no code with the product's own.
func (d *document) client(t *testing.T, server string) *http.Client {
	t.Helper()
	socket := d.socket(t)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		TLSClientConfig:   d.tls(t, server),
		ForceAttemptHTTP2: true,
	}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// dial opens a connection for raw HTTP/1.1 through the proxy.
func (d *document) dial(t *testing.T, server string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	raw, err := net.Dial("unix", d.socket(t))
	must(t, err)
	conn := tls.Client(raw, d.tls(t, server, "http/1.1"))
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	must(t, conn.Handshake())
	return conn, bufio.NewReader(conn)
}

// upgrade sends an upgrade request and insists on 101.
func (d *document) upgrade(t *testing.T, server, method, target, protocol string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	conn, r := d.dial(t, server)
	u, err := url.Parse(server)
	must(t, err)
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", method, target, u.Host, protocol)
	must(t, err)
	resp, err := http.ReadResponse(r, nil)
	must(t, err)
	if resp.StatusCode != http.StatusSwitchingProtocols || !strings.EqualFold(resp.Header.Get("Upgrade"), protocol) {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 2048))
		t.Fatalf("upgrade to %s: %s, Upgrade %q: %s", protocol, resp.Status, resp.Header.Get("Upgrade"), body)
	}
	return conn, r
}

// get reads a whole answer and insists on 200.
func get(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	resp, err := client.Get(url)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s: %s", url, resp.Status, body)
	}
	return string(body)
}
