//go:build linux

package integration

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frames is one end of an HTTP/2 connection, driven frame by frame, to do what
// no library would.
type frames struct {
	*http2.Framer
	conn *tls.Conn

	mu   sync.Mutex // guards writing
	out  *bufio.Writer
	head bytes.Buffer
	enc  *hpack.Encoder
}

func newFrames(conn *tls.Conn) *frames {
	f := &frames{conn: conn, out: bufio.NewWriterSize(conn, 32<<10)}
	f.Framer = http2.NewFramer(f.out, bufio.NewReaderSize(conn, 32<<10))
	f.AllowIllegalWrites = true
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.MaxHeaderListSize = 16 << 20
	f.SetReuseFrames()
	f.enc = hpack.NewEncoder(&f.head)
	return f
}

// do writes what write writes, and sends it.
func (f *frames) do(write func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := write(); err != nil {
		return err
	}
	return f.out.Flush()
}

// block encodes names and values; valid until the next one.
func (f *frames) block(fields ...string) []byte {
	f.head.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return f.head.Bytes()
}

// headers writes a header block as one frame.
func (f *frames) headers(id uint32, end bool, fields ...string) error {
	return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndStream: end, EndHeaders: true, BlockFragment: f.block(fields...)})
}

// frameAnswer is what came on one stream.
type frameAnswer struct {
	status  string
	hints   []string // statuses of interim answers
	fields  []hpack.HeaderField
	trailer []hpack.HeaderField
	body    bytes.Buffer // where it is kept
	size    int64
	ended   bool
	reset   http2.ErrCode
	wasCut  bool // by RST_STREAM
}

func (a *frameAnswer) field(name string) string { return fieldOf(a.fields, name) }

func fieldOf(fields []hpack.HeaderField, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// frameClient is a client of the Unix socket.
type frameClient struct {
	*frames
	t         *testing.T
	authority string
	next      uint32 // stream

	// What the reader does, from its start on.
	credit bool // gives back the windows that answers take
	keep   bool // the bodies

	state   sync.Mutex
	changed chan struct{} // closed and replaced at each change
	answers map[uint32]*frameAnswer
	goAway  *http2.ErrCode
	acks    int    // of PINGs
	limit   uint32 // of streams, as the peer says
	end     error
	settled chan struct{} // closed when the peer's SETTINGS are acknowledged
	once    sync.Once
	done    chan struct{}
}

// frames opens a connection and sends the preface and settings; nothing is read
// before read is called.
func (s *onSocket) frames(t *testing.T, settings ...http2.Setting) *frameClient {
	t.Helper()
	return s.framesOn(t, s.connect(t, "h2"), settings...)
}

// framesOn does the same on a connection that is there.
func (s *onSocket) framesOn(t *testing.T, conn *tls.Conn, settings ...http2.Setting) *frameClient {
	t.Helper()
	c := &frameClient{
		frames: newFrames(conn), t: t, authority: s.url[len("https://"):], next: 1, credit: true, keep: true,
		answers: map[uint32]*frameAnswer{}, changed: make(chan struct{}), settled: make(chan struct{}), done: make(chan struct{}),
	}
	must(t, c.do(func() error {
		if _, err := c.out.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		return c.WriteSettings(settings...)
	}))
	return c
}

// read starts reading; SETTINGS and PINGs are acknowledged. It returns when the
// first SETTINGS are: a header block bears no other frame in between.
func (c *frameClient) read() *frameClient {
	go func() {
		defer close(c.done)
		for {
			f, err := c.ReadFrame()
			if _, bad := err.(http2.StreamError); bad {
				continue
			}
			if err == nil {
				err = c.take(f)
			}
			c.state.Lock()
			c.end = err
			close(c.changed)
			c.changed = make(chan struct{})
			c.state.Unlock()
			if err != nil {
				return
			}
		}
	}()
	c.t.Cleanup(func() {
		_ = c.conn.NetConn().Close()
		<-c.done
	})
	select {
	case <-c.settled:
	case <-c.done:
	}
	return c
}

func (c *frameClient) take(f http2.Frame) error {
	id := f.Header().StreamID
	c.state.Lock()
	defer c.state.Unlock()
	a := c.answers[id]
	if a == nil && id != 0 {
		a = &frameAnswer{}
		c.answers[id] = a
	}
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			if v, ok := f.Value(http2.SettingMaxConcurrentStreams); ok {
				c.limit = v
			}
			go func() {
				_ = c.do(c.WriteSettingsAck)
				c.once.Do(func() { close(c.settled) })
			}()
		}
	case *http2.PingFrame:
		if f.IsAck() {
			c.acks++
		} else {
			go func() { _ = c.do(func() error { return c.WritePing(true, f.Data) }) }()
		}
	case *http2.MetaHeadersFrame:
		status := f.PseudoValue("status")
		switch {
		case a.status != "":
			a.trailer = slices.Clone(f.Fields)
		case status != "" && status[0] == '1':
			a.hints = append(a.hints, status)
		default:
			a.status, a.fields = status, slices.Clone(f.Fields)
		}
		a.ended = a.ended || f.StreamEnded()
	case *http2.DataFrame:
		n := uint32(len(f.Data()))
		a.size += int64(n)
		if c.keep {
			a.body.Write(f.Data())
		}
		a.ended = a.ended || f.StreamEnded()
		if c.credit && n > 0 {
			end := a.ended
			go func() {
				_ = c.do(func() error {
					if !end {
						if err := c.WriteWindowUpdate(id, n); err != nil {
							return err
						}
					}
					return c.WriteWindowUpdate(0, n)
				})
			}()
		}
	case *http2.RSTStreamFrame:
		a.reset, a.wasCut = f.ErrCode, true
	case *http2.GoAwayFrame:
		code := f.ErrCode
		c.goAway = &code
	}
	return nil
}

// until waits for something that the reader sees; the connection's end is an error.
func (c *frameClient) until(limit time.Duration, ready func() bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		c.state.Lock()
		ok, changed, end := ready(), c.changed, c.end
		code := "none"
		if c.goAway != nil {
			code = c.goAway.String()
		}
		c.state.Unlock()
		switch {
		case ok:
			return nil
		case end != nil:
			return fmt.Errorf("the connection has ended: %w; GOAWAY: %s", end, code)
		}
		select {
		case <-changed:
		case <-timer.C:
			return fmt.Errorf("not within %v; GOAWAY: %s", limit, code)
		}
	}
}

// fieldsOf are those of a request.
func (c *frameClient) fieldsOf(method, path string, more ...string) []string {
	return append([]string{":method", method, ":scheme", "https", ":authority", c.authority, ":path", path}, more...)
}

// send begins a request and returns its stream.
func (c *frameClient) send(method, path string, end bool, more ...string) (id uint32, err error) {
	err = c.do(func() error {
		id = c.next
		c.next += 2
		return c.headers(id, end, c.fieldsOf(method, path, more...)...)
	})
	return id, err
}

// data sends a piece of a request's body, within the windows: the test knows.
func (c *frameClient) data(id uint32, end bool, piece string) error {
	return c.do(func() error { return c.WriteData(id, end, []byte(piece)) })
}

// answer waits until all of a stream's answer is there, or it was reset.
func (c *frameClient) answer(id uint32) (a frameAnswer, err error) {
	err = c.until(patience, func() bool {
		if p := c.answers[id]; p != nil && (p.ended || p.wasCut) {
			a = *p
			return true
		}
		return false
	})
	return a, err
}

// get asks and insists on 200.
func (c *frameClient) get(path string) (a frameAnswer, err error) {
	id, err := c.send("GET", path, true)
	if err != nil {
		return a, err
	}
	if a, err = c.answer(id); err == nil && (a.status != "200" || a.wasCut) {
		err = fmt.Errorf("GET %s: status %q, reset %v %v: %s", path, a.status, a.wasCut, a.reset, a.body.String())
	}
	return a, err
}
