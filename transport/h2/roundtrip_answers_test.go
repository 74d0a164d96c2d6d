package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestAnswers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method  string
		answer  func(s *scripted, id uint32)
		status  int
		length  int64
		body    string
		header  http.Header
		trailer http.Header
	}{
		"empty": {"GET", func(s *scripted, id uint32) { s.head(id, true, ":status", "200") },
			200, 0, "", http.Header{}, nil},
		"informational ones are skipped": {"GET", func(s *scripted, id uint32) {
			s.head(id, false, ":status", "100")
			s.head(id, false, ":status", "103", "link", "x")
			s.head(id, false, ":status", "201", "audit-id", "1", "x-odd-NAME"[:5], "2")
			_ = s.WriteData(id, true, []byte("ok"))
		}, 201, -1, "ok", http.Header{"Audit-Id": {"1"}, "X-Odd": {"2"}}, nil},
		"length": {"GET", func(s *scripted, id uint32) {
			s.head(id, false, ":status", "200", "content-length", "4", "set-cookie", "a", "set-cookie", "b")
			_ = s.WriteDataPadded(id, false, []byte("ab"), make([]byte, 7))
			_ = s.WriteData(id, false, []byte("cd"))
			_ = s.WriteData(id, true, nil)
		}, 200, 4, "abcd", http.Header{"Content-Length": {"4"}, "Set-Cookie": {"a", "b"}}, nil},
		"HEAD": {"HEAD", func(s *scripted, id uint32) { s.head(id, true, ":status", "200", "content-length", "99") },
			200, 99, "", http.Header{"Content-Length": {"99"}}, nil},
		"HEAD without a length": {"HEAD", func(s *scripted, id uint32) { s.head(id, true, ":status", "200") },
			200, -1, "", http.Header{}, nil},
		"304": {"GET", func(s *scripted, id uint32) { s.head(id, true, ":status", "304", "content-length", "99") },
			304, 99, "", http.Header{"Content-Length": {"99"}}, nil},
		"204, its end apart": {"GET", func(s *scripted, id uint32) {
			s.head(id, false, ":status", "204")
			_ = s.WriteData(id, true, nil)
		}, 204, -1, "", http.Header{}, nil},
		"trailers": {"GET", func(s *scripted, id uint32) {
			s.head(id, false, ":status", "200", "trailer", "one, Two", "trailer", "content-length")
			_ = s.WriteData(id, false, []byte("x"))
			s.head(id, true, "one", "1", "three", "3", "three", "4")
		}, 200, -1, "x", http.Header{}, http.Header{"One": {"1"}, "Two": nil, "Three": {"3", "4"}}},
		"trailers without a body": {"GET", func(s *scripted, id uint32) {
			s.head(id, false, ":status", "200")
			s.head(id, true, "grpc-status", "1")
		}, 200, -1, "", http.Header{}, http.Header{"Grpc-Status": {"1"}}},
		"fields of HTTP/1.1": {"GET", func(s *scripted, id uint32) { s.head(id, true, ":status", "599", "connection", "close") },
			599, 0, "", http.Header{"Connection": {"close"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := script(t, Options{}, func(s *scripted) { tt.answer(s, s.request().StreamID) })
			res, err := send(t, c, newRequest(t, context.Background(), tt.method, "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			if err != nil || string(b) != tt.body || res.StatusCode != tt.status || res.ContentLength != tt.length {
				t.Errorf("%d, %q, length %d, %v", res.StatusCode, b, res.ContentLength, err)
			}
			if !reflect.DeepEqual(res.Header, tt.header) || !reflect.DeepEqual(res.Trailer, tt.trailer) {
				t.Errorf("header %v, trailer %v", res.Header, res.Trailer)
			}
			if want := strings.TrimSpace(fmt.Sprint(tt.status, " ", http.StatusText(tt.status))); res.Status != want {
				t.Errorf("%q, want %q", res.Status, want)
			}
			none(t, c)
			if err := res.Body.Close(); err != nil {
				t.Error(err)
			}
			if _, err := res.Body.Read(make([]byte, 1)); res.Body != http.NoBody && !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// What is broken off is an error, and never io.EOF; what had come before is there.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	begin := func(s *scripted, fields ...string) uint32 {
		id := s.request().StreamID
		s.head(id, false, append([]string{":status", "200"}, fields...)...)
		_ = s.WriteData(id, false, []byte("half"))
		return id
	}
	remote := func(code http2.ErrCode) func(error) bool {
		return func(err error) bool {
			var s *StreamError
			return errors.As(err, &s) && s.Remote && s.Code == code
		}
	}
	local := func(err error) bool {
		var s *StreamError
		return errors.As(err, &s) && !s.Remote && s.Code == http2.ErrCodeProtocol
	}
	for name, tt := range map[string]struct {
		do   func(s *scripted)
		body string
		want func(error) bool
	}{
		"reset":           {func(s *scripted) { _ = s.WriteRSTStream(begin(s), http2.ErrCodeInternal) }, "half", remote(http2.ErrCodeInternal)},
		"reset, no error": {func(s *scripted) { _ = s.WriteRSTStream(begin(s), http2.ErrCodeNo) }, "half", remote(http2.ErrCodeNo)},
		"reset at once":   {func(s *scripted) { _ = s.WriteRSTStream(s.request().StreamID, http2.ErrCodeCancel) }, "", remote(http2.ErrCodeCancel)},
		"connection ends": {func(s *scripted) { begin(s); _ = s.tls.Close() }, "half", func(err error) bool {
			return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) // it had not read all
		}},
		"TCP ends":         {func(s *scripted) { begin(s); _ = s.tls.NetConn().Close() }, "half", func(err error) bool { return err != nil && err != io.EOF }},
		"less than length": {func(s *scripted) { _ = s.WriteData(begin(s, "content-length", "5"), true, nil) }, "half", local},
		"more than length": {func(s *scripted) { _ = s.WriteData(begin(s, "content-length", "5"), true, []byte("xx")) }, "half", local},
		"no header":        {func(s *scripted) { _ = s.WriteData(s.request().StreamID, true, []byte("x")) }, "", local},
		"no status":        {func(s *scripted) { s.head(s.request().StreamID, true, "x", "y") }, "", local},
		"upper case":       {func(s *scripted) { s.head(s.request().StreamID, true, ":status", "200", "X", "y") }, "", local},
		"101":              {func(s *scripted) { s.head(s.request().StreamID, false, ":status", "101") }, "", local},
		"REFUSED_STREAM":   {func(s *scripted) { _ = s.WriteRSTStream(s.request().StreamID, http2.ErrCodeRefusedStream) }, "", func(err error) bool { return errors.Is(err, ErrUnprocessed) }},
		"GOAWAY":           {func(s *scripted) { s.request(); _ = s.WriteGoAway(0, http2.ErrCodeNo, nil) }, "", func(err error) bool { return errors.Is(err, ErrUnprocessed) }},
		"GOAWAY, processed": {func(s *scripted) {
			_ = s.WriteGoAway(s.request().StreamID, http2.ErrCodeInternal, nil)
			_ = s.tls.Close()
		}, "", func(err error) bool {
			return err != nil && err != io.EOF && !errors.Is(err, ErrUnprocessed)
		}},
		"a trailer that is malformed": {func(s *scripted) { s.head(begin(s), true, ":status", "200") }, "half", local},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, method := range []string{"GET", "POST"} {
				c, wait := script(t, Options{}, tt.do)
				var body io.Reader
				if method == "POST" {
					body = strings.NewReader("data")
				}
				_, got, err := once(t, c, method, body)
				if !tt.want(err) || got != tt.body || err == io.EOF {
					t.Errorf("%s: got %q, %T %v", method, got, err, err)
				}
				wait()
			}
		})
	}
}

// endless is a body that never ends, and tells when it is closed.
type endless struct {
	io.Reader
	closed chan struct{}
	closes atomic.Int32
}

func (b *endless) Close() error {
	if b.closes.Add(1) == 1 {
		close(b.closed)
	}
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// A server may answer before it has the body (RFC 9113 section 8.1).
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	blocked := func() io.Reader { r, _ := io.Pipe(); return r }
	for name, tt := range map[string]struct {
		body   func() io.Reader
		answer func(s *scripted, id uint32)
		status int
	}{
		"no error, much to send": {func() io.Reader { return zeros{} }, func(s *scripted, id uint32) {
			s.head(id, false, ":status", "200")
			_ = s.WriteData(id, true, []byte("early"))
			_ = s.WriteRSTStream(id, http2.ErrCodeNo)
		}, 200},
		"no error, nothing to send yet": {blocked, func(s *scripted, id uint32) {
			s.head(id, false, ":status", "200")
			_ = s.WriteData(id, true, []byte("early"))
			_ = s.WriteRSTStream(id, http2.ErrCodeNo)
		}, 200},
		"refused without a reset": {blocked, func(s *scripted, id uint32) {
			s.head(id, false, ":status", "413")
			_ = s.WriteData(id, true, []byte("early"))
			if code := s.reset(); code != http2.ErrCodeNo && code != http2.ErrCodeCancel {
				s.t.Errorf("reset with %v", code)
			}
		}, 413},
		"refused, and the reader has enough": {func() io.Reader { return zeros{} }, func(s *scripted, id uint32) {
			s.head(id, false, ":status", "401")
			_ = s.WriteData(id, true, []byte("early"))
			s.reset()
		}, 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, wait := script(t, Options{}, func(s *scripted) { tt.answer(s, s.request().StreamID) })
			body := &endless{Reader: tt.body(), closed: make(chan struct{})}
			status, got, err := once(t, c, "POST", body)
			if status != tt.status || got != "early" || err != nil {
				t.Errorf("%d %q %v", status, got, err)
			}
			<-body.closed
			none(t, c)
			wait()
			if n := body.closes.Load(); n != 1 {
				t.Errorf("body was closed %d times", n)
			}
		})
	}
}

func TestRequestBodies(t *testing.T) {
	t.Parallel()
	broken := errors.New("sender is gone")
	for name, tt := range map[string]struct {
		body    io.Reader
		length  int64
		trailer http.Header
		want    error  // of RoundTrip
		sees    string // the server: what has come, and how it ended
	}{
		"known":       {body: strings.NewReader("hello"), length: 5, sees: "hello END"},
		"unknown":     {body: strings.NewReader("hello"), length: -1, sees: "hello END"},
		"empty":       {body: io.MultiReader(), length: -1, sees: " END"},
		"too long":    {body: strings.NewReader("hello"), length: 4, want: errBodyLong, sees: " CANCEL"},
		"too short":   {body: strings.NewReader("hello"), length: 6, want: errBodyShort, sees: "hello CANCEL"},
		"breaks off":  {body: io.MultiReader(strings.NewReader("hello"), failing{broken}), length: -1, want: broken, sees: "hello CANCEL"},
		"trailer":     {body: strings.NewReader("hello"), length: -1, trailer: http.Header{"Sum": {"1", "2"}}, sees: "hello sum=1 sum=2 END"},
		"its value":   {body: strings.NewReader("hello"), length: 5, trailer: http.Header{"Sum": nil}, sees: "hello END"},
		"not valid":   {body: strings.NewReader("hello"), length: 5, trailer: http.Header{"Sum": {"a\x00b"}}, want: errTrailer, sees: "hello CANCEL"},
		"none at all": {trailer: http.Header{"Sum": {"1"}}, sees: " sum=1 END"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			saw := make(chan string, 1)
			c, wait := script(t, Options{}, func(s *scripted) {
				f := s.request()
				id, got, extra := f.StreamID, "", ""
				for {
					end := false
					switch f := s.next().(type) {
					case nil:
						saw <- got + extra + " GONE"
						return
					case *http2.DataFrame:
						got += string(f.Data())
						end = f.StreamEnded()
					case *http2.MetaHeadersFrame:
						for _, h := range f.Fields {
							extra += " " + h.Name + "=" + h.Value
						}
						end = f.StreamEnded()
					case *http2.RSTStreamFrame:
						saw <- got + extra + " " + f.ErrCode.String()
						return
					}
					if end {
						saw <- got + extra + " END"
						s.head(id, true, ":status", "200")
						return
					}
				}
			})
			r := newRequest(t, context.Background(), "POST", "/", tt.body)
			r.ContentLength, r.Trailer = tt.length, tt.trailer
			_, err := send(t, c, r)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if got := <-saw; got != tt.sees {
				t.Errorf("the server saw %q, want %q", got, tt.sees)
			}
			none(t, c)
			wait()
		})
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A reader that stops costs the stream's window, no more, and holds up nobody else.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	s := serveGo(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = io.WriteString(w, "small")
			return
		}
		p := make([]byte, 16<<10)
		for range 16 << 20 / len(p) {
			n, err := w.Write(p)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}), 0)
	const window = 256 << 10
	c := s.dial(t, Options{StreamWindow: window}, false)
	res, err := send(t, c, newRequest(t, context.Background(), "GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	x := res.Body.(answerBody).x
	held := func() int { x.mu.Lock(); defer x.mu.Unlock(); return x.in.size }
	for held() < window { // all that it may send is there, and read by nobody
		if _, body := fetch(t, c, newRequest(t, context.Background(), "GET", "/small", nil)); body != "small" {
			t.Errorf("got %q", body)
		}
	}
	for range 20 {
		fetch(t, c, newRequest(t, context.Background(), "GET", "/small", nil))
	}
	if n := held(); n != window {
		t.Errorf("%d bytes are held, want %d", n, window)
	}
	if n := sent.Load(); n > window+64<<10 {
		t.Errorf("the server could write %d bytes", n)
	}
	if n, err := io.Copy(io.Discard, res.Body); n != 16<<20 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	none(t, c)
}

// Who closes an answer early takes nothing from the others.
func TestCloseEarly(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	s := serveGo(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			return
		}
		p := make([]byte, 16<<10)
		for {
			if _, err := w.Write(p); err != nil {
				ended <- struct{}{}
				return
			}
		}
	}), 0)
	// The connection's window is gone soon, if what was thrown away is not given back.
	c := s.dial(t, Options{StreamWindow: 1 << 20, ConnWindow: 1 << 20}, false)
	for range 20 {
		res, err := send(t, c, newRequest(t, context.Background(), "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 100_000)); err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}
	fetch(t, c, newRequest(t, context.Background(), "GET", "/small", nil))
	none(t, c)
}

// A trailer that cannot be sent ends the request: without its end, nobody would answer it.
func TestMalformedTrailer(t *testing.T) {
	for name, body := range map[string]io.Reader{"no body": nil, "a body": strings.NewReader("data")} {
		c, _ := script(t, Options{}, func(s *scripted) { s.request() })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r := newRequest(t, ctx, "POST", "/", body)
		r.Trailer = http.Header{"X-A": {"pin\n2718"}}
		if _, err := send(t, c, r); !errors.Is(err, errTrailer) {
			t.Errorf("%s: %v", name, err)
		}
		none(t, c)
	}
}
