package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// goServer is net/http's server, and dial a Conn to it.
type goServer struct {
	addr string
}

func serveGo(t testing.TB, h http.Handler, streams int) *goServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	srv := &http.Server{Handler: h, Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams},
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{testCertificate(t)}}}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.ServeTLS(l, "", "") })
	t.Cleanup(func() { _ = srv.Close(); wg.Wait() })
	return &goServer{addr: l.Addr().String()}
}

func (s *goServer) dial(t testing.TB, o Options, blocking bool) *Conn {
	t.Helper()
	raw, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	if blocking {
		raw = struct{ net.Conn }{raw}
	}
	tc := tls.Client(NewWire(raw), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, DynamicRecordSizingDisabled: true})
	if err := tc.Handshake(); err != nil {
		t.Fatal(err)
	}
	c := New(tc, o)
	if (c.wire == nil) != (blocking || !canPoll) {
		t.Fatal("not the way to read and write that is to be tested")
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run() })
	t.Cleanup(func() { c.Close(); wg.Wait() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := c.Ping(ctx); err != nil {
		t.Fatal(err)
	}
	return c
}

// both runs f with a connection that polls, and with one that blocks.
func both(t *testing.T, f func(t *testing.T, dial func(s *goServer, o Options) *Conn)) {
	for name, blocking := range map[string]bool{"polling": false, "blocking": true} {
		if !blocking && !canPoll {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, func(s *goServer, o Options) *Conn { return s.dial(t, o, blocking) })
		})
	}
}

func newRequest(t testing.TB, ctx context.Context, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://kubernetes"+target, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func send(t testing.TB, c *Conn, r *http.Request) (*http.Response, error) {
	t.Helper()
	if !c.Reserve() {
		t.Fatal("no stream can be had")
	}
	return c.RoundTrip(r)
}

// fetch returns the body of the answer.
func fetch(t testing.TB, c *Conn, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := send(t, c, r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}

// none waits until no stream is open and nothing is kept.
func none(t testing.TB, c *Conn) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		open, _ := c.Streams()
		if open == 0 && c.o.Memory.Used() == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d streams, %d bytes are left", open, c.o.Memory.Used())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRoundTrip(t *testing.T) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Got", fmt.Sprintf("%s %s %s %q %d", r.Method, r.Host, r.RequestURI, r.Header["User-Agent"], r.ContentLength))
		_, _ = w.Write(b)
		_, _ = io.WriteString(w, strings.Join(r.Header["Cookie"], "|"))
	})
	s := serveGo(t, h, 0)
	both(t, func(t *testing.T, dial func(*goServer, Options) *Conn) {
		c := dial(s, Options{})
		for range 3 {
			r := newRequest(t, context.Background(), "GET", "/a%2Fb?x=%20y", nil)
			r.Header.Set("Cookie", "a=b; c=d")
			res, body := fetch(t, c, r)
			if got, want := res.Header.Get("Got"), `GET kubernetes /a%2Fb?x=%20y [] 0`; got != want || body != "a=b; c=d" || res.ContentLength != 8 {
				t.Errorf("got %s %q %d", got, body, res.ContentLength)
			}
			if res.Proto != "HTTP/2.0" || res.Status != "200 OK" || res.Request != r || res.TLS == nil || res.Uncompressed {
				t.Errorf("got %+v", res)
			}
			r = newRequest(t, context.Background(), "POST", "/", strings.NewReader("hello"))
			if res, body = fetch(t, c, r); body != "hello" || res.Header.Get("Got") != `POST kubernetes / [] 5` {
				t.Errorf("got %v %q", res.Header, body)
			}
			r = newRequest(t, context.Background(), "PUT", "/", io.MultiReader(strings.NewReader("one "), strings.NewReader("two")))
			if res, body = fetch(t, c, r); body != "one two" || res.Header.Get("Got") != `PUT kubernetes / [] -1` {
				t.Errorf("got %v %q", res.Header, body)
			}
			r = newRequest(t, context.Background(), "HEAD", "/", nil)
			if res, body = fetch(t, c, r); body != "" || res.StatusCode != 200 {
				t.Errorf("got %v %q", res, body)
			}
		}
		none(t, c)
	})
}

func TestBigBodies(t *testing.T) {
	const size = 16 << 20
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			n, err := io.Copy(io.Discard, r.Body)
			_, _ = fmt.Fprintf(w, "%d %v", n, err)
			return
		}
		p := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		for range size / len(p) { // 1 MiB at once
			if _, err := w.Write(p); err != nil {
				return
			}
		}
	})
	s := serveGo(t, h, 0)
	both(t, func(t *testing.T, dial func(*goServer, Options) *Conn) {
		c := dial(s, Options{MaxStreamWindow: 4 << 20, MaxFrame: 256 << 10})
		r := newRequest(t, context.Background(), "POST", "/", io.LimitReader(zeros{}, size))
		if _, body := fetch(t, c, r); body != fmt.Sprint(size, " <nil>") {
			t.Errorf("up: %s", body)
		}
		r = newRequest(t, context.Background(), "POST", "/", io.LimitReader(zeros{}, 4*size))
		r.ContentLength = 4 * size
		if _, body := fetch(t, c, r); body != fmt.Sprint(4*size, " <nil>") {
			t.Errorf("up: %s", body)
		}
		res, err := send(t, c, newRequest(t, context.Background(), "GET", "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, res.Body); n != size || err != nil {
			t.Errorf("down: %d, %v", n, err)
		}
		none(t, c)
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestCancel(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/answer" {
			_, _ = io.WriteString(w, "begin")
			w.(http.Flusher).Flush()
		}
		began <- struct{}{}
		<-r.Context().Done()
		ended <- struct{}{}
	})
	s := serveGo(t, h, 0)
	c := s.dial(t, Options{}, false)
	for _, path := range []string{"/", "/answer"} {
		for _, upload := range []bool{false, true} {
			ctx, cancel := context.WithCancel(context.Background())
			var body io.Reader
			if upload {
				pr, pw := io.Pipe()
				defer func() { _ = pw.Close() }()
				body = pr
			}
			go func() { <-began; cancel() }()
			res, err := send(t, c, newRequest(t, ctx, "POST", path, body))
			if err == nil {
				_, err = io.ReadAll(res.Body)
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s, with a body %v: %v", path, upload, err)
			}
			<-ended
			if res != nil {
				_ = res.Body.Close()
			}
			cancel()
		}
	}
	none(t, c)
}
