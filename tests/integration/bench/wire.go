package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// wire is one end of an HTTP/2 connection at the level of frames: net/http on
// either side of a proxy would take more of the two processors than the proxy.
// It has no lock and no goroutine of its own.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	fr   *http2.Framer

	enc   *hpack.Encoder
	block bytes.Buffer // what enc writes to
	dec   *hpack.Decoder
	field func(hpack.HeaderField)

	window   int64 // what may be sent on the connection
	initial  int64 // what may be sent on a new stream
	maxFrame int
	given    uint32 // the connection's window that the other side has
	unread   uint32 // how much of it is used up

	sending []*stream // in the order of their turns
	free    []*stream
}

// stream is one request, on either side.
type stream struct {
	id     uint32
	window int64
	body   []byte // left to send
	last   bool   // the stream ends with body
	queued bool   // is in wire.sending

	got    int // bytes of the body that came
	status int

	begin int64 // client: when it was sent
	head  requestHead
}

const defaultWindow = 65535 // RFC 9113, section 6.9.2

func newWire(conn net.Conn, given uint32) *wire {
	w := &wire{
		conn: conn, in: bufio.NewReaderSize(conn, 32<<10), out: bufio.NewWriterSize(conn, 32<<10),
		window: defaultWindow, initial: defaultWindow, maxFrame: 16 << 10, given: given,
	}
	w.fr = http2.NewFramer(w.out, w.in)
	w.fr.SetReuseFrames()
	w.fr.SetMaxReadFrameSize(1 << 20)
	w.enc = hpack.NewEncoder(&w.block)
	w.dec = hpack.NewDecoder(4096, func(f hpack.HeaderField) { w.field(f) })
	return w
}

// settings takes what the other side says about itself.
func (w *wire) settings(f *http2.SettingsFrame, open func(func(*stream))) error {
	if f.IsAck() {
		return nil
	}
	if err := f.ForeachSetting(func(s http2.Setting) error {
		switch s.ID {
		case http2.SettingInitialWindowSize:
			grown := int64(s.Val) - w.initial
			w.initial = int64(s.Val)
			open(func(s *stream) { s.window += grown })
		case http2.SettingMaxFrameSize:
			w.maxFrame = int(s.Val)
		case http2.SettingHeaderTableSize:
			w.enc.SetMaxDynamicTableSize(min(s.Val, 4096))
		}
		return nil
	}); err != nil {
		return err
	}
	if err := w.fr.WriteSettingsAck(); err != nil {
		return err
	}
	return w.push()
}

// send queues body on s and sends what the windows let through.
func (w *wire) send(s *stream, body []byte, last bool) error {
	s.body, s.last = body, last
	if !s.queued {
		s.queued = true
		w.sending = append(w.sending, s)
	}
	return w.push()
}

// push sends what the windows let through, a frame of each stream in turn.
func (w *wire) push() error {
	for moved := true; moved; {
		moved = false
		left := w.sending[:0]
		for _, s := range w.sending {
			n := min(int64(len(s.body)), int64(w.maxFrame), s.window, w.window)
			if n > 0 {
				chunk := s.body[:n]
				s.body = s.body[n:]
				s.window -= n
				w.window -= n
				if err := w.fr.WriteData(s.id, s.last && len(s.body) == 0, chunk); err != nil {
					return err
				}
				moved = true
			}
			if len(s.body) > 0 {
				left = append(left, s)
			} else {
				s.queued = false
			}
		}
		clear(w.sending[len(left):])
		w.sending = left
	}
	return nil
}

// received gives the connection's window back before it is used up.
func (w *wire) received(n uint32) error {
	if w.unread += n; w.unread < w.given/2 {
		return nil
	}
	n, w.unread = w.unread, 0
	return w.fr.WriteWindowUpdate(0, n)
}

// headers decodes a field section, over all frames that it takes.
func (w *wire) headers(fragment []byte, ended bool, field func(hpack.HeaderField)) error {
	w.field = field
	for {
		if _, err := w.dec.Write(fragment); err != nil {
			return err
		}
		if ended {
			return w.dec.Close()
		}
		f, err := w.fr.ReadFrame()
		if err != nil {
			return err
		}
		more, ok := f.(*http2.ContinuationFrame)
		if !ok {
			return fmt.Errorf("a %v frame within a field section", f.Header().Type)
		}
		fragment, ended = more.HeaderBlockFragment(), more.HeadersEnded()
	}
}

// writeHeaders sends what was encoded into block.
func (w *wire) writeHeaders(id uint32, last bool) error {
	err := w.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: w.block.Bytes(), EndStream: last, EndHeaders: true})
	w.block.Reset()
	return err
}

func (w *wire) put(name, value string) {
	_ = w.enc.WriteField(hpack.HeaderField{Name: name, Value: value})
}

// idle tells that no more has come in: the time to send what has gathered.
func (w *wire) idle() bool { return w.in.Buffered() == 0 }

// stream returns a stream in its first state.
func (w *wire) stream(id uint32) *stream {
	s := &stream{}
	if n := len(w.free); n > 0 {
		s, w.free = w.free[n-1], w.free[:n-1]
		*s = stream{}
	}
	s.id, s.window = id, w.initial
	return s
}

func (w *wire) release(s *stream) {
	if !s.queued {
		w.free = append(w.free, s)
	}
}
