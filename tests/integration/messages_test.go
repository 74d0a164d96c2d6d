//go:build linux

package integration

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// TestMessages: answers and requests whose shape is unusual and right, and such
// that lie, as RFC 9113 section 8 has them.
func TestMessages(t *testing.T) {
	t.Parallel()
	const hints = 20
	u := newFrameServer(t, frameScript{header: func(q frameRequest) {
		switch path := q.path(); path {
		case "/hints":
			_ = q.c.headers(q.id, false, ":status", "100")
			for range hints {
				_ = q.c.headers(q.id, false, ":status", "103", "link", "</style.css>")
			}
			q.ok()
		case "/trailers":
			q.answer(false, "trailer", "x-checksum, x-grpc-status")
			_ = q.c.WriteData(q.id, false, []byte("{}\n"))
			_ = q.c.headers(q.id, true, "x-checksum", "abc", "x-grpc-status", "0")
		case "/trailers-only":
			q.answer(false)
			_ = q.c.headers(q.id, true, "x-checksum", "def")
		case "/head":
			q.answer(true, "content-length", "1234")
		case "/204", "/304":
			_ = q.c.headers(q.id, true, ":status", path[1:], "etag", `"e"`)
		case "/304-length":
			_ = q.c.headers(q.id, true, ":status", "304", "content-length", "77")
		case "/empty-data":
			q.answer(false, "content-length", "0")
			_ = q.c.WriteData(q.id, true, nil)
		case "/padded":
			q.answer(false, "content-length", "6")
			_ = q.c.WriteDataPadded(q.id, false, []byte("pad"), make([]byte, 200))
			_ = q.c.WriteDataPadded(q.id, true, []byte("ded"), make([]byte, 1))
		case "/short":
			q.answer(false, "content-length", "10")
			_ = q.c.WriteData(q.id, true, []byte("abc"))
		case "/long":
			q.answer(false, "content-length", "2")
			_ = q.c.WriteData(q.id, true, []byte("abc"))
		case "/none-and-length":
			q.answer(true, "content-length", "10")
		case "/upper":
			q.answer(true, "X-Upper", "field names are lower case")
		case "/connection":
			q.answer(true, "connection", "keep-alive")
		case "/pseudo":
			q.answer(true, ":path", "/", "x-late", "1")
		case "/no-status":
			_ = q.c.headers(q.id, true, "x-status", "200")
		case "/trailer-status":
			q.answer(false)
			_ = q.c.WriteData(q.id, false, []byte("abc"))
			_ = q.c.headers(q.id, true, ":status", "500")
		case "/switch":
			_ = q.c.headers(q.id, true, ":status", "101")
		default:
			if q.end { // of a request, or of its trailers
				q.ok()
			}
		}
	}, data: func(c *frameConn, id uint32, data []byte, end bool) {
		if n := uint32(len(data)); n > 0 {
			_ = c.WriteWindowUpdate(0, n)
		}
		if end {
			frameRequest{c: c, id: id}.ok()
		}
	}})
	s := newHome(t).janeOn(u.url)
	k := s.frames(t).read()
	for _, c := range []struct {
		method, path, status, body string
		broken                     bool // answered 5xx, or cut
	}{
		{method: "GET", path: "/hints", status: "200", body: "{}\n"},
		{method: "GET", path: "/trailers", status: "200", body: "{}\n"},
		{method: "GET", path: "/trailers-only", status: "200"},
		{method: "HEAD", path: "/head", status: "200"},
		{method: "GET", path: "/204", status: "204"},
		{method: "DELETE", path: "/204", status: "204"},
		{method: "GET", path: "/304", status: "304"},
		{method: "GET", path: "/304-length", status: "304"},
		{method: "GET", path: "/empty-data", status: "200"},
		{method: "GET", path: "/padded", status: "200", body: "padded"},
		{method: "GET", path: "/short", broken: true},
		{method: "GET", path: "/long", broken: true},
		{method: "GET", path: "/none-and-length", broken: true},
		{method: "GET", path: "/upper", broken: true},
		{method: "GET", path: "/connection", status: "200"}, // taken off; or broken
		{method: "GET", path: "/pseudo", broken: true},
		{method: "GET", path: "/no-status", broken: true},
		{method: "GET", path: "/trailer-status", broken: true},
		{method: "GET", path: "/switch", broken: true},
	} {
		id, err := k.send(c.method, c.path, true)
		must(t, err)
		a, err := k.answer(id)
		if err != nil {
			t.Fatalf("%s %s: %v", c.method, c.path, err)
		}
		body := a.body.String()
		t.Logf("%s %s: %q, length %q, %d bytes, trailers %v, hints %v, cut %v", c.method, c.path, a.status, a.field("content-length"), a.size, a.trailer, a.hints, a.wasCut)
		failed := a.wasCut || strings.HasPrefix(a.status, "5") && a.field("execproxy-error") != ""
		switch {
		case c.path == "/connection" && failed:
		case c.broken != failed:
			t.Errorf("%s %s: %q, cut %v: %s", c.method, c.path, a.status, a.wasCut, body)
		case !c.broken && (a.status != c.status || body != c.body):
			t.Errorf("%s %s: %q %q, want %s %q", c.method, c.path, a.status, body, c.status, c.body)
		}
		for name, want := range map[string]string{"/head": "1234", "/304-length": "77", "/padded": "6"} {
			if c.path == name && a.field("content-length") != want {
				t.Errorf("%s: content-length %q, want %s", c.path, a.field("content-length"), want)
			}
		}
		for name, want := range map[string]string{"/trailers": "abc", "/trailers-only": "def"} {
			if c.path == name && fieldOf(a.trailer, "x-checksum") != want {
				t.Errorf("%s: trailers %v, want x-checksum %s", c.path, a.trailer, want)
			}
		}
		if a.field("connection") != "" {
			t.Errorf("%s: Connection reaches the client", c.path)
		}
	}

	// Requests. What a client announces is what the server gets, or nothing whole.
	for _, c := range []struct {
		name, length string
		pieces       []string
		trailer      bool
		ok           bool
	}{
		{"length", "6", []string{"abc", "def"}, false, true},
		{"no length", "", []string{"abc", "def"}, false, true},
		{"trailers", "", []string{"abc", "def"}, true, true},
		{"empty, with its length", "0", []string{""}, false, true},
		{"shorter than announced", "10", []string{"abc", "def"}, false, false},
		{"longer than announced", "2", []string{"abc", "def"}, false, false},
		{"a length that is none", "0x6", []string{"abc", "def"}, false, false},
		{"a negative length", "-6", []string{"abc", "def"}, false, false},
	} {
		path := "/body/" + strings.ReplaceAll(c.name, " ", "-")
		var more []string
		if c.length != "" {
			more = append(more, "content-length", c.length)
		}
		if c.trailer {
			more = append(more, "trailer", "x-checksum")
		}
		id, err := k.send("POST", path, false, more...)
		must(t, err)
		for i, piece := range c.pieces {
			must(t, k.data(id, !c.trailer && i == len(c.pieces)-1, piece))
		}
		if c.trailer {
			must(t, k.do(func() error { return k.headers(id, true, "x-checksum", "abc") }))
		}
		a, err := k.answer(id)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Logf("%s: %q, cut %v", c.name, a.status, a.wasCut)
		if ok := a.status == "200" && !a.wasCut; ok != c.ok {
			t.Errorf("%s: answered %q, cut %v, want success: %v", c.name, a.status, a.wasCut, c.ok)
		}
		if c.trailer {
			var got string
			u.mu.Lock()
			for _, q := range u.requests {
				if q.path() == "" {
					got = q.field("x-checksum")
				}
			}
			u.mu.Unlock()
			if got != "abc" {
				t.Errorf("the request's trailer arrives as %q", got)
			}
		}
	}
	if _, err := k.get("/version"); err != nil {
		t.Error(err)
	}
}

// TestEarlyAnswer: a server that has answered and wants no more of an upload says
// so with NO_ERROR (RFC 9113 section 8.1). The client gets the whole answer, and
// the connection is none the worse.
func TestEarlyAnswer(t *testing.T) {
	t.Parallel()
	u := newFrameServer(t, frameScript{header: func(q frameRequest) {
		if q.end {
			q.ok()
			return
		}
		_ = q.c.headers(q.id, false, ":status", "413", "content-type", "application/json")
		_ = q.c.WriteData(q.id, true, []byte(`{"kind":"Status"}`))
		_ = q.c.WriteRSTStream(q.id, http2.ErrCodeNo)
	}, data: func(c *frameConn, id uint32, data []byte, _ bool) {
		_ = c.WriteWindowUpdate(0, uint32(len(data)))
	}})
	s := newHome(t).janeOn(u.url)
	k := s.frames(t).read()
	for range 20 {
		id, err := k.send("POST", "/upload", false)
		must(t, err)
		_ = k.data(id, false, strings.Repeat("x", 1000))
		a, err := k.answer(id)
		must(t, err)
		if a.status != "413" || a.body.String() != `{"kind":"Status"}` || a.wasCut && a.reset != http2.ErrCodeNo {
			t.Fatalf("answered %q %q, reset %v %v", a.status, a.body.String(), a.wasCut, a.reset)
		}
		_ = k.data(id, true, "more") // crosses the reset
	}
	if _, err := k.get("/version"); err != nil {
		t.Error(err)
	}
	if all, _, _ := u.counts(); all != 1 {
		t.Errorf("it took %d connections", all)
	}
}

// TestBothWays: an upload goes on while its answer is there already, piece by
// piece, as exec and gRPC do.
func TestBothWays(t *testing.T) {
	t.Parallel()
	u := newFrameServer(t, frameScript{header: func(q frameRequest) {
		q.answer(q.end)
	}, data: func(c *frameConn, id uint32, data []byte, end bool) {
		if n := uint32(len(data)); n > 0 {
			_ = c.WriteWindowUpdate(0, n)
			_ = c.WriteWindowUpdate(id, n)
			data = append([]byte("> "), data...)
		}
		_ = c.WriteData(id, end, data)
	}})
	s := newHome(t).janeOn(u.url)
	k := s.frames(t).read()
	id, err := k.send("POST", "/both", false)
	must(t, err)
	want := ""
	for i := range 100 {
		piece := fmt.Sprintf("piece %d\n", i)
		must(t, k.data(id, i == 99, piece))
		want += "> " + piece
		if err := k.until(patience, func() bool {
			a := k.answers[id]
			return a != nil && a.body.Len() >= len(want)
		}); err != nil {
			t.Fatalf("piece %d does not come back: %v", i, err)
		}
	}
	a, err := k.answer(id)
	must(t, err)
	if a.body.String() != want || a.wasCut {
		t.Errorf("%q came back, cut %v", a.body.String(), a.wasCut)
	}
}
