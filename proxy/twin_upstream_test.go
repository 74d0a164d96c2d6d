package proxy

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

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
