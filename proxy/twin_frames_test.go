package proxy

import (
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

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

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
