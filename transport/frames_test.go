package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameServer speaks HTTP/2 frame by frame, to do what net/http's server never
// would.
type frameServer struct {
	ca   *authority
	addr string
}

// frameConn is one connection of it. The reader answers SETTINGS and PING and
// hands the rest to the script.
type frameConn struct {
	*http2.Framer
	mu     sync.Mutex // guards writing; held while the script runs
	tls    *tls.Conn
	number int64
	header bytes.Buffer
	enc    *hpack.Encoder
}

// serveFrames runs script for each HEADERS frame, on the goroutine that reads.
// The script returns false to end the connection.
func serveFrames(t testing.TB, settings []http2.Setting, script func(c *frameConn, f http2.Frame) bool) *frameServer {
	t.Helper()
	s := &frameServer{ca: newAuthority(t)}
	cert := s.ca.issue(t, "server", time.Now().Add(time.Hour), "127.0.0.1")
	l := tls.NewListener(listen(t, "127.0.0.1:0"), &tls.Config{Certificates: []tls.Certificate{*cert}, NextProtos: []string{"h2"}})
	s.addr = l.Addr().String()
	var wg sync.WaitGroup
	var number atomic.Int64
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				preface := make([]byte, len(http2.ClientPreface))
				if _, err := io.ReadFull(c, preface); err != nil {
					return
				}
				fc := &frameConn{Framer: http2.NewFramer(c, c), tls: c.(*tls.Conn), number: number.Add(1)}
				fc.enc = hpack.NewEncoder(&fc.header)
				_ = fc.WriteSettings(settings...)
				fc.serve(script)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

func (c *frameConn) serve(script func(c *frameConn, f http2.Frame) bool) {
	for {
		f, err := c.ReadFrame()
		if err != nil {
			return
		}
		c.mu.Lock()
		on := true
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				_ = c.WritePing(true, f.Data)
			}
		case *http2.HeadersFrame, *http2.DataFrame:
			on = script(c, f)
		}
		c.mu.Unlock()
		if !on {
			return
		}
	}
}

// later sends data once ch is closed.
func (c *frameConn) later(ch chan struct{}, id uint32, data string) {
	go func() {
		<-ch
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.WriteData(id, true, []byte(data))
	}()
}

func (c *frameConn) answer(stream uint32, end bool, fields ...string) {
	c.header.Reset()
	_ = c.enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
	for i := 0; i < len(fields); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: c.header.Bytes(), EndHeaders: true, EndStream: end})
}

// reset ends TCP as a crash does.
func (c *frameConn) reset() {
	_ = c.tls.NetConn().(*net.TCPConn).SetLinger(0)
	_ = c.tls.NetConn().Close()
}

func (s *frameServer) client(t testing.TB, change func(*Options)) *Transport {
	t.Helper()
	o := Options{Address: s.addr, RootCAs: s.ca.pool}
	if change != nil {
		change(&o)
	}
	return newTransport(t, o)
}

// body counts how often it was begun; it has no GetBody, as a client's stream.
type streamed struct {
	io.Reader
	reads  atomic.Int64
	closes atomic.Int64
}

func (b *streamed) Read(p []byte) (int, error) { b.reads.Add(1); return b.Reader.Read(p) }
func (b *streamed) Close() error               { b.closes.Add(1); return nil }

func post(t testing.TB, rt http.RoundTripper, body io.Reader) error {
	t.Helper()
	res, err := rt.RoundTrip(request(t, context.Background(), "POST", "/", body))
	if err != nil {
		return err
	}
	_, err = io.ReadAll(res.Body)
	_ = res.Body.Close()
	return err
}

func TestGoAwayBelowTheStreamIsRepeated(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeEnhanceYourCalm} {
		var requests atomic.Int64
		s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
			id := f.Header().StreamID
			if _, ok := f.(*http2.HeadersFrame); !ok {
				return true
			}
			requests.Add(1)
			if c.number == 1 {
				_ = c.WriteGoAway(0, code, nil)
				return true
			}
			c.answer(id, true)
			return true
		})
		tr := s.client(t, nil)
		check(t, post(t, tr, nil))
		equal(t, "requests seen", requests.Load(), 2)
		st := tr.Stats()
		equal(t, "retries", st.Retries, 1)
		equal(t, "dials", st.Dials, 2)
		equal(t, "resumed", st.ResumedHandshakes, 1)
		equal(t, "GOAWAYs", st.GoAways, 1)
	}
}

// The streams that a GOAWAY leaves alone go on to their end.
func TestGoAwayLetsOldStreamsEnd(t *testing.T) {
	next := make(chan struct{})
	s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
		id := f.Header().StreamID
		if c.number == 1 && id > 1 {
			return true // it was sent before our GOAWAY was read
		}
		c.answer(id, false)
		if c.number == 1 {
			_ = c.WriteGoAway(id, http2.ErrCodeNo, nil)
			c.later(next, id, "old")
			return true
		}
		_ = c.WriteData(id, true, []byte("new"))
		return true
	})
	tr := s.client(t, nil)
	res, err := tr.RoundTrip(request(t, context.Background(), "GET", "/", nil))
	check(t, err)
	for get(t, tr, "/") != "new" {
		t.Fatal("went to the connection that is to be left")
	}
	close(next)
	b, err := io.ReadAll(res.Body)
	check(t, err)
	check(t, res.Body.Close())
	equal(t, "old stream", string(b), "old")
}

func TestRefusedStream(t *testing.T) {
	var refusals atomic.Int64
	var refused uint32 // the latest stream; used by the one connection only
	s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
		if h, ok := f.(*http2.HeadersFrame); ok {
			if refusals.Add(-1) >= 0 {
				refused = h.StreamID
				_ = c.WriteRSTStream(h.StreamID, http2.ErrCodeRefusedStream)
			} else if h.StreamEnded() {
				c.answer(h.StreamID, true)
			}
		} else if d := f.(*http2.DataFrame); d.StreamEnded() && d.StreamID != refused {
			c.answer(d.StreamID, true)
		}
		return true
	})
	tr := s.client(t, nil)

	refusals.Store(2)
	check(t, post(t, tr, nil))
	equal(t, "retries", tr.Stats().Retries, 2)

	refusals.Store(2)
	check(t, post(t, tr, strings.NewReader("replayed"))) // has GetBody
	equal(t, "retries", tr.Stats().Retries, 4)

	refusals.Store(1000)
	err := post(t, tr, nil)
	wantKind(t, err, ErrNotProcessed, true)
	equal(t, "retries", tr.Stats().Retries, 4+maxAttempts-1)

	// A body that has begun cannot be sent again from here; that it was not
	// processed is still told.
	refusals.Store(1000)
	b := &streamed{Reader: strings.NewReader("once")}
	err = post(t, tr, b)
	wantKind(t, err, ErrNotProcessed, true)
	equal(t, "body closed", b.closes.Load(), 1)
	equal(t, "connections", tr.Stats().Dials, 1)
}

// Whatever ends a POST that the server may have read, it is not sent twice.
func TestNoDuplicate(t *testing.T) {
	ends := map[string]func(c *frameConn, id uint32){
		"TCP reset":             func(c *frameConn, _ uint32) { c.reset() },
		"TCP end":               func(c *frameConn, _ uint32) { _ = c.tls.Close() },
		"RST_STREAM internal":   func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeInternal) },
		"RST_STREAM cancel":     func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeCancel) },
		"GOAWAY above, end":     func(c *frameConn, id uint32) { _ = c.WriteGoAway(id, http2.ErrCodeNo, nil); _ = c.tls.Close() },
		"GOAWAY maximum, reset": func(c *frameConn, _ uint32) { _ = c.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil); c.reset() },
		"connection error":      func(c *frameConn, _ uint32) { _ = c.WriteGoAway(1<<31-1, http2.ErrCodeProtocol, nil); c.reset() },
		"nonsense":              func(c *frameConn, id uint32) { _ = c.WriteData(id, true, []byte("no head")) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			var seen atomic.Int64
			s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
				if d, ok := f.(*http2.DataFrame); ok && d.StreamEnded() {
					seen.Add(1)
					end(c, d.StreamID)
				}
				return true
			})
			tr := s.client(t, nil)
			err := post(t, tr, strings.NewReader("pay once")) // has GetBody, and yet
			if err == nil || Unsent(err) {
				t.Errorf("got %v", err)
			}
			equal(t, "requests seen", seen.Load(), 1)
			equal(t, "retries", tr.Stats().Retries, 0)
			t.Log(err)
		})
	}
}

func TestResetUnderLoad(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	s := serveFrames(t, []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 100}}, func(c *frameConn, f http2.Frame) bool {
		d, ok := f.(*http2.DataFrame)
		if !ok {
			return true
		}
		mu.Lock()
		seen[string(d.Data())]++
		n := len(seen)
		mu.Unlock()
		if n%17 == 0 {
			c.reset()
			return false
		}
		c.answer(d.StreamID, true)
		return true
	})
	tr := s.client(t, nil)
	var failed atomic.Int64
	together(16, func(i int) {
		for j := range 25 {
			if err := post(t, tr, strings.NewReader(string(rune('A'+i))+string(rune('A'+j)))); err != nil {
				failed.Add(1)
			}
		}
	})
	mu.Lock()
	defer mu.Unlock()
	for what, n := range seen {
		if n > 1 {
			t.Errorf("%s was sent %d times", what, n)
		}
	}
	if failed.Load() == 0 {
		t.Error("nothing failed: the test does not test")
	}
}

func TestBrokenBodyIsAnError(t *testing.T) {
	for name, fields := range map[string][]string{"with length": {"content-length", "100"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
				c.answer(f.Header().StreamID, false, fields...)
				_ = c.WriteData(f.Header().StreamID, false, []byte("half"))
				_ = c.tls.Close() // an orderly end of TLS, in the middle of a stream
				return false
			})
			tr := s.client(t, nil)
			_, err := tryGet(t, tr, "/")
			wantKind(t, err, ErrConnectionLost, false)
			if errors.Is(err, io.EOF) {
				t.Error("looks like the end")
			}
		})
	}
}

// Once an answer has begun, nothing the server says makes its request unsent.
func TestNotUnsentAfterTheHead(t *testing.T) {
	for name, refuse := range map[string]func(c *frameConn, id uint32){
		"REFUSED_STREAM": func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"GOAWAY":         func(c *frameConn, id uint32) { _ = c.WriteGoAway(id-1, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			read := make(chan struct{})
			s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
				id := f.Header().StreamID
				c.answer(id, false)
				go func() {
					<-read
					c.mu.Lock()
					defer c.mu.Unlock()
					refuse(c, id)
				}()
				return true
			})
			tr := s.client(t, nil)
			res, err := tr.RoundTrip(request(t, context.Background(), "GET", "/", nil))
			check(t, err)
			close(read)
			_, err = io.ReadAll(res.Body)
			check(t, res.Body.Close())
			wantKind(t, err, ErrStreamReset, false)
		})
	}
}

func TestMaxConcurrentStreamsLowered(t *testing.T) {
	release := make(chan struct{})
	var streams atomic.Int64
	s := serveFrames(t, []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 5}}, func(c *frameConn, f http2.Frame) bool {
		id := f.Header().StreamID
		c.answer(id, false)
		if streams.Add(1) == 3 {
			_ = c.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		}
		_ = c.WriteData(id, false, []byte("begin\n"))
		c.later(release, id, "")
		return true
	})
	tr := s.client(t, nil)
	bodies := []io.ReadCloser{watch(t, tr), watch(t, tr), watch(t, tr), watch(t, tr)}
	equal(t, "dials", tr.Stats().Dials, 2)
	close(release)
	for _, b := range bodies {
		_, err := io.ReadAll(b)
		check(t, err)
	}
}

func TestServerWithoutStreams(t *testing.T) {
	s := serveFrames(t, []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 0}}, nil)
	tr := s.client(t, nil)
	_, err := tryGet(t, tr, "/")
	wantKind(t, err, ErrHandshake, true)
}

// A client's hop-by-hop "close" is not for the connection that all share.
func TestCloseOfOneClientIsNotForAll(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	for range 3 {
		r := request(t, context.Background(), "GET", "/", nil)
		r.Close = true
		r.Header.Set("Connection", "close")
		res, err := tr.RoundTrip(r)
		check(t, err)
		check(t, res.Body.Close())
		equal(t, "request is left alone", r.Header.Get("Connection"), "close")
	}
	equal(t, "connections", s.accepted.Load(), 1)
}

// The error of a body that cannot be read is its sender's.
func TestBodyErrorIsPassedOn(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	tr := s.client(t, nil)
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(io.ErrUnexpectedEOF) }()
	err := post(t, tr, r)
	var u *UpstreamError
	if !errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &u) {
		t.Errorf("got %v", err)
	}
}
