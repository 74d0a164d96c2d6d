package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// alertTime is how long a closing connection may wait for its TLS alert.
const alertTime = 250 * time.Millisecond

// newHTTP1 returns the pool for servers without HTTP/2, and the way out for
// upgrades, which keeps no connection.
func newHTTP1(g *generation) (pool, upgrade *http.Transport) {
	pool = &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c := g.takeSpare(); c != nil {
				holdConn(ctx, c)
				return c, nil
			}
			return g.dialHTTP1(ctx)
		},
		DisableCompression:     true,
		MaxIdleConnsPerHost:    32,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	upgrade = &http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return g.dialHTTP1(ctx)
		},
		DisableCompression:     true,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	return pool, upgrade
}

func (g *generation) dialHTTP1(ctx context.Context) (net.Conn, error) {
	// net/http detaches dials from their request; the generation's end must
	// still reach them.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	// Held or not is asked after the wait: what failed meanwhile counts.
	if err := g.t.waitBudget(ctx); err != nil {
		return nil, err
	}
	if err := g.hold.check(time.Now()); err != nil {
		return nil, err
	}
	tc, err := g.dialTLS(ctx, "http/1.1")
	if err != nil {
		g.hold.note(err, time.Now())
		if g.ctx.Err() != nil {
			err = errRetired
		}
		return nil, err // not tc: a nil *tls.Conn is no nil net.Conn
	}
	holdConn(ctx, tc)
	return tc, nil
}

// connHolder brings a new connection from its dial to the request that it was
// dialled for: net/http does not hand it out, but keeps the values of the
// request's context.
type connHolder struct{ tls atomic.Pointer[tls.Conn] }

type holderKey struct{}

func holdConn(ctx context.Context, tc *tls.Conn) {
	if hold, ok := ctx.Value(holderKey{}).(*connHolder); ok {
		hold.tls.Store(tc)
	}
}

func (h *connHolder) request(r *http.Request) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), holderKey{}, h))
}

// roundTripHTTP1 goes through the HTTP/1.1 pool.
func (g *generation) roundTripHTTP1(r *http.Request) (*http.Response, error) {
	hold := new(connHolder)
	res, err := g.http1.RoundTrip(hold.request(r))
	err = g.learn(hold, err)
	if err == nil && res.Body != nil && res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = &pooledBody{res.Body, g}
	}
	return res, err
}

// learn notes how a request over HTTP/1.1 ended, and returns why: a server of
// TLS 1.3 refuses a certificate when our side of the handshake is done, and the
// write that fails then says less than the alert.
func (g *generation) learn(hold *connHolder, err error) error {
	tc := hold.tls.Load()
	if err != nil && tc != nil && isConnError(err) {
		err = cause(tc, err)
	}
	if err == nil || refusesCertificate(err) {
		if err != nil {
			err = streamError(g.t.o.Address, err)
		}
		g.hold.note(err, time.Now())
	}
	return err
}

// pooledBody lets go of the connection when its generation was retired
// meanwhile: it would idle in a pool that nobody asks any more.
type pooledBody struct {
	io.ReadCloser
	g *generation
}

func (b *pooledBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.let()
	}
	return n, err
}

func (b *pooledBody) Close() error {
	err := b.ReadCloser.Close()
	b.let()
	return err
}

func (b *pooledBody) let() {
	select {
	case <-b.g.retiredCh:
		b.g.http1.CloseIdleConnections()
	default:
	}
}

// Upgrade returns the way out for requests with an Upgrade field: HTTP/1.1
// (RFC 9110 section 7.8), a connection for each, closed with the answer's body.
// A 101 has a Body that is an io.ReadWriteCloser; it is cut when the request's
// context ends. Errors are those of RoundTrip.
func (t *Transport) Upgrade() http.RoundTripper { return upgrader{t} }

type upgrader struct{ t *Transport }

func (u upgrader) RoundTrip(r *http.Request) (*http.Response, error) {
	t := u.t
	for {
		g := t.current.Load()
		if err := t.ready(g, t.now()); err != nil {
			closeBody(r)
			return nil, err
		}
		hold := new(connHolder)
		res, err := g.upgrade.RoundTrip(hold.request(r))
		err = g.learn(hold, err)
		if errors.Is(err, errRetired) && t.current.Load() != g && (r.Body == nil || r.Body == http.NoBody) {
			continue
		}
		if err != nil {
			return nil, t.final(r, err)
		}
		res.Request = r
		t.upgrades.Add(1)
		rwc, ok := res.Body.(io.ReadWriteCloser)
		if res.StatusCode != http.StatusSwitchingProtocols || !ok {
			res.Body = &responseBody{ReadCloser: res.Body, server: t.o.Address, ended: func() { t.upgrades.Add(-1) }}
			return res, nil
		}
		res.Body = t.upgraded(r.Context(), rwc, hold)
		return res, nil
	}
}

// upgradedBody is the connection after a 101.
type upgradedBody struct {
	io.ReadWriteCloser
	stop func() bool  // forget the context
	shut func() error // once
}

func (t *Transport) upgraded(ctx context.Context, rwc io.ReadWriteCloser, hold *connHolder) *upgradedBody {
	raw := hold.tls.Load().NetConn()
	b := &upgradedBody{ReadWriteCloser: rwc}
	b.shut = sync.OnceValue(func() error {
		t.upgrades.Add(-1)
		// TLS wants its closing alert to go out, and waits for seconds on a
		// peer that takes no bytes.
		defer time.AfterFunc(alertTime, func() { _ = raw.Close() }).Stop()
		return rwc.Close()
	})
	b.stop = context.AfterFunc(ctx, func() {
		_ = raw.Close()
		_ = b.shut()
	})
	return b
}

// CloseWrite ends our direction only.
func (b *upgradedBody) CloseWrite() error {
	if c, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return http.ErrNotSupported
}

func (b *upgradedBody) Close() error {
	b.stop()
	return b.shut()
}
