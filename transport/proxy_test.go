package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// tunnel is a proxy for tests. It dials what name maps to, so that a server can
// be asked for by a name that no resolver knows.
type tunnel struct {
	addr  string
	names map[string]string

	mu     sync.Mutex
	asked  []string
	header http.Header // of the last CONNECT
	peer   int         // client certificates seen
	conns  []net.Conn
	frozen chan struct{} // closed: forward nothing any more
	uses   atomic.Int64
}

type accept func(p *tunnel, c net.Conn) (to string, ok bool)

func serveTunnel(t testing.TB, l net.Listener, names map[string]string, a accept) *tunnel {
	t.Helper()
	p := &tunnel{addr: l.Addr().String(), names: names, frozen: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.keep(c)
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				to, ok := a(p, c)
				if !ok {
					return
				}
				p.mu.Lock()
				p.asked = append(p.asked, to)
				p.mu.Unlock()
				p.uses.Add(1)
				if real, ok := p.names[to]; ok {
					to = real
				}
				s, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer func() { _ = s.Close() }()
				p.keep(s)
				wg.Go(func() { p.copy(s, c) })
				p.copy(c, s)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

func (p *tunnel) keep(c net.Conn) {
	p.mu.Lock()
	p.conns = append(p.conns, c)
	p.mu.Unlock()
}

// copy forwards until frozen; then it reads and forgets, as a network that
// drops packets after they were acknowledged.
func (p *tunnel) copy(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-p.frozen:
			if err != nil {
				return
			}
			continue
		default:
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			_ = to.Close()
			return
		}
	}
}

// connectProxy accepts CONNECT, with user and password where given.
func connectProxy(user string) accept {
	return func(p *tunnel, c net.Conn) (string, bool) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return "", false
		}
		p.mu.Lock()
		p.header = r.Header
		if tc, ok := c.(*tls.Conn); ok {
			p.peer += len(tc.ConnectionState().PeerCertificates)
		}
		p.mu.Unlock()
		if user != "" && r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(user)) {
			_, _ = io.WriteString(c, "HTTP/1.1 407 give me s3cret\r\nContent-Length: 0\r\n\r\n")
			return "", false
		}
		if r.Method != http.MethodConnect || r.Host != r.RequestURI {
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			return "", false
		}
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\nX-Proxy: test\r\n\r\n")
		return r.Host, true
	}
}

// socksProxy speaks SOCKS5 (RFC 1928), with a password (RFC 1929) where given.
func socksProxy(user, password string) accept {
	return func(_ *tunnel, c net.Conn) (string, bool) {
		read := func(n int) []byte {
			b := make([]byte, n)
			_, _ = io.ReadFull(c, b)
			return b
		}
		read(int(read(2)[1]))
		if user == "" {
			_, _ = c.Write([]byte{5, 0})
		} else {
			_, _ = c.Write([]byte{5, 2})
			u := string(read(int(read(2)[1])))
			w := string(read(int(read(1)[0])))
			if u != user || w != password {
				_, _ = c.Write([]byte{1, 1})
				return "", false
			}
			_, _ = c.Write([]byte{1, 0})
		}
		var host string
		switch h := read(4); h[3] {
		case 1:
			host = net.IP(read(4)).String()
		case 3:
			host = string(read(int(read(1)[0])))
		default:
			return "", false
		}
		port := read(2)
		_, _ = c.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
		return net.JoinHostPort(host, fmt.Sprint(int(port[0])<<8|int(port[1]))), true
	}
}

func TestProxies(t *testing.T) {
	ca := newAuthority(t)
	s := serve(t, serverOptions{ca: ca}, http.HandlerFunc(echoOrUser))
	names := map[string]string{"api.test:6443": s.addr}
	proxyCA := newAuthority(t)
	proxyCert := proxyCA.issue(t, "proxy", time.Now().Add(time.Hour), "127.0.0.1")
	for _, tt := range []struct {
		name, scheme, user string
		listen             func() net.Listener
		accept             accept
	}{
		{"http", "http", "", nil, connectProxy("")},
		{"http with password", "http", "me:p%40ss", nil, connectProxy("me:p@ss")},
		{"https", "https", "me:pass", func() net.Listener {
			return tls.NewListener(listen(t, "127.0.0.1:0"), &tls.Config{
				Certificates: []tls.Certificate{*proxyCert}, ClientAuth: tls.RequestClientCert})
		}, connectProxy("me:pass")},
		{"socks5", "socks5", "", nil, socksProxy("", "")},
		{"socks5h with password", "socks5h", "me:pass", nil, socksProxy("me", "pass")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.listen == nil {
				tt.listen = func() net.Listener { return listen(t, "127.0.0.1:0") }
			}
			p := serveTunnel(t, tt.listen(), names, tt.accept)
			raw := tt.scheme + "://" + p.addr
			if tt.user != "" {
				raw = tt.scheme + "://" + tt.user + "@" + p.addr
			}
			f, err := ProxyFunc(raw, httpproxy.Config{NoProxy: "*"}) // which proxy-url does not heed
			check(t, err)
			tr := newTransport(t, Options{Address: "api.test:6443", RootCAs: ca.pool, Proxy: f, ProxyRootCAs: proxyCA.pool,
				Certificate: ca.issue(t, "alice", time.Now().Add(time.Hour))})
			equal(t, "answer", get(t, tr, "/"), "HTTP/2.0 alice")
			_, hasDescriptor := (*tr.current.Load().conns.Load())[0].raw.(*rawConn).NetConn().(syscall.Conn)
			equal(t, "read without blocking", hasDescriptor, tt.scheme != "https") // whose TLS is in between
			res, err := tr.Upgrade().RoundTrip(upgradeRequest(t, context.Background()))
			check(t, err)
			equal(t, "upgrade", res.StatusCode, http.StatusSwitchingProtocols)
			check(t, res.Body.Close())
			equal(t, "tunnels", p.uses.Load(), 2)
			p.mu.Lock()
			defer p.mu.Unlock()
			equal(t, "asked for", p.asked[0], "api.test:6443")
			equal(t, "certificates that the proxy saw", p.peer, 0)
		})
	}
}

func echoOrUser(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "" {
		echo(w, r)
		return
	}
	user(w, r)
}

func TestProxyFails(t *testing.T) {
	refusing := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, connectProxy("other:other"))
	socks := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, socksProxy("other", "other"))
	rude := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, func(_ *tunnel, c net.Conn) (string, bool) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "SSH-2.0-OpenSSH\r\n")
		return "", false
	})
	endless := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, func(_ *tunnel, c net.Conn) (string, bool) {
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
		for err == nil {
			_, err = c.Write(make([]byte, 4096))
		}
		return "", false
	})
	l := listen(t, "127.0.0.1:0")
	check(t, l.Close())
	for name, proxy := range map[string]string{
		"407":            "http://me:s3cret@" + refusing.addr,
		"socks password": "socks5://me:s3cret@" + socks.addr,
		"not a proxy":    "http://me:s3cret@" + rude.addr,
		"endless head":   "http://me:s3cret@" + endless.addr,
		"nobody there":   "http://me:s3cret@" + l.Addr().String(),
		"no TLS":         "https://me:s3cret@" + rude.addr,
	} {
		t.Run(name, func(t *testing.T) {
			u, err := url.Parse(proxy)
			check(t, err)
			tr := newTransport(t, Options{Address: "api.test:6443", Proxy: http.ProxyURL(u), DialTimeout: 5 * time.Second})
			_, err = tryGet(t, tr, "/")
			wantKind(t, err, ErrProxy, true)
			if text := err.Error(); strings.Contains(text, "s3cret") || !strings.Contains(text, u.Scheme+"://"+u.Host) {
				t.Errorf("message: %s", text)
			}
			var status *ProxyStatusError
			if is := errors.As(err, &status); is != (name == "407") || is && status.Code != 407 {
				t.Errorf("status: %v", status)
			}
		})
	}
}

// The server is verified for its own name, behind whatever proxy.
func TestProxyCannotPoseAsTheServer(t *testing.T) {
	ca := newAuthority(t)
	wrong := serve(t, serverOptions{ca: ca, names: []string{"other.test"}}, http.HandlerFunc(user))
	p := serveTunnel(t, listen(t, "127.0.0.1:0"), map[string]string{"api.test:443": wrong.addr}, connectProxy(""))
	f, err := ProxyFunc("http://"+p.addr, httpproxy.Config{})
	check(t, err)
	tr := newTransport(t, Options{Address: "api.test", RootCAs: ca.pool, Proxy: f})
	_, err = tryGet(t, tr, "/")
	wantKind(t, err, ErrServerName, true)
	if !strings.Contains(err.Error(), "through proxy http://"+p.addr) {
		t.Errorf("message: %v", err)
	}
}

func TestProxyFunc(t *testing.T) {
	env := httpproxy.Config{HTTPSProxy: "http://env:3128", HTTPProxy: "http://unused:1", NoProxy: "inside.test,10.0.0.0/8"}
	for _, tt := range []struct {
		url  string
		env  httpproxy.Config
		host string
		want string
	}{
		{"", httpproxy.Config{}, "api.test:6443", ""},
		{"", env, "api.test:6443", "http://env:3128"},
		{"", env, "a.inside.test:6443", ""},
		{"", env, "10.1.2.3:6443", ""},
		{"", env, "localhost:6443", ""},
		{"", httpproxy.Config{HTTPProxy: "http://plain:1"}, "api.test:6443", ""},
		{"", httpproxy.Config{HTTPSProxy: "env:3128"}, "api.test:6443", "http://env:3128"},
		{"socks5://own:1080", env, "a.inside.test:6443", "socks5://own:1080"},
		{"https://own", env, "api.test:6443", "https://own"},
	} {
		f, err := ProxyFunc(tt.url, tt.env)
		check(t, err)
		got := ""
		if f != nil {
			u, err := f(&http.Request{URL: &url.URL{Scheme: "https", Host: tt.host}})
			check(t, err)
			if u != nil {
				got = u.String()
			}
		}
		equal(t, tt.url+" "+tt.env.HTTPSProxy+" "+tt.host, got, tt.want)
	}
	for _, bad := range []string{"ftp://me:s3cret@proxy", "http://me:s3/cret@proxy", "http://", "proxy:3128", "socks4://proxy", "::"} {
		for _, field := range []string{"proxy-url", "HTTPS_PROXY"} {
			var err error
			if field == "proxy-url" {
				_, err = ProxyFunc(bad, httpproxy.Config{})
			} else if strings.Contains(bad, "://") {
				_, err = ProxyFunc("", httpproxy.Config{HTTPSProxy: bad})
			} else {
				continue
			}
			if err == nil || !strings.HasPrefix(err.Error(), field+": ") || strings.Contains(err.Error(), "s3") {
				t.Errorf("%s %s: %v", field, bad, err)
			}
		}
	}
}

func FuzzProxyFunc(f *testing.F) {
	for _, s := range []string{"http://a:b@c:1", "socks5h://[::1]", "https://x", "http://u:p/w@h", "%zz", "a:b", "http://]"} {
		f.Add(s, "", "")
		f.Add("", s, "*")
	}
	f.Fuzz(func(t *testing.T, proxyURL, env, no string) {
		p, err := ProxyFunc(proxyURL, httpproxy.Config{HTTPSProxy: env, NoProxy: no})
		if err != nil || p == nil {
			return
		}
		u, err := p(&http.Request{URL: &url.URL{Scheme: "https", Host: "api.test:6443"}})
		if err != nil || u == nil {
			return
		}
		if _, port, err := net.SplitHostPort(proxyAddress(u)); err != nil || port == "" {
			t.Errorf("%q, %q: no address: %q", proxyURL, env, proxyAddress(u))
		}
	})
}
