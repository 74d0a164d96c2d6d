package proxy

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// sighting is a request as the upstream saw it.
type sighting struct {
	method, target, host string
	header               http.Header
	ordered              []hpack.HeaderField // frames only: as they came
	length               int64               // net/http only: what it took for the length
	body                 []byte              // as far as the script read
	whole                bool                // read to the end
	trailer              http.Header
	broken               string // what is wrong with it
}

// A play is one exchange of one twin: the server's script, and how far it is.
type play struct {
	steps  []step
	client *hearing // what the client has of the answer
	over   bool     // the client has ended
	active int
	seen   []*sighting
}

func (c *play) clientOver() bool {
	return c.over || c.client != nil && (c.client.reset || c.client.ignored || c.client.p.outcome != "")
}

// answerer is a way to answer.
type answerer interface {
	read(n int, piece func([]byte)) (end bool) // n < 0: all; piece is called with board.mu held
	trailer() http.Header
	head(fields []hpack.HeaderField, s step)
	data(b []byte, s step)
	end(fields []hpack.HeaderField, s step)
	reset(code http2.ErrCode)
	over() bool // with board.mu held
	other(s step)
}

// perform answers as the script says.
func (c *play) perform(b *board, sees *sighting, a answerer) {
	var fields []hpack.HeaderField
	headed, ended, sent := false, false, 0
	head := func(s step) {
		final := !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool {
			return f.Name == ":status" && len(f.Value) == 3 && f.Value[0] == '1'
		})
		a.head(fields, s)
		fields = nil
		headed = headed || final
		ended = ended || s.end
	}
	for _, s := range c.steps {
		if ended {
			return
		}
		switch s.do {
		case "field":
			fields = append(fields, s.field)
		case "READ":
			end := a.read(s.n, func(got []byte) {
				sees.body = append(sees.body, got...)
				b.cond.Broadcast()
			})
			b.mu.Lock()
			if end {
				sees.whole, sees.trailer = true, a.trailer()
			}
			b.cond.Broadcast()
			b.mu.Unlock()
		case "HEADERS":
			if !headed {
				head(s)
				break
			}
			s.end = true
			a.end(fields, s)
			ended = true
		case "DATA":
			if !headed {
				head(step{do: "HEADERS"})
			}
			a.data(content(sent, s.n, 's'), s)
			sent += s.n
			ended = ended || s.end
		case "RST":
			a.reset(http2.ErrCode(s.n))
			return
		case "WAIT":
			b.mu.Lock()
			b.await(func() bool {
				if c.over || a.over() {
					return true
				}
				switch s.what {
				case "head":
					return c.client != nil && slices.ContainsFunc(c.client.blocks, final)
				case "body":
					return c.client != nil && len(c.client.body) >= s.n
				case "gone":
					return false
				}
				return true
			})
			b.mu.Unlock()
		default:
			a.other(s)
		}
	}
	if !headed {
		head(step{do: "HEADERS"})
	}
	if !ended {
		a.end(fields, step{do: "HEADERS", end: true})
	}
}

// final tells the block of an answer from a 1xx.
func final(block []hpack.HeaderField) bool {
	return !slices.ContainsFunc(block, func(f hpack.HeaderField) bool { return f.Name == ":status" && strings.HasPrefix(f.Value, "1") })
}

// begin gives the play that a request belongs to, and its record.
func (w *twin) begin(mark string) (*play, *sighting) {
	c := w.plays[mark]
	if c == nil {
		return nil, nil
	}
	s := new(sighting)
	c.seen = append(c.seen, s)
	c.active++
	w.cond.Broadcast()
	return c, s
}

func (w *twin) finish(c *play) {
	w.mu.Lock()
	c.active--
	w.cond.Broadcast()
	w.mu.Unlock()
}

// ServeHTTP is the upstream that is net/http.
func (w *twin) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.mu.Lock()
	c, s := w.begin(r.Header.Get(markField))
	if c != nil {
		s.method, s.target, s.host, s.length = r.Method, r.RequestURI, r.Host, r.ContentLength
		s.header = r.Header.Clone()
		s.header.Del(markField)
		if r.Proto != "HTTP/2.0" {
			s.broken = "came over " + r.Proto
		}
	}
	w.mu.Unlock()
	if c == nil {
		panic(http.ErrAbortHandler) // of an exchange that is over
	}
	defer w.finish(c)
	defer context.AfterFunc(r.Context(), func() { w.mu.Lock(); w.cond.Broadcast(); w.mu.Unlock() })()
	c.perform(&w.board, s, &webAnswer{b: &w.board, w: rw, r: r, http: http.NewResponseController(rw)})
}

// webAnswer answers through net/http.
type webAnswer struct {
	b    *board
	w    http.ResponseWriter
	r    *http.Request
	http *http.ResponseController
}

func (a *webAnswer) read(n int, piece func([]byte)) bool {
	src := io.Reader(a.r.Body)
	if n >= 0 {
		src = io.LimitReader(src, int64(n))
	}
	buf := make([]byte, 16<<10)
	for {
		got, err := src.Read(buf)
		a.b.mu.Lock()
		piece(buf[:got])
		a.b.mu.Unlock()
		if err != nil {
			return err == io.EOF && n < 0
		}
	}
}

func (a *webAnswer) trailer() http.Header { return a.r.Trailer.Clone() }

func (a *webAnswer) head(fields []hpack.HeaderField, s step) {
	h, code := a.w.Header(), 200
	for _, f := range fields {
		if f.Name == ":status" {
			if n, err := strconv.Atoi(f.Value); err == nil && len(f.Value) == 3 && n >= 100 && n != http.StatusSwitchingProtocols {
				code = n
			}
			continue
		}
		h.Add(f.Name, f.Value)
	}
	for _, name := range [...]string{"Date", "Content-Type"} {
		if h[name] == nil {
			h[name] = nil // net/http would say something
		}
	}
	a.w.WriteHeader(code)
	if code < 200 {
		clear(h)
	} else if !s.end {
		_ = a.http.Flush()
	}
}

func (a *webAnswer) data(b []byte, s step) {
	_, _ = a.w.Write(b)
	if !s.end {
		_ = a.http.Flush()
	}
}

func (a *webAnswer) end(fields []hpack.HeaderField, _ step) {
	for _, f := range fields {
		// net/http does not end a stream of whose trailer it can write nothing.
		if httpguts.ValidHeaderFieldName(f.Name) && httpguts.ValidHeaderFieldValue(f.Value) {
			a.w.Header().Add(http.TrailerPrefix+f.Name, f.Value)
		}
	}
}

func (a *webAnswer) reset(http2.ErrCode) { panic(http.ErrAbortHandler) }
func (a *webAnswer) over() bool          { return a.r.Context().Err() != nil }
func (a *webAnswer) other(step)          {}

// frameUpstream is the upstream that is frames.
type frameUpstream struct {
	w     *twin
	l     net.Listener
	wg    sync.WaitGroup
	mu    sync.Mutex
	peers []net.Conn
	ended bool
}

func (w *twin) listenFrames(t testing.TB) *url.URL {
	l, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS("h2"))
	if err != nil {
		t.Fatal(err)
	}
	u := &frameUpstream{w: w, l: l}
	u.wg.Go(u.serve)
	t.Cleanup(func() {
		l.Close()
		u.mu.Lock()
		u.ended = true
		for _, c := range u.peers {
			c.Close()
		}
		u.mu.Unlock()
		u.wg.Wait()
	})
	return &url.URL{Scheme: "https", Host: l.Addr().String()}
}

func (u *frameUpstream) serve() {
	for {
		nc, err := u.l.Accept()
		if err != nil {
			return
		}
		u.mu.Lock()
		u.peers = append(u.peers, nc)
		ended := u.ended
		u.mu.Unlock()
		if ended {
			nc.Close()
			return
		}
		u.wg.Go(func() {
			defer nc.Close()
			preface := make([]byte, len(http2.ClientPreface))
			if _, err := io.ReadFull(nc, preface); err != nil {
				return
			}
			var p *peer
			p = newPeer(&u.w.board, nc, func(h *hearing) { u.request(p, h) })
			p.write(func() { _ = p.fr.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1000}) })
			p.hear()
		})
	}
}

// request is called with mu held.
func (u *frameUpstream) request(p *peer, h *hearing) {
	var mark string
	for _, f := range h.blocks[0] {
		if f.Name == markField {
			mark = f.Value
		}
	}
	c, s := u.w.begin(mark)
	if c == nil {
		h.ignored = true
		u.wg.Go(func() { h.resetWith(http2.ErrCodeCancel) })
		return
	}
	s.take(h.blocks[0])
	u.wg.Go(func() {
		defer u.w.finish(c)
		c.perform(&u.w.board, s, &frameAnswer{h: h, s: s})
		u.w.mu.Lock()
		delete(p.open, h.id)
		u.w.mu.Unlock()
	})
}

// take reads a request's head, and tells what RFC 9113 section 8 has against it.
func (s *sighting) take(block []hpack.HeaderField) {
	s.header = make(http.Header)
	pseudo := make(map[string]int)
	plain := false
	for _, f := range block {
		if strings.HasPrefix(f.Name, ":") {
			if plain {
				s.broken = "has " + f.Name + " behind a plain field"
			}
			pseudo[f.Name]++
			switch f.Name {
			case ":method":
				s.method = f.Value
			case ":path":
				s.target = f.Value
			case ":authority":
				s.host = f.Value
			case ":scheme":
				if f.Value != "https" {
					s.broken = "has the scheme " + f.Value
				}
			default:
				s.broken = "has " + f.Name
			}
			continue
		}
		plain = true
		if f.Name == markField {
			continue
		}
		s.ordered = append(s.ordered, f)
		if bad := wrongField(f); bad != "" {
			s.broken = bad
		}
		s.header[f.Name] = append(s.header[f.Name], f.Value)
	}
	for _, name := range [...]string{":method", ":path", ":authority", ":scheme"} {
		if pseudo[name] != 1 {
			s.broken = "has " + strconv.Itoa(pseudo[name]) + " of " + name
		}
	}
}

// wrongField tells what RFC 9113 sections 8.2 and 8.2.2 have against a field.
func wrongField(f hpack.HeaderField) string {
	for i := range len(f.Name) {
		if c := f.Name[i]; c <= ' ' || c >= 0x7f || 'A' <= c && c <= 'Z' || c == ':' {
			return "has the field name " + strconv.Quote(f.Name)
		}
	}
	if f.Name == "" || strings.ContainsAny(f.Value, "\r\n\x00") {
		return "has the field " + strconv.Quote(f.Name+": "+f.Value)
	}
	switch f.Name {
	case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return "has the field " + f.Name
	case "te":
		if f.Value != "trailers" {
			return "has te: " + strconv.Quote(f.Value)
		}
	}
	return ""
}

// frameAnswer answers in frames.
type frameAnswer struct {
	h     *hearing
	s     *sighting
	taken int
}

func (a *frameAnswer) read(n int, piece func([]byte)) bool {
	p := a.h.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for total := 0; ; {
		p.await(func() bool { return len(a.h.body) > a.taken || a.over() || a.h.ended })
		got := a.h.body[a.taken:]
		if n >= 0 {
			got = got[:min(len(got), n-total)]
		}
		piece(got)
		a.taken += len(got)
		total += len(got)
		ended := a.h.ended
		switch {
		case p.late, a.over(), len(got) == 0 && ended:
			return n < 0 && ended && !a.h.reset
		case n >= 0 && total == n:
			return false
		}
		if !ended && len(got) > 0 {
			p.mu.Unlock()
			p.write(func() { _ = p.fr.WriteWindowUpdate(a.h.id, uint32(len(got))) })
			p.mu.Lock()
		}
	}
}

func (a *frameAnswer) trailer() http.Header {
	if len(a.h.blocks) < 2 {
		return nil
	}
	t := make(http.Header)
	for _, f := range a.h.blocks[1] {
		if bad := wrongField(f); bad != "" {
			a.s.broken = bad + " in its trailer"
		}
		t[f.Name] = append(t[f.Name], f.Value)
	}
	return t
}

func (a *frameAnswer) head(fields []hpack.HeaderField, s step) {
	if !slices.ContainsFunc(fields, func(f hpack.HeaderField) bool { return f.Name == ":status" }) {
		fields = append([]hpack.HeaderField{{Name: ":status", Value: "200"}}, fields...)
	}
	a.h.p.headed(a.h.id, fields, s)
}

func (a *frameAnswer) data(b []byte, s step) { a.h.data(b, s) }

func (a *frameAnswer) end(fields []hpack.HeaderField, s step) {
	if len(fields) == 0 {
		a.h.data(nil, s)
		return
	}
	a.h.p.headed(a.h.id, fields, s)
}

func (a *frameAnswer) reset(code http2.ErrCode) { a.h.resetWith(code) }
func (a *frameAnswer) over() bool {
	return a.h.reset || a.h.ignored || a.h.p.outcome != ""
}
func (a *frameAnswer) other(s step) {
	if s.do != "FRAMES" && s.do != "EARLY" && s.do != "field" && s.do != "" {
		a.h.p.control(a.h.id, s)
	}
}
