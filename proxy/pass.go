package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/transport/h2"
)

// StreamTransport is a way out whose connections speak HTTP/2 and are open.
type StreamTransport interface {
	// TryReserve returns a connection with a stream reserved on it, or nil where a
	// request would have to wait for one.
	TryReserve() *h2.Conn
	// Reserve waits for one. Its error is for StreamError.
	Reserve(ctx context.Context) (*h2.Conn, error)
	// StreamError is what RoundTrip would have returned for a stream that ended with err.
	StreamError(err error) error
}

// Slowly serves a stream by a goroutine and an http.Handler. body is what has come of the
// request's body, and been given back; end says that it is all. The request has been sent in
// vain as often as tried says.
type Slowly func(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool, body []byte, tried int)

// Streams passes requests from stream to stream: those that need not wait for
// anything, on the goroutine that has read them. The rest, and whatever goes wrong
// before there is an answer, is for the handlers.
type Streams struct {
	p        *Proxy
	loopback bool
}

// UnixStreams is [Proxy.Unix] for requests that come over HTTP/2.
func (p *Proxy) UnixStreams() *Streams { return &Streams{p, false} }

// LoopbackStreams is [Proxy.Loopback] for them.
func (p *Proxy) LoopbackStreams() *Streams { return &Streams{p, true} }

// A passage is a request on its way from a client's stream to a server's, and the
// answer on its way back. Readers of both connections call it.
type passage struct {
	flight flight
	p      *Proxy
	down   *h2.Stream
	done   func()
	slow   Slowly

	mu      sync.Mutex
	up      *h2.Stream // nil: not sent yet
	request *letter    // nil: the server has answered, or it is over
	got     int64      // bytes of the request's body that have come
	unsaid  int        // of them, those that up keeps
	prepaid int        // of them, those that the client has had back already
	owed    int        // bytes of the answer that down keeps
	last    int        // bytes of a refusal that down keeps
	early   []byte     // of the request's body, while it waits for a connection: at most a window
	signed  bool
	gotAll  bool               // of the request
	ended   bool               // the answer is complete
	waits   context.CancelFunc // ends the wait for a connection; nil: there is none
	over    bool               // nothing more is done
	handed  bool               // to the handler
	begun   time.Time
}

// Begin takes over a request that a client has sent, and calls done when it is over; or
// it reports false, has done nothing, and the handler is to serve it.
func (t *Streams) Begin(b *h2.Batch, s *h2.Stream, fields []h2.Field, end bool, slow Slowly, done func()) bool {
	p := t.p
	if p.streams == nil || p.sign != nil && p.signFields == nil {
		return false
	}
	l := letters.Get().(*letter)
	l.in = append(l.in, fields...)
	if !p.read(l, s, t.loopback, end) {
		l.free()
		return false
	}
	x := &passage{p: p, down: s, done: done, slow: slow, request: l, gotAll: end}
	x.flight.owner, x.flight.endless = x, l.method == http.MethodGet && endlessQuery(l.target.query)
	whole := l.whole
	if !p.flights.add(&x.flight) {
		l.free()
		return false
	}
	// From here on cut may end it, and the letter is gone then.
	s.Attach((*clientSide)(x))
	if whole { // its body is to come
		p.count.requests.Add(1)
		return true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || x.send(b) {
		p.count.requests.Add(1)
		return true
	}
	x.done = nil // the caller has it
	x.finish(b)
	return false
}

// send signs the request and opens its stream, or has that done once there is a connection.
// False: the signature would have to be waited for, or it went wrong, and nothing was done. It
// needs the lock.
func (x *passage) send(b *h2.Batch) bool {
	if conn := x.p.streams.TryReserve(); conn != nil {
		return x.openNow(b, conn)
	}
	x.await()
	return true
}

// await has the request sent when there is a connection for it: when all are full a
// thousand watches may wait for the next, and each is passed on like any other then. It
// needs the lock.
func (x *passage) await() {
	ctx, cancel := context.WithCancel(context.Background())
	x.waits = cancel
	go func() {
		defer cancel()
		conn, err := x.p.streams.Reserve(ctx)
		var b h2.Batch
		x.mu.Lock()
		x.waits = nil
		switch {
		case x.over:
			if err == nil {
				conn.Release()
			}
		case err == nil && x.openNow(&b, conn):
		default:
			x.handOver(&b, 0) // there it fails as it did here, or there is another way
		}
		x.mu.Unlock()
		b.Flush()
	}()
}

// openNow signs the request and sends it on a stream that is reserved. It needs the lock.
func (x *passage) openNow(b *h2.Batch, conn *h2.Conn) bool {
	k := scratches.Get().(*scratch)
	defer k.rest()
	if !x.p.compose(k, x.request, x.gotAll && len(x.early) == 0) {
		conn.Release()
		return false
	}
	return x.open(b, conn, k)
}

// open needs the lock.
func (x *passage) open(b *h2.Batch, conn *h2.Conn, k *scratch) bool {
	p, l := x.p, x.request
	x.begun = time.Now()
	body := l.whole && len(l.body) > 0
	up, err := conn.Open(b, k.out, x.gotAll && !body && len(x.early) == 0, (*serverSide)(x))
	if err != nil {
		return false
	}
	up.PassTo(x.down.Conn())
	x.up = up
	if p.sign != nil {
		x.signed = true
		p.count.signed.Add(1)
	}
	if body {
		sent, _ := up.Write(b, l.body, true) // of an overrun the server's side is told
		x.unsaid = len(l.body) - sent
		x.prepaid = x.unsaid
	}
	if early := x.early; len(early) > 0 {
		x.early = nil
		sent, _ := up.Write(b, early, x.gotAll)
		x.unsaid += len(early) - sent
		x.down.Consumed(b, sent)
	}
	return true
}

// finish is called once, when nothing of the passage is left. It needs the lock. What was
// kept and is not wanted any more is given back: of a stream that is complete, nobody else
// does it, and the window is its connection's.
func (x *passage) finish(b *h2.Batch) {
	if x.over {
		return
	}
	x.over = true
	if x.up != nil {
		x.up.PassTo(nil)
		if x.owed > 0 {
			x.up.Consumed(b, x.owed)
		}
	}
	if n := len(x.early) + x.unsaid - x.prepaid; n > 0 {
		x.down.Consumed(b, n)
		x.early = nil
	}
	if x.waits != nil {
		x.waits()
	}
	if x.request != nil {
		x.request.free()
		x.request = nil
	}
	x.p.flights.remove(&x.flight)
	if x.done != nil {
		x.done()
	}
}

// cut ends it, because the proxy ends or watches shall.
func (x *passage) cut() {
	var b h2.Batch
	x.mu.Lock()
	if !x.over {
		if x.up != nil {
			x.up.Reset(&b, http2.ErrCodeCancel)
		}
		if x.request != nil {
			x.refuse(&b, x.p.shuttingDown())
		} else {
			x.down.Reset(&b, http2.ErrCodeInternal)
		}
		x.finish(&b)
	}
	x.mu.Unlock()
	b.Flush()
}

// refuse answers for the server. It needs the lock.
func (x *passage) refuse(b *h2.Batch, no *refusal) {
	p := x.p
	p.count.fault(no.reason)
	p.log.Info("request refused", slog.String("reason", no.reason), slog.Int("code", no.code), slog.String("method", x.request.method), slog.String("why", no.message))
	header, body := no.encode()
	fields := make([]h2.Field, 0, len(header)+1)
	fields = append(fields, h2.Field{Name: ":status", Value: strconv.Itoa(no.code)})
	for _, f := range header {
		fields = append(fields, h2.Field{Name: f[0], Value: f[1]})
	}
	if x.request.method == http.MethodHead {
		body = nil
	}
	x.down.Header(b, fields, len(body) == 0)
	if len(body) > 0 {
		sent, _ := x.down.Write(b, body, true)
		x.last = len(body) - sent
	}
	if !x.gotAll && x.last == 0 {
		x.down.Reset(b, http2.ErrCodeNo)
	}
}

// again has the handler send the request once more, if all that has come of it is still
// there; what is still to come comes there. It needs the lock.
func (x *passage) again(b *h2.Batch, tried int) bool {
	l := x.request
	if l == nil || !l.kept && x.got > 0 {
		return false
	}
	x.p.count.retries.Add(1)
	x.handOver(b, tried)
	return true
}

// handOver gives a request of which the server has nothing to the handler. It needs the lock.
func (x *passage) handOver(b *h2.Batch, tried int) {
	in, body := append([]h2.Field(nil), x.request.in...), x.request.body
	if !x.request.kept {
		body = x.early
	}
	x.handed = true
	x.slow(b, x.down, in, x.gotAll, body, tried)
	x.finish(b)
}
