package main

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// What Go's own client gives the other side.
const (
	clientStreamWindow = 4 << 20
	clientWindow       = 1 << 30
)

// h2client is the load generator's HTTP/2 connection. One goroutine uses it.
type h2client struct {
	*wire
	authority string
	next      uint32
	gather    bool // requests that are due together go out in one write
	streams   map[uint32]*stream

	errorBody []byte // of an answer that is no 200
}

func newH2Client(conn net.Conn, authority string) (*h2client, error) {
	c := &h2client{wire: newWire(conn, clientWindow), authority: authority, next: 1, streams: map[uint32]*stream{}}
	if _, err := io.WriteString(c.out, http2.ClientPreface); err != nil {
		return nil, err
	}
	err := c.fr.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: clientStreamWindow},
		http2.Setting{ID: http2.SettingMaxHeaderListSize, Val: 10 << 20},
	)
	if err != nil {
		return nil, err
	}
	return c, c.fr.WriteWindowUpdate(0, clientWindow-defaultWindow)
}

func (c *h2client) close() { _ = c.conn.Close() }

// begin queues a request.
func (c *h2client) begin(q *request) error {
	c.put(":authority", c.authority)
	c.put(":method", q.method)
	c.put(":path", q.path)
	c.put(":scheme", "https")
	c.put("accept", "application/json")
	if q.body != nil {
		c.put("content-type", "application/json")
		c.put("content-length", fmt.Sprint(len(q.body)))
	}
	c.put("user-agent", userAgent)
	s := c.stream(c.next)
	c.next += 2
	c.streams[s.id] = s
	s.begin = nanos()
	if err := c.writeHeaders(s.id, q.body == nil); err != nil {
		return err
	}
	if q.body != nil {
		return c.send(s, q.body, true)
	}
	if c.gather {
		return nil
	}
	return c.out.Flush() // as Go's client does
}

// step reads one frame. It returns the stream that came to an end with it.
func (c *h2client) step() (*stream, error) {
	frame, err := c.fr.ReadFrame()
	if err != nil {
		return nil, err
	}
	switch f := frame.(type) {
	case *http2.HeadersFrame:
		s := c.streams[f.StreamID]
		if s == nil {
			s = &stream{} // the field section must be decoded all the same
		}
		ended := f.StreamEnded()
		if err := c.headers(f.HeaderBlockFragment(), f.HeadersEnded(), func(h hpack.HeaderField) {
			if h.Name == ":status" {
				s.status, _ = strconv.Atoi(h.Value)
			}
		}); err != nil {
			return nil, err
		}
		if ended {
			return c.finish(s), nil
		}
	case *http2.DataFrame:
		if err := c.received(f.Length); err != nil {
			return nil, err
		}
		s := c.streams[f.StreamID]
		if s == nil {
			return nil, nil
		}
		s.got += len(f.Data())
		if s.status != 200 && len(c.errorBody) < 300 {
			c.errorBody = append(c.errorBody, f.Data()...)
		}
		if f.StreamEnded() {
			return c.finish(s), nil
		}
	case *http2.SettingsFrame:
		return nil, c.settings(f, func(each func(*stream)) {
			for _, s := range c.streams {
				each(s)
			}
		})
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			c.window += int64(f.Increment)
		} else if s := c.streams[f.StreamID]; s != nil {
			s.window += int64(f.Increment)
		}
		return nil, c.push()
	case *http2.PingFrame:
		if !f.IsAck() {
			return nil, c.fr.WritePing(true, f.Data)
		}
	case *http2.RSTStreamFrame:
		if c.streams[f.StreamID] != nil {
			return nil, fmt.Errorf("the stream was reset: %v", f.ErrCode)
		}
	case *http2.GoAwayFrame:
		return nil, fmt.Errorf("the connection is to be closed (GOAWAY, %v %q)", f.ErrCode, f.DebugData())
	}
	return nil, nil
}

func (c *h2client) finish(s *stream) *stream {
	delete(c.streams, s.id)
	return s
}

// check is the verdict on an answer that has ended.
func (c *h2client) check(s *stream, q *request) error {
	if s.status != 200 || s.got != q.size {
		return fmt.Errorf("answer %d of %d bytes, want 200 of %d: %.300q", s.status, s.got, q.size, c.errorBody)
	}
	return nil
}

// drive keeps n requests in flight until the end, at least one each, and adds
// how long they took to took, in ns.
func (c *h2client) drive(q *request, n int, end time.Time, took []int64) ([]int64, error) {
	if err := c.conn.SetDeadline(end.Add(patience)); err != nil {
		return took, err
	}
	until := end.UnixNano()
	for range n {
		if err := c.begin(q); err != nil {
			return took, err
		}
	}
	for open := n; open > 0; {
		if c.idle() {
			if err := c.out.Flush(); err != nil {
				return took, err
			}
		}
		s, err := c.step()
		if err != nil {
			return took, err
		}
		if s == nil {
			continue
		}
		if err := c.check(s, q); err != nil {
			return took, err
		}
		now := nanos()
		took = append(took, now-s.begin)
		c.release(s)
		if now >= until {
			open--
		} else if err := c.begin(q); err != nil {
			return took, err
		}
	}
	return took, c.out.Flush()
}
