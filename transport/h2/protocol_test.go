package h2

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

// A header block that cannot be decoded ends the connection: what it would have put into
// the table is missing to all that come after (RFC 9113 sections 4.3 and 6.2).
func TestPaddingOverHeader(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		c := frameClient(t, ts.Listener.Addr().String())
		id := c.ask(false)
		c.must(c.WriteRawFrame(http2.FrameHeaders, http2.FlagHeadersPadded|http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream, id, []byte{200, 0x40, 1, 'a', 1, 'b'}))
		if f := c.next(); f != nil || c.goAway == nil || *c.goAway != http2.ErrCodeProtocol {
			t.Errorf("%v, GOAWAY %v", f, c.goAway)
		}
	})
}

// A client's identifiers come to an end. Streams that were reserved by then are not sent
// on numbers that there are not.
func TestLastStream(t *testing.T) {
	c, _ := pair(t, Options{})
	c.lastID = maxStreamID - 6
	const reserved = 5
	for range reserved {
		if !c.Reserve() {
			t.Fatal("no stream can be had")
		}
	}
	var b Batch
	opened := 0
	for range reserved {
		s, err := c.Open(&b, []Field{{Name: ":method", Value: "GET"}}, true, nil)
		switch {
		case err == nil && s.ID() <= maxStreamID:
			opened++
		case err == nil:
			t.Errorf("stream %d", s.ID())
		case !errors.Is(err, ErrUnsent):
			t.Error(err)
		}
	}
	if opened != 3 || c.Reserve() {
		t.Errorf("%d streams were opened, of 3", opened)
	}
	c.Close()
	_ = c.finish(nil)
}

// A client that has opened too many streams may go on with them until it has heard so.
func TestRefusedStreamIsNoFlood(t *testing.T) {
	ours(t, func(t *testing.T, kind string) {
		ts, _ := handle(t, kind, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), func(s *http.Server) {
			s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 1}
		})
		c := frameClient(t, ts.Listener.Addr().String())
		c.ask(true)
		id := c.ask(false, ":method", "POST")
		for range 3000 {
			c.must(c.WriteData(id, false, make([]byte, 10)))
		}
		c.must(c.WritePing(false, [8]byte{1}))
		resets := 0
		for {
			f, err := c.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			switch f := f.(type) {
			case *http2.RSTStreamFrame:
				if resets++; f.ErrCode != http2.ErrCodeRefusedStream || resets > 1 {
					t.Fatalf("reset %d: %v", resets, f.ErrCode)
				}
				continue
			case *http2.GoAwayFrame:
				t.Fatalf("GOAWAY %v %s", f.ErrCode, f.DebugData())
			case *http2.PingFrame:
				if f.IsAck() {
					return
				}
			}
		}
	})
}

// A header may be as large as somebody wants it to be.
func TestHugeHeaderLimit(t *testing.T) {
	ts, _ := handle(t, polled, set("body", "ok"), func(s *http.Server) { s.MaxHeaderBytes = 1 << 28 })
	res, err := ts.Client().Get(ts.URL)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

// A stream may change hands at the moment in which its connection ends.
func TestServeWhileEnding(t *testing.T) {
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	get := []Field{{Name: ":method", Value: "GET"}, {Name: ":path", Value: "/"}}
	for range 20 {
		begun := make(chan *Stream, 1)
		var all sync.WaitGroup
		c, other := pair(t, Options{
			Begin:   func(_ *Batch, s *Stream, _ []Field, _ bool) { begun <- s },
			Retired: func() { all.Go(func() { Serve(nil, <-begun, get, true, h, ServeOptions{}) }) },
		})
		all.Go(func() { _ = c.Run(); c.Wait() })
		fr := http2.NewFramer(other, other)
		_, _ = other.Write([]byte(http2.ClientPreface))
		_ = fr.WriteSettings()
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82, 0x84, 0x87}, EndHeaders: true, EndStream: true})
		_ = other.NetConn().Close()
		all.Wait()
	}
}
