package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A babbler is a server that says what it is told to in place of HTTP/2, to
// each connection, and hangs up.
type babbler struct {
	l  net.Listener
	wg sync.WaitGroup

	mu          sync.Mutex
	polite      bool   // SETTINGS come first
	early, late []byte // at once, and when a request is there
	open        map[net.Conn]bool
}

func newBabbler(t testing.TB) (*babbler, *url.URL) {
	l, err := tls.Listen("tcp", "127.0.0.1:0", serverTLS("h2"))
	if err != nil {
		t.Fatal(err)
	}
	b := &babbler{l: l, open: make(map[net.Conn]bool)}
	b.wg.Go(b.serve)
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		for c := range b.open {
			c.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b, &url.URL{Scheme: "https", Host: l.Addr().String()}
}

func (b *babbler) serve() {
	for {
		c, err := b.l.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.open[c] = true
		b.mu.Unlock()
		b.wg.Go(func() {
			b.babble(c.(*tls.Conn))
			c.Close()
			b.mu.Lock()
			delete(b.open, c)
			b.mu.Unlock()
		})
	}
}

func (b *babbler) babble(c *tls.Conn) {
	_ = c.SetDeadline(time.Now().Add(twinPatience))
	b.mu.Lock()
	polite, early, late := b.polite, b.early, b.late
	b.mu.Unlock()
	if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	fr := http2.NewFramer(c, c)
	if polite {
		_ = fr.WriteSettings()
	}
	_, _ = c.Write(early)
	for polite { // one that got no SETTINGS may send nothing
		f, err := fr.ReadFrame()
		if err != nil {
			return
		}
		if _, ok := f.(*http2.HeadersFrame); ok {
			break
		}
	}
	_, _ = c.Write(late)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, c) // until the proxy has noticed
}

// FuzzFrames: whatever comes in place of frames, on the client's side or the
// server's, the proxy neither panics nor hangs, nor takes memory without
// measure, and it leaves nothing running.
func FuzzFrames(f *testing.F) {
	for _, s := range frameSeeds() {
		f.Add(true, true, s, []byte(nil))
		f.Add(false, true, s, []byte(nil))
		f.Add(false, true, []byte(nil), s)
	}
	f.Add(true, false, []byte("GET / HTTP/1.1\r\n\r\n"), []byte(nil))
	f.Add(false, false, []byte("HTTP/1.1 400 Bad Request\r\n\r\n"), []byte(nil))

	leavesNothing(f)
	front := newTwinB(f, Options{Server: upstream(f, true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		_, _ = io.WriteString(w, "answer")
	})})
	server, address := newBabbler(f)
	back := newTwinB(f, Options{Server: address})
	client := back.client(f, true)
	client.Timeout = twinPatience
	body2s(f, get(f, front.client(f, true), "https://upstream.test/"))
	base := runtime.NumGoroutine()

	f.Fuzz(func(t *testing.T, toServer, polite bool, early, late []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if toServer {
			babbleTo(t, front, polite, append(early, late...))
		} else {
			server.mu.Lock()
			server.polite, server.early, server.late = polite, early, late
			server.mu.Unlock()
			res, err := client.Post("https://upstream.test/", "text/plain", strings.NewReader("body"))
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				t.Fatalf("it hung: %v\n%s", err, stacks())
			}
		}
		runtime.ReadMemStats(&after)
		if took, most := after.TotalAlloc-before.TotalAlloc, uint64(32<<20+8192*(len(early)+len(late))); took > most {
			t.Errorf("%d bytes were allocated, for %d", took, len(early)+len(late))
		}
		// net/http lets a connection linger for a second.
		for end := time.Now().Add(twinPatience); runtime.NumGoroutine() > base+2000; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatalf("%d goroutines are left, %d were there\n%s", runtime.NumGoroutine(), base, stacks())
			}
		}
	})
}

// babbleTo is a client that sends bytes, and waits for the proxy to hang up.
func babbleTo(t *testing.T, f *front, polite bool, data []byte) {
	nc, err := net.Dial(f.network, f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(twinPatience))
	c := tls.Client(nc, clientTLS("h2"))
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	if polite {
		_ = http2.NewFramer(&b, nil).WriteSettings()
	}
	b.Write(data)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if _, err := c.Write(b.Bytes()); err == nil {
			_ = c.CloseWrite()
		}
	}()
	// What it says has to be frames.
	fr := http2.NewFramer(nil, c)
	for {
		f, ferr := fr.ReadFrame()
		if err = ferr; err != nil {
			break
		}
		if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
			break // net/http keeps the connection for a second more
		}
	}
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("it hung: %v\n%s", err, stacks())
	}
	if _, ok := err.(http2.ConnectionError); ok {
		t.Errorf("the proxy's own frames are wrong: %v", err)
	}
	nc.Close()
	<-sent
}

// frameSeeds are pieces of connections, good ones and bad ones.
func frameSeeds() (seeds [][]byte) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	fields := func(kv ...string) []byte {
		block.Reset()
		for i := 0; i < len(kv); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: kv[i], Value: kv[i+1]})
		}
		return bytes.Clone(block.Bytes())
	}
	request := func() []byte {
		return fields(":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/a", "x-a", "1")
	}
	add := func(write func(fr *http2.Framer)) {
		var b bytes.Buffer
		fr := http2.NewFramer(&b, nil)
		fr.AllowIllegalWrites = true
		enc = hpack.NewEncoder(&block)
		write(fr)
		seeds = append(seeds, b.Bytes())
	}
	head := func(id uint32, b []byte, end bool) http2.HeadersFrameParam {
		return http2.HeadersFrameParam{StreamID: id, BlockFragment: b, EndHeaders: true, EndStream: end}
	}
	add(func(fr *http2.Framer) { _ = fr.WriteHeaders(head(1, request(), true)) })
	add(func(fr *http2.Framer) {
		for id := uint32(1); id < 200; id += 2 { // rapid reset
			_ = fr.WriteHeaders(head(id, request(), true))
			_ = fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(head(1, request(), false))
		_ = fr.WriteData(1, false, []byte("hello"))
		_ = fr.WriteDataPadded(1, false, []byte("hello"), make([]byte, 100))
		_ = fr.WriteHeaders(head(1, fields("x-sum", "1"), true))
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(head(1, fields(":status", "103", "link", "a"), false))
		_ = fr.WriteHeaders(head(1, fields(":status", "200", "content-length", "5"), false))
		_ = fr.WriteData(1, true, []byte("hello"))
		_ = fr.WriteGoAway(1, http2.ErrCodeNo, []byte("bye"))
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(head(1, fields(":status", "200"), false))
		_ = fr.WriteData(1, false, make([]byte, 5000))
		_ = fr.WriteRSTStream(1, http2.ErrCodeInternal)
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: request()})
		for range 100 { // a flood of CONTINUATION
			_ = fr.WriteContinuation(1, false, nil)
		}
		_ = fr.WriteContinuation(1, true, fields("x-b", "2"))
	})
	add(func(fr *http2.Framer) { // an HPACK bomb
		bomb := append(request(), fields("x-bomb", strings.Repeat("b", 3900))...)
		bomb = append(bomb, bytes.Repeat([]byte{0x80 | 62}, 4000)...)
		_ = fr.WriteHeaders(head(1, bomb, true))
	})
	add(func(fr *http2.Framer) {
		for range 100 {
			_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
			_ = fr.WritePing(false, [8]byte{1})
			_ = fr.WriteWindowUpdate(0, 1)
			_ = fr.WritePriority(3, http2.PriorityParam{StreamDep: 5, Weight: 1})
		}
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
	})
	add(func(fr *http2.Framer) { _ = fr.WriteWindowUpdate(0, 1<<31-1) })
	add(func(fr *http2.Framer) { _ = fr.WriteData(1, true, []byte("idle")) })
	add(func(fr *http2.Framer) {
		_ = fr.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: request(), EndHeaders: true})
	})
	add(func(fr *http2.Framer) {
		_ = fr.WriteHeaders(head(1, request(), false))
		for range 500 { // empty ones cost nothing of a window
			_ = fr.WriteData(1, false, nil)
		}
	})
	add(func(fr *http2.Framer) { _ = fr.WriteRawFrame(0xfa, 0xff, 1<<31-1, []byte("unknown")) })
	seeds = append(seeds, []byte("\xff\xff\xff\x00\x01\x00\x00\x00\x01"), []byte("\x00\x40\x01\x00\x00\x00\x00\x00\x01"), []byte("\x00\x00\x05\x01\x2d\x00\x00\x00\x01\x10\x80\x00\x00\x01"))
	return seeds
}
