package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

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
		// One that comes after the second GOAWAY is not, and does no harm.
		for final := false; !final; {
			f, err := c.ReadFrame()
			c.must(err)
			switch f := f.(type) {
			case *http2.PingFrame:
				c.must(c.WritePing(true, f.Data))
			case *http2.GoAwayFrame:
				final = f.LastStreamID == second
			}
		}
		third := c.ask(false)
		c.must(c.WriteData(third, false, []byte("a")))
		c.must(c.WriteWindowUpdate(third, 1000))
		c.must(c.WriteRSTStream(third, http2.ErrCodeCancel))
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
			s.ReadHeaderTimeout, s.IdleTimeout, s.MaxHeaderBytes = 300*time.Millisecond, time.Second, 10_000
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

// Who has us reset streams without end is cut, as who resets them.
func TestResetsAreBounded(t *testing.T) {
	floods := map[string]func(c *framer, id uint32){
		"theirs": func(c *framer, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeCancel) },
		"window": func(c *framer, id uint32) { _ = c.WriteWindowUpdate(id, maxWindow) },
		"zero":   func(c *framer, id uint32) { _ = c.WriteRawFrame(http2.FrameWindowUpdate, 0, id, make([]byte, 4)) },
		"length": func(c *framer, id uint32) { _ = c.WriteData(id, true, []byte("a")) },
		"self": func(c *framer, id uint32) {
			_ = c.WriteRawFrame(http2.FramePriority, 0, id, []byte{0, 0, byte(id >> 8), byte(id), 1})
		},
		"header": func(c *framer, id uint32) {
			_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x82}, EndHeaders: true})
		},
	}
	ours(t, func(t *testing.T, kind string) {
		for name, flood := range floods {
			ts, _ := handle(t, kind, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			c := frameClient(t, ts.Listener.Addr().String())
			go func() {
				for id := uint32(1); ; id += 2 {
					c.block.Reset()
					for _, f := range []Field{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}, {Name: "content-length", Value: "5"}} {
						_ = c.enc.WriteField(f)
					}
					if c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true}) != nil {
						return
					}
					flood(c, id)
				}
			}()
			var code *http2.ErrCode
			for code == nil {
				f, err := c.ReadFrame()
				if err != nil {
					t.Errorf("%s: %v before a GOAWAY", name, err)
					break
				}
				if g, ok := f.(*http2.GoAwayFrame); ok {
					code = &g.ErrCode
				}
			}
			if code != nil && *code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("%s: %v", name, *code)
			}
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
