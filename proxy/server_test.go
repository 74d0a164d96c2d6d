package proxy

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestServerLimits(t *testing.T) {
	s := NewServer(http.NotFoundHandler(), ServerOptions{})
	if s.ReadHeaderTimeout <= 0 || s.ReadHeaderTimeout > 10*time.Second {
		t.Errorf("header within %v", s.ReadHeaderTimeout)
	}
	if s.WriteTimeout != 0 || s.ReadTimeout != 0 {
		t.Error("a watch would be cut")
	}
	if s.IdleTimeout <= 90*time.Second {
		t.Error("the server would close idle connections before client-go does")
	}
	if h := s.HTTP2; h.MaxConcurrentStreams != 1000 || connectionWaiters*h.MaxReceiveBufferPerStream > h.MaxReceiveBufferPerConnection*2/3 || h.MaxReceiveBufferPerConnection >= 4<<20 {
		t.Errorf("%+v", h)
	}
}

// One timeout bounds the handshake, the HTTP/2 preface aside, and the header.
func TestStalledClientsAreCut(t *testing.T) {
	var hits atomic.Int32
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(h, ServerOptions{})
	srv.ReadHeaderTimeout = 100 * time.Millisecond
	srv.TLSConfig = serverTLS("h2", "http/1.1")
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.ServeTLS(l, "", "") }()
	defer func() { srv.Close(); <-done }()
	f := &front{addr: l.Addr().String(), network: "tcp"}

	cut := func(what string, c net.Conn) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Errorf("%s: not cut", what)
			}
		}
	}
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cut("silent handshake", c)
	tc := f.dial(t, clientTLS("http/1.1"))
	fmt.Fprint(tc, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	cut("slow header", tc)
	cut("no request", f.dial(t, clientTLS("http/1.1")))
	cut("no preface", f.dial(t, clientTLS("h2")))
	hc := newH2Client(t, f)
	_, _ = hc.Conn.Write([]byte{0, 0, 100, 1})
	cut("half a frame", hc.Conn)
	hc = newH2Client(t, f)
	_ = hc.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}, EndStream: true})
	cut("half a header of HTTP/2", hc.Conn)
	if hits.Load() != 0 {
		t.Error("a request was served")
	}
}

func TestHugeHeaderIs431(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })}, false)
	c := f.dial(t, clientTLS("http/1.1"))
	go func() {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\nX-Huge: ")
		_, _ = io.CopyN(c, readerFunc(func(p []byte) (int, error) { return copy(p, bytes.Repeat([]byte{'a'}, len(p))), nil }), 8<<20)
	}()
	answer := make([]byte, 12)
	if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "HTTP/1.1 431" {
		t.Errorf("%q, %v", answer, err)
	}
	h := newH2Client(t, f)
	fields := []string{":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/"}
	for i := range 16 { // just over it: far over it, net/http closes the connection
		fields = append(fields, fmt.Sprintf("x-%d", i), strings.Repeat("a", 64<<10+20))
	}
	if got := h.answer(h.send(true, fields...)); got != "431" {
		t.Errorf("HTTP/2: %s", got)
	}
}

// Each is one request at the server, whole, or an error; never two.
func TestSmuggling(t *testing.T) {
	type req struct{ line, body string }
	seen := make(chan req, 100)
	for _, h2 := range []bool{false, true} {
		u := upstream(t, h2, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			if r.URL.Path == "/smuggled" || r.URL.Path == "/admin" {
				t.Errorf("smuggled: %s", r.URL)
			}
			seen <- req{r.Method + " " + r.RequestURI, string(b)}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, h2)}, false)
		const inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
		for name, c := range map[string]struct {
			raw  string
			want string // the one request and its body; "": refused
			any  bool   // refused is as well
		}{
			"CL and TE":               {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", want: "POST /a hello", any: true},
			"CL.TE":                   {raw: "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", want: "POST /a ", any: true},
			"hidden behind CL and TE": {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + fmt.Sprint(5+len(inner)) + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner, want: "POST /a ", any: true},
			"two CL":                  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!"},
			"same CL twice":           {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", want: "POST /a hello", any: true},
			"CL list":                 {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\nhello", any: true, want: "POST /a hello"},
			"CL with plus":            {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: +5\r\n\r\nhello"},
			"CL hex":                  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0x5\r\n\r\nhello"},
			"CL negative":             {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" + inner},
			"CL overflow":             {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551621\r\n\r\nhello"},
			"CL with space before :":  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length : 5\r\n\r\nhello"},
			"TE with space before :":  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner},
			"TE with tab":             {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\tchunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n", want: "POST /a hello", any: true},
			"TE xchunked":             {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"},
			"TE identity, chunked":    {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n"},
			"TE twice":                {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n"},
			"TE in HTTP/1.0":          {raw: "POST /a HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", any: true, want: "POST /a 0\r\n"},
			"TE vertical tab":         {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"},
			"TE with underscore":      {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer_Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", want: "POST /a 0\r\n\r\n"},
			"bad chunk size":          {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5g\r\nhello\r\n0\r\n\r\n"},
			"negative chunk size":     {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n"},
			"chunk size overflow":     {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n"},
			"chunk longer than said":  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhello\r\n0\r\n\r\n"},
			"chunk ended by bare LF":  {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", any: true, want: "POST /a hello"},
			"chunk extension with CR": {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;a=\rb\r\nhello\r\n0\r\n\r\n"},
			"no last chunk":           {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"},
			"obs-fold":                {raw: "GET /a HTTP/1.1\r\nHost: x\r\nX-A: b\r\n Transfer-Encoding: chunked\r\n\r\n", want: "GET /a ", any: true},
			"fold in the first line":  {raw: "GET /a HTTP/1.1\r\n Host: evil\r\nHost: x\r\n\r\n"},
			"two Hosts":               {raw: "GET /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n"},
			"no Host":                 {raw: "GET /a HTTP/1.1\r\n\r\n"},
			"Host with space":         {raw: "GET /a HTTP/1.1\r\nHost: x y\r\n\r\n"},
			"bare CR in a value":      {raw: "GET /a HTTP/1.1\r\nHost: x\r\nX-A: b\rX-Remote-User: admin\r\n\r\n"},
			"NUL in a value":          {raw: "GET /a HTTP/1.1\r\nHost: x\r\nX-A: b\x00c\r\n\r\n"},
			"bare LF lines":           {raw: "GET /a HTTP/1.1\nHost: x\n\n", want: "GET /a ", any: true},
			"space in the target":     {raw: "GET /a /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"},
			"two spaces":              {raw: "GET  /a HTTP/1.1\r\nHost: x\r\n\r\n"},
			"tab for space":           {raw: "GET\t/a\tHTTP/1.1\r\nHost: x\r\n\r\n"},
			"HTTP/1.2":                {raw: "GET /a HTTP/1.2\r\nHost: x\r\n\r\n", want: "GET /a ", any: true},
			"HTTP/2.0 by hand":        {raw: "GET /a HTTP/2.0\r\nHost: x\r\n\r\n"},
			"HTTP/0.9":                {raw: "GET /a\r\n\r\n"},
			"method with a bracket":   {raw: "G[T /a HTTP/1.1\r\nHost: x\r\n\r\n"},
			"name with a space":       {raw: "GET /a HTTP/1.1\r\nHost: x\r\nX A: b\r\n\r\n"},
			"line without a colon":    {raw: "GET /a HTTP/1.1\r\nHost: x\r\nGET /smuggled HTTP/1.1\r\n\r\n"},
			"body on GET":             {raw: "GET /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + fmt.Sprint(len(inner)) + "\r\n\r\n" + inner, want: "GET /a " + inner},
			"TE hidden by Connection": {raw: "POST /a HTTP/1.1\r\nHost: x\r\nConnection: Content-Length, Transfer-Encoding\r\nContent-Length: " + fmt.Sprint(len(inner)) + "\r\n\r\n" + inner, want: "POST /a " + inner},
			"trailer sets a length":   {raw: "POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n5\r\nhello\r\n0\r\nContent-Length: 50\r\n\r\n", want: "POST /a hello", any: true},
		} {
			t.Run(fmt.Sprintf("h2=%v/%s", h2, name), func(t *testing.T) {
				conn, r := f.raw(t, c.raw)
				if strings.HasPrefix(name, "no last chunk") {
					_ = conn.CloseWrite()
				}
				res, err := http.ReadResponse(r, nil)
				code := 0
				if err == nil {
					code = res.StatusCode
					_, _ = io.Copy(io.Discard, res.Body)
					_ = conn.CloseWrite()
					rest, _ := io.ReadAll(r)
					if bytes.Count(rest, []byte("HTTP/1.1 2")) > 0 {
						t.Errorf("a second answer: %q", rest)
					}
				}
				var got []string
				for len(seen) > 0 {
					s := <-seen
					got = append(got, s.line+" "+s.body)
				}
				refused := len(got) == 0 && (code == 0 || code >= 400 && code < 600)
				served := len(got) == 1 && code == 200 && got[0] == c.want && c.want != ""
				if !served && !(refused && (c.want == "" || c.any)) {
					t.Errorf("answer %d, the server saw %q, want %q", code, got, c.want)
				}
			})
		}
	}
}

// What net/http itself would reset without a word is answered.
func TestBadTargetOverHTTP2(t *testing.T) {
	f := start(t, Options{Server: upstream(t, true, func(http.ResponseWriter, *http.Request) { t.Error("it was sent") })}, false)
	c := newH2Client(t, f)
	for _, path := range []string{"/%zz", "no/slash", "/a%", "/a%2?b"} {
		if got := c.get(path); got != "400" {
			t.Errorf("%s: %s", path, got)
		}
	}
}

func TestServerLog(t *testing.T) {
	var b logBuffer
	s := NewServer(nil, ServerOptions{Logger: slog.New(slog.NewTextHandler(&b, nil))})
	s.ErrorLog.Print("http: TLS handshake error from x: EOF")
	if b.String() != "" {
		t.Errorf("everyday noise: %s", b.String())
	}
	s.ErrorLog.Print("http: Accept error: too many open files\nsecond")
	if !strings.Contains(b.String(), "level=WARN") || strings.Count(b.String(), "\n") != 1 {
		t.Errorf("%q", b.String())
	}
}
