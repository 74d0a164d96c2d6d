package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// collector has a stream until after bytes of its body have come, or all of it; a
// handler serves it then.
type collector struct {
	s      *Stream
	fields []Field
	after  int
	body   []byte
	serve  func(b *Batch, c *collector, end bool, trailer []Field)
	gone   func(error)
}

func (c *collector) Header(*Batch, []Field, bool) {}
func (c *collector) Sent(*Batch, int)             {}
func (c *collector) Closed(_ *Batch, err error)   { c.gone(err) }

func (c *collector) Data(b *Batch, p []byte, end bool) {
	c.body = append(c.body, p...)
	c.s.Consumed(b, len(p))
	if end || c.after > 0 && len(c.body) >= c.after {
		c.serve(b, c, end, nil)
	}
}

func (c *collector) Trailer(b *Batch, fields []Field) { c.serve(b, c, true, fields) }

// late starts a server whose handler is called once something has come of the body:
// so many bytes as the field "after" says.
func late(t *testing.T, h http.Handler, gone func(error)) *httptest.Server {
	t.Helper()
	ts := httptest.NewUnstartedServer(nil)
	ts.EnableHTTP2 = true
	ts.Listener = Listener{ts.Listener}
	o := Configure(ts.Config, func(_ *tls.Conn, base context.Context) Options {
		return Options{Begin: func(b *Batch, s *Stream, fields []Field, end bool) {
			c := &collector{s: s, fields: append([]Field(nil), fields...), gone: gone}
			_, _ = fmt.Sscan(get(fields, "after"), &c.after)
			c.serve = func(b *Batch, c *collector, end bool, trailer []Field) {
				Serve(b, c.s, c.fields, end, h, ServeOptions{Context: base, Body: c.body, Trailer: trailer})
				clear(c.body) // it was copied
			}
			s.Attach(c)
		}}
	})
	ts.StartTLS()
	t.Cleanup(func() { _ = ts.Config.Close(); ts.Close(); o.Wait() })
	return ts
}

// A request may come to its handler late, and nothing of it is lost.
func TestServeLate(t *testing.T) {
	ts := late(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%d %d %v %v %s", r.ContentLength, len(b), err, r.Trailer, strings.Trim(string(b), "x"))
	}), func(error) {})
	c := frameClient(t, ts.Listener.Addr().String())
	big := strings.Repeat("x", 10<<10)
	for name, e := range map[string]struct {
		pairs   []string
		data    []string
		trailer []string
		want    string
	}{
		"all":          {data: []string{"hello"}, want: "-1 5 <nil> map[] hello"},
		"all of two":   {pairs: []string{"content-length", "10"}, data: []string{"hello", "world"}, want: "10 10 <nil> map[] helloworld"},
		"half":         {pairs: []string{"after", "5"}, data: []string{"hello", "world"}, want: "-1 10 <nil> map[] helloworld"},
		"large":        {pairs: []string{"after", "500000"}, data: strings.SplitAfter(strings.Repeat(big+"y", 100), "y"), want: "-1 1024100 <nil> map[]"},
		"trailer":      {pairs: []string{"trailer", "x-a"}, data: []string{"hello"}, trailer: []string{"x-a", "1"}, want: "-1 5 <nil> map[X-A:[1]] hello"},
		"half trailer": {pairs: []string{"trailer", "x-a", "after", "1"}, data: []string{"hello"}, trailer: []string{"x-a", "1"}, want: "-1 5 <nil> map[X-A:[1]] hello"},
		"end after":    {pairs: []string{"after", "5"}, data: []string{"hello", ""}, want: "-1 5 <nil> map[] hello"},
	} {
		id := c.ask(false, append(e.pairs, ":method", "POST")...)
		left := 200_000 // less than the windows that the server opens
		for i, d := range e.data {
			for left < len(d) { // the server gives back
				switch f, err := c.ReadFrame(); f := f.(type) {
				case *http2.WindowUpdateFrame:
					if f.StreamID == id {
						left += int(f.Increment)
					}
				case nil:
					t.Fatal(err)
				}
			}
			left -= len(d)
			c.must(c.WriteData(id, e.trailer == nil && i == len(e.data)-1, []byte(d)))
		}
		if e.trailer != nil {
			c.header(id, true, e.trailer...)
		}
		if got := c.story(id, false); !strings.Contains(got, e.want) {
			t.Errorf("%s: %s, want %s", name, got, e.want)
		}
	}
}

// A stream that has ended by then has no handler.
func TestServeTooLate(t *testing.T) {
	var served atomic.Bool
	gone := make(chan error)
	var streams = make(chan *Stream, 1)
	ts := httptest.NewUnstartedServer(nil)
	ts.EnableHTTP2 = true
	o := Configure(ts.Config, func(*tls.Conn, context.Context) Options {
		return Options{Begin: func(_ *Batch, s *Stream, _ []Field, _ bool) {
			s.Attach(&collector{s: s, gone: func(err error) { gone <- err }})
			streams <- s
		}}
	})
	ts.StartTLS()
	t.Cleanup(func() { _ = ts.Config.Close(); ts.Close(); o.Wait() })
	c := frameClient(t, ts.Listener.Addr().String())
	id := c.ask(true)
	c.must(c.WriteRSTStream(id, http2.ErrCodeCancel))
	<-gone
	r := Serve(nil, <-streams, []Field{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: "/"}}, true,
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Store(true) }), ServeOptions{})
	if r == nil || served.Load() {
		t.Error("served")
	}
}

// BenchmarkServe: 16 requests in flight on one connection, 2 KiB each.
func BenchmarkServe(b *testing.B) {
	for _, kind := range []string{theirs, polled, blocking} {
		b.Run(kind, func(b *testing.B) {
			body := make([]byte, 2<<10)
			ts, _ := handle(b, kind, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h := w.Header()
				h["Content-Type"], h["Date"] = []string{"application/json"}, nil
				_, _ = w.Write(body)
			}))
			c := frameClient(b, ts.Listener.Addr().String())
			_ = c.SetDeadline(time.Time{})
			c.must(c.WriteWindowUpdate(0, 1<<30))
			for range 16 {
				c.ask(true)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; {
				d, ok := c.next().(*http2.DataFrame)
				if ok && d.StreamEnded() {
					n++
					if n%400_000 == 0 {
						c.must(c.WriteWindowUpdate(0, 400_000*2<<10))
					}
					c.ask(true)
				}
			}
		})
	}
}
