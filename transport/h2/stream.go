package h2

import (
	"golang.org/x/net/http2"
)

// A Stream is one request and its answer, seen from one of its ends. All methods
// may be called at any time; on a stream that has ended they do nothing. With a
// nil Batch what they append is written at once.
type Stream struct {
	c    *Conn
	id   uint32
	recv Receiver

	// Guarded by the connection's lock.
	sendWin, recvWin int64
	window           int64 // what recvWin may be at most
	credit           int64 // given back, and not told the peer yet
	since            int64 // given back since the window grew
	held             int64 // brought to the receiver, and not given back
	got, length      int64 // of the peer's body; length -1: not announced
	q                queue // what cannot go out yet
	trailer          []Field
	endKept          bool // the end comes after what is kept
	ready            bool // among Conn.ready
	begun            bool // we have sent a header
	heard            bool // the peer has sent one
	saidAll, gotAll  bool
	closed           bool // reset, or the connection ended
	noBody           bool // the answer to a HEAD
	informed         int  // informational answers; the reader's alone
	to               *Conn
	grown            int64 // of window, on to's account
}

// ID is the stream's identifier.
func (s *Stream) ID() uint32 { return s.id }

// Length is what the peer has announced its body to be, in bytes: -1 for nothing, and for
// what is no single number.
func (s *Stream) Length() int64 { return s.length }

// Receiver is who Attach said.
func (s *Stream) Receiver() Receiver {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	return s.recv
}

// Conn is the stream's connection.
func (s *Stream) Conn() *Conn { return s.c }

// Header sends the header of an answer, or of a request.
func (s *Stream) Header(b *Batch, fields []Field, end bool) {
	c := s.c
	c.mu.Lock()
	if s.closed || s.saidAll || s.endKept {
		c.mu.Unlock()
		return
	}
	s.begun = true
	c.writeHeader(s.id, fields, end)
	if end {
		c.said(s)
	}
	c.release(b)
}

// Write sends a piece of the body, and its end. All of p is taken: sent is how much
// of it has gone out, or need not any more; the rest is kept, and told by
// Receiver.Sent. The only error is ErrOverrun, after which the stream is reset.
func (s *Stream) Write(b *Batch, p []byte, end bool) (sent int, err error) {
	c := s.c
	c.mu.Lock()
	if s.closed || s.saidAll || s.endKept {
		c.mu.Unlock()
		return len(p), nil
	}
	if s.q.size == 0 {
		for sent < len(p) {
			n := c.allow(s, len(p)-sent)
			if n == 0 {
				break
			}
			sent += n
			c.writeData(s, p[sent-n:sent], end && sent == len(p))
		}
		if len(p) == 0 && end {
			c.writeData(s, nil, true)
		}
	}
	switch rest := p[sent:]; {
	case len(rest) > 0 || end && s.q.size > 0:
		m := c.o.Memory
		if m.used.Add(int64(len(rest))) > m.limit || c.server && c.kept+len(rest) > mostKept {
			m.used.Add(int64(-len(rest)))
			c.o.Flood("unread")
			c.reset(s, http2.ErrCodeEnhanceYourCalm)
			c.release(b)
			return len(p), ErrOverrun
		}
		c.kept += len(rest)
		s.q.thrifty = true
		_, _ = s.q.Write(rest)
		s.endKept = end
		c.wait(s)
	case end:
		c.said(s)
	}
	c.release(b)
	return sent, nil
}

// Trailer ends the body with fields.
func (s *Stream) Trailer(b *Batch, fields []Field) {
	c := s.c
	c.mu.Lock()
	switch {
	case s.closed || s.saidAll || s.endKept:
		c.mu.Unlock()
		return
	case s.q.size > 0:
		s.endKept, s.trailer = true, append([]Field(nil), fields...)
	default:
		c.writeHeader(s.id, fields, true)
		c.said(s)
	}
	c.release(b)
}

// Consumed gives n bytes back that Receiver.Data brought: the peer may send as many.
func (s *Stream) Consumed(b *Batch, n int) {
	c := s.c
	c.mu.Lock()
	n = int(min(int64(n), s.held)) // the connection has had the rest back when the stream ended
	if n == 0 {
		c.mu.Unlock()
		return
	}
	s.held -= int64(n)
	wrote := c.giveBack(int64(n))
	if !s.gotAll && !s.closed {
		s.credit += int64(n)
		s.since += int64(n)
		if s.credit >= s.window/2 {
			inc := s.credit
			if most := int64(c.o.MaxStreamWindow); s.since >= s.window && s.window < most {
				more := s.mayGrow(min(s.window, most-s.window))
				s.window += more
				inc += more
				s.since = 0
			}
			s.credit = 0
			s.recvWin += inc
			_ = c.fw.WriteWindowUpdate(s.id, uint32(inc))
			wrote = true
		}
	}
	c.releaseIf(wrote, b)
}

// PassTo says that what comes on s goes out on c: the windows of all such streams grow
// together by no more than half of what c's streams may keep, so that a client that takes
// much at once and is slow then has them wait. nil: no more does.
func (s *Stream) PassTo(c *Conn) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.to != nil {
		s.to.ahead.Add(-s.grown)
	}
	s.to, s.grown = c, 0
}

// mayGrow is how much of n bytes the window may grow by.
func (s *Stream) mayGrow(n int64) int64 {
	switch {
	case s.to == nil:
	case s.to.ahead.Add(n) > mostKept/2:
		s.to.ahead.Add(-n)
		return 0
	default:
		s.grown += n
	}
	return n
}

// giveBack credits the connection's window.
func (c *Conn) giveBack(n int64) (wrote bool) {
	c.credit += n
	if c.credit < min(int64(c.o.ConnWindow)/2, 1<<20) || c.ended {
		return false
	}
	_ = c.fw.WriteWindowUpdate(0, uint32(c.credit))
	c.recvWin += c.credit
	c.credit = 0
	return true
}

// Reset ends the stream at once, in both directions.
func (s *Stream) Reset(b *Batch, code http2.ErrCode) {
	c := s.c
	c.mu.Lock()
	if s.closed || s.saidAll && s.gotAll {
		c.mu.Unlock()
		return
	}
	c.reset(s, code)
	c.release(b)
}

// reset needs the lock.
func (c *Conn) reset(s *Stream, code http2.ErrCode) {
	_ = c.fw.WriteRSTStream(s.id, code)
	c.noteReset(s.id)
	c.forget(s)
	c.checkOverflow()
}

// noteReset keeps what the peer has sent before it heard of a reset from being held against it.
func (c *Conn) noteReset(id uint32) {
	c.localResets[c.nextReset%len(c.localResets)] = id
	c.nextReset++
}

// said notes the end of what we have to say.
func (c *Conn) said(s *Stream) {
	s.saidAll = true
	if s.gotAll {
		c.remove(s)
	}
}

// forget ends a stream that is not complete, and gives back what it holds.
func (c *Conn) forget(s *Stream) {
	s.closed = true
	c.kept -= s.q.size
	c.o.Memory.used.Add(int64(-s.q.size))
	s.q.reset()
	s.trailer = nil
	c.giveBack(s.held)
	s.held = 0
	c.remove(s)
}

func (c *Conn) remove(s *Stream) {
	if _, ok := c.streams[s.id]; !ok {
		return
	}
	delete(c.streams, s.id)
	if len(c.streams) == 0 {
		c.quiet()
	}
}
