package transport

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http/httpproxy"
)

type brokenKey struct{ crypto.Signer }

var errToken = errors.New("token is gone")

func (brokenKey) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) { return nil, errToken }

func TestDialErrors(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	s := serve(t, serverOptions{ca: ca}, http.HandlerFunc(user))
	expired := listen(t, "127.0.0.1:0")
	old := ca.issue(t, "server", time.Now().Add(-time.Minute), "127.0.0.1")
	serveRaw(t, tls.NewListener(expired, &tls.Config{Certificates: []tls.Certificate{*old}}), handshakeOnly)
	plain := listen(t, "127.0.0.1:0")
	serveRaw(t, plain, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1))
		_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
	})
	silent := listen(t, "127.0.0.1:0")
	serveRaw(t, silent, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	// TLS alone answers; nobody speaks HTTP/2 after it.
	cert := ca.issue(t, "server", time.Now().Add(time.Hour), "127.0.0.1")
	mute := listen(t, "127.0.0.1:0")
	serveRaw(t, tls.NewListener(mute, &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}}),
		func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	gone := listen(t, "127.0.0.1:0")
	check(t, gone.Close())
	broken := ca.issue(t, "alice", time.Now().Add(time.Hour))
	broken.PrivateKey = brokenKey{broken.PrivateKey.(crypto.Signer)}
	soon := 300 * time.Millisecond

	for _, tt := range []struct {
		name   string
		kind   error
		change func(*Options)
	}{
		{"refused", ErrUnreachable, func(o *Options) { o.Address = gone.Addr().String() }},
		{"unknown name", ErrUnreachable, func(o *Options) { o.Address = "no-such-host.invalid:6443" }},
		{"another CA", ErrUntrusted, func(o *Options) { o.RootCAs = other.pool }},
		{"expired server", ErrUntrusted, func(o *Options) { o.Address = expired.Addr().String() }},
		{"another name", ErrServerName, func(o *Options) { o.ServerName = "other.test" }},
		{"silent", ErrTimeout, func(o *Options) { o.Address, o.DialTimeout = silent.Addr().String(), soon }},
		{"no SETTINGS", ErrTimeout, func(o *Options) { o.Address, o.DialTimeout = mute.Addr().String(), soon }},
		{"plain HTTP", ErrHandshake, func(o *Options) { o.Address = plain.Addr().String() }},
		{"unknown client CA", ErrCertificateRefused, func(o *Options) { o.Certificate = other.issue(t, "eve", time.Now().Add(time.Hour)) }},
		{"no client certificate", ErrCertificateRefused, func(o *Options) { o.Certificate = nil }},
		{"broken key", ErrKey, func(o *Options) { o.Certificate = broken }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := s.client(t, tt.change)
			err := tr.Prewarm(context.Background())
			wantKind(t, err, tt.kind, true)
			var u *UpstreamError
			if errors.As(err, &u); u.Hint == "" || u.Server != tr.o.Address {
				t.Errorf("no cure or no server: %#v", u)
			}
			var timeout net.Error
			if tt.kind == ErrTimeout != (errors.As(err, &timeout) && timeout.Timeout()) {
				t.Error("Timeout() does not agree")
			}
			if tt.kind == ErrKey && (!errors.Is(err, errToken) || u.StatusCode() != http.StatusServiceUnavailable) {
				t.Errorf("the key's own error is lost, or status %d", u.StatusCode())
			}
			waitOut(tr)
			_, err = tryGet(t, tr, "/")
			wantKind(t, err, tt.kind, true)
			if tt.name == "no SETTINGS" {
				return // an upgrade waits for its answer as long as its caller does
			}
			waitOut(tr)
			_, err = tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
			// On HTTP/1.1 nothing is asked before the request: a TLS 1.3 server's
			// refusal comes as the answer to it, or as a lost connection.
			if !errors.Is(err, tt.kind) && (tt.kind != ErrCertificateRefused || !errors.Is(err, ErrConnectionLost)) {
				t.Errorf("upgrade: %v", err)
			}
		})
	}
}

func TestInsecureSkipVerify(t *testing.T) {
	s := serve(t, serverOptions{names: []string{"other.test"}}, http.HandlerFunc(user))
	tr := s.client(t, func(o *Options) { o.InsecureSkipVerify, o.RootCAs = true, newAuthority(t).pool })
	equal(t, "answer", get(t, tr, "/"), "HTTP/2.0 alice")
}

func TestServerName(t *testing.T) {
	s := serve(t, serverOptions{names: []string{"kubernetes.default"}}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.ServerName)
	}))
	tr := s.client(t, func(o *Options) { o.ServerName = "kubernetes.default" })
	equal(t, "SNI", get(t, tr, "/"), "kubernetes.default")
}

func handshakeOnly(c net.Conn) { _ = c.(*tls.Conn).Handshake() }

func serveRaw(t testing.TB, l net.Listener, f func(net.Conn)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer func() { _ = c.Close() }(); f(c) }()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

// A peer whose packets vanish is noticed by PING.
func TestDeadPeer(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	p := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, func(*tunnel, net.Conn) (string, bool) { return s.addr, true })
	tr := s.client(t, func(o *Options) {
		o.Address = p.addr
		o.PingInterval, o.PingTimeout = 200*time.Millisecond, 200*time.Millisecond
	})
	body := watch(t, tr)
	close(p.frozen)
	begin := time.Now()
	var err error
	within(t, 5*time.Second, "end of the stream", func() { _, err = io.ReadAll(body) })
	took := time.Since(begin)
	wantKind(t, err, ErrConnectionLost, false)
	if took > 2*time.Second {
		t.Errorf("noticed after %v", took)
	}
	equal(t, "dead peers", tr.Stats().DeadPeers, 1)

	// It recovers as soon as packets flow again.
	p2 := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, func(*tunnel, net.Conn) (string, bool) { return s.addr, true })
	var d net.Dialer
	tr.o.DialContext = func(ctx context.Context, n, _ string) (net.Conn, error) { return d.DialContext(ctx, n, p2.addr) }
	equal(t, "after", get(t, tr, "/"), "HTTP/2.0 alice")
}

func TestDefaultsNoticeWithin15Seconds(t *testing.T) {
	tr := newTransport(t, Options{Address: "api.test:6443"})
	if d := tr.o.PingInterval + tr.o.PingTimeout; d > 15*time.Second {
		t.Errorf("a dead peer is noticed after %v", d)
	}
	if tr.o.DialTimeout > 10*time.Second {
		t.Errorf("a stalled handshake is cut after %v", tr.o.DialTimeout)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, a := range []string{"", ":443", "https://api.test", "a/b:1"} {
		if _, err := New(Options{Address: a}); err == nil || !strings.Contains(err.Error(), "host:port") {
			t.Errorf("%q: %v", a, err)
		}
	}
	for _, c := range []*tls.Certificate{{}, {PrivateKey: newKey(t)}, {PrivateKey: newKey(t), Certificate: [][]byte{{1}}}} {
		if _, err := New(Options{Address: "a:1", Certificate: c}); err == nil {
			t.Error("a certificate that cannot be used is taken")
		}
	}
	for in, want := range map[string]string{"api.test": "api.test:443", "[::1]": "[::1]:443", "::1": "[::1]:443"} {
		tr, err := New(Options{Address: in})
		check(t, err)
		equal(t, in, tr.o.Address, want)
		check(t, tr.Close())
	}
}

func TestContextErrorIsPassedOn(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{}, h)
	tr := s.client(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	res, err := tr.RoundTrip(request(t, ctx, "GET", "/watch", nil))
	check(t, err)
	<-h.open
	cancel()
	_, err = io.ReadAll(res.Body)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	check(t, res.Body.Close())
	equal(t, "open streams", tr.Stats().OpenStreams, 0)
	if _, err := tr.RoundTrip(request(t, ctx, "GET", "/", nil)); !errors.Is(err, context.Canceled) || Unsent(err) {
		t.Errorf("got %v", err)
	}
}

// Nothing of a proxy's password or a request reaches the log.
func TestLogHoldsNoSecrets(t *testing.T) {
	var b strings.Builder
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	p := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, connectProxy("me:s3cret"))
	f, err := ProxyFunc("http://me:s3cret@"+p.addr, httpproxy.Config{})
	check(t, err)
	tr := s.client(t, func(o *Options) {
		o.Proxy = f
		o.Logger = slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	r := request(t, context.Background(), "GET", "/?token=s3cret", nil)
	r.Header.Set("Authorization", "Bearer s3cret")
	res, err := tr.RoundTrip(r)
	check(t, err)
	check(t, res.Body.Close())
	check(t, tr.Close())
	if b.Len() == 0 || strings.Contains(b.String(), "s3cret") {
		t.Errorf("log: %s", b.String())
	}
}
