package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func bothWays(t *testing.T, f func(t *testing.T, out2, in2 bool)) {
	for _, out2 := range []bool{false, true} {
		for _, in2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("out h2=%v in h2=%v", out2, in2), func(t *testing.T) { f(t, out2, in2) })
		}
	}
}

func TestWatchIsNotHeldBack(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		next := make(chan string)
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			for e := range next {
				fmt.Fprint(w, e)
				w.(http.Flusher).Flush()
			}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		res := get(t, f.client(t, in2), "https://x/api/v1/pods?watch=1") // returns with the head, before any event
		defer res.Body.Close()
		for _, e := range []string{"a", "bc", strings.Repeat("d", 5000), "e"} {
			next <- e
			got := make([]byte, len(e))
			if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != e {
				t.Fatalf("%.10q, %v", got, err)
			}
		}
		close(next)
		if n, err := res.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v", n, err)
		}
	})
}

func TestTruncationIsNoSuccess(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/length" {
				w.Header().Set("Content-Length", "1000000")
			}
			_, _ = w.Write([]byte(`{"items":[1,2,3]}`))
			w.(http.Flusher).Flush()
			if r.URL.Path != "/clean" {
				panic(http.ErrAbortHandler)
			}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		c := f.client(t, in2)
		for _, path := range []string{"/length", "/chunked"} {
			res := get(t, c, "https://x"+path)
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil {
				t.Errorf("%s: %d bytes, and no error", path, len(b))
			}
			if string(b) != `{"items":[1,2,3]}` {
				t.Errorf("%s: what came first is %q", path, b)
			}
		}
		if got := body2s(t, get(t, c, "https://x/clean")); got != `{"items":[1,2,3]}` {
			t.Errorf("clean: %q", got)
		}
		if n := f.Stats().Truncated; n != 2 {
			t.Errorf("%d truncations counted", n)
		}
	})
}

// The bytes themselves: no last chunk, and no END_STREAM.
func TestTruncationOnTheWire(t *testing.T) {
	u := rawHTTP2(t, func(c *h2conn) {
		for f := c.next(); f != nil; f = c.next() {
			if h, ok := f.(*http2.MetaHeadersFrame); ok {
				c.answer(h.StreamID, false, ":status", "200")
				_ = c.WriteData(h.StreamID, false, []byte("half"))
				_ = c.WriteRSTStream(h.StreamID, http2.ErrCodeInternal)
			}
		}
	})
	f := start(t, Options{Server: u}, false)
	_, r := f.raw(t, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	all, _ := io.ReadAll(r)
	if s := string(all); !strings.HasPrefix(s, "HTTP/1.1 200") || strings.HasSuffix(s, "0\r\n\r\n") {
		t.Errorf("got %q", all)
	}
	h := newH2Client(t, f)
	id := h.send(true, ":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/")
	if code := h.answer(id); code != "200" {
		t.Fatal(code)
	}
	for {
		fr, err := h.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := fr.(*http2.DataFrame); ok && d.StreamEnded() {
			t.Fatal("END_STREAM")
		}
		if rst, ok := fr.(*http2.RSTStreamFrame); ok && rst.StreamID == id {
			break
		}
	}
}

func TestCancelReachesTheServer(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		gone, asked := make(chan time.Time, 1), make(chan struct{}, 1)
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/watch" {
				w.(http.Flusher).Flush()
			} else {
				asked <- struct{}{}
			}
			<-r.Context().Done()
			gone <- time.Now()
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		c := f.client(t, in2)
		for _, path := range []string{"/watch", "/silent"} {
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://x"+path, nil)
			if path == "/silent" {
				go func() { <-asked; cancel() }() // one that never arrived would not be cancelled there
			}
			res, err := c.Do(req)
			begun := time.Now()
			if err == nil {
				defer res.Body.Close()
			}
			cancel()
			if d := (<-gone).Sub(begun); d > time.Second {
				t.Errorf("%s: the server heard of it after %v", path, d)
			}
		}
		if c := f.Stats().Errors; len(c) != 0 {
			t.Errorf("counted as failures: %v", c)
		}
	})
}

func TestCloseCutsRequests(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		gone := make(chan struct{}, 2)
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/watch" {
				fmt.Fprint(w, "x")
				w.(http.Flusher).Flush()
			}
			gone <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		c := f.client(t, in2)
		res := get(t, c, "https://x/watch")
		<-gone
		type answer struct {
			res *http.Response
			err error
		}
		waiting := make(chan answer, 1)
		go func() { res, err := c.Get("https://x/silent"); waiting <- answer{res, err} }()
		<-gone
		if n := f.Stats().InFlight; n != 2 {
			t.Errorf("%d in flight", n)
		}
		f.Close()
		<-gone
		<-gone
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("a cut watch looks complete")
		}
		res.Body.Close()
		a := <-waiting
		wantStatus(t, a.res, a.err, 503, ReasonShuttingDown)
		res, err := f.client(t, in2).Get("https://x/")
		wantStatus(t, res, err, 503, ReasonShuttingDown)
	})
}

// A client that does not read holds up the server, and not the memory.
func TestSlowReaderHoldsNoMemory(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		var sent atomic.Int64
		quit := make(chan struct{})
		defer close(quit)
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			buf := make([]byte, 1<<20)
			for {
				n, err := w.Write(buf)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		res := get(t, f.client(t, in2), "https://x/log")
		defer res.Body.Close()
		// Wait until nothing moves any more.
		last := int64(-1)
		for n := sent.Load(); n != last || n == 0; n = sent.Load() {
			last = n
			time.Sleep(200 * time.Millisecond)
		}
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		if last > 40<<20 {
			t.Errorf("%d MiB were taken from the server for a client that reads nothing", last>>20)
		}
		if m.HeapInuse > 64<<20 {
			t.Errorf("heap is %d MiB", m.HeapInuse>>20)
		}
	})
}

func TestResponseShapes(t *testing.T) {
	bothWays(t, func(t *testing.T, out2, in2 bool) {
		u := upstream(t, out2, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/204":
				w.WriteHeader(204)
			case "/304":
				w.Header().Set("Etag", `"1"`)
				w.WriteHeader(304)
			case "/empty":
			case "/large":
				w.Header().Set("Content-Length", "3000000")
				_, _ = io.CopyN(w, zeros{}, 3000000)
			case "/early":
				w.Header().Set("Link", "</x>")
				w.WriteHeader(103)
				fmt.Fprint(w, "late")
			}
		})
		f := start(t, Options{Server: u, Transport: outbound(t, out2)}, false)
		c := f.client(t, in2)
		for path, want := range map[string]struct{ code, size int }{"/204": {204, 0}, "/304": {304, 0}, "/empty": {200, 0}, "/large": {200, 3000000}, "/early": {200, 4}} {
			for range 2 { // the connection stays good
				res := get(t, c, "https://x"+path)
				if b := body2s(t, res); res.StatusCode != want.code || len(b) != want.size {
					t.Errorf("%s: %d, %d bytes", path, res.StatusCode, len(b))
				}
			}
			res, err := c.Head("https://x" + path)
			if err != nil {
				t.Fatal(err)
			}
			if b := body2s(t, res); res.StatusCode != want.code || b != "" || path == "/large" && res.ContentLength != 3000000 {
				t.Errorf("HEAD %s: %d, %q, length %d", path, res.StatusCode, b, res.ContentLength)
			}
		}
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestStatusCodeOutOfRange(t *testing.T) {
	for _, line := range []string{"099 Odd", "101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade", "000 None"} {
		u := scriptedHTTP1(t, "HTTP/1.1 "+line+"\r\nContent-Length: 0\r\n\r\n")
		f := start(t, Options{Server: u, Transport: outbound(t, false)}, false)
		res, err := f.client(t, true).Get("https://x/")
		wantStatus(t, res, err, 502, ReasonBadGateway)
	}
}

// One that is idle holds the small buffer; one that is busy the large one.
func TestRelayTakesLargeBuffersOnlyWhenBusy(t *testing.T) {
	b := newBuffers()
	var sizes []int
	reads := []int{10, smallBuffer, largeBuffer, largeBuffer, 10, 10}
	n, err := b.relay(io.Discard, readerFunc(func(p []byte) (int, error) {
		sizes = append(sizes, len(p))
		if len(reads) == 0 {
			return 0, io.EOF
		}
		n := min(reads[0], len(p))
		reads = reads[1:]
		return n, nil
	}), false, func() error { return nil })
	want := []int{smallBuffer, smallBuffer, largeBuffer, largeBuffer, largeBuffer, smallBuffer, smallBuffer}
	if fmt.Sprint(sizes) != fmt.Sprint(want) || err != nil || n != 10+smallBuffer+2*largeBuffer+20 {
		t.Errorf("%d bytes, %v, buffers of %v, want %v", n, err, sizes, want)
	}
	var w *writeError
	if _, err := b.relay(badWriter{}, strings.NewReader("x"), true, nil); !errors.As(err, &w) {
		t.Error(err)
	}
}

type badWriter struct{}

func (badWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
