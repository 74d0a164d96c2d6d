package h2

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/net/http2"
)

var (
	longAgo      = time.Unix(1, 0)
	shutdownPing = [8]byte{'s', 'h', 'u', 't', 'd', 'o', 'w', 'n'}
	healthPing   = [8]byte{'h', 'e', 'a', 'l', 't', 'h'}
)

const (
	// lastWord is how long a connection that ends in good order may take to be rid of
	// what it has to say; shutdownTime, how long requests that cross a GOAWAY are waited for.
	lastWord     = 5 * time.Second
	shutdownTime = time.Second
	// linger lets a peer read why we hang up, before the kernel tells it of bytes that
	// nobody has read.
	linger = 250 * time.Millisecond
	// lastRead is how long a peer that takes no bytes may still be read from.
	lastRead = 100 * time.Millisecond
)

// Err is why the connection ends, or has ended; nil while it does not.
func (c *Conn) Err() error { return c.failed() }

// failed is why the connection shall end, if it shall.
func (c *Conn) failed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// schedule has tick run within d. It needs the lock.
func (c *Conn) schedule(d time.Duration) {
	switch {
	case c.ended:
	case c.timer == nil:
		c.timer = time.AfterFunc(c.soonest(d), c.tick)
	default:
		c.timer.Reset(c.soonest(d))
	}
}

// soonest is the first of all times at which something has to be looked at.
func (c *Conn) soonest(d time.Duration) time.Duration {
	for _, o := range [...]time.Duration{c.o.IdleTime, c.o.PingInterval} {
		if o > 0 && o < d {
			d = o
		}
	}
	if !c.pingAt.IsZero() {
		d = min(d, c.o.PingTimeout)
	}
	if c.shutting && !c.goAwaySent {
		d = min(d, shutdownTime)
	}
	return d
}

// tick looks after what depends on time.
func (c *Conn) tick() {
	c.mu.Lock()
	if c.ended || c.err != nil {
		c.mu.Unlock()
		return
	}
	now := time.Now()
	next := time.Hour
	if !c.partialSince.IsZero() {
		left := c.o.HeaderTime - now.Sub(c.partialSince)
		if left <= 0 {
			c.failLocked(&ConnError{Code: http2.ErrCodeNo, Reason: "a frame, or a header, has not come to its end in time"})
			c.mu.Unlock()
			return
		}
		next = min(next, left)
	}
	if c.o.IdleTime > 0 && len(c.streams) == 0 && c.reserved == 0 {
		left := c.o.IdleTime - now.Sub(c.idleSince)
		if left <= 0 {
			c.retired = true
			c.failLocked(ErrIdle)
			c.mu.Unlock()
			return
		}
		next = min(next, left)
	}
	if c.shutting && !c.goAwaySent {
		next = min(next, shutdownTime)
		if now.Sub(c.shutAt) >= shutdownTime {
			c.lastGoAway()
		}
	}
	if c.o.PingInterval > 0 {
		heard := c.began.Add(time.Duration(c.heard.Load()))
		if heard.After(c.pingAt) {
			c.pingAt = time.Time{}
		}
		if c.pingAt.IsZero() {
			left := c.o.PingInterval - now.Sub(heard)
			if left <= 0 {
				c.pingAt = now
				_ = c.fw.WritePing(false, healthPing)
				left = c.o.PingTimeout
			}
			next = min(next, left)
		} else {
			left := c.o.PingTimeout - now.Sub(c.pingAt)
			if left <= 0 {
				c.failLocked(ErrNoAnswer)
				c.mu.Unlock()
				return
			}
			next = min(next, left)
		}
	}
	c.timer.Reset(max(next, time.Millisecond))
	c.release(nil)
}

// quiet is called when the last stream has ended.
func (c *Conn) quiet() {
	c.idleSince = time.Now()
	c.quietLocked()
	if c.o.IdleTime > 0 && c.timer != nil && !c.ended && c.err == nil {
		c.timer.Reset(c.soonest(c.o.IdleTime))
	}
}

// quietLocked ends a connection that was asked to, once it has nothing to do.
func (c *Conn) quietLocked() {
	if len(c.streams) > 0 || c.reserved > 0 || c.ended {
		return
	}
	if c.server && c.goAwaySent || !c.server && c.retired {
		c.failLocked(ErrIdle)
	}
}

// Shutdown ends the connection in good order: streams that are open, and requests
// that are under way, come to their end. It does not wait.
func (c *Conn) Shutdown() {
	c.mu.Lock()
	if c.ended || c.shutting {
		c.mu.Unlock()
		return
	}
	c.shutting = true
	if !c.server {
		c.retired = true
		c.quietLocked()
		c.mu.Unlock()
		c.tellRetired()
		return
	}
	// Two of them, so that no request is lost on its way (section 6.8).
	c.shutAt = time.Now()
	_ = c.fw.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil)
	_ = c.fw.WritePing(false, shutdownPing)
	if c.timer != nil {
		c.timer.Reset(c.soonest(shutdownTime))
	}
	c.release(nil)
}

func (c *Conn) lastGoAway() {
	if c.goAwaySent {
		return
	}
	c.goAwaySent = true
	c.goAwayLast = c.lastID
	_ = c.fw.WriteGoAway(c.lastID, http2.ErrCodeNo, nil)
	c.quietLocked()
}

// tellRetired is called without the lock.
func (c *Conn) tellRetired() { c.once.Do(c.o.Retired) }

// Ping waits for the peer's SETTINGS and for its answer to a PING, which comes after
// them.
func (c *Conn) Ping(ctx context.Context) error {
	done := make(chan struct{})
	c.mu.Lock()
	if c.err != nil || c.ended {
		err := c.err
		c.mu.Unlock()
		return err
	}
	c.pingSeq++
	data := [8]byte{'p', 'i', 'n', 'g', byte(c.pingSeq >> 8), byte(c.pingSeq)}
	c.pings[data] = done
	_ = c.fw.WritePing(false, data)
	c.release(nil)
	for _, wait := range [...]chan struct{}{c.firstPeer, done} {
		select {
		case <-wait:
		case <-c.over:
			return c.failed()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Abort ends the connection at once, without a word to the peer.
func (c *Conn) Abort() {
	c.Close()
	if c.wire != nil {
		_, _ = c.wire.shutdown(shutBoth)
	}
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.over }

// Streams is how many are open, and how many the peer allows.
func (c *Conn) Streams() (open, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams) + int(c.reserved), int(c.peerStreams)
}

// Usable reports whether a stream could be opened now.
func (c *Conn) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.takes()
}

// takes needs the lock.
func (c *Conn) takes() bool {
	return !c.retired && c.err == nil && c.writeErr == nil && len(c.streams)+int(c.reserved) < int(c.peerStreams)
}

// AskedToLeave reports whether the peer has sent GOAWAY.
func (c *Conn) AskedToLeave() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerGoAway
}

// finish ends everything, and returns the reason.
func (c *Conn) finish(err error) error {
	c.mu.Lock()
	if c.err == nil {
		var alert *net.OpError
		switch {
		case errors.As(err, &alert) && alert.Op == "remote error": // of TLS
		case c.farewell != nil:
			err = c.farewell
		case c.writeErr != nil:
			err = c.writeErr
		case errors.Is(err, io.EOF) && len(c.streams) > 0:
			err = io.ErrUnexpectedEOF
		}
		c.err = err
	}
	err = c.err
	c.retired = true
	var local *ConnError
	switch {
	case errors.As(err, &local) && !local.Remote:
		_ = c.fw.WriteGoAway(c.seen(), local.Code, []byte(local.Reason))
	case errors.Is(err, ErrIdle), errors.Is(err, ErrClosed):
		if !c.goAwaySent {
			_ = c.fw.WriteGoAway(c.seen(), http2.ErrCodeNo, nil)
		}
	}
	lost := make([]Receiver, 0, len(c.streams)) // of the moment: who attaches itself from now on sees that it is over
	for _, s := range c.streams {
		if s.recv != nil {
			lost = append(lost, s.recv)
		}
		s.closed = true
		c.o.Memory.used.Add(int64(-s.q.size))
		s.q.reset()
		s.held = 0
	}
	c.streams = make(map[uint32]*Stream)
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	c.tellRetired()
	for _, r := range lost {
		r.Closed(&c.batch, err)
	}
	polite, wrong := errors.Is(err, ErrIdle), local != nil && !local.Remote
	wait := shutdownTime
	if polite {
		wait = lastWord
	}
	_ = c.tls.NetConn().SetWriteDeadline(time.Now().Add(wait))
	c.mu.Lock()
	if c.waitsOut { // the poller does not go on with it any more
		c.waitsOut = false
		c.writers.Go(c.drain)
	}
	c.mu.Unlock()
	c.flush(&c.batch)
	c.batch.Flush()
	c.mu.Lock()
	for c.flushing { // somebody else may be at it, or the socket is full
		c.flushed.Wait()
	}
	c.ended = true
	c.out.reset()
	c.mu.Unlock()
	c.goodbye(polite || wrong)
	_ = c.tls.NetConn().Close()
	c.writers.Wait()
	if c.wire != nil {
		c.wire.letGo()
	}
	close(c.over)
	switch {
	case errors.Is(err, io.EOF) && err != io.ErrUnexpectedEOF, errors.Is(err, ErrIdle), errors.Is(err, ErrClosed):
		return nil
	case c.server && (errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded)):
		return nil
	}
	return err
}

// seen is the last stream that the peer has opened.
func (c *Conn) seen() uint32 {
	if c.server {
		return min(c.lastID, c.goAwayLast)
	}
	return 0
}

// goodbye tells TLS' end, and gives a peer the time to read our last words: closed at
// once, a socket with unread bytes would take them back.
func (c *Conn) goodbye(stay bool) {
	below := c.tls.NetConn()
	if c.wire == nil {
		c.mu.Lock()
		failed := c.writeErr != nil
		c.mu.Unlock()
		if failed { // a record is lost, or half of it was written: an alert would be noise
			return
		}
	}
	_ = c.tls.CloseWrite()
	if c.wire != nil {
		if below = c.wire.Conn; c.wire.polled() {
			below = c.wire
		}
		_ = below.SetWriteDeadline(time.Now().Add(linger)) // CloseWrite has had its own pass
		if c.wire.flush() != nil || c.wire.pending() > 0 {
			return
		}
	}
	if !stay {
		return
	}
	if h, ok := below.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		return
	}
	if c.wire != nil && c.wire.polled() {
		c.wire.stay(linger)
		return
	}
	_ = below.SetReadDeadline(time.Now().Add(linger))
	buf := wireBuffers.Get().(*[wireSize]byte)
	defer wireBuffers.Put(buf)
	for range 64 {
		if _, err := below.Read(buf[:]); err != nil {
			return
		}
	}
}
