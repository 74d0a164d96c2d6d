package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/transport/h2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// authority issues the certificates of the tests.
type testAuthority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

var testCA = sync.OnceValue(newTestAuthority)

func newTestAuthority() *testAuthority {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	cert, _ := x509.ParseCertificate(der)
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &testAuthority{key, cert, pool}
}

func (a *testAuthority) issue(name string, notAfter time.Time) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name, "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

var (
	serverPair = sync.OnceValue(func() tls.Certificate { return testCA().issue("upstream.test", time.Now().Add(time.Hour)) })
	clientPair = sync.OnceValue(func() tls.Certificate { return testCA().issue("session", time.Now().Add(time.Hour)) })
)

func serverTLS(protos ...string) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{serverPair()}, NextProtos: protos, ClientCAs: testCA().pool, ClientAuth: tls.VerifyClientCertIfGiven}
}

func clientTLS(protos ...string) *tls.Config {
	return &tls.Config{RootCAs: testCA().pool, ServerName: "upstream.test", NextProtos: protos, Certificates: []tls.Certificate{clientPair()}}
}

// upstream starts a real TLS server that stands for the API server.
func upstream(t testing.TB, h2 bool, h http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = h2
	s.TLS = serverTLS()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.DisableGeneralOptionsHandler = true
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	u, _ := url.Parse(s.URL)
	return u
}

// outbound gives a way out as the real one is.
func outbound(t testing.TB, h2 bool) *http.Transport {
	tr := &http.Transport{TLSClientConfig: clientTLS(), ForceAttemptHTTP2: h2, DisableCompression: true}
	if !h2 {
		tr.Protocols = new(http.Protocols)
		tr.Protocols.SetHTTP1(true)
	}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// withoutStreams leaves everything to the handlers, by an environment variable: the
// same tests have to pass both ways.
var withoutStreams = os.Getenv("EXECPROXY_TEST_WITHOUT_STREAMS") != ""

// fieldSigner makes a signer of headers one of fields.
func fieldSigner(sign func(context.Context, *Request) (http.Header, error)) func(*Request, []signer.Field, *signer.Fields) (bool, error) {
	return func(r *Request, sent []signer.Field, out *signer.Fields) (bool, error) {
		view := *r
		view.Header = make(http.Header)
		for _, f := range sent {
			view.Header.Add(f.Name, f.Value)
		}
		h, err := sign(context.Background(), &view)
		for name, values := range h {
			for _, v := range values {
				out.AddBytes(strings.ToLower(name), []byte(v))
			}
		}
		return true, err
	}
}

// front is the proxy behind a real listener.
type front struct {
	*Proxy
	addr, network string
	logs          *logBuffer
	over          atomic.Pointer[func()] // called when a passage is over
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs a proxy in front of o.Server on a Unix socket (or loopback).
func start(t testing.TB, o Options, loopback bool) *front {
	t.Helper()
	return startWith(t, o, loopback, !withoutStreams, nil)
}

// startWith says whether requests are passed from stream to stream, and may change the server.
func startWith(t testing.TB, o Options, loopback, streams bool, change func(*http.Server)) *front {
	t.Helper()
	f := &front{logs: new(logBuffer)}
	passes := o.Transport == nil && streams
	if o.Transport == nil {
		o.Transport = outbound(t, true)
	}
	if passes && o.Streams == nil {
		o.Streams = newTestStreams(t, o.Server)
	}
	if o.Sign != nil && o.SignFields == nil {
		o.SignFields = fieldSigner(o.Sign)
	}
	if o.UpgradeTransport == nil {
		o.UpgradeTransport = outbound(t, false)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	if f.Proxy, err = New(o); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	h := f.Unix()
	if loopback {
		h = f.Loopback()
		l, err = net.Listen("tcp", "127.0.0.1:0")
	} else {
		dir, derr := os.MkdirTemp("", "p")
		if derr != nil {
			t.Fatal(derr)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		l, err = net.Listen("unix", filepath.Join(dir, "s"))
	}
	if err != nil {
		t.Fatal(err)
	}
	f.network, f.addr = l.Addr().Network(), l.Addr().String()
	plane := f.UnixStreams()
	if loopback {
		plane = f.LoopbackStreams()
	}
	srv := NewServer(h, ServerOptions{Plane: func(*h2.Conn) (*Streams, func()) { return plane, f.isOver }, Logger: o.Logger})
	if change != nil {
		change(srv)
	}
	srv.TLSConfig = serverTLS("h2", "http/1.1")
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ServeTLS(Listener(l), "", "") }()
	t.Cleanup(func() {
		f.Close()
		srv.Close()
		<-done
	})
	return f
}

func (f *front) isOver() {
	if over := f.over.Load(); over != nil {
		(*over)()
	}
}

// dial opens a TLS connection to the proxy.
func (f *front) dial(t testing.TB, cfg *tls.Config) *tls.Conn {
	t.Helper()
	c, err := net.Dial(f.network, f.addr)
	if err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, cfg)
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return tc
}

// client is an HTTP client of the proxy, with the session pair.
func (f *front) client(t testing.TB, h2 bool) *http.Client { return f.clientWith(t, h2, clientTLS()) }

func (f *front) clientWith(t testing.TB, h2 bool, cfg *tls.Config) *http.Client {
	tr := outbound(t, h2)
	tr.TLSClientConfig = cfg
	tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, f.network, f.addr)
	}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// raw sends bytes over HTTP/1.1 and gives the connection to read from.
func (f *front) raw(t testing.TB, request string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c := f.dial(t, clientTLS("http/1.1"))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	return c, bufio.NewReader(c)
}

// rawCode sends bytes and gives the status of the first answer.
func (f *front) rawCode(t testing.TB, request string) int {
	t.Helper()
	_, r := f.raw(t, request)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatalf("no answer to %.80q: %v", request, err)
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode
}

type testStatus struct {
	Kind, APIVersion, Status, Message, Reason string
	Code                                      int
}

// wantStatus checks an answer of the proxy itself.
func wantStatus(t testing.TB, res *http.Response, err error, code int, reason string) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var s testStatus
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("status %d: body %q is no JSON: %v", res.StatusCode, b, err)
	}
	if res.StatusCode != code || s != (testStatus{"Status", "v1", "Failure", s.Message, reason, code}) ||
		res.Header.Get(ErrorHeader) != reason || res.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("got %d %v %s, want %d %s", res.StatusCode, res.Header, b, code, reason)
	}
	if !strings.HasPrefix(s.Message, "execproxy: ") || strings.Contains(s.Message, "\n") {
		t.Errorf("message is not one line of ours: %q", s.Message)
	}
	return s.Message
}

func get(t testing.TB, c *http.Client, url string) *http.Response {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func body2s(t testing.TB, res *http.Response) string {
	t.Helper()
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rawHTTP1 is a server that captures the bytes of every request's head.
func rawHTTP1(t testing.TB) (*url.URL, <-chan string) {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS("http/1.1"))
	if err != nil {
		t.Fatal(err)
	}
	heads := make(chan string, 1000)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { c.Close() })
			conns.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					var head strings.Builder
					for {
						line, err := r.ReadString('\n')
						if err != nil {
							return
						}
						head.WriteString(line)
						if line == "\r\n" {
							break
						}
					}
					heads <- head.String()
					if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close() })
	return &url.URL{Scheme: "https", Host: l.Addr().String()}, heads
}

// h2conn is one connection of a server that speaks HTTP/2 frame by frame.
type h2conn struct {
	net.Conn
	*http2.Framer
	n      int // which connection it is, from 0
	enc    *hpack.Encoder
	encBuf bytes.Buffer
}

// rawHTTP2 runs serve for every connection, after the preface.
func rawHTTP2(t testing.TB, serve func(c *h2conn)) *url.URL {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS("h2"))
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	conns.Go(func() {
		for n := 0; ; n++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, nc)
			mu.Unlock()
			conns.Go(func() {
				defer nc.Close()
				preface := make([]byte, len(http2.ClientPreface))
				if _, err := io.ReadFull(nc, preface); err != nil {
					return
				}
				c := &h2conn{Conn: nc, Framer: http2.NewFramer(nc, nc), n: n}
				c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
				c.enc = hpack.NewEncoder(&c.encBuf)
				if c.WriteSettings() == nil {
					serve(c)
				}
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range open {
			c.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	return &url.URL{Scheme: "https", Host: l.Addr().String()}
}

// next gives the next frame that is a request's, answering SETTINGS and PING.
func (c *h2conn) next() http2.Frame {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.PingFrame:
			_ = c.WritePing(true, f.Data)
		case *http2.WindowUpdateFrame:
		default:
			return f
		}
	}
}

// answer writes a response head.
func (c *h2conn) answer(id uint32, end bool, fields ...string) {
	c.encBuf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.encBuf.Bytes(), EndHeaders: true, EndStream: end})
}

// scriptedHTTP1 is a server that answers the head of every request with these
// bytes, and closes.
func scriptedHTTP1(t testing.TB, answer string) *url.URL {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS("http/1.1"))
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					_, _ = io.Copy(io.Discard, req.Body)
					_, _ = io.WriteString(c, answer)
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); conns.Wait() })
	return &url.URL{Scheme: "https", Host: l.Addr().String()}
}

type canned func(*http.Request) (*http.Response, error)

func (f canned) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

func verifiedState() *tls.ConnectionState {
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{testCA().cert}}}
}
