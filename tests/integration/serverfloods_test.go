//go:build linux

package integration

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// serverFloods are what an API server, or what calls itself one, sends in the
// place of an answer. Each is written until the proxy hangs up.
var serverFloods = []struct {
	name  string
	begun bool // the answer had begun: it is cut short
	once  bool // one piece is wrong enough
	piece func(q frameRequest) error
}{
	{name: "PING", piece: func(q frameRequest) error { return q.c.WritePing(false, [8]byte{1}) }},
	{name: "SETTINGS", piece: func(q frameRequest) error { return q.c.WriteSettings() }},
	{name: "SETTINGS, windows", piece: func(q frameRequest) error {
		return q.c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	}},
	{name: "CONTINUATION", piece: unfinished(strings.Repeat("\x00\x01a\x01b", 100))},
	{name: "CONTINUATION, a byte each", piece: unfinished("\x00\x01a\x01b")},
	{name: "CONTINUATION, empty", piece: unfinished("")},
	{name: "HPACK bomb", piece: func(q frameRequest) error {
		block := bytes.Clone(q.c.block(":status", "200"))
		block = literalIndexed(block, "x-bomb", strings.Repeat("b", 4000))
		block = append(block, bytes.Repeat([]byte{0x80 | 62}, 12<<10)...)
		return q.c.WriteHeaders(http2.HeadersFrameParam{StreamID: q.id, EndStream: false, EndHeaders: true, BlockFragment: block})
	}},
	{name: "interim answers", piece: func(q frameRequest) error { return q.c.headers(q.id, false, ":status", "103", "link", "</a>") }},
	{name: "PUSH_PROMISE", once: true, piece: func(q frameRequest) error {
		return q.c.WritePushPromise(http2.PushPromiseParam{StreamID: q.id, PromiseID: 2, EndHeaders: true,
			BlockFragment: q.c.block(":method", "GET", ":scheme", "https", ":authority", "127.0.0.1", ":path", "/pushed")})
	}},
	{name: "DATA, empty", begun: true, piece: func(q frameRequest) error { return q.c.WriteData(q.id, false, nil) }},
	{name: "DATA, a byte in its padding", begun: true, piece: func(q frameRequest) error {
		return q.c.WriteRawFrame(http2.FrameData, padded, q.id, []byte{0})
	}},
	{name: "DATA above the window", begun: true, piece: func(q frameRequest) error { return q.c.WriteData(q.id, false, make([]byte, 16<<10)) }},
	{name: "RST_STREAM of a stream that is none", once: true, piece: func(q frameRequest) error {
		return q.c.WriteRSTStream(q.id+1000, http2.ErrCodeCancel)
	}},
	{name: "HEADERS on a stream that is none", once: true, piece: func(q frameRequest) error { return q.c.headers(q.id+1000, true, ":status", "200") }},
	{name: "HEADERS on a stream of its own", once: true, piece: func(q frameRequest) error { return q.c.headers(2, true, ":status", "200") }},
	{name: "WINDOW_UPDATE, too much", once: true, piece: func(q frameRequest) error {
		_ = q.c.WriteWindowUpdate(0, 1<<31-1)
		return q.c.WriteWindowUpdate(0, 1<<31-1)
	}},
	{name: "a frame of 16 MiB", once: true, piece: func(q frameRequest) error { return q.c.WriteRawFrame(http2.FrameData, 0, q.id, make([]byte, 1<<24-1)) }},
	{name: "nonsense for a header block", once: true, piece: func(q frameRequest) error {
		return q.c.WriteRawFrame(http2.FrameHeaders, 4, q.id, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	}},
	{name: "half a frame, and its end", once: true, piece: func(q frameRequest) error {
		_, _ = q.c.out.Write([]byte{0, 0, 10, 1, 4, 0})
		_ = q.c.out.Flush()
		return q.c.conn.Close()
	}},
}

// unfinished is a header block that does not come to its end, in frames with this
// fragment.
func unfinished(fragment string) func(q frameRequest) error {
	begun := false
	return func(q frameRequest) error {
		if !begun {
			begun = true
			return q.c.WriteHeaders(http2.HeadersFrameParam{StreamID: q.id, BlockFragment: q.c.block(":status", "200")})
		}
		return q.c.WriteContinuation(q.id, false, []byte(fragment))
	}
}

// TestServerFloods: the proxy ends a connection on which the server sends without
// end or what is no HTTP/2, for bounded memory. Its client is told, nothing is sent
// twice, and the next one is served over another connection.
func TestServerFloods(t *testing.T) {
	t.Parallel()
	for _, f := range serverFloods {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			u := newFrameServer(t, frameScript{header: func(q frameRequest) {
				if q.path() != "/victim" {
					if q.end {
						q.ok()
					}
					return
				}
				if f.begun {
					q.answer(false)
				}
				if f.once {
					_ = f.piece(q)
					return
				}
				_ = q.c.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
				err := f.piece(q)
				for err == nil {
					err = f.piece(q)
				}
				if isTimeout(err) {
					t.Error("it was listened to for ten seconds")
				}
			}})
			s := newHome(t).janeOn(u.url)
			client := s.client(t)
			get(t, client, u.url+"/version")
			before := s.quiet(t)
			begin := time.Now()
			client.Timeout = 20 * time.Second
			resp, err := client.Get(u.url + "/victim")
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			n, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<20))
			_ = resp.Body.Close()
			took := time.Since(begin)
			t.Logf("%s %s, %d bytes, %v after %v", resp.Status, resp.Header.Get("Execproxy-Error"), n, err, took)
			switch {
			case f.begun:
				if err == nil {
					t.Errorf("what was cut short looks whole")
				}
			case resp.Header.Get("Execproxy-Error") == "" || resp.StatusCode < 500:
				t.Errorf("the client is answered %s %v", resp.Status, resp.Header)
			}
			victims := u.all("/victim")
			if len(victims) != 1 {
				t.Errorf("it was sent %d times", len(victims))
			}
			select {
			case <-victims[0].c.gone:
			case <-time.After(20 * time.Second):
				t.Errorf("its connection goes on")
			}
			get(t, client, u.url+"/next")
			if next := u.all("/next"); len(next) != 1 || slices.ContainsFunc(next, func(q frameRequest) bool { return q.c == victims[0].c }) {
				t.Errorf("the next request is sent %d times, over the same connection", len(next))
			}
			s.grew(t, before, 32<<20)
		})
	}
}
