package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/execproxy/execproxy/signer"
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
	early   []byte     // of the request's body, while it waits for a connection: at most a window
	signed  bool
	gotAll  bool               // of the request
	ended   bool               // the answer is complete
	waits   context.CancelFunc // ends the wait for a connection; nil: there is none
	over    bool               // nothing more is done
	handed  bool               // to the handler
	begun   time.Time
}

// A letter is what is needed to send a request, and to send it again.
type letter struct {
	in     []h2.Field // as it came
	target target
	method string
	length int64 // of the body; -1: not said
	hashed bool
	whole  bool   // the body is sent once it is there and hashed, not as it comes
	kept   bool   // all that came of it is in body
	empty  bool   // there is none
	body   []byte // at most chunkSize bytes
	space  *held  // which they take
}

// scratch is what making the fields of a request needs.
type scratch struct {
	view   signer.Request
	out    []h2.Field
	sent   []signer.Field
	signed signer.Fields
}

var (
	letters   = sync.Pool{New: func() any { return new(letter) }}
	scratches = sync.Pool{New: func() any { return new(scratch) }}
)

func (l *letter) free() {
	if l.space != nil {
		l.space.release()
	}
	clear(l.in)
	in := l.in[:0]
	if cap(in) > 64 {
		in = nil
	}
	*l = letter{in: in}
	letters.Put(l)
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
	if !p.flights.add(&x.flight) {
		l.free()
		return false
	}
	s.Attach((*clientSide)(x))
	p.count.requests.Add(1)
	if l.whole {
		return true // its body is to come
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || x.send(b) {
		return true
	}
	x.done = nil // the caller has it
	x.giveUp()
	return false
}

// read looks whether a request can be passed on without waiting, and how.
func (p *Proxy) read(l *letter, s *h2.Stream, loopback, end bool) bool {
	v := caller{Verified: p.verified(s.Conn().ConnectionState())}
	var path string
	var special http.Header
	lengths := 0
	for i := range l.in {
		f := &l.in[i]
		switch f.Name {
		case ":method":
			l.method, v.Method = f.Value, f.Value
		case ":path":
			path = f.Value
		case ":authority":
			v.Host = f.Value
		case "host":
			if v.Host == "" {
				v.Host = f.Value
			}
		case "content-length":
			lengths++
		case "trailer", "expect":
			return false
		case "authorization", "sec-websocket-protocol", "origin", "referer", "sec-fetch-site":
			if special == nil {
				special = make(http.Header, 1)
			}
			name := http.CanonicalHeaderKey(f.Name)
			special[name] = append(special[name], f.Value)
		}
	}
	v.Header = special
	if anonymous, no := p.admit(&v, loopback); no != nil || anonymous {
		return false
	}
	var err error
	if l.target, err = parseTarget(path, p.base, false); err != nil {
		return false
	}
	l.length = s.Length()
	if lengths > 1 || lengths == 1 && l.length < 0 {
		return false
	}
	signs := p.sign != nil
	l.hashed = signs && p.hash
	if l.empty = end || l.length == 0; l.empty {
		return true
	}
	small := 0 < l.length && l.length <= replayLimit
	switch {
	case l.hashed && l.length > p.maxHashed && p.unsigned:
	case l.hashed && (l.length < 0 || l.length > chunkSize):
		return false
	case l.hashed, signs && small && p.refused != nil:
		if l.space = p.memory.tryReserve(l.length); l.space == nil {
			return false
		}
		l.whole, l.kept = true, true
	case small:
		l.kept = true
	}
	if l.kept {
		l.body = make([]byte, 0, l.length)
	}
	return true
}

// send signs the request and opens its stream. False: it would have to wait, or it went wrong,
// and nothing was done. It needs the lock.
func (x *passage) send(b *h2.Batch) bool {
	p, l := x.p, x.request
	k := scratches.Get().(*scratch)
	defer k.rest()
	if !p.compose(k, l, x.gotAll) {
		return false
	}
	conn := p.streams.TryReserve()
	if conn == nil {
		return x.await()
	}
	return x.open(b, conn, k)
}

// await has the request sent when there is a connection for it: when all are full a
// thousand watches may wait for the next, and each is passed on like any other then. It
// needs the lock. False: there is nothing to wait for.
func (x *passage) await() bool {
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
	return true
}

// openNow signs a request that has waited, and sends it. It needs the lock.
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

func (k *scratch) rest() {
	clear(k.out)
	clear(k.sent)
	k.out, k.sent = k.out[:0], k.sent[:0]
	k.signed.Reset()
	k.view = signer.Request{}
	scratches.Put(k)
}

// compose makes the fields that are sent, in k.out. False: they cannot be made now.
func (p *Proxy) compose(k *scratch, l *letter, end bool) bool {
	path := l.target.path
	if l.target.mark {
		path += "?" + l.target.query
	}
	k.out = append(k.out,
		h2.Field{Name: ":method", Value: l.method}, h2.Field{Name: ":scheme", Value: "https"},
		h2.Field{Name: ":authority", Value: p.authority}, h2.Field{Name: ":path", Value: path})
	head := len(k.out)
	trailers, agent, length := false, false, false
	for _, f := range l.in {
		if f.Name[0] == ':' {
			continue
		}
		switch f.Name {
		case "te":
			trailers = trailers || f.Value != "" // nothing else is valid
			continue
		case "content-length":
			length = length || l.length >= 0
			continue
		case "user-agent":
			if agent || f.Value == "" {
				continue
			}
			agent = true
		}
		if p.rules.ofLower(f.Name) == drop {
			continue
		}
		k.out = append(k.out, f)
	}
	if trailers {
		k.out = append(k.out, h2.Field{Name: "te", Value: "trailers"})
	}
	if p.sign != nil && !p.signInto(k, l, head) {
		return false
	}
	switch {
	case length, l.whole:
		k.out = append(k.out, h2.Field{Name: "content-length", Value: strconv.FormatInt(l.length, 10)})
	case end && (l.method == http.MethodPost || l.method == http.MethodPut || l.method == http.MethodPatch):
		k.out = append(k.out, h2.Field{Name: "content-length", Value: "0"})
	}
	return true
}

func (p *Proxy) signInto(k *scratch, l *letter, head int) bool {
	for _, f := range k.out[head:] {
		k.sent = append(k.sent, signer.Field{Name: f.Name, Value: f.Value})
	}
	k.view = signer.Request{Method: l.method, Scheme: "https", Authority: p.authority, Path: l.target.path, RawQuery: l.target.query}
	switch {
	case !l.hashed:
	case len(l.body) > 0:
		sum := sha256.Sum256(l.body)
		k.view.ContentSHA256 = hex.EncodeToString(sum[:])
	case l.length > p.maxHashed:
		k.view.ContentSHA256 = unsignedPayload
	default:
		k.view.ContentSHA256 = emptySHA256
	}
	ok, err := p.signFields(&k.view, k.sent, &k.signed)
	if !ok || err != nil {
		return false // the handler finds out the same, and tells
	}
	for i, f := range k.signed.List() {
		if notASigners(f.Name) {
			return false
		}
		kept := k.out[:head]
		for _, o := range k.out[head:] {
			if o.Name != f.Name {
				kept = append(kept, o)
			}
		}
		// What is of this request alone, and what authenticates, stays out of HPACK's tables.
		// A session token is neither: it is long, and nobody guesses it as a whole.
		k.out = append(kept, h2.Field{Name: f.Name, Value: f.Value, Sensitive: k.signed.Transient(i) || f.Name != "x-amz-security-token"})
	}
	return true
}

func notASigners(name string) bool {
	switch name {
	case "host", "content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te", "keep-alive":
		return true
	}
	return name == "" || name[0] == ':'
}

// finish is called once, when nothing of the passage is left. It needs the lock.
func (x *passage) finish() {
	if x.over {
		return
	}
	x.over = true
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
		x.finish()
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
		_, _ = x.down.Write(b, body, true)
	}
	if !x.gotAll {
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
	x.down.Consumed(b, len(x.early)+x.unsaid-x.prepaid)
	x.handed = true
	x.slow(b, x.down, in, x.gotAll, body, tried)
	x.giveUp()
}

// giveUp ends the passage of a request that the handler serves, and counts.
func (x *passage) giveUp() {
	x.p.count.requests.Add(^uint64(0))
	x.finish()
}
