package main

import (
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// As kube-apiserver sets them.
const (
	serverStreams      = 100
	serverStreamWindow = 256 << 10
	serverWindow       = serverStreams * serverStreamWindow
	serverReadFrame    = 99 << 10
)

// h2server is a connection of the API server. Requests are answered by the
// goroutine that reads them; events come from others.
type h2server struct {
	*wire
	api       *api
	certified bool

	mu      sync.Mutex // whatever is written
	streams map[uint32]*stream
	watches map[uint32]*stream
}

func serveH2(a *api, conn net.Conn, certified bool) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(conn, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	c := &h2server{wire: newWire(conn, serverWindow), api: a, certified: certified, streams: map[uint32]*stream{}, watches: map[uint32]*stream{}}
	defer a.watchers.remove(c)
	c.mu.Lock()
	err := c.fr.WriteSettings(
		http2.Setting{ID: http2.SettingMaxFrameSize, Val: serverReadFrame},
		http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: serverStreams},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: serverStreamWindow},
	)
	if err == nil {
		err = c.fr.WriteWindowUpdate(0, serverWindow-defaultWindow)
	}
	c.mu.Unlock()
	for err == nil {
		if c.idle() {
			c.mu.Lock()
			err = c.out.Flush()
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
		var frame http2.Frame
		if frame, err = c.fr.ReadFrame(); err == nil {
			c.mu.Lock()
			err = c.take(frame)
			c.mu.Unlock()
		}
	}
}

func (c *h2server) take(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		s := c.stream(f.StreamID)
		s.head.length = -1
		ended := f.StreamEnded()
		if err := c.headers(f.HeaderBlockFragment(), f.HeadersEnded(), func(h hpack.HeaderField) { s.head.set(h.Name, h.Value) }); err != nil {
			return err
		}
		if ended {
			return c.reply(s)
		}
		c.streams[s.id] = s
	case *http2.DataFrame:
		if err := c.received(f.Length); err != nil {
			return err
		}
		s := c.streams[f.StreamID]
		if s == nil {
			return nil
		}
		s.got += len(f.Data())
		if f.StreamEnded() {
			delete(c.streams, s.id)
			return c.reply(s)
		}
		if f.Length > 0 {
			return c.fr.WriteWindowUpdate(s.id, f.Length)
		}
	case *http2.SettingsFrame:
		return c.settings(f, c.each)
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.wire.window += int64(f.Increment)
			return c.push()
		}
		grow := func(s *stream) {
			if s.id == f.StreamID {
				s.window += int64(f.Increment)
			}
		}
		if s := c.streams[f.StreamID]; s != nil {
			grow(s)
		} else if s := c.watches[f.StreamID]; s != nil {
			grow(s)
		} else {
			for _, s := range c.sending {
				grow(s)
			}
		}
		return c.push()
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.fr.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		delete(c.streams, f.StreamID)
		delete(c.watches, f.StreamID)
		for i, s := range c.sending {
			if s.id == f.StreamID {
				c.sending = append(c.sending[:i:i], c.sending[i+1:]...)
				break
			}
		}
	}
	return nil
}

func (c *h2server) each(do func(*stream)) {
	for _, s := range c.streams {
		do(s)
	}
	for _, s := range c.watches {
		do(s)
	}
	for _, s := range c.sending {
		if c.watches[s.id] == nil {
			do(s)
		}
	}
}

func (c *h2server) reply(s *stream) error {
	a := c.api.answer(&s.head, c.certified, s.got)
	c.put(":status", strconv.Itoa(a.status))
	c.put("audit-id", auditID)
	c.put("cache-control", cacheControl)
	c.put("content-type", "application/json")
	c.put("date", dateNow())
	if !a.watch {
		c.put("content-length", strconv.Itoa(len(a.body)))
	}
	if err := c.writeHeaders(s.id, false); err != nil {
		return err
	}
	if a.event {
		go c.api.watchers.event() // it takes the lock that we hold
	}
	if a.watch {
		c.watches[s.id] = s
		c.api.watchers.add(c)
	}
	if err := c.send(s, a.body, !a.watch); err != nil {
		return err
	}
	if !a.watch {
		c.release(s)
	}
	return nil
}

func (c *h2server) event() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.watches {
		if len(s.body) == 0 {
			_ = c.send(s, []byte(bookmark), false)
		}
	}
	_ = c.out.Flush()
}

// set takes a field, by its name in lower case.
func (h *requestHead) set(name, value string) {
	switch name {
	case ":method":
		h.method = value
	case ":path":
		h.path = value
	case "authorization":
		h.authorization = value
	case "x-amz-content-sha256":
		h.hash = value
	case "content-length":
		h.length, _ = strconv.Atoi(value)
	}
}
