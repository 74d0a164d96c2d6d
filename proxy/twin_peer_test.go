package proxy

import (
	"bytes"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// twinPatience is what a twin gets for one exchange. Only a hang takes it.
const twinPatience = 4 * time.Second

// board is where both ends of an exchange see how far it is.
type board struct {
	mu   sync.Mutex
	cond sync.Cond
	late bool // patience has ended: nothing is waited for any more
}

// await waits for ok, with mu held.
func (b *board) await(ok func() bool) {
	for !ok() && !b.late {
		b.cond.Wait()
	}
}

// peer is one end of an HTTP/2 connection. It says what it is told to, keeps
// what it hears, and does neither better than the other end deserves.
type peer struct {
	*board
	nc     net.Conn
	fr     *http2.Framer
	accept func(*hearing) // of a server: a request's head is there; called with mu held
	done   chan struct{}  // the reader has ended

	writing sync.Mutex // guards fr's writes, enc and block
	enc     *hpack.Encoder
	block   bytes.Buffer

	// Guarded by board.mu.
	open    map[uint32]*hearing
	window  int64 // what may be sent
	initial int64 // what the other end lets a stream begin with
	pongs   int
	next    uint32
	outcome string // how the connection ended
}

// hearing is a stream, and what came on it.
type hearing struct {
	p      *peer
	id     uint32
	window int64 // what may be sent

	blocks  [][]hpack.HeaderField
	body    []byte
	ended   bool
	reset   bool
	code    http2.ErrCode
	ignored bool // we have reset it
}

func newPeer(b *board, nc net.Conn, accept func(*hearing)) *peer {
	p := &peer{board: b, nc: nc, fr: http2.NewFramer(nc, nc), accept: accept, done: make(chan struct{}),
		open: make(map[uint32]*hearing), window: 65535, initial: 65535, next: 1}
	p.fr.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	return p
}

// hear reads until the connection ends.
func (p *peer) hear() {
	defer close(p.done)
	dec := hpack.NewDecoder(4096, nil)
	var block []byte
	var ends bool
	for {
		f, err := p.fr.ReadFrame()
		p.mu.Lock()
		if err != nil {
			if p.outcome == "" {
				p.outcome = "closed"
				if err != io.EOF && !strings.Contains(err.Error(), "connection reset") && !strings.Contains(err.Error(), "closed network") {
					p.outcome = "closed: " + err.Error()
				}
			}
			p.cond.Broadcast()
			p.mu.Unlock()
			return
		}
		id := f.Header().StreamID
		h := p.open[id]
		if h != nil && h.ignored {
			h = nil
		}
		var reply func()
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				p.settings(f)
				reply = func() { _ = p.fr.WriteSettingsAck() }
			}
		case *http2.PingFrame:
			if f.IsAck() {
				p.pongs++
			} else {
				data := f.Data
				reply = func() { _ = p.fr.WritePing(true, data) }
			}
		case *http2.WindowUpdateFrame:
			if id == 0 {
				p.window += int64(f.Increment)
			} else if h != nil {
				h.window += int64(f.Increment)
			}
		case *http2.GoAwayFrame:
			if f.ErrCode != http2.ErrCodeNo || f.LastStreamID < p.next-2 {
				p.outcome = "GOAWAY " + f.ErrCode.String()
				if p.accept == nil { // some go on reading for a while
					reply = func() { _ = p.nc.Close() }
				}
			}
		case *http2.RSTStreamFrame:
			if h != nil && !h.reset {
				h.reset, h.code = true, f.ErrCode
			}
		case *http2.DataFrame:
			if h != nil {
				h.body = append(h.body, f.Data()...)
				h.ended = h.ended || f.StreamEnded()
			}
			if n := f.Length; p.accept != nil && n > 0 { // the client has opened its own wide
				reply = func() { _ = p.fr.WriteWindowUpdate(0, n) }
			}
		case *http2.HeadersFrame:
			block, ends = append(block[:0], f.HeaderBlockFragment()...), f.StreamEnded()
			if f.HeadersEnded() {
				p.headers(dec, id, block, ends)
			}
		case *http2.ContinuationFrame:
			block = append(block, f.HeaderBlockFragment()...)
			if f.HeadersEnded() {
				p.headers(dec, id, block, ends)
			}
		}
		p.cond.Broadcast()
		p.mu.Unlock()
		if reply != nil {
			p.write(reply)
		}
	}
}

func (p *peer) headers(dec *hpack.Decoder, id uint32, block []byte, end bool) {
	h := p.open[id]
	fields, err := dec.DecodeFull(block)
	if err != nil {
		p.outcome = "sent HPACK that cannot be read"
		return
	}
	opened := h == nil && p.accept != nil
	if opened {
		h = &hearing{p: p, id: id, window: p.initial}
		p.open[id] = h
	}
	if h == nil || h.ignored {
		return
	}
	h.blocks = append(h.blocks, fields)
	h.ended = h.ended || end
	if opened {
		p.accept(h)
	}
}

func (p *peer) settings(f *http2.SettingsFrame) {
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		for _, h := range p.open {
			h.window += int64(v) - p.initial
		}
		p.initial = int64(v)
	}
}

func (p *peer) write(do func()) {
	p.writing.Lock()
	defer p.writing.Unlock()
	do()
}

// headed sends a block on a stream; id 0 takes the next one, which it gives.
func (p *peer) headed(id uint32, fields []hpack.HeaderField, s step) (h *hearing) {
	p.write(func() {
		if id == 0 {
			p.mu.Lock()
			id = p.next
			p.next += 2
			h = &hearing{p: p, id: id, window: p.initial}
			p.open[id] = h
			p.mu.Unlock()
		}
		p.block.Reset()
		for _, f := range fields {
			f.Sensitive = s.plain
			_ = p.enc.WriteField(f)
		}
		block, first := p.block.Bytes(), true
		size := 16<<10 - 512 // padding and priority have room beside it
		if s.cut > 0 {
			size = min(size, max(s.cut, 1+len(block)/64)) // no flood of CONTINUATION
		}
		for first || len(block) > 0 {
			n := min(len(block), size)
			if first {
				param := http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:n], EndStream: s.end, EndHeaders: n == len(block), PadLength: uint8(s.pad)}
				if s.prio {
					param.Priority = http2.PriorityParam{Weight: 200}
				}
				_ = p.fr.WriteHeaders(param)
			} else {
				_ = p.fr.WriteContinuation(id, n == len(block), block[:n])
			}
			block, first = block[n:], false
		}
	})
	return h
}

// data sends bytes as far as the windows let it, until the stream is over.
func (h *hearing) data(b []byte, s step) {
	p := h.p
	for first := true; first || len(b) > 0; first = false {
		n := min(len(b), 16<<10-256)
		if len(b) > 0 || s.pad > 0 {
			need := int64(1)
			if s.pad > 0 {
				need = int64(s.pad) + 2
			}
			p.mu.Lock()
			over := func() bool { return h.reset || h.ignored || p.outcome != "" || p.accept == nil && h.ended }
			p.await(func() bool { return over() || p.late || min(h.window, p.window) >= need })
			if over() || p.late {
				p.mu.Unlock()
				return
			}
			room := min(h.window, p.window)
			if s.pad > 0 {
				room -= int64(s.pad) + 1
			}
			n = int(min(int64(n), room))
			used := int64(n)
			if s.pad > 0 {
				used += int64(s.pad) + 1
			}
			h.window -= used
			p.window -= used
			p.mu.Unlock()
		}
		var pad []byte
		if s.pad > 0 {
			pad = make([]byte, s.pad)
		}
		p.write(func() { _ = p.fr.WriteDataPadded(h.id, s.end && n == len(b), b[:n], pad) })
		b = b[n:]
	}
}

func (h *hearing) resetWith(code http2.ErrCode) {
	p := h.p
	p.mu.Lock()
	h.ignored = true
	p.mu.Unlock()
	p.write(func() { _ = p.fr.WriteRSTStream(h.id, code) })
}

// control does the steps that both ends have in common.
func (p *peer) control(id uint32, s step) {
	p.write(func() {
		switch s.do {
		case "PING":
			_ = p.fr.WritePing(false, [8]byte{'t', 'w', 'i', 'n'})
		case "PRIORITY":
			_ = p.fr.WritePriority(max(id, 1), http2.PriorityParam{StreamDep: 0, Weight: 3})
		case "WINDOW":
			_ = p.fr.WriteWindowUpdate(id, uint32(s.n))
		case "CWINDOW":
			_ = p.fr.WriteWindowUpdate(0, uint32(s.n))
		case "SETTINGS":
			_ = p.fr.WriteSettings(s.set...)
		case "FRAME":
			to := id
			switch s.stream {
			case '0':
				to = 0
			case 'n':
				to = id + 2
			case 'e':
				to = id + 1
			}
			_ = p.fr.WriteRawFrame(s.kind, s.flags, to, s.data)
		}
	})
}

func (p *peer) close() {
	_ = p.nc.Close()
	<-p.done
}
