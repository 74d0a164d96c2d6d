package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// scripted is a server that says frame by frame what happens to its streams.
func scripted(t testing.TB, begin func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool)) *url.URL {
	t.Helper()
	return scriptedWith(t, h2.Options{Begin: begin})
}

func scriptedWith(t testing.TB, o h2.Options) *url.URL {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveStreams(t, l, o)
	u, _ := url.Parse("https://" + l.Addr().String())
	return u
}

// serveStreams speaks HTTP/2 with whoever connects, frame by frame, until the end of the test.
func serveStreams(t testing.TB, l net.Listener, o h2.Options) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []*h2.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				tc := tls.Server(h2.NewWire(c), serverTLS("h2"))
				if tc.Handshake() != nil {
					return
				}
				conn := h2.New(tc, o)
				mu.Lock()
				conns = append(conns, conn)
				mu.Unlock()
				_ = conn.Run()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
}

func value(fields []h2.Field, name string) string {
	for _, f := range fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

var okHeader = []h2.Field{{Name: ":status", Value: "200"}}

// heard is a stream's receiver that keeps what it hears.
type heard struct {
	s      *h2.Stream
	mu     sync.Mutex
	body   bytes.Buffer
	sent   int
	closed chan error
	hold   bool // gives nothing back
}

func listen(s *h2.Stream) *heard {
	h := &heard{s: s, closed: make(chan error, 1)}
	s.Attach(h)
	return h
}

func (*heard) Header(*h2.Batch, []h2.Field, bool) {}
func (h *heard) Data(b *h2.Batch, p []byte, _ bool) {
	h.mu.Lock()
	h.body.Write(p)
	hold := h.hold
	h.mu.Unlock()
	if !hold {
		h.s.Consumed(b, len(p))
	}
}
func (*heard) Trailer(*h2.Batch, []h2.Field) {}
func (h *heard) Sent(_ *h2.Batch, n int) {
	h.mu.Lock()
	h.sent += n
	h.mu.Unlock()
}
func (h *heard) Closed(_ *h2.Batch, err error) { h.closed <- err }

func (h *heard) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.body.Len()
}

func wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// A client that gives up a watch has it given up at the server, and nothing of it is left.
func TestPassCancelled(t *testing.T) {
	streams := make(chan *heard, 1)
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		h := listen(s)
		s.Header(b, okHeader, false)
		_, _ = s.Write(b, []byte("event\n"), false)
		streams <- h
	})
	f := startPassing(t, Options{Server: server})
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://upstream.test/api?watch=true", nil)
	res, err := f.client(t, true).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line := make([]byte, 6)
	if _, err := io.ReadFull(res.Body, line); err != nil || string(line) != "event\n" {
		t.Fatal(string(line), err)
	}
	h := <-streams
	cancel()
	var reset *h2.StreamError
	if err := <-h.closed; !errors.As(err, &reset) || !reset.Remote || reset.Code != http2.ErrCodeCancel {
		t.Errorf("the server was told %v", err)
	}
	wait(t, "the request to be over", func() bool { return f.flights.len() == 0 })
	if s := f.Stats(); s.Cancelled != 1 || s.Requests != 1 {
		t.Errorf("%+v", s)
	}
}

// A client that does not read is not read for, and costs others nothing.
func TestPassSlowReader(t *testing.T) {
	streams := make(chan *heard, 2)
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		h := listen(s)
		s.Header(b, okHeader, false)
		if value(fields, ":path") == "/short" {
			_, _ = s.Write(b, []byte("short"), true)
			return
		}
		streams <- h
	})
	f := startPassing(t, Options{Server: server})
	c := f.client(t, true)
	res, err := c.Get("https://upstream.test/long")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	h := <-streams
	const piece, total = 64 << 10, 64 << 20
	chunk := bytes.Repeat([]byte{'l'}, piece)
	written := 0
	kept := 0
	for written < total {
		sent, err := h.s.Write(nil, chunk, false)
		if err != nil {
			t.Fatal(err)
		}
		written += piece
		if kept += piece - sent; kept > 8<<20 {
			break
		}
	}
	if written == total {
		t.Fatal("64 MiB went to a client that reads nothing")
	}
	res2, err := c.Get("https://upstream.test/short") // over the same two connections
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(res2.Body); string(b) != "short" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	res2.Body.Close()
	_, _ = h.s.Write(nil, nil, true)
	n, err := io.Copy(io.Discard, res.Body)
	if n != int64(written) || err != nil {
		t.Errorf("%d of %d bytes, %v", n, written, err)
	}
}

// A server that does not read an upload has the client wait.
func TestPassSlowServer(t *testing.T) {
	streams := make(chan *heard, 1)
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		h := listen(s)
		h.hold = true
		streams <- h
	})
	f := startPassing(t, Options{Server: server})
	var sent atomic.Int64
	body := readerFunc(func(p []byte) (int, error) { sent.Add(int64(len(p))); return len(p), nil })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "https://upstream.test/", io.LimitReader(body, 1<<40))
	failed := make(chan error, 1)
	go func() {
		res, err := f.client(t, true).Do(r)
		if err == nil {
			res.Body.Close()
		}
		failed <- err
	}()
	h := <-streams
	wait(t, "the server's window to be full", func() bool { return h.len() == 256<<10 })
	if n := sent.Load(); n > 2<<20 {
		t.Errorf("%d bytes were taken from the client, of which the server has 256 KiB", n)
	}
	h.mu.Lock()
	h.hold = false
	h.mu.Unlock()
	h.s.Consumed(nil, 256<<10)
	wait(t, "more to come", func() bool { return h.len() > 4<<20 })
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := <-h.closed; err == nil {
		t.Error("the server was told nothing")
	}
}

// An answer that breaks off does not look complete.
func TestPassBrokenAnswer(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		switch value(fields, ":path") {
		case "/reset":
			s.Header(b, okHeader, false)
			_, _ = s.Write(b, []byte("half"), false)
			s.Reset(b, http2.ErrCodeInternal)
		case "/connection":
			s.Header(b, okHeader, false)
			_, _ = s.Write(b, []byte("half"), false)
			s.Conn().Close()
		case "/early":
			s.Reset(b, http2.ErrCodeInternal)
		case "/short":
			s.Header(b, append(okHeader[:1:1], h2.Field{Name: "content-length", Value: "10"}), false)
			_, _ = s.Write(b, []byte("half"), true)
		}
	})
	for _, path := range []string{"/reset", "/short", "/connection"} {
		f := startPassing(t, Options{Server: server})
		res, err := f.client(t, true).Get("https://upstream.test" + path)
		if err != nil {
			t.Fatal(path, err)
		}
		if b, err := io.ReadAll(res.Body); err == nil {
			t.Errorf("%s: %q is complete", path, b)
		}
		res.Body.Close()
		wait(t, "the request to be over", func() bool { return f.flights.len() == 0 })
		if s := f.Stats(); s.Truncated != 1 {
			t.Errorf("%s: %+v", path, s)
		}
	}
	f := startPassing(t, Options{Server: server})
	res, err := f.client(t, true).Get("https://upstream.test/early")
	wantStatus(t, res, err, http.StatusBadGateway, ReasonBadGateway)
}

// An early answer to an upload is the answer; the rest is not wanted.
func TestPassEarlyAnswer(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		listen(s)
		s.Header(b, []h2.Field{{Name: ":status", Value: "413"}}, false)
		_, _ = s.Write(b, []byte("too large"), true)
		s.Reset(b, http2.ErrCodeNo)
	})
	f := startPassing(t, Options{Server: server})
	stop := make(chan struct{})
	r, _ := http.NewRequest(http.MethodPost, "https://upstream.test/", readerFunc(func(p []byte) (int, error) {
		select {
		case <-stop:
			return 0, io.EOF
		default:
			return len(p), nil
		}
	}))
	res, err := f.client(t, true).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	close(stop)
	res.Body.Close()
	if res.StatusCode != 413 || string(b) != "too large" || err != nil {
		t.Errorf("%d %q %v", res.StatusCode, b, err)
	}
	wait(t, "the request to be over", func() bool { return f.flights.len() == 0 })
}

// Close and EndWatches reach what is passed on.
func TestPassEnds(t *testing.T) {
	began := make(chan struct{}, 8)
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		listen(s)
		if !strings.HasPrefix(value(fields, ":path"), "/silent") {
			s.Header(b, okHeader, false)
		}
		began <- struct{}{}
	})
	f := startPassing(t, Options{Server: server})
	c := f.client(t, true)
	watch, err := c.Get("https://upstream.test/?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Get("https://upstream.test/")
	if err != nil {
		t.Fatal(err)
	}
	silent := make(chan *http.Response, 1)
	go func() {
		res, err := c.Get("https://upstream.test/silent")
		if err != nil {
			t.Error(err)
		}
		silent <- res
	}()
	for range 3 {
		<-began
	}
	f.EndWatches()
	if _, err := io.ReadAll(watch.Body); err == nil {
		t.Error("the watch ended in good order")
	}
	watch.Body.Close()
	if n := f.flights.len(); n != 2 {
		t.Errorf("%d are in flight", n)
	}
	f.Close()
	if _, err := io.ReadAll(list.Body); err == nil {
		t.Error("the list ended in good order")
	}
	list.Body.Close()
	wantStatus(t, <-silent, nil, http.StatusServiceUnavailable, ReasonShuttingDown)
	if n := f.flights.len(); n != 0 {
		t.Errorf("%d are in flight", n)
	}
}
