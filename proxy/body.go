package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// emptySHA256 is the SHA-256 of nothing.
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	// unsignedPayload is what SigV4 signs instead of a hash.
	unsignedPayload = "UNSIGNED-PAYLOAD"
	// replayLimit is the size up to which a streamed body is kept, so that it
	// can be sent again after a refused stream.
	replayLimit = 32 << 10
	// uploadTime bounds how long a client may take to send a body that is held
	// in memory.
	uploadTime = 60 * time.Second
	// memoryWait bounds the wait for memory: after it the client is told to come
	// back, as the API server itself does.
	memoryWait = 10 * time.Second
	// connectionWaiters is how many requests of one HTTP/2 connection may wait
	// for memory. Each of them may hold a stream window of unread bytes, and when
	// these fill the connection's window, no other upload on it moves, not even
	// those that the waiters wait for.
	connectionWaiters = 8
)

var hashes = sync.Pool{New: func() any { return sha256.New() }}

// body is what is sent upstream, and what is needed to send it again.
type body struct {
	length int64  // as http.Request.ContentLength of a body that may be empty
	sha256 string // as Request.ContentSHA256
	held   *held
	upload *upload
	stream bool // the upload itself is sent, after what is held
}

// prepareBody reads the client's body as far as signing needs it. What it
// returns has to be released, also beside an error.
func (x *exchange) prepareBody() (*body, error) {
	p, r := x.p, x.r
	if no := checkLength(r); no != nil {
		return nil, no
	}
	b := &body{length: r.ContentLength}
	hashed := p.hash && p.sign != nil && !x.anonymous
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		b.length = 0
		if hashed {
			b.sha256 = emptySHA256
		}
		return b, nil
	}
	b.upload = newUpload(x.w, r, p.rules, &x.cut)
	if r.ProtoMajor == 1 {
		// Without it, net/http reads the rest of the upload before it writes
		// the first byte of an early answer.
		_ = b.upload.control.EnableFullDuplex()
	}
	switch p.treat(r.ContentLength, p.sign != nil && !x.anonymous) {
	case streamBody:
		b.stream = true
		if len(b.upload.trailer) > 0 {
			b.length = -1 // HTTP/1.1 has trailers only after chunks
		}
		b.upload.keep(r.ContentLength)
		return b, nil
	case refuseBody:
		return nil, p.tooLarge()
	case leaveUnsigned:
		b.sha256, b.stream = unsignedPayload, true
		return b, nil
	}
	if err := p.hold(x.ctx, r, b); err != nil {
		return b, err
	}
	if len(b.upload.trailer) > 0 {
		b.length = -1
	}
	return b, nil
}

// treatment is how a body goes out, whichever way its request came in.
type treatment uint8

const (
	streamBody    treatment = iota // as it comes
	holdBody                       // once all of it is there: it is hashed, or may have to be sent again
	leaveUnsigned                  // as it comes, and the signature says so
	refuseBody                     // not at all: it is too large to be hashed
)

// treat says it of a body of that many bytes, not 0; -1: nobody said how many. signed: the
// request will be.
func (p *Proxy) treat(length int64, signed bool) treatment {
	switch {
	case signed && p.hash && length > p.maxHashed:
		if p.unsigned {
			return leaveUnsigned
		}
		return refuseBody
	case signed && p.hash:
		return holdBody
	// A server may refuse the signature before it takes the body. A small one is had whole by
	// then, so that it can be sent with the next signature.
	case signed && p.refused != nil && 0 < length && length <= replayLimit:
		return holdBody
	}
	return streamBody
}

// checkLength refuses what Go's HTTP/2 server forgives: it takes the first of
// two lengths, and 0 for one that is no number.
func checkLength(r *http.Request) *refusal {
	v := r.Header["Content-Length"]
	if len(v) == 0 {
		return nil
	}
	if len(v) > 1 || !isLength(v[0]) {
		return &refusal{code: http.StatusBadRequest, reason: ReasonBadRequest, hangUp: true,
			message: "execproxy: the request has no single, valid Content-Length"}
	}
	return nil
}

func (p *Proxy) tooLarge() *refusal {
	return &refusal{code: http.StatusRequestEntityTooLarge, reason: ReasonTooLarge, hangUp: true,
		message: "execproxy: the request body is over " + strconv.FormatInt(p.maxHashed, 10) +
			" bytes and must be hashed to be signed; send less, or allow unsigned payloads (--unsigned-payload)"}
}

// hold reads the body into memory and hashes it.
func (p *Proxy) hold(ctx context.Context, r *http.Request, b *body) error {
	limit := r.ContentLength
	if limit < 0 {
		limit = p.maxHashed
	}
	space, err := p.reserve(ctx, r, limit)
	if err != nil {
		return err
	}
	b.held = space
	if limit > chunkSize {
		_ = b.upload.control.SetReadDeadline(time.Now().Add(uploadTime))
		defer func() { _ = b.upload.control.SetReadDeadline(time.Time{}) }()
	}
	h := hashes.Get().(hash.Hash)
	defer hashes.Put(h)
	h.Reset()
	switch err := b.held.fill(b.upload, h); {
	case err == nil:
		b.held.trim()
		b.length = b.held.size
		var sum [sha256.Size]byte
		b.sha256 = hex.EncodeToString(h.Sum(sum[:0]))
		return nil
	case errors.Is(err, errOver):
		if !p.unsigned {
			return p.tooLarge()
		}
		b.sha256, b.stream = unsignedPayload, true
		return nil
	default:
		return err
	}
}

func (p *Proxy) reserve(ctx context.Context, r *http.Request, limit int64) (*held, error) {
	if h := p.memory.tryReserve(limit); h != nil {
		return h, nil
	}
	busy := &refusal{code: http.StatusTooManyRequests, reason: ReasonTooManyRequests, retryAfter: 1, hangUp: true,
		message: "execproxy: too many large request bodies at once; the request was not sent, try again"}
	if r.ProtoMajor == 2 {
		if waiting, ok := ctx.Value(waitersKey{}).(*atomic.Int32); ok {
			defer waiting.Add(-1)
			if waiting.Add(1) > connectionWaiters {
				return nil, busy
			}
		}
	}
	wait, cancel := context.WithTimeout(ctx, p.memoryWait)
	defer cancel()
	h, err := p.memory.reserve(wait, limit)
	if err != nil && ctx.Err() == nil {
		return nil, busy
	}
	return h, err
}

// waitersKey is where NewServer keeps the *atomic.Int32 of a connection.
type waitersKey struct{}

// reader gives the body for one attempt to send it; nil where there is none.
func (b *body) reader() io.ReadCloser {
	switch {
	case b.held != nil && b.stream:
		rest := b.upload.sending()
		return &chain{Reader: io.MultiReader(b.held.reader(), &once{b.held.extra}, rest), Closer: rest}
	case b.held != nil && b.length == 0:
		return nil // to net/http, 0 and a reader means: unknown length
	case b.held != nil:
		return b.held.reader()
	case b.upload != nil:
		return b.upload.sending()
	}
	return nil
}

// again makes the body ready for a second attempt, or tells that it is gone.
func (b *body) again() bool {
	switch {
	case b == nil, b.upload == nil, b.held != nil && !b.stream:
		return true
	case b.held != nil:
		return false
	}
	return b.upload.rewind()
}

func (b *body) trailer() http.Header {
	if b == nil || b.upload == nil {
		return nil
	}
	return b.upload.trailer
}

func (b *body) release() {
	if b == nil {
		return
	}
	if b.upload != nil {
		b.upload.end()
	}
	if b.held != nil {
		b.held.release()
	}
}

type chain struct {
	io.Reader
	io.Closer
}

type once struct{ rest []byte }

func (o *once) Read(p []byte) (int, error) {
	if len(o.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, o.rest)
	o.rest = o.rest[n:]
	return n, nil
}
