package transport

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority signs what the tests need.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	check(t, err)
	a := &authority{key: key, pool: x509.NewCertPool()}
	a.cert, err = x509.ParseCertificate(der)
	check(t, err)
	a.pool.AddCert(a.cert)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	return key
}

// issue makes a certificate for a user, or with names for a server.
func (a *authority) issue(t testing.TB, user string, notAfter time.Time, names ...string) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: user},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: notAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, n := range names {
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(n); ip != nil {
			tmpl.IPAddresses = append(tmpl.IPAddresses, ip)
		} else {
			tmpl.DNSNames = append(tmpl.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	check(t, err)
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: onlySigner{key}}
}

// onlySigner is what a key in a device looks like to us.
type onlySigner struct{ crypto.Signer }

// server is an API server as far as TLS and HTTP go.
type server struct {
	ca       *authority
	addr     string
	http     *http.Server
	full     atomic.Int64 // as the server counts handshakes
	resumed  atomic.Int64
	accepted atomic.Int64

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

type serverOptions struct {
	addr       string // to listen on again
	ca         *authority
	clients    *authority // another CA for the clients
	names      []string
	maxStreams int
	noHTTP2    bool
	clientAuth tls.ClientAuthType
	noTickets  bool
}

func serve(t testing.TB, o serverOptions, h http.Handler) *server {
	t.Helper()
	if o.addr == "" {
		o.addr = "127.0.0.1:0"
	}
	if o.ca == nil {
		o.ca = newAuthority(t)
	}
	if o.clients == nil {
		o.clients = o.ca
	}
	if o.names == nil {
		o.names = []string{"127.0.0.1", "api.test"}
	}
	if o.clientAuth == 0 {
		o.clientAuth = tls.RequireAndVerifyClientCert
	}
	s := &server{ca: o.ca, conns: map[net.Conn]struct{}{}}
	cert := o.ca.issue(t, "server", time.Now().Add(time.Hour), o.names...)
	config := &tls.Config{
		Certificates:           []tls.Certificate{*cert},
		ClientAuth:             o.clientAuth,
		ClientCAs:              o.clients.pool,
		SessionTicketsDisabled: o.noTickets,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if cs.DidResume {
				s.resumed.Add(1)
			} else {
				s.full.Add(1)
			}
			return nil
		},
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(!o.noHTTP2)
	s.http = &http.Server{
		Handler:   h,
		TLSConfig: config,
		Protocols: &protocols,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: o.maxStreams},
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: func(c net.Conn, st http.ConnState) {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch st {
			case http.StateNew:
				s.accepted.Add(1)
				s.conns[c] = struct{}{}
			case http.StateClosed:
				delete(s.conns, c)
			}
		},
	}
	l := listen(t, o.addr)
	s.addr = l.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); _ = s.http.ServeTLS(l, "", "") }()
	t.Cleanup(func() { _ = s.http.Close(); <-done })
	return s
}

// listen insists: a port that was just left may be held for a moment.
func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	check(t, err)
	return l
}

// kill cuts all connections as a crash would.
func (s *server) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		raw := c.(*tls.Conn).NetConn().(*net.TCPConn)
		_ = raw.SetLinger(0)
		_ = raw.Close()
	}
}

// client returns a Transport to s with a certificate that s accepts.
func (s *server) client(t testing.TB, change func(*Options)) *Transport {
	t.Helper()
	o := Options{Address: s.addr, RootCAs: s.ca.pool, Certificate: s.ca.issue(t, "alice", time.Now().Add(time.Hour))}
	if change != nil {
		change(&o)
	}
	return newTransport(t, o)
}

func newTransport(t testing.TB, o Options) *Transport {
	t.Helper()
	tr, err := New(o)
	check(t, err)
	t.Cleanup(func() { check(t, tr.Close()) })
	return tr
}

func request(t testing.TB, ctx context.Context, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://kubernetes"+path, body)
	check(t, err)
	return r
}

// get returns the body of the answer.
func get(t testing.TB, rt http.RoundTripper, path string) string {
	t.Helper()
	s, err := tryGet(t, rt, path)
	check(t, err)
	return s
}

func tryGet(t testing.TB, rt http.RoundTripper, path string) (string, error) {
	t.Helper()
	res, err := rt.RoundTrip(request(t, context.Background(), "GET", path, nil))
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantKind checks the kind of an error, that it is one line, and that it names
// the server.
func wantKind(t testing.TB, err, kind error, unsent bool) {
	t.Helper()
	var u *UpstreamError
	if !errors.Is(err, kind) || !errors.As(err, &u) {
		t.Fatalf("got %T %v, want %v", err, err, kind)
	}
	equal(t, "unsent", Unsent(err), unsent)
	if text := err.Error(); strings.ContainsAny(text, "\n\r") || !strings.HasPrefix(text, u.Server) || u.Server == "" {
		t.Errorf("message: %q", text)
	}
	t.Log(err)
}

// within fails when f has not returned in time: a guard, not a wait.
func within(t testing.TB, d time.Duration, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(d):
		t.Fatalf("%s: not within %v", what, d)
	}
}

// user answers with the name in the client certificate.
func user(w http.ResponseWriter, r *http.Request) {
	name := "anonymous"
	if len(r.TLS.PeerCertificates) > 0 {
		name = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	_, _ = fmt.Fprintf(w, "%s %s", r.Proto, name)
}

// streams is a handler whose /watch sends one line and goes on until let go.
type streams struct {
	open chan struct{} // one for each watch that began
	end  chan struct{} // closed: watches end
}

func newStreams() *streams {
	return &streams{open: make(chan struct{}, 10000), end: make(chan struct{})}
}

func (s *streams) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/watch" {
		user(w, r)
		return
	}
	_, _ = io.WriteString(w, "begin\n")
	w.(http.Flusher).Flush()
	s.open <- struct{}{}
	select {
	case <-s.end:
		_, _ = io.WriteString(w, "end\n")
	case <-r.Context().Done():
	}
}

// watch opens a stream and reads its first line.
func watch(t testing.TB, rt http.RoundTripper) io.ReadCloser {
	t.Helper()
	res, err := rt.RoundTrip(request(t, context.Background(), "GET", "/watch", nil))
	check(t, err)
	var line [6]byte
	_, err = io.ReadFull(res.Body, line[:])
	check(t, err)
	equal(t, "first line", string(line[:]), "begin\n")
	t.Cleanup(func() { _ = res.Body.Close() })
	return res.Body
}
