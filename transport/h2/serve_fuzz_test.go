package h2

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// seeds are what clients send after the preface.
func seeds() [][]byte {
	var out [][]byte
	add := func(f func(*http2.Framer, func(pairs ...string) []byte)) {
		var b, block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		fr := http2.NewFramer(&b, nil)
		fr.AllowIllegalWrites = true
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
		f(fr, func(pairs ...string) []byte {
			block.Reset()
			for i := 0; i < len(pairs); i += 2 {
				_ = enc.WriteField(Field{Name: pairs[i], Value: pairs[i+1]})
			}
			return bytes.Clone(block.Bytes())
		})
		out = append(out, b.Bytes())
	}
	request := []string{":method", "POST", ":scheme", "https", ":path", "/a?b", ":authority", "k8s", "trailer", "x-a"}
	add(func(f *http2.Framer, h func(...string) []byte) {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h(request...), EndHeaders: true, EndStream: true})
	})
	add(func(f *http2.Framer, h func(...string) []byte) {
		block := h(append(request, "content-length", "10", "expect", "100-continue")...)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:4], Priority: http2.PriorityParam{StreamDep: 3}})
		_ = f.WriteContinuation(1, true, block[4:])
		_ = f.WriteDataPadded(1, false, []byte("hello"), []byte{0, 0, 0})
		_ = f.WriteData(1, false, []byte("hello"))
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: h("x-a", "1"), EndHeaders: true, EndStream: true})
		_ = f.WriteWindowUpdate(1, 1000)
		_ = f.WriteWindowUpdate(0, 1<<20)
		_ = f.WritePing(false, [8]byte{1})
	})
	add(func(f *http2.Framer, h func(...string) []byte) {
		for id := uint32(1); id < 9; id += 2 {
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h(request...), EndHeaders: true})
			_ = f.WriteData(id, false, make([]byte, 300))
			_ = f.WriteRSTStream(id, http2.ErrCodeCancel)
			_ = f.WritePriority(id, http2.PriorityParam{StreamDep: id})
		}
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20}, http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 15}, http2.Setting{ID: http2.SettingHeaderTableSize})
		_ = f.WriteGoAway(0, http2.ErrCodeNo, nil)
		_ = f.WriteRawFrame(0xbe, 0xff, 1, []byte("unknown"))
		_ = f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2})
	})
	return out
}

// FuzzServerFrames: whatever a client sends, nothing panics or hangs, no handler is
// left, and no memory is held.
func FuzzServerFrames(f *testing.F) {
	for _, s := range seeds() {
		f.Add(true, s)
		f.Add(false, s)
	}
	ts := httptest.NewUnstartedServer(nil)
	ts.StartTLS()
	config := &tls.Config{Certificates: ts.TLS.Certificates, NextProtos: []string{"h2"}}
	ts.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		w.Header().Set(http.TrailerPrefix+"X-N", fmt.Sprint(n, err))
		_, _ = w.Write(make([]byte, 5000))
		_, _ = w.Write(make([]byte, 100_000))
	})
	var one sync.Mutex
	f.Fuzz(func(t *testing.T, poll bool, sent []byte) {
		one.Lock()
		defer one.Unlock()
		near, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if poll {
			far = NewWire(far)
		}
		client := tls.Client(near, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
		var all sync.WaitGroup
		all.Go(func() {
			defer near.Close()
			if _, err := io.WriteString(client, http2.ClientPreface); err != nil {
				return
			}
			all.Go(func() { _, _ = io.Copy(io.Discard, client) })
			_, _ = client.Write(sent)
			_ = client.CloseWrite()
			_ = near.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, client)
		})
		server := tls.Server(far, config)
		if err := server.Handshake(); err != nil {
			t.Fatal(err)
		}
		memory := NewMemory(1 << 20)
		c := New(server, Options{Memory: memory, Begin: func(b *Batch, s *Stream, fields []Field, end bool) { Serve(b, s, fields, end, h, ServeOptions{}) }})
		stuck := time.AfterFunc(20*time.Second, func() { panic("a connection does not end") })
		defer stuck.Stop()
		_ = c.Run()
		c.Wait()
		all.Wait()
		if open, _ := c.Streams(); open != 0 || memory.Used() != 0 || c.serving != 0 || len(c.ready) > 0 && c.ready[0].q.size > 0 {
			t.Errorf("%d streams are open, %d bytes kept, %d handlers", open, memory.Used(), c.serving)
		}
	})
}
