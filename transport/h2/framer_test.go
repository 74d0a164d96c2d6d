package h2

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The servers that are compared: net/http's own, and ours with and without Wires.
const (
	theirs   = "net/http"
	polled   = "polled"
	blocking = "blocking"
)

// handle starts a server of one of the kinds. The context that ends with it is the
// test's.
func handle(t testing.TB, kind string, h http.Handler, change ...func(*http.Server)) (*httptest.Server, *Server) {
	t.Helper()
	ts := httptest.NewUnstartedServer(h)
	ts.EnableHTTP2 = true
	ts.Config.DisableGeneralOptionsHandler = true
	ts.Config.ErrorLog = log.New(io.Discard, "", 0)
	for _, f := range change {
		f(ts.Config)
	}
	var ours *Server
	switch kind {
	case polled:
		ts.Listener = Listener{ts.Listener}
		fallthrough
	case blocking:
		ours = Configure(ts.Config, nil)
	}
	ts.StartTLS()
	t.Cleanup(func() {
		_ = ts.Config.Close()
		ts.Close()
		if ours != nil {
			ours.Wait()
		}
	})
	return ts, ours
}

// framer is a client that speaks frame by frame.
type framer struct {
	t testing.TB
	*tls.Conn
	*http2.Framer
	enc    *hpack.Encoder
	block  bytes.Buffer
	id     uint32
	goAway *http2.ErrCode
}

func frameClient(t testing.TB, address string, settings ...http2.Setting) *framer {
	t.Helper()
	tc, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tc.NetConn().Close() })
	_ = tc.SetDeadline(time.Now().Add(20 * time.Second))
	c := &framer{t: t, Conn: tc, Framer: http2.NewFramer(tc, tc), id: 1}
	c.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.block)
	if _, err := io.WriteString(tc, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	c.must(c.WriteSettings(settings...))
	return c
}

func (c *framer) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// header sends a header block, of pairs, on stream id.
func (c *framer) header(id uint32, end bool, pairs ...string) {
	c.t.Helper()
	c.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = c.enc.WriteField(Field{Name: pairs[i], Value: pairs[i+1]})
	}
	c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: end}))
}

// ask opens a stream; pairs may hold other pseudo fields than the usual.
func (c *framer) ask(end bool, pairs ...string) uint32 {
	c.t.Helper()
	usual := []string{":method", "GET", ":scheme", "https", ":path", "/", ":authority", "k8s"}
	for i := 0; i < len(pairs); i += 2 {
		if at := slices.Index(usual, pairs[i]); at >= 0 && strings.HasPrefix(pairs[i], ":") {
			usual[at+1] = pairs[i+1]
			pairs = slices.Delete(slices.Clone(pairs), i, i+2)
			i -= 2
		}
	}
	for i := 0; i < len(usual); i += 2 {
		if usual[i+1] == "-" {
			usual = slices.Delete(usual, i, i+2)
			i -= 2
		}
	}
	id := c.id
	c.id += 2
	c.header(id, end, append(usual, pairs...)...)
	return id
}

// next is the next frame that is no housekeeping.
func (c *framer) next() http2.Frame {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.WritePing(true, f.Data)
			}
		case *http2.WindowUpdateFrame:
		case *http2.GoAwayFrame:
			code := f.ErrCode
			c.goAway = &code
		default:
			return f
		}
	}
}

// story is all that comes on a stream, as text; open: a reset has to follow its end,
// since the request has none.
func (c *framer) story(id uint32, open bool) string {
	c.t.Helper()
	var b strings.Builder
	var body []byte
	flush := func() {
		if len(body) > 0 {
			fmt.Fprintf(&b, "%d bytes %.2000q\n", len(body), body)
		}
		body = nil
	}
	for ended := false; ; {
		f := c.next()
		if f == nil {
			flush()
			return b.String() + "the connection ends\n"
		}
		if f.Header().StreamID != id {
			continue
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			flush()
			var lines []string
			for _, field := range f.Fields {
				if field.Name == "date" && len(field.Value) == len(http.TimeFormat) {
					field.Value = "today"
				}
				lines = append(lines, field.Name+": "+field.Value)
			}
			slices.Sort(lines)
			fmt.Fprintf(&b, "header %s\n", strings.Join(lines, "; "))
			ended = f.StreamEnded()
		case *http2.DataFrame:
			body = append(body, f.Data()...)
			ended = f.StreamEnded()
			if n := uint32(len(f.Data())); n > 0 {
				_ = c.WriteWindowUpdate(0, n)
				_ = c.WriteWindowUpdate(id, n)
			}
		case *http2.RSTStreamFrame:
			flush()
			return b.String() + "reset " + f.ErrCode.String() + "\n"
		}
		if ended {
			flush()
			if !open {
				return b.String() + "end\n"
			}
			b.WriteString("end, and ")
			ended = false
		}
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
