package h2

import (
	"errors"
	"io"
	"slices"

	"golang.org/x/net/http2"
)

// frames takes apart what has been decrypted.
func (c *Conn) frames(b *Batch) error {
	p := c.plain[:c.filled]
	if c.preface > 0 {
		n := min(c.preface, len(p))
		at := len(http2.ClientPreface) - c.preface
		if string(p[:n]) != http2.ClientPreface[at:at+n] {
			return protocolError("this is not the preface of HTTP/2")
		}
		c.preface -= n
		p = p[n:]
	}
	for {
		if c.spent != nil {
			return c.spent
		}
		if c.data.open {
			n, err := c.dataPiece(b, p)
			if err != nil {
				return err
			}
			p = p[n:]
			if c.data.open {
				break
			}
			continue
		}
		if len(p) < 9 {
			break
		}
		length := int(p[0])<<16 | int(p[1])<<8 | int(p[2])
		kind, flags := http2.FrameType(p[3]), http2.Flags(p[4])
		id := (uint32(p[5])<<24 | uint32(p[6])<<16 | uint32(p[7])<<8 | uint32(p[8])) & maxStreamID
		switch {
		case length > int(c.o.MaxFrame):
			return &ConnError{Code: http2.ErrCodeFrameSize, Reason: "a frame is larger than was said"}
		case !c.settled && (kind != http2.FrameSettings || flags.Has(http2.FlagSettingsAck)):
			return protocolError("SETTINGS do not come first")
		case kind == http2.FrameData:
			if err := c.beginData(b, id, length, flags); err != nil {
				return err
			}
			c.whole++
			p = p[9:]
			continue
		}
		if len(p) < 9+length {
			if need := 9 + length; need > len(c.plain) {
				grown := make([]byte, need)
				c.filled = copy(grown, p)
				c.plain = grown
				return nil
			}
			break
		}
		if err := c.frame(b, p[:9+length]); err != nil {
			return err
		}
		if !c.block.open {
			c.whole++
		}
		p = p[9+length:]
	}
	c.filled = copy(c.plain, p)
	if c.filled == 0 && len(c.plain) > plainSize {
		c.plain = nil
	}
	return nil
}

// frame is one that is no DATA.
func (c *Conn) frame(b *Batch, p []byte) error {
	c.src.Reset(p)
	f, err := c.fr.ReadFrame()
	if err != nil {
		return c.frameError(b, http2.FrameType(p[3]), err)
	}
	switch f := f.(type) {
	case *http2.HeadersFrame:
		c.block.begin(f.StreamID, f.StreamEnded())
		c.block.self = f.HasPriority() && f.Priority.StreamDep == f.StreamID
		return c.headerPart(b, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.ContinuationFrame:
		return c.headerPart(b, f.HeaderBlockFragment(), f.HeadersEnded())
	case *http2.WindowUpdateFrame:
		return c.windowUpdate(b, f.StreamID, int64(f.Increment))
	case *http2.RSTStreamFrame:
		return c.rstStream(b, f.StreamID, f.ErrCode)
	case *http2.SettingsFrame:
		return c.settings(b, f)
	case *http2.PingFrame:
		return c.ping(b, f)
	case *http2.GoAwayFrame:
		return c.goAway(b, f)
	case *http2.PriorityFrame:
		if err := c.spend(&c.control, "priority"); err != nil {
			return err
		}
		if f.StreamDep == f.StreamID {
			c.streamError(b, f.StreamID, http2.ErrCodeProtocol, "it depends on itself")
		}
		return nil
	case *http2.PushPromiseFrame:
		return protocolError("PUSH_PROMISE, which nobody may send here")
	default:
		return c.spend(&c.control, "other") // unknown ones are ignored: section 4.1
	}
}

func (c *Conn) frameError(b *Batch, kind http2.FrameType, err error) error {
	var stream http2.StreamError
	var conn http2.ConnectionError
	switch {
	case errors.As(err, &stream) && kind == http2.FrameHeaders:
		return protocolError("more padding than frame") // its fields are missing in the decoder's table
	case errors.As(err, &stream):
		if err := c.spend(&c.control, "other"); err != nil {
			return err
		}
		c.mu.Lock()
		idle := c.idle(stream.StreamID)
		c.mu.Unlock()
		if idle {
			return protocolError("a frame for a stream that does not exist")
		}
		c.streamError(b, stream.StreamID, stream.Code, "a malformed frame")
		return nil
	case errors.As(err, &conn):
		return &ConnError{Code: http2.ErrCode(conn), Reason: "a malformed frame"}
	case errors.Is(err, http2.ErrFrameTooLarge), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return &ConnError{Code: http2.ErrCodeFrameSize, Reason: "a frame has not the length of its kind"}
	}
	return protocolError(err.Error())
}

// idle reports whether a stream has never been opened (RFC 9113 section 5.1).
func (c *Conn) idle(id uint32) bool {
	if id%2 == 0 {
		return true // nobody pushes
	}
	if c.lastID == ^uint32(0) {
		return true
	}
	return id > c.lastID
}

// streamError resets a stream for what the peer did.
func (c *Conn) streamError(b *Batch, id uint32, code http2.ErrCode, reason string) {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		_ = c.fw.WriteRSTStream(id, code)
		c.release(b)
		return
	}
	recv := s.recv
	c.reset(s, code)
	c.release(b)
	if recv != nil {
		recv.Closed(b, &StreamError{Code: code, Reason: reason})
	}
	if c.server && c.spent == nil { // a client that has us reset is none the better (CVE-2025-8671)
		c.spent = c.spend(&c.resets, "reset")
	}
}

// closedStream is a frame for a stream that has ended. What was under way when we
// reset it is ignored (section 5.1).
func (c *Conn) closedStream(b *Batch, id uint32) error {
	if !c.server {
		return c.spend(&c.late, "other") // we cancel as our clients do, in any number, and it crosses what comes
	}
	c.mu.Lock()
	if id > c.goAwayLast || slices.Contains(c.localResets[:], id) {
		c.mu.Unlock()
		return nil
	}
	_ = c.fw.WriteRSTStream(id, http2.ErrCodeStreamClosed)
	c.release(b)
	return c.spend(&c.control, "other")
}

func (c *Conn) headerPart(b *Batch, p []byte, last bool) error {
	if err := c.feed(p, last); err != nil || !last {
		return err
	}
	if c.server {
		return c.clientHeader(b)
	}
	return c.serverHeader(b)
}
