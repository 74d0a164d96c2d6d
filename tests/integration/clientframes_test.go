//go:build linux

package integration

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestByteByByte: the preface and the frames of a request come a byte at a time,
// each in a TLS record of its own, and many requests in one record.
func TestByteByByte(t *testing.T) {
	t.Parallel()
	u := newUpstream(t)
	s := newHome(t).janeOn(u.url)
	var all bytes.Buffer
	conn := s.connect(t, "h2")
	w := newFrames(conn)
	w.Framer = http2.NewFramer(&all, nil)
	all.WriteString(http2.ClientPreface)
	must(t, w.WriteSettings())
	fields := []string{":method", "POST", ":scheme", "https", ":authority", u.url[len("https://"):], ":path", "/byte-by-byte"}
	must(t, w.headers(1, false, fields...))
	must(t, w.WriteData(1, false, []byte("abc")))
	must(t, w.WriteData(1, true, []byte("def")))
	for _, b := range all.Bytes() {
		_, err := conn.Write([]byte{b})
		must(t, err)
	}
	all.Reset()
	const many = 50
	fields[1], fields[7] = "GET", "/all-at-once"
	for i := range uint32(many) {
		must(t, w.headers(3+2*i, true, fields...))
	}
	_, err := conn.Write(all.Bytes())
	must(t, err)
	c := &frameClient{frames: newFrames(conn), t: t, answers: map[uint32]*frameAnswer{}, changed: make(chan struct{}), settled: make(chan struct{}), done: make(chan struct{})}
	c.read()
	for i := range uint32(many + 1) {
		if a, err := c.answer(1 + 2*i); err != nil || a.status != "200" {
			t.Fatalf("stream %d: %q, %v", 1+2*i, a.status, err)
		}
	}
	if n := u.countOf("/all-at-once"); n != many {
		t.Errorf("%d of %d requests reached the server", n, many)
	}
	if got, want := u.last(t, "/byte-by-byte").hash, "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721"; got != want { // of abcdef
		t.Errorf("the body arrives with hash %s", got)
	}
}

// TestCancelledStream: what the client cancels is cancelled at the server, a watch
// and an upload, and nothing else is: not the connections, not the streams beside it.
func TestCancelledStream(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	resets := map[string]http2.ErrCode{}
	names := map[uint32]string{}
	u := newFrameServer(t, frameScript{header: func(q frameRequest) {
		mu.Lock()
		defer mu.Unlock()
		names[q.id] = q.path()
		switch q.path() {
		case "/upload":
		case "/version":
			q.ok()
		default:
			q.answer(false)
			_ = q.c.WriteData(q.id, false, []byte(firstEvent))
		}
	}, data: func(c *frameConn, id uint32, data []byte, end bool) {
		_ = c.WriteWindowUpdate(0, uint32(len(data)))
	}, reset: func(c *frameConn, id uint32, code http2.ErrCode) {
		mu.Lock()
		defer mu.Unlock()
		resets[names[id]] = code
	}})
	s := newHome(t).janeOn(u.url)
	c := s.frames(t).read()
	watch := func(path string) uint32 {
		id, err := c.send("GET", path, true)
		must(t, err)
		must(t, c.until(patience, func() bool { a := c.answers[id]; return a != nil && a.size > 0 }))
		return id
	}
	kept, gone := watch("/kept"), watch("/gone")
	upload, err := c.send("POST", "/upload", false)
	must(t, err)
	must(t, c.data(upload, false, "the beginning"))
	eventually(t, patience, func() error {
		if len(u.all("/upload")) == 0 {
			return fmt.Errorf("the upload is not there")
		}
		return nil
	})
	must(t, c.do(func() error { return c.WriteRSTStream(gone, http2.ErrCodeCancel) }))
	must(t, c.do(func() error { return c.WriteRSTStream(upload, http2.ErrCodeCancel) }))
	eventually(t, 5*time.Second, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(resets) != 2 {
			return fmt.Errorf("reset at the server: %v", resets)
		}
		return nil
	})
	mu.Lock()
	for _, path := range []string{"/gone", "/upload"} {
		if code, ok := resets[path]; !ok || code != http2.ErrCodeCancel {
			t.Errorf("%s is reset with %v: %v", path, code, resets)
		}
	}
	mu.Unlock()
	q := u.all("/kept")[0]
	must(t, q.c.do(func() error { return q.c.WriteData(q.id, true, []byte(firstEvent)) }))
	if a, err := c.answer(kept); err != nil || a.wasCut || a.size != int64(2*len(firstEvent)) {
		t.Errorf("the watch beside them: %d bytes, cut %v, %v", a.size, a.wasCut, err)
	}
	if _, err := c.get("/version"); err != nil {
		t.Error(err)
	}
	if all, open, _ := u.counts(); all != 1 || open != 1 {
		t.Errorf("%d connections, %d of them open", all, open)
	}
}

// TestStreamLimit: who opens more streams than the proxy allows is refused those,
// for him to try again; none of them reaches the server, and the others go on.
func TestStreamLimit(t *testing.T) {
	t.Parallel()
	const extra = 50
	y, u := newTally(t, 5000)
	s := newHome(t).janeOn(u.url)
	c := s.frames(t)
	c.keep = false
	c.read()
	c.state.Lock()
	limit := int(c.limit)
	c.state.Unlock()
	if limit < 100 || limit > 2000 {
		t.Fatalf("SETTINGS_MAX_CONCURRENT_STREAMS is %d", limit)
	}
	ids := c.watches(limit)
	for range extra {
		id, err := c.send("GET", "/watch", true)
		must(t, err)
		a, err := c.answer(id)
		must(t, err)
		// RFC 9113 section 5.1.2 has both.
		if a.status != "" || !a.wasCut || a.reset != http2.ErrCodeRefusedStream && a.reset != http2.ErrCodeProtocol {
			t.Fatalf("one more than %d: %q, reset %v", limit, a.status, a.reset)
		}
	}
	if n := len(u.all("/watch")); n != limit {
		t.Errorf("%d reached the server, %d are allowed", n, limit)
	}
	y.end()
	for _, id := range ids {
		if a, err := c.answer(id); err != nil || a.wasCut {
			t.Fatalf("a watch: cut %v, %v", a.wasCut, err)
		}
	}
	if _, err := c.get("/version"); err != nil {
		t.Error(err)
	}
}

// TestClientSettings: SETTINGS of a client that are lawful and rare, and its
// GOAWAY, behind which its streams go on.
func TestClientSettings(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 8<<10)
	u := newFrameServer(t, frameScript{header: func(q frameRequest) {
		switch q.path() {
		case "/large":
			q.answer(false, "x-repeats", "in every answer, so that it may enter a table")
			for i := 0; i < len(large); i += 16 << 10 {
				_ = q.c.WriteData(q.id, i+16<<10 >= len(large), []byte(large[i:i+16<<10]))
			}
		default:
			q.ok()
		}
	}})
	s := newHome(t).janeOn(u.url)
	for name, settings := range map[string][]http2.Setting{
		"none":                  nil,
		"no header table":       {{ID: http2.SettingHeaderTableSize, Val: 0}},
		"a huge header table":   {{ID: http2.SettingHeaderTableSize, Val: 1<<32 - 1}},
		"windows of 777 bytes":  {{ID: http2.SettingInitialWindowSize, Val: 777}},
		"largest windows":       {{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}},
		"frames of 16 MiB":      {{ID: http2.SettingMaxFrameSize, Val: 1<<24 - 1}, {ID: http2.SettingInitialWindowSize, Val: 1 << 24}},
		"pushes, no streams":    {{ID: http2.SettingEnablePush, Val: 1}, {ID: http2.SettingMaxConcurrentStreams, Val: 0}},
		"settings nobody knows": {{ID: 0x0a0a, Val: 1}, {ID: 0xffff, Val: 1<<32 - 1}},
	} {
		c := s.frames(t, settings...)
		for _, o := range settings {
			if o.ID == http2.SettingHeaderTableSize && o.Val == 0 {
				// What refers to a table that is none is an error of the reader.
				c.ReadMetaHeaders.SetMaxDynamicTableSize(0)
				c.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
			}
		}
		c.read()
		for range 5 {
			a, err := c.get("/large")
			if err != nil || a.body.String() != large || a.field("x-repeats") == "" {
				t.Errorf("%s: %d of %d bytes, %v %v", name, a.body.Len(), len(large), a.fields, err)
				break
			}
		}
		id, err := c.send("GET", "/large", true)
		must(t, err)
		must(t, c.do(func() error { return c.WriteGoAway(0, http2.ErrCodeNo, nil) }))
		if a, err := c.answer(id); err != nil || a.body.String() != large {
			t.Errorf("%s, behind the client's GOAWAY: %d of %d bytes, %v", name, a.body.Len(), len(large), err)
		}
	}
}
