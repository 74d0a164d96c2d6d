package client

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// patience is how long a connection may take, TLS included, once the plugin has
// answered.
const patience = 10 * time.Second

// hesitation is how long a server may take for its first record after the handshake
// before it is taken for one that waits to be asked. Servers that give out tickets or
// speak HTTP/2 do not; so this is for a machine that is overloaded.
const hesitation = 2 * time.Second

// DialContext connects to the proxy's socket, whatever network and address are: a
// plain stream, over which the caller must speak TLS ([Client.TLSConfig]). If nobody
// listens there the plugin is executed again, once.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, _, err := c.dial(ctx)
	if err != nil {
		return nil, err // not a nil *conn
	}
	c.well()
	return conn, nil
}

// DialTLSContext connects to the proxy and returns a *[tls.Conn] whose handshake is
// done. Network is ignored, and so is address but where the cluster's server is not
// known: there its host is the name that the proxy must prove. If nobody listens, or
// it is not the proxy that the plugin told of, the plugin is executed again, once.
func (c *Client) DialTLSContext(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dialTLS(ctx, address, nil)
	if err != nil {
		return nil, err // not a nil *tls.Conn
	}
	return conn, nil
}

// DialHTTP1Context is [Client.DialTLSContext] for HTTP/1.1 alone: for upgrades to SPDY
// and WebSocket, which HTTP/2 does not carry.
func (c *Client) DialHTTP1Context(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := c.dialTLS(ctx, address, []string{"http/1.1"})
	if err != nil {
		return nil, err // not a nil *tls.Conn
	}
	return conn, nil
}

// dialTLS offers protocols, or what the session has.
func (c *Client) dialTLS(ctx context.Context, address string, protocols []string) (*tls.Conn, error) {
	for again := false; ; again = true {
		raw, s, err := c.dial(ctx)
		if err != nil {
			return nil, err
		}
		config := s.tls
		if protocols != nil {
			config = config.Clone()
			config.NextProtos = protocols
		}
		conn, err := handshake(ctx, raw, config, address)
		if err == nil {
			raw.notAfter = s.notAfter
			c.well()
			return conn, nil
		}
		_ = raw.Close()
		err = fmt.Errorf("TLS with the proxy at %s: %w", s.path, err)
		if !another(err) {
			return nil, err
		}
		if again {
			c.fail(s, err)
			return nil, err
		}
		c.log.Debug("proxy is another one", "socket", s.path, "err", err)
		if _, err2 := c.renew(ctx, s); err2 != nil {
			return nil, fmt.Errorf("%w; executing the plugin again: %w", err, err2)
		}
	}
}

func handshake(ctx context.Context, raw *conn, config *tls.Config, address string) (*tls.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		config = config.Clone()
		config.ServerName = host
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn := tls.Client(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	if conn.ConnectionState().Version < tls.VersionTLS13 {
		return conn, nil
	}
	// In TLS 1.3 a server that does not accept the client's certificate says so when
	// the handshake is over for the client (RFC 8446 section 4.4.2.4), hence to the
	// first request, of which nobody could then tell whether it was sent. So its next
	// record is looked at first: a ticket or HTTP/2 settings, if it accepts, or else
	// an alert, which no other record is as short as.
	const alert = 2 + 1 + 16 // level and description, content type, tag
	switch length, err := raw.firstRecord(hesitation); {
	case err != nil:
		return nil, err
	case length == alert:
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return nil, err
		}
		return nil, errors.New("the proxy speaks before it is asked")
	}
	return conn, nil
}

// another reports whether a TLS error may come of a proxy that is not, or soon will
// not be, the one that the document is about.
func another(err error) bool {
	var untrusted *tls.CertificateVerificationError
	var op *net.OpError
	return errors.As(err, &untrusted) || errors.As(err, &op) && op.Op == "remote error" || reset(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (c *Client) dial(ctx context.Context) (*conn, *session, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, nil, err
	}
	conn, err := c.connect(ctx, s.path)
	if err == nil || !gone(err) {
		return conn, s, err
	}
	c.log.Debug("proxy is gone", "socket", s.path, "err", err)
	if s, err = c.renew(ctx, s); err != nil {
		return nil, nil, err
	}
	if conn, err = c.connect(ctx, s.path); err != nil {
		if gone(err) {
			c.fail(s, err)
		}
		return nil, nil, err
	}
	return conn, s, nil
}

// connect connects to a socket. A full backlog, which only an end of the proxy or
// time can cure, is waited out.
func (c *Client) connect(ctx context.Context, path string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	busy := func(err error) error {
		return fmt.Errorf("connecting to the proxy: its backlog at %s is full: %w", path, err)
	}
	var d net.Dialer
	waited := false
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		raw, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return c.track(raw)
		}
		if late := net.Error(nil); waited && errors.As(err, &late) && late.Timeout() && !full(err) {
			return nil, busy(err)
		}
		if !full(err) {
			return nil, fmt.Errorf("connecting to the proxy: %w", err)
		}
		waited = true
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, busy(ctx.Err())
		}
	}
}

// A conn is an open connection, known to its client so that Close can cut it.
type conn struct {
	net.Conn
	c    *Client
	once sync.Once
	end  func() // may be nil

	notAfter time.Time // of the pair that was shown; zero: none, or no TLS of ours

	ahead []byte // was read by firstRecord and is to be read again
}

func (c *Client) track(raw net.Conn) (*conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		_ = raw.Close()
		return nil, ErrClosed
	}
	k := &conn{Conn: raw, c: c}
	c.conns[k] = struct{}{}
	return k, nil
}

// firstRecord returns the length of the next TLS record (RFC 8446 section 5.1), or 0
// if none begins within that time.
func (k *conn) firstRecord(within time.Duration) (int, error) {
	if err := k.SetReadDeadline(time.Now().Add(within)); err != nil {
		return 0, err
	}
	head := make([]byte, 5)
	n, err := io.ReadFull(k.Conn, head)
	k.ahead = head[:n]
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	if err := k.SetReadDeadline(time.Time{}); err != nil || n < len(head) {
		return 0, err
	}
	return int(binary.BigEndian.Uint16(head[3:])), nil
}

func (k *conn) Read(p []byte) (int, error) {
	if len(k.ahead) > 0 {
		n := copy(p, k.ahead)
		k.ahead = k.ahead[n:]
		return n, nil
	}
	return k.Conn.Read(p)
}

func (k *conn) Close() error {
	k.once.Do(func() {
		k.c.mu.Lock()
		delete(k.c.conns, k)
		end := k.end
		k.c.mu.Unlock()
		if end != nil {
			end()
		}
	})
	return k.Conn.Close()
}

// onClose has f called when the connection is closed.
func (k *conn) onClose(f func()) {
	k.c.mu.Lock()
	_, open := k.c.conns[k]
	if open {
		k.end = f
	}
	k.c.mu.Unlock()
	if !open {
		f()
	}
}

// CloseWrite ends the stream one way.
func (k *conn) CloseWrite() error {
	if w, ok := k.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}
