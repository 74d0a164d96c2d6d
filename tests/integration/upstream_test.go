//go:build linux

package integration

import (
	"bufio"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/execproxy/execproxy/tests/integration/internal/pki"
)

// seen is a request as it reached the fake upstream.
type seen struct {
	method, target, proto, host, user string
	header                            http.Header
	hash                              string // of the body
}

// upstream is an API server of the tests' own making that keeps what it was asked.
//
// A path that ends in /watch answers one event and then nothing, until hold is
// closed. An upgrade is answered 101 and echoes. /large answers body in two
// halves, the second when hold is closed. Everything else answers 200 and {}.
type upstream struct {
	*httptest.Server
	url  string
	hold chan struct{}
	once sync.Once
	body []byte // of /large
	half chan struct{}

	mu       sync.Mutex
	requests []seen
}

const firstEvent = `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"first"}}}` + "\n"

// newUpstream starts one with a certificate of the cluster's CA.
func newUpstream(t *testing.T) *upstream {
	t.Helper()
	return newNamedUpstream(t, "127.0.0.1", "localhost")
}

// newNamedUpstream starts one whose certificate has these names alone.
func newNamedUpstream(t *testing.T, names ...string) *upstream {
	t.Helper()
	pair, err := suite.cluster.CA.Issue(pki.Options{CommonName: "upstream", Hosts: names})
	must(t, err)
	cert, err := pair.TLS()
	must(t, err)
	u := &upstream{hold: make(chan struct{}), half: make(chan struct{}, 16), body: make([]byte, 8<<20)}
	for i := range u.body {
		u.body[i] = byte(i * 7 >> 3)
	}
	u.Server = httptest.NewUnstartedServer(u)
	u.TLS = &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: suite.cluster.CA.Pool(),
	}
	u.EnableHTTP2 = true
	u.StartTLS()
	u.url = u.URL
	t.Cleanup(func() {
		u.release()
		u.CloseClientConnections()
		u.Close()
	})
	return u
}

func (u *upstream) release() { u.once.Do(func() { close(u.hold) }) }

func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := seen{method: r.Method, target: r.RequestURI, proto: r.Proto, host: r.Host, header: r.Header.Clone()}
	if len(r.TLS.PeerCertificates) > 0 {
		s.user = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	upgrade := r.Header.Get("Upgrade")
	if upgrade == "" {
		h := sha256.New()
		_, _ = io.Copy(h, r.Body)
		s.hash = hex.EncodeToString(h.Sum(nil))
	}
	u.mu.Lock()
	u.requests = append(u.requests, s)
	u.mu.Unlock()

	w.Header().Set("Content-Type", "application/json")
	switch {
	case upgrade != "":
		echo(w, upgrade)
	case strings.HasSuffix(r.URL.Path, "/watch"):
		_, _ = io.WriteString(w, firstEvent)
		_ = http.NewResponseController(w).Flush()
		select {
		case <-u.hold:
		case <-r.Context().Done():
		}
	case r.URL.Path == "/large":
		_, _ = w.Write(u.body[:len(u.body)/2])
		_ = http.NewResponseController(w).Flush()
		u.half <- struct{}{}
		select {
		case <-u.hold:
			_, _ = w.Write(u.body[len(u.body)/2:])
		case <-r.Context().Done():
		}
	default:
		_, _ = io.WriteString(w, "{}\n")
	}
}

// echo switches protocols and sends back all that comes.
func echo(w http.ResponseWriter, protocol string) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusHTTPVersionNotSupported)
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocol)
	_ = rw.Flush()
	buf := make([]byte, 4096)
	for {
		n, err := rw.Read(buf)
		if err != nil {
			return
		}
		_, _ = rw.Write(buf[:n])
		_ = rw.Flush()
	}
}

// last returns the newest request whose target has the prefix.
func (u *upstream) last(t *testing.T, prefix string) seen {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := len(u.requests) - 1; i >= 0; i-- {
		if strings.HasPrefix(u.requests[i].target, prefix) {
			return u.requests[i]
		}
	}
	t.Fatalf("no request for %s reached the upstream; %d others did", prefix, len(u.requests))
	return seen{}
}

func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.requests)
}

// config is the exec extension for a user with a certificate.
func mtls(cert, key string) object { return object{"auth": "mtls", "cert": cert, "key": key} }

// echoes sends text over an upgraded connection and waits for it to come back.
func echoes(t *testing.T, w io.Writer, r *bufio.Reader, text string) {
	t.Helper()
	_, err := io.WriteString(w, text)
	must(t, err)
	back := make([]byte, len(text))
	if _, err := io.ReadFull(r, back); err != nil || string(back) != text {
		t.Fatalf("sent %q, got %q back: %v", text, back, err)
	}
}

func poolOf(pem []byte) *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}
