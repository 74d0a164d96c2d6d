package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A twin is a proxy, the upstream behind it and the client before it.
type twin struct {
	board
	t     testing.TB
	name  string
	front *front
	plays map[string]*play
	conn  *peer // the client's, kept from one exchange to the next
	turn  int
	runs  int
}

// newTwin starts an upstream, and a proxy in front of it.
func newTwin(t testing.TB, name string, frames bool, begin func(testing.TB, Options) *front, o Options) *twin {
	w := &twin{t: t, name: name, plays: make(map[string]*play)}
	w.cond.L = &w.mu
	if frames {
		o.Server = w.listenFrames(t)
	} else {
		o.Server = w.listenWeb(t)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w.front = begin(t, o)
	t.Cleanup(func() {
		if w.conn != nil {
			w.conn.close()
		}
	})
	return w
}

func (w *twin) listenWeb(t testing.TB) *url.URL {
	s := httptest.NewUnstartedServer(w)
	s.EnableHTTP2 = true
	s.TLS = serverTLS()
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Config.DisableGeneralOptionsHandler = true
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	u, _ := url.Parse(s.URL)
	return u
}

// got is what the client got.
type got struct {
	info    []string // statuses of 1xx
	status  string
	head    []hpack.HeaderField
	body    []byte
	trailer []hpack.HeaderField
	blocks  int    // more than a head and a trailer are too many
	end     string // "END", "RST code", "LEFT" (the client itself), "LOST" (with the connection)
	invalid string // what is wrong with it
}

// result is an exchange of one twin.
type result struct {
	got  []*got
	seen [][]*sighting
	conn string // how the connection ended; "" where it lives
	hung bool
}

// dial opens a connection to the proxy.
func (w *twin) dial(first []http2.Setting) *peer {
	c, err := net.Dial(w.front.network, w.front.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	tc := tls.Client(c, clientTLS("h2"))
	_ = tc.SetDeadline(time.Now().Add(twinPatience))
	if err := tc.Handshake(); err != nil {
		w.t.Fatal(err)
	}
	_ = tc.SetDeadline(time.Time{})
	p := newPeer(&w.board, tc, nil)
	if first == nil {
		first = []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1 << 20}}
	}
	_, _ = io.WriteString(tc, http2.ClientPreface)
	_ = p.fr.WriteSettings(first...)
	_ = p.fr.WriteWindowUpdate(0, 1<<30)
	go p.hear() // not before: it acknowledges
	return p
}

// run does an exchange. fresh: on a new connection.
func (w *twin) run(x *script, fresh bool) *result {
	w.late = false
	p := w.conn
	steps := x.client
	w.runs++
	if p != nil && (fresh || x.wild || w.runs%20 == 0) { // what many of them do at once is a flood
		p.close()
		p, w.conn = nil, nil
	}
	if p == nil {
		var first []http2.Setting
		if i, ok := firstSettings(steps); ok {
			first = append([]http2.Setting{}, steps[i].set...)
			steps = slices.Delete(slices.Clone(steps), i, i+1)
			if !x.manual {
				first = append(first, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
			}
		}
		p = w.dial(first)
	}
	alarm := time.AfterFunc(twinPatience, func() {
		w.mu.Lock()
		w.late = true
		w.cond.Broadcast()
		w.mu.Unlock()
		_ = p.nc.(*tls.Conn).NetConn().Close()
	})
	defer alarm.Stop()

	res := &result{got: make([]*got, x.copies), seen: make([][]*sighting, x.copies)}
	var all sync.WaitGroup
	for i := range x.copies {
		w.turn++
		mark := w.name + strconv.Itoa(w.turn)
		c := &play{steps: x.server}
		w.mu.Lock()
		w.plays[mark] = c
		w.mu.Unlock()
		all.Go(func() {
			h := w.act(p, steps, mark, c, x.manual)
			w.mu.Lock()
			defer w.mu.Unlock()
			// A connection that is lost may take its time to reach the upstream.
			w.await(func() bool { return c.active == 0 || p.outcome != "" })
			delete(w.plays, mark)
			g := w.gather(p, h)
			if pseudo(g.head, "execproxy-error") != "" {
				g.body = bytes.ReplaceAll(g.body, []byte(w.front.authority), []byte("server"))
				g.head = slices.DeleteFunc(g.head, func(f hpack.HeaderField) bool { return f.Name == "content-length" })
			}
			res.got[i] = g
			for _, s := range c.seen {
				s := *s
				s.host = strings.ReplaceAll(s.host, w.front.authority, "server")
				res.seen[i] = append(res.seen[i], &s)
			}
		})
	}
	all.Wait()
	p.settled() // what this exchange does to the connection is not for the next one
	w.mu.Lock()
	for id := range p.open {
		delete(p.open, id)
	}
	res.conn, res.hung = p.outcome, w.late
	w.mu.Unlock()
	if x.wild || res.conn != "" || res.hung {
		p.close()
		w.conn = nil
	} else {
		w.conn = p
	}
	return res
}

// settled waits until the other end has seen all that was sent, or is gone.
func (p *peer) settled() {
	p.mu.Lock()
	want := p.pongs + 1
	p.mu.Unlock()
	p.write(func() { _ = p.fr.WritePing(false, [8]byte{'s', 'e', 't', 't', 'l', 'e', 'd'}) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.await(func() bool { return p.pongs >= want || p.outcome != "" })
}

// act does the client's steps, and waits for the end of the stream.
func (w *twin) act(p *peer, steps []step, mark string, c *play, manual bool) *hearing {
	var h *hearing
	var fields []hpack.HeaderField
	id := func() uint32 {
		if h != nil {
			return h.id
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return p.next
	}
	over := func() bool { return h != nil && (h.reset || h.ignored || h.ended) || p.outcome != "" }
	sent, ended := 0, false
	head := func(s step) {
		to := uint32(0)
		if h == nil {
			fields = append(fields, hpack.HeaderField{Name: markField, Value: mark})
		} else {
			to = h.id
		}
		if opened := p.headed(to, fields, s); opened != nil {
			h = opened
			w.mu.Lock()
			c.client = h
			w.cond.Broadcast()
			w.mu.Unlock()
		}
		fields = nil
		ended = ended || s.end
	}
	for _, s := range steps {
		w.mu.Lock()
		stop := over() && h != nil
		w.mu.Unlock()
		if stop && s.do != "RST" && s.do != "FRAME" && s.do != "SETTINGS" && s.do != "CWINDOW" && s.do != "PING" {
			continue
		}
		switch s.do {
		case "field":
			fields = append(fields, s.field)
		case "HEADERS":
			head(s)
		case "DATA":
			if h == nil {
				p.write(func() { _ = p.fr.WriteRawFrame(http2.FrameData, 0, p.next, content(0, min(s.n, 99), 'c')) })
				continue
			}
			h.data(content(sent, s.n, 'c'), s)
			sent += s.n
			ended = ended || s.end
		case "RST":
			if h == nil {
				p.write(func() { _ = p.fr.WriteRSTStream(p.next, http2.ErrCode(s.n)) })
				continue
			}
			h.resetWith(http2.ErrCode(s.n))
		case "WAIT":
			w.mu.Lock()
			w.await(func() bool {
				if h == nil || over() {
					return true
				}
				switch s.what {
				case "seen":
					return len(c.seen) > 0
				case "head":
					return h != nil && slices.ContainsFunc(h.blocks, final)
				case "continue":
					return h != nil && len(h.blocks) > 0
				case "read":
					return len(c.seen) > 0 && (c.active == 0 || len(c.seen[0].body) >= s.n || c.seen[0].whole)
				case "body":
					return h != nil && len(h.body) >= s.n
				case "end":
					return false
				}
				return true
			})
			w.mu.Unlock()
		case "PING", "PRIORITY", "WINDOW", "CWINDOW", "SETTINGS", "FRAME":
			p.control(id(), s)
		}
	}
	if h == nil {
		head(step{do: "HEADERS", end: true})
	}
	if manual {
		p.write(func() { _ = p.fr.WriteWindowUpdate(h.id, 1<<20) })
	}
	w.mu.Lock()
	left := over()
	w.mu.Unlock()
	if !ended && !left {
		h.data(nil, step{end: true})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.await(over)
	c.over = true
	w.cond.Broadcast()
	return h
}

// gather says what came on a stream; with mu held.
func (w *twin) gather(p *peer, h *hearing) *got {
	g := &got{body: h.body}
	for _, block := range h.blocks {
		if g.status == "" && !final(block) {
			g.info = append(g.info, pseudo(block, ":status"))
			continue
		}
		g.blocks++
		switch g.blocks {
		case 1:
			g.head, g.status = plain(block), pseudo(block, ":status")
			if len(block) == 0 || block[0].Name != ":status" || len(block)-len(g.head) != 1 {
				g.invalid = "does not begin with one :status"
			}
		case 2:
			g.trailer = block
		default:
			g.invalid = "has more than a head and a trailer"
		}
		check := block // in a trailer, no name has a colon
		if g.blocks == 1 {
			check = g.head
		}
		for _, f := range check {
			if bad := wrongField(f); bad != "" {
				g.invalid = bad
			}
		}
	}
	switch {
	case h.ignored:
		g.end = "LEFT"
	case h.ended:
		g.end = "END"
		if g.status == "" {
			g.invalid = "ends without a head"
		}
	case h.reset:
		g.end = "RST " + h.code.String()
	default:
		g.end = "LOST"
	}
	return g
}

func plain(block []hpack.HeaderField) (fields []hpack.HeaderField) {
	for _, f := range block {
		if !strings.HasPrefix(f.Name, ":") {
			fields = append(fields, f)
		}
	}
	return fields
}

func pseudo(block []hpack.HeaderField, name string) string {
	for _, f := range block {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

func stacks() string {
	b := make([]byte, 1<<20)
	return string(b[:runtime.Stack(b, true)])
}
