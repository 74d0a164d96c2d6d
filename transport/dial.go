package transport

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

// newDialer is the standard library's dialer: Happy Eyeballs (RFC 8305), a name
// looked up at each dial, and TCP told to notice a dead peer within about the
// same time as the PINGs of HTTP/2.
func newDialer(o *Options) *net.Dialer {
	second := func(d time.Duration) time.Duration { return max(d.Round(time.Second), time.Second) }
	return &net.Dialer{
		Timeout: o.DialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable:   true,
			Idle:     second(o.PingInterval),
			Interval: second(o.PingTimeout / 3),
			Count:    3,
		},
		Control: userTimeout(o.PingInterval + o.PingTimeout),
	}
}

// rawConn is the connection below TLS. It tells its generation when it closes,
// whoever closes it, and can be closed without waiting for a TLS alert to go
// out on a connection that takes no more bytes.
type rawConn struct {
	net.Conn
	once   sync.Once
	closed func(*rawConn)
	h2     atomic.Pointer[conn] // what speaks on it, if that is HTTP/2
}

// NetConn is the connection below, whose descriptor can be read without blocking.
func (c *rawConn) NetConn() net.Conn { return c.Conn }

func (c *rawConn) Close() error {
	if h := c.h2.Load(); h != nil {
		h.h2.Abort() // it may have the socket to itself
	}
	err := c.Conn.Close()
	c.once.Do(func() { c.closed(c) })
	return err
}

// dialTLS opens one connection to the server, verified, with one of the ALPN
// protocols. The error is an *UpstreamError or errRetired.
func (g *generation) dialTLS(ctx context.Context, protocols ...string) (*tls.Conn, error) {
	t := g.t
	ctx, cancel := context.WithTimeout(ctx, t.o.DialTimeout)
	defer cancel()
	if err := t.waitBudget(ctx); err != nil {
		return nil, err
	}
	t.dials.Add(1)
	conn, proxy, err := t.dialServer(ctx)
	if err != nil {
		t.dialErrors.Add(1)
		return nil, dialError(t.o.Address, proxy, t.o.DialTimeout, err, nil)
	}
	raw := &rawConn{Conn: conn, closed: g.forget}
	if !g.track(raw) {
		_ = conn.Close()
		return nil, errRetired
	}
	signer := &countingSigner{count: &t.signatures}
	tc := tls.Client(h2.NewWire(raw), g.tlsConfig(signer, protocols))
	err = tc.HandshakeContext(ctx)
	if signer.used {
		t.budget.take(time.Now())
	}
	if err != nil {
		_ = raw.Close()
		t.dialErrors.Add(1)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, dialError(t.o.Address, proxy, t.o.DialTimeout, err, signer.err)
	}
	if tc.ConnectionState().DidResume {
		t.resumed.Add(1)
	} else {
		t.full.Add(1)
	}
	return tc, nil
}

// waitBudget waits until a signature may be made.
func (t *Transport) waitBudget(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.o.DialTimeout)
	defer cancel()
	if err := t.budget.wait(ctx); err != nil {
		return dialError(t.o.Address, "", t.o.DialTimeout, err, nil)
	}
	return nil
}

func (g *generation) tlsConfig(signer *countingSigner, protocols []string) *tls.Config {
	o := &g.t.o
	c := &tls.Config{
		ServerName:         o.ServerName,
		RootCAs:            g.id.RootCAs,
		InsecureSkipVerify: o.InsecureSkipVerify, // only where the user's kubeconfig says so
		NextProtos:         protocols,
		ClientSessionCache: g.sessions,
		MinVersion:         tls.VersionTLS12,
		// Many answers share the connection: none of them is at its beginning.
		DynamicRecordSizingDisabled: true,
	}
	if g.id.Certificate != nil {
		// Presented whatever issuers the server names: going on without it
		// would make us anonymous instead of telling what is wrong.
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return signer.certificate(g.id.Certificate), nil
		}
	}
	return c
}

// dialServer opens the bytes' way to the server, directly or through a proxy,
// whose name without credentials it also returns.
func (t *Transport) dialServer(ctx context.Context) (net.Conn, string, error) {
	var proxy *url.URL
	if t.o.Proxy != nil {
		u := &url.URL{Scheme: "https", Host: t.o.Address}
		r := (&http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
		var err error
		if proxy, err = t.o.Proxy(r); err != nil {
			return nil, "", &UpstreamError{Kind: ErrProxy, Server: t.o.Address, Err: err,
				Hint: "check proxy-url and HTTPS_PROXY", unsent: true}
		}
	}
	if proxy == nil {
		conn, err := t.o.DialContext(ctx, "tcp", t.o.Address)
		return conn, "", err
	}
	name := proxyName(proxy)
	conn, err := t.dialProxy(ctx, proxy)
	if err != nil {
		return nil, name, &UpstreamError{Kind: ErrProxy, Server: t.o.Address, Proxy: name, Err: err,
			Hint: proxyHint(err), unsent: true}
	}
	return conn, name, nil
}
