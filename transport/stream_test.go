package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// More connections only where a server's MAX_CONCURRENT_STREAMS asks for them.
func TestThousandStreams(t *testing.T) {
	h := newStreams()
	s := serve(t, serverOptions{maxStreams: 100}, h)
	tr, key := s.withDevice(t, s.ca)
	bodies := make([]io.ReadCloser, 1000)
	together(len(bodies), func(i int) { bodies[i] = watch(t, tr) })
	equal(t, "connections", s.accepted.Load(), 10)
	equal(t, "counted connections", tr.Stats().Connections, 10)
	equal(t, "full handshakes", s.full.Load(), 1)
	equal(t, "signatures", key.asked.Load(), 1)
	equal(t, "open streams", tr.Stats().OpenStreams, 1000)
	close(h.end)
	for _, b := range bodies {
		rest, err := io.ReadAll(b)
		check(t, err)
		equal(t, "rest", string(rest), "end\n")
	}
	equal(t, "open streams", tr.Stats().OpenStreams, 0)
	equal(t, "retries", tr.Stats().Retries, 0)
}

func TestTryReserve(t *testing.T) {
	s := serve(t, serverOptions{maxStreams: 2}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	if tr.TryReserve() != nil {
		t.Error("a stream, and no connection")
	}
	equal(t, "dials", tr.Stats().Dials, 0)
	check(t, tr.Prewarm(context.Background()))
	c := tr.TryReserve()
	if c == nil || tr.TryReserve() != c || tr.TryReserve() != nil {
		t.Error("two streams were to be had, and no more")
	}
	equal(t, "open streams", tr.Stats().OpenStreams, 2)
	if tr.current.Load().used.Load() == 0 {
		t.Error("the use was not noted")
	}
	get(t, tr, "/") // the full connection has another one made
	equal(t, "dials", tr.Stats().Dials, 2)
	c.Release()
	res, err := c.RoundTrip(request(t, context.Background(), "GET", "/", nil))
	check(t, err)
	_, err = io.ReadAll(res.Body)
	check(t, err)
	equal(t, "open streams", tr.Stats().OpenStreams, 0)

	check(t, tr.Rotate(Identity{Certificate: s.ca.issue(t, "bob", time.Now().Add(time.Hour)), RootCAs: s.ca.pool}))
	if tr.TryReserve() != nil {
		t.Error("a stream of the identity that was")
	}
	drained(t, tr)
	check(t, tr.Prewarm(context.Background()))
	tr.current.Load().notAfter = time.Now().Add(-time.Second)
	if tr.TryReserve() != nil {
		t.Error("a stream of an identity that has ended")
	}
	check(t, tr.Close())
	if tr.TryReserve() != nil {
		t.Error("a stream of a Transport that is closed")
	}
}

func TestTryReserveAllocatesNothing(t *testing.T) {
	s := serve(t, serverOptions{}, http.HandlerFunc(user))
	tr := s.client(t, nil)
	check(t, tr.Prewarm(context.Background()))
	if n := testing.AllocsPerRun(100, func() { tr.TryReserve().Release() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// receiver takes an answer frame by frame, as the fast way does.
type receiver struct{ closed chan error }

func (receiver) Header(*h2.Batch, []h2.Field, bool) {}
func (receiver) Data(*h2.Batch, []byte, bool)       {}
func (receiver) Trailer(*h2.Batch, []h2.Field)      {}
func (receiver) Sent(*h2.Batch, int)                {}
func (r receiver) Closed(_ *h2.Batch, err error)    { r.closed <- err }

// What fails on a stream fails with the same words as a request.
func TestStreamError(t *testing.T) {
	for name, end := range map[string]func(c *frameConn, id uint32){
		"refused":      func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeRefusedStream) },
		"reset":        func(c *frameConn, id uint32) { _ = c.WriteRSTStream(id, http2.ErrCodeInternal) },
		"GOAWAY":       func(c *frameConn, _ uint32) { _ = c.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"end":          func(c *frameConn, _ uint32) { _ = c.tls.Close() },
		"not HTTP/2":   func(c *frameConn, _ uint32) { _ = c.WriteRawFrame(http2.FrameSettings, 0, 1, nil) },
		"no header":    func(c *frameConn, id uint32) { _ = c.WriteData(id, true, nil) },
		"GOAWAY above": func(c *frameConn, id uint32) { _ = c.WriteGoAway(id, http2.ErrCodeInternal, nil); _ = c.tls.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			s := serveFrames(t, nil, func(c *frameConn, f http2.Frame) bool {
				requests.Add(1)
				end(c, f.Header().StreamID)
				return true
			})
			tr := s.client(t, nil)
			check(t, tr.Prewarm(context.Background()))
			c := tr.TryReserve()
			r := receiver{make(chan error, 1)}
			_, err := c.Open(nil, []h2.Field{{Name: ":method", Value: "GET"}, {Name: ":path", Value: "/"}, {Name: ":scheme", Value: "https"}}, true, r)
			check(t, err)
			got := tr.StreamError(<-r.closed)
			_, want := tr.RoundTrip(request(t, context.Background(), "POST", "/", nil))
			var a, b *UpstreamError
			if !errors.As(got, &a) || !errors.As(want, &b) || a.Error() != b.Error() || a.StatusCode() != b.StatusCode() || a.NotProcessed() != b.NotProcessed() || a.Kind != b.Kind {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			t.Log(got)
		})
	}
	tr := newTransport(t, Options{Address: "a:1"})
	if err := tr.StreamError(nil); err != nil {
		t.Error(err)
	}
	if err := tr.StreamError(io.ErrNoProgress); err != io.ErrNoProgress {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A server that takes no more bytes in the middle of an upload holds nobody up who wants to end.
func TestCloseOnAStalledUpload(t *testing.T) {
	begun := make(chan struct{})
	s := serve(t, serverOptions{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 1<<20))
		close(begun)
		_, _ = io.Copy(io.Discard, r.Body)
	}))
	p := serveTunnel(t, listen(t, "127.0.0.1:0"), nil, func(*tunnel, net.Conn) (string, bool) { return s.addr, true })
	tr := s.client(t, func(o *Options) { o.Address = p.addr })
	failed := make(chan error, 1)
	body := &streamed{Reader: zeros{}}
	go func() {
		_, err := tr.RoundTrip(request(t, context.Background(), "POST", "/", body))
		failed <- err
	}()
	<-begun
	close(p.frozen)
	for last := int64(-1); body.reads.Load() != last; { // until it stalls
		last = body.reads.Load()
		time.Sleep(50 * time.Millisecond)
	}
	within(t, 2*time.Second, "Close", func() { check(t, tr.Close()) })
	wantKind(t, <-failed, ErrConnectionLost, false)
	equal(t, "body closed", body.closes.Load(), 1)
}
