//lint:file-ignore SA1019 net/http's ClientConn has no PING: it cannot tell when
// the server's SETTINGS are there, nor shut down gracefully. x/net's has both,
// and on newer Go releases wraps net/http's.

package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
)

const (
	// maxHeaderBytes bounds the header list of an answer.
	maxHeaderBytes = 1 << 20
	// frameSize lets a LIST come in large frames: on loopback, from a server in
	// Go, a body of 1 MiB took twice the time with the default of 16 KiB. It
	// costs one buffer per connection.
	frameSize = 256 << 10
	// extraIdle ends connections that were dialled for want of streams.
	extraIdle = 90 * time.Second
)

// conn is one HTTP/2 connection of a pool.
type conn struct {
	g     *generation
	cc    *http2.ClientConn
	tls   *tls.Conn
	born  time.Time
	dead  atomic.Bool // takes no more streams
	ours  atomic.Bool // we ended it ourselves
	extra bool        // dialled for want of streams: not replaced when it ends
}

// newConn speaks HTTP/2 on tc and waits for the server's SETTINGS: its answer
// to a PING comes after them (RFC 9113 section 3.4).
func (g *generation) newConn(ctx context.Context, tc *tls.Conn, extra bool) (*conn, error) {
	o := &g.t.o
	c := &conn{g: g, tls: tc, born: time.Now(), extra: extra}
	h2 := &http2.Transport{
		ConnPool:           poolHook{c},
		DisableCompression: true,
		MaxHeaderListSize:  maxHeaderBytes,
		MaxReadFrameSize:   frameSize,
		ReadIdleTimeout:    o.PingInterval,
		PingTimeout:        o.PingTimeout,
		CountError:         c.countError,
	}
	if extra {
		h2.IdleConnTimeout = extraIdle
	}
	cc, err := h2.NewClientConn(tc)
	if err != nil {
		err = cause(tc, err)
		_ = tc.NetConn().Close()
		return nil, err
	}
	c.cc = cc
	tc.NetConn().(*rawConn).h2.Store(c)
	if err := cc.Ping(ctx); err != nil {
		if ctx.Err() == nil {
			err = cause(tc, err)
		} else {
			err = ctx.Err()
		}
		c.dead.Store(true)
		c.close()
		return nil, err
	}
	if cc.State().MaxConcurrentStreams == 0 {
		c.dead.Store(true)
		c.close()
		return nil, errors.New("the server allows no streams (SETTINGS_MAX_CONCURRENT_STREAMS is 0)")
	}
	return c, nil
}

// cause asks TLS why a young connection ended: a TLS 1.3 server refuses a
// client certificate after our side of the handshake is done, and the write
// that then fails says less than the alert that was received.
func cause(tc *tls.Conn, err error) error {
	if refusesCertificate(err) {
		return err
	}
	_ = tc.NetConn().SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	var b [1]byte
	if _, rerr := tc.Read(b[:]); rerr != nil {
		var op *net.OpError
		if errors.As(rerr, &op) && op.Op == "remote error" {
			return rerr
		}
	}
	return err
}

// reserve takes one stream, if there is one to take.
func (c *conn) reserve() bool { return c.cc.ReserveNewRequest() }

// roundTrip uses up the reserved stream.
func (c *conn) roundTrip(r *http.Request) (*http.Response, error) { return c.cc.RoundTrip(r) }

// usable reports whether a request could go out now.
func (c *conn) usable() bool { return !c.dead.Load() && c.cc.CanTakeNewRequest() }

// drain lets the streams end and closes the connection then.
func (c *conn) drain() {
	_ = c.cc.Shutdown(c.g.ctx)
	c.close()
}

// close ends the connection and its streams. TCP goes first: TLS would wait for
// its alert to go out, which on a dead peer takes seconds.
func (c *conn) close() {
	c.ours.Store(true)
	_ = c.tls.NetConn().Close()
	_ = c.cc.Close()
}

// retired is called when the server sent GOAWAY or the connection ended.
func (c *conn) retired() {
	if !c.g.drop(c) {
		return // not in the pool yet, or not any more
	}
	c.g.t.spawn(func() {
		// Not earlier: State waits for writers, and this may be the reader.
		if s := c.cc.State(); s.Closing || !s.Closed {
			c.g.t.goAways.Add(1)
		}
		c.drain()
	})
}

// poolHook is the pool of one connection, for what http2 has to tell about it.
type poolHook struct{ c *conn }

func (poolHook) GetClientConn(*http.Request, string) (*http2.ClientConn, error) {
	return nil, http2.ErrNoCachedConn // requests go to the connection itself
}

func (h poolHook) MarkDead(*http2.ClientConn) { h.c.retired() }
