package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// passages are those that are open.
func (f *front) passages() (all []*passage) {
	for i := range f.flights.shards {
		s := &f.flights.shards[i]
		s.mu.Lock()
		for x := range s.open {
			if x.owner != nil {
				all = append(all, x.owner)
			}
		}
		s.mu.Unlock()
	}
	return all
}

// is waits for the one passage that is open to be as it is wanted.
func (f *front) is(t *testing.T, what string, ok func(x *passage) bool) {
	t.Helper()
	wait(t, what, func() bool {
		all := f.passages()
		if len(all) != 1 {
			return false
		}
		all[0].mu.Lock()
		defer all[0].mu.Unlock()
		return ok(all[0])
	})
}

// smallStreams is a connection to the server whose window is soon used up.
func smallStreams(t *testing.T, o Options) *testStreams {
	return newTestStreamsWith(t, o.Server, h2.Options{ConnWindow: 1 << 20})
}

// canRead reports whether an answer that is as large as the connection's window still comes.
func (f *front) canRead(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://upstream.test/large", nil)
	res, err := f.client(t, true).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); n != 1<<20 || err != nil {
		t.Errorf("the connection's window is used up: %d bytes came, %v", n, err)
	}
}

// What a client does not take of an answer that is complete is given back to the
// server's connection all the same: it is everybody's.
func TestPassGivesBackAnswer(t *testing.T) {
	o := Options{Server: scripted(t, func(b *h2.Batch, s *h2.Stream, fields []h2.Field, _ bool) {
		listen(s)
		s.Header(b, okHeader, false)
		size := 200 << 10
		if value(fields, ":path") == "/large" {
			size = 1 << 20
		}
		_, _ = s.Write(b, make([]byte, size), true)
	})}
	o.Streams = smallStreams(t, o)
	f := startPassing(t, o)
	c := newH2Client(t, f)
	for range 20 {
		id := c.send(true, ":method", "GET", ":scheme", "https", ":authority", "x", ":path", "/")
		if got := c.answer(id); got != "200" {
			t.Fatal(got)
		}
		f.is(t, "all of the answer to come", func(x *passage) bool { return x.ended && x.owed > 0 })
		if err := c.WriteRSTStream(id, http2.ErrCodeCancel); err != nil {
			t.Fatal(err)
		}
		wait(t, "the request to be over", func() bool { return f.flights.len() == 0 })
	}
	f.canRead(t)
}

// The same of an answer that nobody gets, as the request is signed anew; and its stream ends.
func TestPassGivesBackRefused(t *testing.T) {
	var signed, open atomic.Int64
	o := Options{Server: scriptedWith(t, h2.Options{StreamWindow: 1, Begin: func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool) {
		h := listen(s)
		if value(fields, "x-signature") == "old" && value(fields, ":path") == "/" {
			s.Header(b, []h2.Field{{Name: ":status", Value: "401"}}, false)
			end := signed.Load()%4 == 1
			if !end { // it goes on for ever
				open.Add(1)
				go func() { <-h.closed; open.Add(-1) }()
			}
			_, _ = s.Write(b, make([]byte, 100<<10), end)
			return
		}
		s.Header(b, okHeader, false)
		size := 0
		if value(fields, ":path") == "/large" {
			size = 1 << 20
		}
		_, _ = s.Write(b, make([]byte, size), true)
	}}),
		Sign: func(context.Context, *Request) (http.Header, error) {
			sum := "new"
			if signed.Add(1)%2 == 1 {
				sum = "old"
			}
			return http.Header{"X-Signature": {sum}}, nil
		},
		Refused: func(*http.Response, time.Duration) bool { return true },
	}
	o.Streams = smallStreams(t, o)
	f := start(t, o, false)
	c := f.client(t, true)
	for range 30 {
		res, err := c.Post("https://upstream.test/", "", bytes.NewReader(make([]byte, 32<<10)))
		if err != nil {
			t.Fatal(err)
		}
		if _ = body2s(t, res); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
	}
	wait(t, "the server's streams to end", func() bool { return open.Load() == 0 })
	f.canRead(t)
}

// What the server does not take of a request that is complete is given back to the
// client's connection.
func TestPassGivesBackUpload(t *testing.T) {
	streams := make(chan *heard, 1)
	f := startPassing(t, Options{Server: scriptedWith(t, h2.Options{StreamWindow: 1, Begin: func(_ *h2.Batch, s *h2.Stream, _ []h2.Field, _ bool) {
		h := listen(s)
		h.hold = true
		streams <- h
	}})})
	c := newH2Client(t, f)
	const piece, pieces = 16 << 10, 12
	for range 60 {
		id := c.send(false, ":method", "POST", ":scheme", "https", ":authority", "x", ":path", "/")
		for i := range pieces {
			if err := c.WriteData(id, i == pieces-1, make([]byte, piece)); err != nil {
				t.Fatal(err)
			}
		}
		h := <-streams
		f.is(t, "all of the request to come", func(x *passage) bool { return x.gotAll && x.unsaid > 0 })
		h.s.Header(nil, okHeader, true)
		if got := c.answer(id); got != "200" {
			t.Fatal(got)
		}
		wait(t, "the request to be over", func() bool { return f.flights.len() == 0 })
	}
}
