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

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/net/proxy"
)

// ProxyStatusError is a proxy's refusal of a CONNECT request (RFC 9110 section
// 9.3.6).
type ProxyStatusError struct{ Code int }

func (e *ProxyStatusError) Error() string {
	// The proxy's own reason phrase is not ours to repeat.
	return strings.TrimSpace(fmt.Sprintf("CONNECT was answered with %d %s", e.Code, http.StatusText(e.Code)))
}

// ProxyFunc returns the choice of a proxy for Options.Proxy. proxyURL is the
// cluster's proxy-url and holds for every request; where it is empty env
// decides, with the meaning of HTTPS_PROXY and NO_PROXY: no proxy for loopback
// and for what NO_PROXY names. Both come from the caller, nothing is read from
// the environment. Schemes are http, https, socks5 and socks5h; both of the
// latter leave it to the proxy to look names up. The error names the field and
// holds no credentials.
func ProxyFunc(proxyURL string, env httpproxy.Config) (func(*http.Request) (*url.URL, error), error) {
	if proxyURL != "" {
		u, err := parseProxy("proxy-url", proxyURL)
		if err != nil {
			return nil, err
		}
		return http.ProxyURL(u), nil
	}
	if env.HTTPSProxy == "" {
		return nil, nil
	}
	s := env.HTTPSProxy
	if !strings.Contains(s, "://") {
		s = "http://" + s // as every reader of HTTPS_PROXY does
	}
	u, err := parseProxy("HTTPS_PROXY", s)
	if err != nil {
		return nil, err
	}
	env.HTTPSProxy = u.String()
	f := env.ProxyFunc()
	return func(r *http.Request) (*url.URL, error) { return f(r.URL) }, nil
}

func parseProxy(field, s string) (*url.URL, error) {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		// url.Parse's error can hold a piece of the password.
		return nil, fmt.Errorf("%s: not a URL of the form scheme://[user:password@]host:port (percent-encode special characters in it)", field)
	}
	if _, _, err := net.SplitHostPort(proxyAddress(u)); err != nil {
		return nil, fmt.Errorf("%s: not a host and a port: %q", field, u.Host)
	}
	if defaultPort(u.Scheme) == "" {
		return nil, fmt.Errorf("%s: scheme %q of the proxy %s is not known; use http, https, socks5 or socks5h", field, u.Scheme, u.Host)
	}
	return u, nil
}

func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	case "socks5", "socks5h":
		return "1080"
	}
	return ""
}

func proxyAddress(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = defaultPort(u.Scheme)
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// proxyName is the proxy as messages may show it: without its credentials.
func proxyName(u *url.URL) string { return u.Scheme + "://" + proxyAddress(u) }

func proxyHint(err error) string {
	var status *ProxyStatusError
	if errors.As(err, &status) {
		if status.Code == http.StatusProxyAuthRequired {
			return "put the proxy's user and password into proxy-url"
		}
		return "ask the proxy to let this server through, or name the server in NO_PROXY"
	}
	return "check proxy-url and HTTPS_PROXY, or name the server in NO_PROXY"
}

func (t *Transport) dialProxy(ctx context.Context, u *url.URL) (net.Conn, error) {
	address := proxyAddress(u)
	switch u.Scheme {
	case "socks5", "socks5h":
		var auth *proxy.Auth
		if u.User != nil {
			auth = &proxy.Auth{User: u.User.Username()}
			auth.Password, _ = u.User.Password()
		}
		d, err := proxy.SOCKS5("tcp", address, auth, forward(t.o.DialContext))
		if err != nil {
			return nil, err
		}
		return dialSOCKS(ctx, d, t.o.DialContext, address, t.o.Address)
	case "http", "https":
	default:
		return nil, fmt.Errorf("scheme %q is not known; use http, https, socks5 or socks5h", u.Scheme)
	}
	conn, err := t.o.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "https" {
		// Our client certificate is for the server, never for a proxy.
		tc := tls.Client(conn, &tls.Config{
			ServerName: u.Hostname(),
			RootCAs:    t.o.ProxyRootCAs,
			NextProtos: []string{"http/1.1"},
			MinVersion: tls.VersionTLS12,
		})
		if err := tc.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = tc
	}
	tunnel, err := connect(ctx, conn, t.o.Address, u.User)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return tunnel, nil
}

// dialSOCKS keeps the connection as it was dialled, if it can: what the package's own
// dialling returns hides the descriptor, which HTTP/2 wants to read without blocking.
func dialSOCKS(ctx context.Context, d proxy.Dialer, dial forward, through, address string) (net.Conn, error) {
	on, ok := d.(interface {
		DialWithConn(ctx context.Context, c net.Conn, network, address string) (net.Addr, error)
	})
	if !ok {
		return d.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
	}
	conn, err := dial(ctx, "tcp", through)
	if err != nil {
		return nil, err
	}
	if _, err := on.DialWithConn(ctx, conn, "tcp", address); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// forward adapts a dial function to the interfaces of golang.org/x/net/proxy.
type forward func(ctx context.Context, network, address string) (net.Conn, error)

func (f forward) Dial(network, address string) (net.Conn, error) {
	return f(context.Background(), network, address)
}

func (f forward) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f(ctx, network, address)
}

// connect asks the proxy at the other end of conn for a tunnel to address. When
// ctx ends the connection is closed.
func connect(ctx context.Context, conn net.Conn, address string, user *url.Userinfo) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{
		"User-Agent": nil, // or net/http adds its own
	}}
	if user != nil {
		password, _ := user.Password()
		r.Header.Set("Proxy-Authorization", "Basic "+
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)))
	}
	tunnel, err := func() (net.Conn, error) {
		if err := r.Write(conn); err != nil {
			return nil, err
		}
		const most = 64 << 10 // of an answer's head
		br := bufio.NewReader(io.LimitReader(conn, most))
		res, err := http.ReadResponse(br, r)
		if err != nil {
			return nil, fmt.Errorf("reading the answer to CONNECT: %w", err)
		}
		if res.StatusCode/100 != 2 {
			return nil, &ProxyStatusError{Code: res.StatusCode}
		}
		if br.Buffered() > 0 {
			// A TLS server never speaks first: these bytes are not its.
			return nil, errors.New("proxy sent bytes of its own after its answer to CONNECT")
		}
		return conn, nil
	}()
	if !stop() {
		return nil, ctx.Err()
	}
	return tunnel, err
}
