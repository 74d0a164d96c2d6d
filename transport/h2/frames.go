package h2

import (
	"errors"
	"io"
	"strings"
	"time"

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
	empty  bool
}

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
		return c.frameError(b, err)
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

func (c *Conn) frameError(b *Batch, err error) error {
	var stream http2.StreamError
	var conn http2.ConnectionError
	switch {
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
	ignore := id > c.goAwayLast
	for _, r := range c.localResets {
		ignore = ignore || r == id
	}
	if ignore {
		c.mu.Unlock()
		return nil
	}
	_ = c.fw.WriteRSTStream(id, http2.ErrCodeStreamClosed)
	c.release(b)
	return c.spend(&c.control, "other")
}

func (c *Conn) beginData(b *Batch, id uint32, length int, flags http2.Flags) error {
	switch {
	case c.block.open:
		return protocolError("DATA within a header block")
	case id == 0:
		return protocolError("DATA on stream 0")
	}
	d := &c.data
	*d = dataFrame{open: true, left: length, padded: flags.Has(http2.FlagDataPadded), end: flags.Has(http2.FlagDataEndStream), empty: length == 0}
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
		if err := c.discard(b, d.s, 1+d.pad); err != nil {
			return 0, err
		}
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
func (c *Conn) discard(b *Batch, s *Stream, n int) error {
	c.mu.Lock()
	if s != nil && !s.closed {
		s.held += int64(n)
		c.mu.Unlock()
		s.Consumed(b, n)
		return nil
	}
	if !c.giveBack(int64(n)) {
		c.mu.Unlock()
		return nil
	}
	c.release(b)
	return nil
}

func (c *Conn) deliver(b *Batch, d *dataFrame, p []byte, end bool) {
	s := d.s
	if s == nil {
		_ = c.discard(b, nil, len(p))
		return
	}
	if len(p) == 0 && !end {
		return
	}
	c.mu.Lock()
	if s.closed {
		wrote := c.giveBack(int64(len(p)))
		if wrote {
			c.release(b)
			return
		}
		c.mu.Unlock()
		return
	}
	s.got += int64(len(p))
	if s.length >= 0 && (s.got > s.length || end && s.got != s.length) {
		wrote := c.giveBack(int64(len(p)))
		_ = wrote
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

func (c *Conn) headerPart(b *Batch, p []byte, last bool) error {
	if err := c.feed(p, last); err != nil || !last {
		return err
	}
	if c.server {
		return c.clientHeader(b)
	}
	return c.serverHeader(b)
}

func (c *Conn) windowUpdate(b *Batch, id uint32, n int64) error {
	c.mu.Lock()
	// Each piece of a body may be given back by itself, for its stream and for the
	// connection, however small it is: that is what some clients do. Servers give back what they have read.
	if c.updates++; c.server && n < 256 && c.updates > 2*c.pieces {
		c.mu.Unlock()
		if err := c.spend(&c.control, "window"); err != nil {
			return err
		}
		c.mu.Lock()
	}
	if id == 0 {
		if c.sendWin += n; c.sendWin > maxWindow {
			c.mu.Unlock()
			c.o.Flood("window")
			return &ConnError{Code: http2.ErrCodeFlowControl, Reason: "the window is over 2^31-1"}
		}
		if len(c.ready) == 0 {
			c.mu.Unlock()
			return nil
		}
		c.release(b)
		return nil
	}
	s := c.streams[id]
	if s == nil {
		idle := c.idle(id)
		c.mu.Unlock()
		if idle {
			return protocolError("WINDOW_UPDATE for a stream that does not exist")
		}
		return nil
	}
	if s.sendWin += n; s.sendWin > maxWindow {
		c.mu.Unlock()
		c.o.Flood("window")
		c.streamError(b, id, http2.ErrCodeFlowControl, "the window is over 2^31-1")
		return nil
	}
	if s.q.size == 0 {
		c.mu.Unlock()
		return nil
	}
	c.wait(s)
	c.release(b)
	return nil
}

func (c *Conn) rstStream(b *Batch, id uint32, code http2.ErrCode) error {
	c.mu.Lock()
	s := c.streams[id]
	if s == nil {
		idle := c.idle(id)
		c.mu.Unlock()
		if idle {
			return protocolError("RST_STREAM for a stream that does not exist")
		}
		if !c.server {
			return nil // NO_ERROR after an early answer (section 8.1), and what crosses our own
		}
		return c.spend(&c.control, "other")
	}
	early := c.server && !s.begun
	recv := s.recv
	c.forget(s)
	c.release(b)
	if recv != nil {
		recv.Closed(b, &StreamError{Code: code, Remote: true})
	}
	if early {
		return c.spend(&c.resets, "reset")
	}
	return nil
}

func (c *Conn) settings(b *Batch, f *http2.SettingsFrame) error {
	if f.IsAck() {
		if c.acked { // we send SETTINGS once
			return protocolError("SETTINGS are acknowledged that were not sent")
		}
		c.acked = true
		return nil
	}
	if c.settled { // the first are everybody's
		if err := c.spend(&c.control, "settings"); err != nil {
			return err
		}
	}
	if f.NumSettings() > 32 {
		return c.flood("settings")
	}
	c.mu.Lock()
	err := f.ForeachSetting(c.setting)
	if err == nil {
		_ = c.fw.WriteSettingsAck()
	}
	if !c.settled {
		c.settled = true
		if _, limited := f.Value(http2.SettingMaxConcurrentStreams); !limited {
			c.peerStreams = unlimitedStreams
		}
		close(c.firstPeer)
	}
	c.release(b)
	return err
}

func (c *Conn) setting(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		var conn http2.ConnectionError
		if errors.As(err, &conn) {
			return &ConnError{Code: http2.ErrCode(conn), Reason: "a setting has no valid value"}
		}
		return protocolError("a setting has no valid value")
	}
	switch s.ID {
	case http2.SettingHeaderTableSize:
		c.enc.SetMaxDynamicTableSize(min(s.Val, 4096))
	case http2.SettingEnablePush:
		if !c.server && s.Val != 0 {
			return protocolError("a server that asks for pushes")
		}
	case http2.SettingMaxConcurrentStreams:
		c.peerStreams = min(s.Val, maxStreamID)
	case http2.SettingMaxHeaderListSize:
		c.peerHeader = s.Val
	case http2.SettingMaxFrameSize:
		c.peerFrame = int(min(s.Val, 1<<20))
	case http2.SettingInitialWindowSize:
		delta := int64(s.Val) - c.peerWindow
		c.peerWindow = int64(s.Val)
		for _, s := range c.streams {
			if s.sendWin += delta; s.sendWin > maxWindow {
				return &ConnError{Code: http2.ErrCodeFlowControl, Reason: "a window is over 2^31-1"}
			}
			if s.q.size > 0 {
				c.wait(s)
			}
		}
	}
	return nil
}

func (c *Conn) ping(b *Batch, f *http2.PingFrame) error {
	c.mu.Lock()
	if f.IsAck() {
		c.pingAt = time.Time{}
		if done := c.pings[f.Data]; done != nil {
			delete(c.pings, f.Data)
			close(done)
		}
		if c.shutting && f.Data == shutdownPing {
			c.lastGoAway()
		}
		c.release(b)
		return nil
	}
	_ = c.fw.WritePing(true, f.Data)
	c.checkOverflow()
	c.release(b)
	return c.spend(&c.control, "ping")
}

// goAway: streams above the last one were not processed, and will not be; the
// others go on (section 6.8).
func (c *Conn) goAway(b *Batch, f *http2.GoAwayFrame) error {
	if c.server {
		return c.spend(&c.control, "other") // a client opens no more streams; that is all
	}
	cause := &ConnError{Code: f.ErrCode, Remote: true, Reason: strings.ToValidUTF8(string(f.DebugData()), "")}
	c.mu.Lock()
	c.peerGoAway = true
	if f.ErrCode != http2.ErrCodeNo {
		c.farewell = cause
	}
	c.retireLocked()
	var lost []*Stream
	for id, s := range c.streams {
		if id > f.LastStreamID {
			lost = append(lost, s)
		}
	}
	for _, s := range lost {
		c.forget(s)
	}
	if f.ErrCode != http2.ErrCodeNo && c.err == nil && len(c.streams) > 0 {
		c.log.Debug("the server ends the connection", "code", f.ErrCode.String())
	}
	if len(c.streams) == 0 {
		c.quiet()
	}
	c.release(b)
	c.tellRetired()
	for _, s := range lost {
		s.recv.Closed(b, &notProcessed{cause})
	}
	return c.spend(&c.control, "other")
}
