package h2

import (
	"errors"
	"strings"
	"time"

	"golang.org/x/net/http2"
)

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
	c.retired = true
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
		s.recv.Closed(b, &notProcessed{cause: cause})
	}
	return c.spend(&c.control, "other")
}
