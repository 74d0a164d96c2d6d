package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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

// told is a request as a handler sees it.
func told(r *http.Request) string {
	var b bytes.Buffer
	_ = r.Header.WriteSubset(&b, nil)
	return fmt.Sprintf("%s %q host %q uri %q url %#v %s %d.%d length %d trailer %v tls %v %v remote %v header %q",
		r.Method, r.URL.String(), r.Host, r.RequestURI, *r.URL, r.Proto, r.ProtoMajor, r.ProtoMinor, r.ContentLength, r.Trailer,
		r.TLS != nil && r.TLS.HandshakeComplete, r.TLS.NegotiatedProtocol, strings.HasPrefix(r.RemoteAddr, "127.0.0.1:"), b.String())
}

type exchange struct {
	pairs   []string
	body    string   // "" and no trailer: the request ends with its header
	trailer []string // pairs
	open    bool     // the request has no end
	handler http.HandlerFunc
}

func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s body %q %v trailer %v", told(r), b, err, r.Trailer)
}

func set(fields ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		code := 0
		for i := 0; i < len(fields); i += 2 {
			switch name, value := fields[i], fields[i+1]; name {
			case "code":
				_, _ = fmt.Sscan(value, &code)
				w.WriteHeader(code)
			case "body":
				_, _ = io.WriteString(w, value)
			case "nil":
				w.Header()[value] = nil
			case "flush":
				w.(http.Flusher).Flush()
			case "panic":
				if value == "abort" {
					panic(http.ErrAbortHandler)
				}
				panic(value)
			case "read":
				_, _ = io.Copy(io.Discard, r.Body)
			default:
				w.Header().Add(name, value)
			}
		}
	}
}

var exchanges = map[string]exchange{
	"get":                    {handler: echo},
	"query":                  {pairs: []string{":path", "/a%2Fb//c;d?x=%zz&y=a+b"}, handler: echo},
	"double slash":           {pairs: []string{":path", "//a/b"}, handler: echo},
	"asterisk":               {pairs: []string{":path", "*", ":method", "OPTIONS"}, handler: echo},
	"host for authority":     {pairs: []string{":authority", "-", "host", "h:1"}, handler: echo},
	"host and authority":     {pairs: []string{"host", "h:1"}, handler: echo},
	"no host":                {pairs: []string{":authority", "-"}, handler: echo},
	"connect":                {pairs: []string{":method", "CONNECT", ":path", "-", ":scheme", "-", ":authority", "a:1"}, handler: echo},
	"connect to nobody":      {pairs: []string{":method", "CONNECT", ":path", "-", ":scheme", "-", ":authority", "-"}, handler: echo},
	"scheme http":            {pairs: []string{":scheme", "http"}, handler: echo},
	"scheme ftp":             {pairs: []string{":scheme", "ftp"}, handler: echo},
	"user in authority":      {pairs: []string{":authority", "a@b"}, handler: echo},
	"cookies":                {pairs: []string{"cookie", "a=1", "cookie", "b=2"}, handler: echo},
	"fields twice":           {pairs: []string{"x-a", "1", "x-b", "", "x-a", "2", "impersonate-extra-reason", "x"}, handler: echo},
	"te":                     {pairs: []string{"te", "trailers"}, handler: echo},
	"odd method":             {pairs: []string{":method", "M-SEARCH"}, handler: echo},
	"body":                   {pairs: []string{":method", "POST"}, body: "hello", handler: echo},
	"length":                 {pairs: []string{":method", "POST", "content-length", "5"}, body: "hello", handler: echo},
	"length of no body":      {pairs: []string{":method", "POST", "content-length", "0"}, handler: echo},
	"trailer":                {pairs: []string{"trailer", "x-a, X-B", "trailer", "content-length"}, body: "hello", trailer: []string{"x-a", "1", "x-c", "3"}, handler: echo},
	"trailer without body":   {pairs: []string{"trailer", "x-a"}, trailer: []string{"x-a", "1", "x-a", "2"}, handler: echo},
	"continue":               {pairs: []string{"expect", "100-continue", ":method", "PUT"}, body: "hello", handler: set("flush", "", "read", "")},
	"continue not wanted":    {pairs: []string{"expect", "100-continue", ":method", "PUT"}, open: true, handler: set("code", "403", "body", "no")},
	"nothing":                {handler: func(http.ResponseWriter, *http.Request) {}},
	"nothing to a head":      {pairs: []string{":method", "HEAD"}, handler: func(http.ResponseWriter, *http.Request) {}},
	"head":                   {pairs: []string{":method", "HEAD"}, handler: set("body", "hello")},
	"head with length":       {pairs: []string{":method", "HEAD"}, handler: set("Content-Length", "1000")},
	"204":                    {handler: set("code", "204", "body", "dropped")},
	"304":                    {handler: set("Etag", `"1"`, "code", "304")},
	"length declared":        {handler: set("Content-Length", "5", "body", "hello")},
	"length no number":       {handler: set("Content-Length", "-5", "body", "hello")},
	"length nil":             {handler: set("nil", "Content-Length", "body", "hello")},
	"html":                   {handler: set("body", "<html><body>")},
	"encoded":                {handler: set("Content-Encoding", "gzip", "body", "<html>")},
	"no type":                {handler: set("nil", "Content-Type", "nil", "Date", "body", "<html>")},
	"flushed":                {handler: set("flush", "", "body", "a", "flush", "", "body", "b")},
	"flushed empty":          {handler: set("Content-Length", "0", "flush", "")},
	"large":                  {handler: set("body", strings.Repeat("0123456789", 100_000))},
	"header after write":     {handler: set("body", "a", "flush", "", "X-Late", "1", "code", "500")},
	"two codes":              {handler: set("code", "201", "code", "500")},
	"header too late":        {handler: set("code", "200", "X-Late", "1", "body", "a")},
	"early":                  {handler: set("Link", "</a>", "code", "103", "X-B", "1", "code", "200", "body", "a")},
	"trailer announced":      {handler: set("Trailer", "X-A, x-b", "body", "a", "X-A", "1", "X-B", "2")},
	"trailer not set":        {handler: set("Trailer", "X-A", "body", "a")},
	"trailer prefix":         {handler: set("body", "a", "flush", "", http.TrailerPrefix+"X-A", "1", http.TrailerPrefix+"x-b", "2")},
	"trailer without a word": {handler: set("Trailer", "X-A", "code", "200", "X-A", "1")},
	"forbidden trailer":      {handler: set("Trailer", "Content-Length", "body", "a")},
	"bad fields":             {handler: set("X-A", "a\nb", "X-B", "ok", "X C", "1", "Transfer-Encoding", "chunked", "body", "a")},
	"cookies set":            {handler: set("Set-Cookie", "a=1", "Set-Cookie", "b=2")},
	"abort":                  {handler: set("panic", "abort")},
	"abort after a write":    {handler: set("body", "a", "panic", "abort")},
	"abort after a flush":    {handler: set("body", "a", "flush", "", "panic", "abort")},
	"panic":                  {handler: set("panic", "pin-2718")},
	"status 99":              {handler: set("code", "99")},
	"body not read":          {pairs: []string{":method", "POST"}, open: true, body: "hello", handler: set("body", "enough")},
	"body half read": {pairs: []string{":method", "POST"}, open: true, body: "hello", handler: func(w http.ResponseWriter, r *http.Request) {
		n, err := r.Body.Read(make([]byte, 3))
		_ = r.Body.Close()
		_, again := r.Body.Read(make([]byte, 3))
		fmt.Fprint(w, n, err, again != nil)
	}},
}

// What a handler sees and what a client gets are the same as with net/http.
func TestAsNetHTTP(t *testing.T) {
	addresses := map[string]string{}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := exchanges[r.Header.Get("X-Exchange")]
		r.Header.Del("X-Exchange")
		e.handler(w, r)
	})
	for _, kind := range []string{theirs, polled, blocking} {
		ts, _ := handle(t, kind, h)
		addresses[kind] = ts.Listener.Addr().String()
	}
	for name, e := range exchanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := ""
			for _, kind := range []string{theirs, polled, blocking} {
				c := frameClient(t, addresses[kind])
				id := c.ask(e.body == "" && e.trailer == nil && !e.open, append(e.pairs, "x-exchange", name)...)
				if e.body != "" {
					c.must(c.WriteData(id, e.trailer == nil && !e.open, []byte(e.body)))
				}
				if e.trailer != nil {
					c.header(id, true, e.trailer...)
				}
				got := c.story(id, e.open)
				switch {
				case kind == theirs:
					want = got
				case got != want:
					t.Errorf("%s:\n%snot as with net/http:\n%s", kind, got, want)
				}
				// The connection stays good.
				if got := c.story(c.ask(true, "x-exchange", "nothing"), false); !strings.Contains(got, ":status: 200") {
					t.Errorf("%s: after it: %s", kind, got)
				}
			}
		})
	}
}

func ours(t *testing.T, f func(t *testing.T, kind string)) {
	for _, kind := range []string{polled, blocking} {
		t.Run(kind, func(t *testing.T) { t.Parallel(); f(t, kind) })
	}
}

// Where we differ.
func TestNotAsNetHTTP(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		var logged safeBuffer
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/short":
				set("Content-Length", "10", "body", "hello")(w, r)
			case "/short-flushed":
				set("Content-Length", "10", "body", "hello", "flush", "")(w, r)
			case "/long":
				w.Header().Set("Content-Length", "5")
				n, err := io.WriteString(w, "hello!")
				m, _ := io.WriteString(w, "hello")
				if n != 0 || !errors.Is(err, http.ErrContentLength) || m != 5 {
					t.Error(n, err, m)
				}
			case "/panic":
				panic("pin-2718")
			case "/index":
				_ = []string{}[len(r.URL.Path)]
			default:
				fmt.Fprintf(w, "%q %q %q", r.RequestURI, r.URL.Opaque, r.URL.RawQuery)
			}
		}), func(s *http.Server) { s.ErrorLog = log.New(&logged, "", 0) })
		c := frameClient(t, ts.Listener.Addr().String())
		for path, want := range map[string]string{
			"/short": "INTERNAL_ERROR", "/short-flushed": "hello\"\nreset INTERNAL_ERROR", "/long": "\"hello\"\nend",
			"/panic": "INTERNAL_ERROR", "/index": "INTERNAL_ERROR",
			"/%zz?a=b": `\"/%zz?a=b\" \"/%zz\" \"a=b\"`, "no/slash": `\"no/slash\" \"no/slash\" \"\"`,
		} {
			if got := c.story(c.ask(true, ":path", path), false); !strings.Contains(got, want) {
				t.Errorf("%s: %s, want %s", path, got, want)
			}
		}
		if l := logged.String(); strings.Contains(l, "pin-2718") || strings.Count(l, "a handler panicked") != 2 || !strings.Contains(l, "out of range") {
			t.Errorf("log: %s", l)
		}
	})
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

// What ends a stream ends the handler's context, its reads and its writes.
func TestEndsReachHandlers(t *testing.T) {
	endings := map[string]func(c *framer, id uint32, s *httptest.Server, o *Server){
		"reset": func(c *framer, id uint32, _ *httptest.Server, _ *Server) {
			c.must(c.WriteRSTStream(id, http2.ErrCodeCancel))
		},
		"hang-up":      func(c *framer, _ uint32, _ *httptest.Server, _ *Server) { _ = c.NetConn().Close() },
		"close notify": func(c *framer, _ uint32, _ *httptest.Server, _ *Server) { _ = c.CloseWrite() },
		"too long": func(c *framer, id uint32, _ *httptest.Server, _ *Server) {
			c.must(c.WriteData(id, false, make([]byte, 100)))
		},
		"error": func(c *framer, id uint32, _ *httptest.Server, _ *Server) {
			c.must(c.WriteRawFrame(http2.FrameData, 0, 0, nil))
		},
		"server close": func(_ *framer, _ uint32, s *httptest.Server, _ *Server) { _ = s.Config.Close() },
		"our close":    func(_ *framer, _ uint32, _ *httptest.Server, o *Server) { o.Close() },
	}
	ours(t, func(t *testing.T, kind string) {
		for name, end := range endings {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				type result struct{ read, write, ctx error }
				results := make(chan result, 1)
				ts, o := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.(http.Flusher).Flush()
					_, read := io.ReadAll(r.Body)
					<-r.Context().Done()
					var write error
					for range 100 {
						if _, write = w.Write(make([]byte, 10<<10)); write != nil {
							break
						}
					}
					results <- result{read, write, r.Context().Err()}
				}))
				c := frameClient(t, ts.Listener.Addr().String())
				id := c.ask(false, ":method", "POST", "content-length", "10")
				c.must(c.WriteData(id, false, []byte("hello")))
				if _, ok := c.next().(*http2.MetaHeadersFrame); !ok {
					t.Fatal("no header")
				}
				end(c, id, ts, o)
				got := <-results
				if got.read == nil || errors.Is(got.read, io.EOF) || got.write == nil || got.ctx != context.Canceled {
					t.Errorf("%+v", got)
				}
			})
		}
	})
}

// A handler waits for a client that does not read, and no longer than needed.
func TestSlowReaderHoldsHandler(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		wrote := make(chan int, 1000)
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for range 64 {
				n, _ := w.Write(make([]byte, 16<<10))
				wrote <- n
			}
		}))
		c := frameClient(t, ts.Listener.Addr().String(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
		id := c.ask(true)
		total := 0
		for total < 1000 {
			if d, ok := c.next().(*http2.DataFrame); ok {
				total += len(d.Data())
			}
		}
		// The handler is at its bound: PINGs answered, nothing comes. 64 KiB are kept, and one piece waits.
		c.must(c.WritePing(false, [8]byte{1}))
		taken := 0
		for done := false; !done; {
			select {
			case n := <-wrote:
				taken += n
			case <-time.After(200 * time.Millisecond): // long enough for a handler that does not wait
				done = true
			}
		}
		if taken > keepMost+1000+16<<10 {
			t.Errorf("%d bytes were taken for a window of 1000", taken)
		}
		c.must(c.WriteWindowUpdate(0, 1<<20))
		c.must(c.WriteWindowUpdate(id, 1<<20))
		for ended := false; !ended; {
			d, ok := c.next().(*http2.DataFrame)
			if !ok {
				t.Fatal("no DATA")
			}
			total += len(d.Data())
			ended = d.StreamEnded()
		}
		if total != 1<<20 {
			t.Errorf("%d bytes", total)
		}
	})
}

// A client whose socket takes nothing holds little, and nothing once the server closes.
func TestStalledSocket(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		var wrote atomic.Int64
		failed := make(chan error, 1)
		ts, o := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for {
				n, err := w.Write(make([]byte, 32<<10))
				wrote.Add(int64(n))
				if err != nil {
					failed <- err
					return
				}
			}
		}))
		c := frameClient(t, ts.Listener.Addr().String(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
		c.must(c.WriteWindowUpdate(0, 1<<30))
		c.ask(true)
		last := int64(-1)
		for n := int64(0); n != last || n == 0; n = wrote.Load() { // until nothing moves any more
			last = n
			time.Sleep(100 * time.Millisecond)
		}
		c.ask(true) // is read, though nothing can be written
		if last > 16<<20 {
			t.Errorf("%d MiB were taken", last>>20)
		}
		_ = ts.Config.Close()
		if err := <-failed; err == nil {
			t.Error("a write went well")
		}
		o.Wait()
	})
}

func TestDeadlines(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := http.NewResponseController(w)
			switch r.URL.Path {
			case "/read":
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
				_, err := io.ReadAll(r.Body)
				fmt.Fprint(w, err)
			case "/read-past":
				_ = c.SetReadDeadline(time.Unix(1, 0))
				_, err := io.ReadAll(r.Body)
				fmt.Fprint(w, err)
			case "/read-undone":
				_ = c.SetReadDeadline(time.Now().Add(time.Hour))
				_ = c.SetReadDeadline(time.Time{})
				_, err := r.Body.Read(make([]byte, 10))
				fmt.Fprint(w, err, c.EnableFullDuplex())
			case "/write":
				_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
				<-r.Context().Done()
			}
		}))
		c := frameClient(t, ts.Listener.Addr().String())
		for path, want := range map[string]string{"/read": `"i/o timeout"`, "/read-past": `"i/o timeout"`, "/read-undone": `"<nil> <nil>"`, "/write": "reset INTERNAL_ERROR"} {
			id := c.ask(false, ":path", path)
			if path == "/read-undone" {
				c.must(c.WriteData(id, false, []byte("a")))
			}
			if got := c.story(id, true); !strings.Contains(got, want) {
				t.Errorf("%s: %s", path, got)
			}
		}
	})
}

// Bodies pass in both directions at once, larger than every window.
func TestBothWays(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			_, _ = io.Copy(w, r.Body)
		}))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				want := bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6}, 1<<18)
				res, err := ts.Client().Post(ts.URL, "x/y", bytes.NewReader(want))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if got, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(got, want) || res.Proto != "HTTP/2.0" {
					t.Errorf("%d bytes, %v, %s", len(got), err, res.Proto)
				}
			})
		}
		wg.Wait()
	})
}

// A body that a handler has closed does not hold up the others.
func TestClosedBodies(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		quit := make(chan struct{})
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/close" {
				_ = r.Body.Close()
				w.(http.Flusher).Flush()
				<-quit
				return
			}
			n, _ := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n)
		}))
		defer close(quit)
		client := ts.Client()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range 20 { // 20 × 256 KiB are more than the connection's window
			req, _ := http.NewRequestWithContext(ctx, "POST", ts.URL+"/close", bytes.NewReader(make([]byte, 1<<20)))
			res, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
		}
		res, err := client.Post(ts.URL, "x/y", bytes.NewReader(make([]byte, 8<<20)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); string(b) != "8388608" {
			t.Errorf("%s", b)
		}
	})
}

func TestShutdown(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		entered, leave := make(chan struct{}), make(chan struct{})
		ts, o := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-leave
			fmt.Fprint(w, "late")
		}))
		c := frameClient(t, ts.Listener.Addr().String())
		id := c.ask(true)
		<-entered
		if conns := o.Conns(); len(conns) != 1 || (conns[0].wire != nil) != (kind == polled && canPoll) {
			t.Errorf("%d connections, not of the kind %s", len(conns), kind)
		}
		down := make(chan error, 1)
		go func() { down <- ts.Config.Shutdown(context.Background()) }()
		// A request that crosses the GOAWAY is served.
		f, err := c.ReadFrame()
		for ; err == nil; f, err = c.ReadFrame() {
			if g, ok := f.(*http2.GoAwayFrame); ok {
				if g.LastStreamID != maxStreamID || g.ErrCode != http2.ErrCodeNo {
					t.Errorf("%v", g)
				}
				break
			}
		}
		c.must(err)
		second := c.ask(true)
		<-entered
		select {
		case err := <-down:
			t.Errorf("Shutdown did not wait: %v", err)
		default:
		}
		close(leave)
		got := map[uint32]string{}
		for len(got) < 2 {
			f := c.next()
			if f == nil {
				t.Fatal("the connection ended before its streams")
			}
			if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
				got[d.StreamID] = string(d.Data())
			}
		}
		if got[id] != "late" || got[second] != "late" {
			t.Errorf("%v", got)
		}
		if f := c.next(); f != nil {
			t.Errorf("%v", f)
		}
		_ = c.Close()
		if err := <-down; err != nil {
			t.Error(err)
		}
		o.Wait()
		if n := len(o.Conns()); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

// "Connection: close" is a GOAWAY, as with net/http.
func TestConnectionClose(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, set("Connection", "close", "body", "bye"))
		c := frameClient(t, ts.Listener.Addr().String())
		if got := c.story(c.ask(true), false); !strings.HasSuffix(got, "\"bye\"\nend\n") || strings.Contains(got, "connection") {
			t.Error(got)
		}
		if f := c.next(); f != nil || c.goAway == nil || *c.goAway != http2.ErrCodeNo {
			t.Errorf("%v, GOAWAY %v", f, c.goAway)
		}
	})
}

type connKey struct{}

// Values of http.Server's hooks reach the request.
func TestConnContext(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, server := r.Context().Value(http.ServerContextKey).(*http.Server)
			_, local := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			fmt.Fprint(w, r.Context().Value(connKey{}), server, local)
		}), func(s *http.Server) {
			s.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
				return context.WithValue(ctx, connKey{}, "mine")
			}
		})
		res, err := ts.Client().Get(ts.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, _ := io.ReadAll(res.Body); string(b) != "minetrue true" {
			t.Errorf("%s", b)
		}
	})
}

// What http.Server bounds is bounded.
func TestServerBounds(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, set("body", "ok"), func(s *http.Server) {
			s.ReadHeaderTimeout, s.IdleTimeout, s.MaxHeaderBytes = 100*time.Millisecond, 300*time.Millisecond, 10_000
			s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 7, MaxReceiveBufferPerStream: 70_000}
		})
		address := ts.Listener.Addr().String()

		c := frameClient(t, address)
		f, err := c.ReadFrame()
		c.must(err)
		settings := f.(*http2.SettingsFrame)
		for id, want := range map[http2.SettingID]uint32{http2.SettingMaxConcurrentStreams: 7, http2.SettingInitialWindowSize: 70_000, http2.SettingMaxHeaderListSize: 10_000} {
			if got, _ := settings.Value(id); got != want {
				t.Errorf("%v: %d", id, got)
			}
		}
		if got := c.story(c.ask(true, "x-long", strings.Repeat("a", 12_000)), false); !strings.Contains(got, ":status: 431") {
			t.Error(got)
		}
		if f := c.next(); f != nil || c.goAway == nil || *c.goAway != http2.ErrCodeNo { // idle
			t.Errorf("%v %v", f, c.goAway)
		}

		c = frameClient(t, address)
		c.must(c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndStream: true})) // and no CONTINUATION
		if f := c.next(); f != nil {
			t.Errorf("half a header: %v", f)
		}
	})
}

// Handlers that ignore the end of their streams cannot be heaped up.
func TestHandlersAreBounded(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		quit := make(chan struct{})
		ts, _ := handle(t, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-quit
		}), func(s *http.Server) { s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 5} })
		defer close(quit)
		c := frameClient(t, ts.Listener.Addr().String())
		refused := 0
		for range 20 {
			id := c.ask(true)
			switch f := c.next().(type) {
			case *http2.MetaHeadersFrame:
				c.must(c.WriteRSTStream(id, http2.ErrCodeCancel))
			case *http2.RSTStreamFrame:
				if f.ErrCode != http2.ErrCodeRefusedStream {
					t.Error(f.ErrCode)
				}
				refused++
			default:
				t.Fatalf("%v", f)
			}
		}
		if refused != 10 {
			t.Errorf("%d of 20 were refused", refused)
		}
	})
}
