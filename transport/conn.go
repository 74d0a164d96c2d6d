package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/execproxy/execproxy/transport/h2"
)

const (
	// maxHeaderBytes bounds the header list of an answer.
	maxHeaderBytes = 1 << 20
	// frameSize lets a LIST come in large frames: on loopback, from a server in
	// Go, a body of 1 MiB took twice the time with the default of 16 KiB.
	frameSize = 256 << 10
	// streamWindow is what a server may send ahead of a stream's reader; it grows to
	// maxWindow while the reader keeps up.
	streamWindow, maxWindow = 256 << 10, 4 << 20
	// extraIdle ends connections that were dialled for want of streams.
	extraIdle = 90 * time.Second
	// frameTime bounds a frame that has begun to come, beyond the time of a dial, which
	// has a bound of its own.
	frameTime = 30 * time.Second
)

// conn is one HTTP/2 connection of a pool.
type conn struct {
	g      *generation
	h2     *h2.Conn
	raw    net.Conn
	born   time.Time
	dead   atomic.Bool // takes no more streams
	silent atomic.Bool // counted among the dead peers
	extra  bool        // dialled for want of streams: not replaced when it ends
}

// newConn speaks HTTP/2 on tc and waits for the server's SETTINGS: its answer
// to a PING comes after them (RFC 9113 section 3.4). Before that a server of TLS 1.3 may
// still refuse our certificate: our side of the handshake is done before it has seen it.
func (g *generation) newConn(ctx context.Context, tc *tls.Conn, extra bool) (*conn, error) {
	t := g.t
	c := &conn{g: g, raw: tc.NetConn(), born: time.Now(), extra: extra}
	o := h2.Options{
		StreamWindow:    streamWindow,
		MaxStreamWindow: maxWindow,
		MaxFrame:        frameSize,
		MaxHeader:       maxHeaderBytes,
		HeaderTime:      t.o.DialTimeout + frameTime,
		PingInterval:    t.o.PingInterval,
		PingTimeout:     t.o.PingTimeout,
		Memory:          t.memory,
		Flood:           t.o.Flood,
		Retired:         c.retired,
		Logger:          t.log,
	}
	if extra {
		o.IdleTime = extraIdle
	}
	c.h2 = h2.New(tc, o)
	if w, ok := c.raw.(*h2.Wire); ok {
		c.raw = w.NetConn()
	}
	c.raw.(*rawConn).h2.Store(c)
	t.wg.Go(c.run) // this is a dial, which Close waits for: it waits for that, too
	err := c.h2.Ping(ctx)
	if errors.Is(err, h2.ErrIdle) {
		err = errGoAwayAtOnce
	}
	if err == nil {
		if _, most := c.h2.Streams(); most == 0 {
			err = errors.New("the server allows no streams (SETTINGS_MAX_CONCURRENT_STREAMS is 0)")
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		c.dead.Store(true)
		c.close()
		return nil, err
	}
	return c, nil
}

// run is the life of the connection.
func (c *conn) run() {
	err := c.h2.Run()
	c.lost(err)
}

// cause asks TLS why a young connection of HTTP/1.1 ended: a TLS 1.3 server refuses a
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
func (c *conn) reserve() bool { return !c.dead.Load() && c.h2.Reserve() }

// roundTrip uses up the reserved stream.
func (c *conn) roundTrip(r *http.Request) (*http.Response, error) { return c.h2.RoundTrip(r) }

// usable reports whether a request could go out now.
func (c *conn) usable() bool { return !c.dead.Load() && c.h2.Usable() }

// full reports whether the connection takes streams, and has none to give.
func (c *conn) full() bool {
	open, most := c.h2.Streams()
	return !c.dead.Load() && c.h2.Err() == nil && open >= most
}

// drain lets the streams end and closes the connection then. It does not wait.
func (c *conn) drain() {
	c.dead.Store(true)
	c.h2.Shutdown()
}

// close ends the connection and its streams. It says so, but waits for nobody who
// takes no bytes.
func (c *conn) close() {
	c.h2.Close()
	time.AfterFunc(alertTime, func() { _ = c.raw.Close() }) // which it is by then, as a rule
}

// retired is called when the server sent GOAWAY or the connection ended.
func (c *conn) retired() {
	c.lost(c.h2.Err())
	asked := c.h2.AskedToLeave()
	if c.g.drop(c) && asked {
		c.g.t.goAways.Add(1)
	}
}

// lost counts a peer that does not answer.
func (c *conn) lost(err error) {
	if t := c.g.t; errors.Is(err, h2.ErrNoAnswer) && !c.silent.Swap(true) {
		t.deadPeers.Add(1)
		t.log.Warn("server does not answer, connection given up", "server", t.o.Address)
	}
}
