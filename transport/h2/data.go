package h2

import (
	"golang.org/x/net/http2"
)

// dataFrame is a DATA frame that is being read: its pieces are handed on as they come.
type dataFrame struct {
	open   bool
	s      *Stream // nil: nobody's
	left   int     // of the payload, padding included
	pad    int
	padded bool // the length of the padding is to come
	end    bool
}

func (c *Conn) beginData(b *Batch, id uint32, length int, flags http2.Flags) error {
	switch {
	case c.block.open:
		return protocolError("DATA within a header block")
	case id == 0:
		return protocolError("DATA on stream 0")
	}
	d := &c.data
	*d = dataFrame{open: true, left: length, padded: flags.Has(http2.FlagDataPadded), end: flags.Has(http2.FlagDataEndStream)}
	if d.padded && length == 0 {
		return &ConnError{Code: http2.ErrCodeFrameSize, Reason: "a padded frame has no room for its padding's length"}
	}
	if length == 0 && !d.end || length == 1 && !d.end && c.server { // a container that prints dots is no flood
		if err := c.spend(&c.control, "data"); err != nil {
			return err
		}
	}
	c.mu.Lock()
	if c.recvWin -= int64(length); c.recvWin < 0 {
		c.mu.Unlock()
		return &ConnError{Code: http2.ErrCodeFlowControl, Reason: "more DATA than the connection's window"}
	}
	s := c.streams[id]
	var code http2.ErrCode
	var reason string
	switch {
	case s == nil:
		idle := c.idle(id)
		if idle {
			c.mu.Unlock()
			return protocolError("DATA on a stream that does not exist")
		}
		c.mu.Unlock()
		return c.closedStream(b, id)
	case s.gotAll:
		code, reason = http2.ErrCodeStreamClosed, "DATA after the end of the stream"
	case !c.server && !s.heard:
		code, reason = http2.ErrCodeProtocol, "DATA before the header"
	case s.noBody && length > 0:
		code, reason = http2.ErrCodeProtocol, "a body in the answer to a HEAD"
	default:
		if s.recvWin -= int64(length); s.recvWin < 0 {
			code, reason = http2.ErrCodeFlowControl, "more DATA than the stream's window"
		}
	}
	c.mu.Unlock()
	if reason != "" {
		c.streamError(b, id, code, reason)
		return nil // d.s is nil: the payload is nobody's
	}
	d.s = s
	return nil
}

// dataPiece hands on what there is of the frame, and returns how much of p that was.
func (c *Conn) dataPiece(b *Batch, p []byte) (used int, err error) {
	d := &c.data
	if d.padded {
		if len(p) == 0 {
			return 0, nil
		}
		d.padded = false
		d.pad = int(p[0])
		d.left--
		used, p = 1, p[1:]
		if d.pad > d.left {
			return 0, protocolError("more padding than frame")
		}
		d.left -= d.pad
		if d.left == 0 && !d.end {
			if err := c.spend(&c.control, "data"); err != nil {
				return used, err
			}
		}
		c.discard(b, d.s, 1+d.pad)
	}
	if n := min(len(p), d.left); n > 0 || d.left == 0 && d.s != nil {
		d.left -= n
		last := d.left == 0
		c.deliver(b, d, p[:n], d.end && last)
		if last {
			d.s = nil
		}
		used, p = used+n, p[n:]
	}
	if d.left == 0 && d.pad > 0 {
		n := min(len(p), d.pad)
		d.pad -= n
		used += n
	}
	d.open = d.left > 0 || d.pad > 0
	return used, nil
}

// discard gives back bytes that nobody gets.
func (c *Conn) discard(b *Batch, s *Stream, n int) {
	c.mu.Lock()
	if s != nil && !s.closed {
		s.held += int64(n)
		c.mu.Unlock()
		s.Consumed(b, n)
		return
	}
	c.releaseIf(c.giveBack(int64(n)), b)
}

func (c *Conn) deliver(b *Batch, d *dataFrame, p []byte, end bool) {
	s := d.s
	if s == nil {
		c.discard(b, nil, len(p))
		return
	}
	if len(p) == 0 && !end {
		return
	}
	c.mu.Lock()
	if s.closed {
		c.releaseIf(c.giveBack(int64(len(p))), b)
		return
	}
	s.got += int64(len(p))
	if s.length >= 0 && (s.got > s.length || end && s.got != s.length) {
		c.giveBack(int64(len(p)))
		c.mu.Unlock()
		c.streamError(b, s.id, http2.ErrCodeProtocol, "the body has not the length that was announced")
		return
	}
	s.held += int64(len(p))
	if end {
		c.heardAll(s)
	}
	recv := s.recv
	c.mu.Unlock()
	if recv == nil {
		s.Consumed(b, len(p))
		return
	}
	recv.Data(b, p, end)
}

func (c *Conn) heardAll(s *Stream) {
	s.gotAll = true
	if s.saidAll {
		c.remove(s)
	}
}
