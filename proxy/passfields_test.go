package proxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/execproxy/execproxy/signer"
	"github.com/execproxy/execproxy/signer/header"
	"github.com/execproxy/execproxy/transport/h2"
)

// head waits for the header of an answer.
func (c *h2client) head(id uint32) []hpack.HeaderField {
	c.t.Helper()
	for {
		f, err := c.ReadFrame()
		if err != nil {
			c.t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = c.WriteSettingsAck()
			}
		case *http2.MetaHeadersFrame:
			if f.StreamID == id {
				return f.Fields
			}
		case *http2.RSTStreamFrame:
			c.t.Fatal(f)
		}
	}
}

// A signer's field that has several values arrives with all of them, and with none of the client's.
func TestPassSignedTwice(t *testing.T) {
	s, err := header.New([]string{"X-Tenant=blue", "X-Other=1", "X-Tenant=green"})
	if err != nil {
		t.Fatal(err)
	}
	came := make(chan string, 1)
	f := startPassing(t, Options{Sign: s.SignRequest, SignFields: s.SignFields,
		Server: scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
			var got []string
			for _, f := range fields {
				if strings.HasPrefix(f.Name, "x-") {
					got = append(got, f.Name+"="+f.Value)
				}
			}
			came <- strings.Join(got, " ")
			s.Header(b, okHeader, true)
		})})
	r, _ := http.NewRequest(http.MethodGet, "https://upstream.test/", nil)
	r.Header["X-Tenant"] = []string{"red", "black", "white"}
	res, err := f.client(t, true).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if got, want := <-came, "x-tenant=blue x-other=1 x-tenant=green"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What either side does not want in a table of HPACK goes into none (RFC 7541 section 7.1.3),
// nor does what nobody should guess: a cookie, a query.
func TestPassNeverIndexed(t *testing.T) {
	came := make(chan []h2.Field, 1)
	f := startPassing(t, Options{Server: scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		came <- append([]h2.Field(nil), fields...)
		s.Header(b, []h2.Field{{Name: ":status", Value: "200"}, {Name: "x-plain", Value: "1"}, {Name: "x-secret", Value: "2", Sensitive: true},
			{Name: "set-cookie", Value: "3"}}, true)
	})})
	c := newH2Client(t, f)
	never := func(fields []h2.Field) string {
		var names []string
		for _, f := range fields {
			if f.Sensitive {
				names = append(names, f.Name)
			}
		}
		return strings.Join(names, " ")
	}
	for _, test := range []struct{ path, want string }{{"/api", "x-mine"}, {"/api?a=b", ":path x-mine"}} {
		c.encBuf.Reset()
		for _, f := range []h2.Field{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: test.path},
			{Name: "x-mine", Value: "4", Sensitive: true}, {Name: "x-plain", Value: "1"}} {
			_ = c.enc.WriteField(f)
		}
		id := c.id
		c.id += 2
		if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.encBuf.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
			t.Fatal(err)
		}
		if got, want := never(c.head(id)), "x-secret set-cookie"; got != want {
			t.Errorf("to the client: %q, want %q", got, want)
		}
		if got := never(<-came); got != test.want {
			t.Errorf("%s: to the server: %q, want %q", test.path, got, test.want)
		}
	}
}

// The limit on bodies that are hashed is one limit, whichever way a request goes.
func TestPassMaxHashedBody(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) {
		listen(s)
		s.Header(b, okHeader, true)
	})
	f := start(t, Options{Server: server, HashBody: true, MaxHashedBody: 100,
		Sign: func(context.Context, *Request) (http.Header, error) { return http.Header{"X-Signed": {"1"}}, nil }}, false)
	c := f.client(t, true)
	res, err := c.Post("https://upstream.test/", "", strings.NewReader(strings.Repeat("x", 100)))
	if err != nil || res.StatusCode != 200 {
		t.Fatal(res, err)
	}
	res.Body.Close()
	res, err = c.Post("https://upstream.test/", "", strings.NewReader(strings.Repeat("x", 101)))
	wantStatus(t, res, err, http.StatusRequestEntityTooLarge, ReasonTooLarge)
}

// Of several Host fields both ways look at the same one.
func TestPassFirstHost(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) { s.Header(b, okHeader, true) })
	f := start(t, Options{Server: server}, true)
	c := newH2Client(t, f)
	if got := c.answer(c.send(true, ":method", "GET", ":scheme", "https", ":path", "/", "host", "localhost")); got != "200" {
		t.Error(got)
	}
	if got := c.answer(c.send(true, ":method", "GET", ":scheme", "https", ":path", "/", "host", "", "host", "localhost")); got != "403" {
		t.Errorf("got %s, want the answer that the handler gives: 403", got)
	}
}

// A request whose body is to come before it can be sent is cut, too.
func TestPassCutWaiting(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) { s.Header(b, okHeader, true) })
	f := startPassing(t, Options{Server: server, HashBody: true,
		Sign:       func(context.Context, *Request) (http.Header, error) { return nil, nil },
		SignFields: func(*Request, []signer.Field, *signer.Fields) (bool, error) { return true, nil }})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // at any time
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				f.flights.cut(func(*flight) bool { return true })
			}
		}
	}()
	c := newH2Client(t, f)
	for range 300 {
		id := c.send(false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/", "content-length", "5")
		if got := c.answer(id); got != "503" {
			t.Error(got)
		}
	}
	close(stop)
	<-stopped
}

// A refusal that does not fit the client's window comes when it does, before the rest of the
// request is declined.
func TestPassRefusalWaits(t *testing.T) {
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) { s.Reset(b, http2.ErrCodeInternal) })
	f := startPassing(t, Options{Server: server})
	c := newH2Client(t, f)
	if err := c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
		t.Fatal(err)
	}
	id := c.send(false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
	if got := c.answer(id); got != "502" {
		t.Fatal(got)
	}
	if err := c.WriteWindowUpdate(id, 1<<16); err != nil {
		t.Fatal(err)
	}
	var body strings.Builder
	for ended := false; ; {
		f, err := c.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			body.Write(f.Data())
			ended = f.StreamEnded()
		case *http2.RSTStreamFrame:
			if !ended || !strings.Contains(body.String(), ReasonBadGateway) || f.ErrCode != http2.ErrCodeNo {
				t.Errorf("%v after %q", f.ErrCode, body.String())
			}
			return
		}
	}
}

// A request that goes from one way to the other is one request all the time: a counter that
// falls is a proxy that was started anew, to Prometheus.
func TestPassCountsOnce(t *testing.T) {
	var f *front
	var mu sync.Mutex
	var seen []uint64
	look := func() {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, f.Stats().Requests)
	}
	var came atomic.Int64
	server := scripted(t, func(b *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) {
		look()
		if came.Add(1) == 1 {
			s.Reset(b, http2.ErrCodeRefusedStream)
			return
		}
		s.Header(b, okHeader, true)
	})
	f = start(t, Options{Server: server}, false)
	f.over.Store(&look)
	c := f.client(t, true)
	for range 2 {
		if res := get(t, c, "https://upstream.test/"); res.StatusCode != 200 {
			t.Error(res.Status)
		}
	}
	wait(t, "both to be over", func() bool { return f.flights.len() == 0 })
	mu.Lock()
	defer mu.Unlock()
	if !slices.IsSorted(seen) || seen[len(seen)-1] != 2 {
		t.Errorf("requests were counted as %v", seen)
	}
}
