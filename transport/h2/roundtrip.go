package h2

import (
	"context"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
)

// RoundTrip sends r on the stream that [Conn.Reserve] took, and returns when the header
// of the answer is there. It is http.RoundTripper's contract, with these exceptions and
// choices: URL.Opaque, or the escaped path, goes out byte for byte; an absent User-Agent
// stays absent; nothing is decompressed; trailer fields that were not announced come,
// too. The request's body is sent while the answer comes, and no longer where the status
// is over 299.
//
// Errors are the context's, the body's, one that begins with "http2: " and is the
// request's own, or the end of the stream or the connection: a *StreamError, a *ConnError,
// one that wraps ErrUnprocessed, or what became of the socket. The request's body has been
// closed then, and is read no more.
func (c *Conn) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	fields, err := requestFields(r)
	if err == nil {
		err = c.fits(*fields)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		c.Release()
		putFields(fields)
		closeBody(r)
		return nil, err
	}
	length := bodyLength(r)
	x := &call{r: r, head: r.Method == http.MethodHead, answered: make(chan struct{})}
	x.come.L = &x.mu
	x.in.thrifty = true
	trailers := len(r.Trailer) > 0
	s, err := c.Open(nil, *fields, length == 0 && !trailers, x)
	putFields(fields)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	x.attach(s)
	switch {
	case length != 0:
		x.upload = &upload{x: x, s: s, body: r.Body, left: length, trailers: trailers}
		x.upload.room.L = &x.upload.mu
		x.upload.over = make(chan struct{})
		x.setUpload()
		go x.upload.run(r)
	default:
		closeBody(r)
		if trailers {
			if err := sendTrailer(s, r.Trailer); err != nil {
				x.giveUp(err)
			}
		}
	}
	select {
	case <-x.answered:
	case <-ctx.Done():
		x.cancel(ctx.Err())
	}
	res, err := x.outcome()
	if err != nil {
		x.stopUpload()
		x.upload.wait(ctx)
		return nil, err
	}
	if res.StatusCode > 299 && x.upload != nil {
		// It does not want the body: it would have waited for its end. If it does, a success
		// is still to come, and this is none.
		x.stopUpload()
		x.endUnsaid()
	}
	res.Request, res.TLS = r, c.state
	if ctx.Done() != nil && !x.whole() {
		stop := context.AfterFunc(ctx, func() { x.cancel(ctx.Err()) })
		x.mu.Lock()
		x.forgetContext = stop
		x.mu.Unlock()
	}
	return res, nil
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// A call is one request of [Conn.RoundTrip], the receiver of its stream, and the body of
// its answer.
type call struct {
	r        *http.Request
	head     bool
	upload   *upload // nil: the request has no body
	answered chan struct{}

	mu            sync.Mutex
	come          sync.Cond // something has, or it is over
	s             *Stream
	told          bool // answered is closed
	res           *http.Response
	in            queue // of the answer's body, not read yet
	trailer       http.Header
	ended         bool  // all of the answer has come
	over          bool  // Closed was called
	err           error // why no more of it comes
	given         bool  // that was our side's doing
	closed        bool  // by the reader of the body
	stopped       bool  // the upload: END_STREAM will not be sent
	uploading     bool  // Closed and Data must look after the upload
	forgetContext func() bool
}

func (x *call) attach(s *Stream) {
	x.mu.Lock()
	x.s = s
	x.mu.Unlock()
}

func (x *call) setUpload() {
	x.mu.Lock()
	x.uploading = true
	gone := x.err != nil || x.over
	x.mu.Unlock()
	if gone {
		x.upload.stop()
	}
}

// Header implements Receiver.
func (x *call) Header(_ *Batch, fields []Field, end bool) {
	res := newResponse(fields, end, x.head)
	if res.Body == nil {
		res.Body = answerBody{x}
	}
	x.mu.Lock()
	if x.err == nil {
		x.res, x.ended = res, end
		x.tell()
	}
	x.mu.Unlock()
}

// tell wakes who waits for the header. It needs the lock.
func (x *call) tell() {
	if !x.told {
		x.told = true
		close(x.answered)
	}
}

// outcome is the answer, or why there is none. What broke off after the header is for
// those to learn who read on.
func (x *call) outcome() (*http.Response, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.res == nil || x.given {
		return nil, x.err
	}
	return x.res, nil
}

// Data implements Receiver.
func (x *call) Data(b *Batch, p []byte, end bool) {
	x.mu.Lock()
	if x.closed {
		s := x.s
		x.mu.Unlock()
		if s != nil {
			s.Consumed(b, len(p))
		}
		return
	}
	_, _ = x.in.Write(p)
	x.end(b, end)
}

// Trailer implements Receiver.
func (x *call) Trailer(b *Batch, fields []Field) {
	h := make(http.Header, len(fields))
	for i := range fields {
		name := canonical(fields[i].Name)
		h[name] = append(h[name], fields[i].Value)
	}
	x.mu.Lock()
	x.trailer = h
	x.end(b, true)
}

// end tells the reader that something has come. It is called with the lock, and
// returns without.
func (x *call) end(b *Batch, end bool) {
	x.ended = x.ended || end
	unsaid := end && x.stopped
	s := x.s
	x.come.Signal()
	x.mu.Unlock()
	if unsaid && s != nil {
		s.Reset(b, http2.ErrCodeNo)
	}
}

// Sent implements Receiver.
func (x *call) Sent(_ *Batch, n int) {
	if u := x.upload; u != nil {
		u.sent(n)
	}
}

// Closed implements Receiver.
func (x *call) Closed(_ *Batch, err error) {
	x.mu.Lock()
	x.over = true
	if !x.ended && x.err == nil {
		x.err = err
	}
	uploading := x.uploading
	x.tell()
	x.come.Signal()
	x.mu.Unlock()
	if uploading {
		x.upload.interrupt()
	}
}

// cancel ends the call for the caller's context.
func (x *call) cancel(err error) {
	x.giveUp(err)
	x.stopUpload()
}

// giveUp ends the stream from our side, unless it is over.
func (x *call) giveUp(err error) {
	x.mu.Lock()
	if !x.ended && x.err == nil {
		x.err, x.given = err, true
		x.in.reset()
		x.tell()
	}
	s := x.s
	x.come.Signal()
	x.mu.Unlock()
	s.Reset(nil, http2.ErrCodeCancel) // does nothing to a stream that is complete
}

// stopUpload has the body be read no more, and closes it.
func (x *call) stopUpload() {
	if x.upload != nil {
		x.upload.stop()
	}
}

// endUnsaid has the stream end with the answer, as the request never will.
func (x *call) endUnsaid() {
	x.mu.Lock()
	x.stopped = true
	ended := x.ended
	x.mu.Unlock()
	if ended {
		x.s.Reset(nil, http2.ErrCodeNo)
	}
}

// whole reports whether nothing is left that the end of a context could end.
func (x *call) whole() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return (x.ended || x.err != nil) && (x.upload == nil || x.upload.finished())
}
