package h2

import (
	"bytes"
	"time"

	"golang.org/x/net/http2"
)

// sent is what a receiver is told once no lock is held.
type sent struct {
	to Receiver
	n  int
}

// flush encrypts and writes what is to go out. If that is going on already, whoever
// does it goes on with what came since.
func (c *Conn) flush(b *Batch) {
	c.mu.Lock()
	c.dirty = false
	if c.flushing || c.ended {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	if c.wire == nil {
		if c.out.size == 0 && len(c.ready) == 0 {
			c.flushDone()
			c.mu.Unlock()
			return
		}
		c.writers.Go(c.goOn)
		c.mu.Unlock()
		return
	}
	c.flushLocked(b)
}

// maxRounds is how often what comes while something is written is written as well, before
// that is left to a goroutine: a poller has other connections to read.
const maxRounds = 8

// flushLocked needs flushing, and returns without the lock.
func (c *Conn) flushLocked(b *Batch) {
	var notes [16]sent
	for round := 0; ; round++ {
		told := c.pump(notes[:0])
		if c.out.size == 0 || c.ended {
			c.flushDone()
			c.mu.Unlock()
			tell(b, told)
			return
		}
		if round == maxRounds && c.poller != nil {
			c.writers.Go(c.goOn)
			c.mu.Unlock()
			tell(b, told)
			return
		}
		out := c.out.list
		c.taken = c.out.size
		c.out.list, c.out.size = nil, 0
		c.mu.Unlock()
		tell(b, told)
		blocked, err := c.write(out)
		c.mu.Lock()
		switch {
		case err != nil:
			c.failWriteLocked(err)
			c.flushDone()
			c.mu.Unlock()
			return
		case blocked && c.ended:
			c.flushDone()
			c.mu.Unlock()
			return
		case blocked:
			if c.waitsOut = c.poller != nil && c.poller.want(c, true); !c.waitsOut {
				c.writers.Go(c.drain)
			}
			c.mu.Unlock()
			return
		}
		c.taken = 0
	}
}

// goOn flushes in a goroutine of its own. It needs flushing.
func (c *Conn) goOn() {
	b := batches.Get().(*Batch)
	c.mu.Lock()
	c.flushLocked(b)
	b.Flush()
	batches.Put(b)
}

// flushDone needs the lock.
func (c *Conn) flushDone() {
	c.taken, c.flushing = 0, false
	c.flushed.Broadcast()
}

func tell(b *Batch, told []sent) {
	for _, t := range told {
		if t.to != nil {
			t.to.Sent(b, t.n)
		}
	}
}

// write encrypts segments and writes them; blocked tells that some of it is left
// to drain.
func (c *Conn) write(out []*segment) (blocked bool, err error) {
	for i, s := range out {
		if err == nil {
			_, err = c.tls.Write(s.bytes())
		}
		s.free()
		out[i] = nil
	}
	if err != nil || c.wire == nil {
		return false, err
	}
	if err := c.wire.flush(); err != nil {
		return false, err
	}
	return c.wire.pending() > 0, nil
}

// drain waits for the socket, and goes on flushing then.
func (c *Conn) drain() {
	b := batches.Get().(*Batch)
	defer batches.Put(b)
	err := c.wire.drain()
	c.mu.Lock()
	c.drained(b, err)
	b.Flush()
}

// drained goes on flushing where the socket has taken all that was left of a write. It
// returns without the lock.
func (c *Conn) drained(b *Batch, err error) {
	if err != nil {
		c.failWriteLocked(err)
		c.flushDone()
		c.mu.Unlock()
		return
	}
	c.taken = 0
	c.flushLocked(b)
}

// room is how many bytes of bodies may be appended to the output.
func (c *Conn) room() int { return highWater - c.taken - c.out.size }

// allow is how much of n bytes s may send now.
func (c *Conn) allow(s *Stream, n int) int {
	most := min(int64(n), s.sendWin, c.sendWin, int64(c.room()), int64(c.peerFrame), segmentSize)
	return int(max(most, 0))
}

// pump lets go out what streams keep, in turn.
func (c *Conn) pump(told []sent) []sent {
	for len(c.ready) > 0 {
		s := c.ready[0]
		n := 0
		if !s.closed {
			n = len(s.q.front(c.allow(s, s.q.size)))
			if n == 0 && s.sendWin > 0 && s.q.size > 0 {
				break // the connection is full: nobody's turn
			}
		}
		c.ready[0] = nil
		c.ready = c.ready[1:]
		s.ready = false
		if n == 0 {
			continue
		}
		last := n == s.q.size && s.endKept && s.trailer == nil
		c.writeData(s, s.q.front(n), last)
		s.q.drop(n)
		c.kept -= n
		c.o.Memory.used.Add(int64(-n))
		told = append(told, sent{s.recv, n})
		switch {
		case s.q.size > 0:
			c.wait(s)
		case s.endKept && s.trailer != nil:
			c.writeHeader(s.id, s.trailer, true)
			s.trailer = nil
			c.said(s)
		case s.endKept:
			c.said(s)
		}
	}
	if len(c.ready) == 0 {
		c.ready = nil
	}
	return told
}

// wait puts s among the streams that have something to send, if its window is open.
func (c *Conn) wait(s *Stream) {
	if !s.ready && s.sendWin > 0 {
		s.ready = true
		c.ready = append(c.ready, s)
	}
}

func (c *Conn) writeData(s *Stream, p []byte, end bool) {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	n, id := len(p), s.id
	head := [9]byte{byte(n >> 16), byte(n >> 8), byte(n), byte(http2.FrameData), byte(flags), byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
	_, _ = c.out.Write(head[:])
	_, _ = c.out.Write(p)
	s.sendWin -= int64(n)
	c.sendWin -= int64(n)
	c.pieces++
}

// plainValue is the length from which a value that goes into no table is written as it is.
// To squeeze a signature by a fifth (RFC 7541 section 5.2) costs more than to encrypt the
// rest.
const plainValue = 32

// writePlain writes a literal field that is never indexed (RFC 7541 section 6.2.3), which
// leaves HPACK's table alone. It is not for the first field of a block: a change of the
// table's size comes before that.
func writePlain(to *bytes.Buffer, f *Field) {
	to.WriteByte(0x10)
	for _, s := range [...]string{f.Name, f.Value} {
		n := len(s)
		if n < 0x7f {
			to.WriteByte(byte(n))
		} else { // section 5.1
			to.WriteByte(0x7f)
			for n -= 0x7f; n >= 0x80; n >>= 7 {
				to.WriteByte(byte(n) | 0x80)
			}
			to.WriteByte(byte(n))
		}
		to.WriteString(s)
	}
}

func (c *Conn) writeHeader(id uint32, fields []Field, end bool) {
	c.hbuf.Reset()
	for i := range fields {
		if f := &fields[i]; i > 0 && f.Sensitive && len(f.Value) >= plainValue {
			writePlain(&c.hbuf, f)
			continue
		}
		_ = c.enc.WriteField(fields[i]) // into memory
	}
	block := c.hbuf.Bytes()
	first := true
	for first || len(block) > 0 {
		n := min(len(block), c.peerFrame)
		if first {
			_ = c.fw.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: end, EndHeaders: n == len(block)})
		} else {
			_ = c.fw.WriteContinuation(id, n == len(block), block[:n])
		}
		block, first = block[n:], false
	}
	if c.hbuf.Cap() > 64<<10 {
		c.hbuf = bytes.Buffer{}
	}
	c.checkOverflow()
}

// checkOverflow ends a connection whose peer makes us write and does not read.
func (c *Conn) checkOverflow() {
	most := clientOverflow
	if c.server {
		most = serverOverflow
	}
	if c.out.size+c.taken > most && c.err == nil {
		c.o.Flood("unread")
		c.failLocked(&ConnError{Code: http2.ErrCodeEnhanceYourCalm, Reason: "the peer does not read"})
	}
}

// failLocked has the connection end. The reader does it.
func (c *Conn) failLocked(err error) {
	if c.err == nil {
		c.err = err
	}
	c.stopReading(0)
}

// stopReading has the reader stop, after a while.
func (c *Conn) stopReading(after time.Duration) {
	switch p := c.poller; {
	case p == nil && after == 0:
		_ = c.tls.NetConn().SetReadDeadline(longAgo)
	case p == nil:
		_ = c.tls.NetConn().SetReadDeadline(time.Now().Add(after))
	case after == 0:
		p.kick(c)
	default:
		time.AfterFunc(after, func() { p.kick(c) })
	}
}

// failWriteLocked has the connection end once the reader has seen what the peer had to
// say: a server that refuses our certificate sends an alert and closes, and the write that
// then fails says less.
func (c *Conn) failWriteLocked(err error) {
	if c.writeErr != nil {
		return
	}
	if c.writeErr = err; c.err != nil {
		return
	}
	c.stopReading(lastRead)
}

// Close ends the connection and all its streams, and does not wait for it.
func (c *Conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failLocked(ErrClosed)
}
