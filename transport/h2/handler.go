package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// ServeOptions say what [Serve] cannot know from the stream.
type ServeOptions struct {
	// Context is what the request's context comes from. Nil: context.Background().
	Context context.Context
	// RemoteAddr is http.Request.RemoteAddr. Empty: that of the connection.
	RemoteAddr string
	// Body is what has come of the request's body before, and has been given back with
	// Stream.Consumed. It is copied.
	Body []byte
	// Trailer is the request's, where it has come already.
	Trailer []Field
	// ReadTimeout and WriteTimeout bound the whole of the request's body and of the
	// answer, as those of http.Server. 0: no bound.
	ReadTimeout, WriteTimeout time.Duration
}

// Serve has h answer the request of s in a goroutine of its own, as net/http's
// HTTP/2 server would have it. It is called from Options.Begin, or later, when end
// says whether all of the body has come. It attaches the receiver that it returns:
// a receiver that had the stream before passes on to it what it is still told.
//
// Different from net/http: a path that cannot be parsed is the handler's to refuse
// (URL.Opaque holds it, RequestURI is exact), and an answer that is shorter than the
// Content-Length that it declared is reset.
//
// [Conn.Wait] waits for the goroutine.
func Serve(b *Batch, s *Stream, fields []Field, end bool, h http.Handler, o ServeOptions) Receiver {
	c := s.c
	v := &serving{s: s, gotAll: end}
	v.readable.L, v.writable.L = &v.mu, &v.mu
	r := v.request(fields, &o)
	c.mu.Lock()
	s.recv = v
	busy := c.serving >= 2*int(c.o.MaxStreams)
	gone := s.closed
	if !gone && !busy {
		c.serving++
		c.handlers.Add(1)
	}
	c.mu.Unlock()
	switch {
	case gone:
		v.cancel()
	case busy: // with requests that were reset, and whose handlers have not noticed
		v.cancel()
		s.Reset(b, http2.ErrCodeRefusedStream)
	default:
		w := newAnswer(v, r)
		if o.ReadTimeout > 0 {
			_ = w.SetReadDeadline(time.Now().Add(o.ReadTimeout))
		}
		if o.WriteTimeout > 0 {
			_ = w.SetWriteDeadline(time.Now().Add(o.WriteTimeout))
		}
		go v.run(h, w, r)
	}
	return v
}

// Wait waits for the goroutines of [Serve]. It is called after Run, which has told
// them that the connection has ended: their requests' contexts are done.
func (c *Conn) Wait() { c.handlers.Wait() }

// serving is a stream that a handler answers: its receiver, and the request's body.
type serving struct {
	s       *Stream
	cancel  context.CancelFunc
	trailer http.Header // the request's: the names that were announced

	mu                 sync.Mutex
	readable, writable sync.Cond
	in                 queue // of the request's body, not read yet
	free               int   // of it, bytes that have been given back to the client already
	readErr            error // comes after what is in it; io.EOF: nothing was left out
	came               []Field
	expect             bool // the client waits for a 100
	headed             bool // the final header has been sent
	gotAll             bool
	unread             bool // nobody reads the body any more
	kept               int  // of the answer's body, not sent yet
	err                error
	readTimer          *time.Timer
	writeTimer         *time.Timer
}

// keepMost is how much of an answer is kept for a client that does not read;
// the handler waits then.
const keepMost = 64 << 10

var errWritten = errors.New("h2: the handler has returned")

// run calls the handler, and ends the stream.
func (v *serving) run(h http.Handler, w *answer, r *http.Request) {
	c := v.s.c
	returned := false
	defer func() {
		v.cancel()
		if r.MultipartForm != nil {
			_ = r.MultipartForm.RemoveAll()
		}
		if returned {
			w.finish()
		} else {
			if e := recover(); e != nil && e != http.ErrAbortHandler {
				v.complain(e)
			}
			w.abandon()
			v.breakOff()
		}
		v.over()
		c.mu.Lock()
		c.serving--
		c.mu.Unlock()
		c.handlers.Done()
	}()
	h.ServeHTTP(w, r)
	returned = true
}

// breakOff resets the stream. Of one that we reset we are told nothing any more, not even
// that what is kept has gone.
func (v *serving) breakOff() {
	v.s.Reset(nil, http2.ErrCodeInternal)
	v.fail(errWritten)
}

// complain logs a panic. What is thrown may hold anything that was in a request, so
// only its type is told, and all of it where it is Go's own.
func (v *serving) complain(e any) {
	log := v.s.c.log.With("remote", v.s.c.tls.RemoteAddr().String())
	if own, ok := e.(runtime.Error); ok {
		log = log.With("error", own.Error())
	} else {
		log = log.With("type", typeName(e))
	}
	log.Error("a handler panicked", "stack", string(debug.Stack()))
}

// over ends what the handler has left of the request.
func (v *serving) over() {
	v.mu.Lock()
	for !v.gotAll && v.kept > 0 && v.err == nil {
		v.writable.Wait() // a reset would throw away what is kept
	}
	n, all := v.giveUp(errWritten), v.gotAll
	v.mu.Unlock()
	b := batches.Get().(*Batch)
	v.s.drop(b, n)
	if !all {
		v.s.Reset(b, http2.ErrCodeNo) // RFC 9113 section 8.1: no more of the body is wanted
	}
	b.Flush()
	batches.Put(b)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, t := range []*time.Timer{v.readTimer, v.writeTimer} {
		if t != nil {
			t.Stop()
		}
	}
}

// giveUp throws away what is not read, and tells how much of it the connection has
// to have back. It needs the lock.
func (v *serving) giveUp(err error) int {
	n := v.in.size - v.free
	v.in.reset()
	v.free, v.unread = 0, true
	if v.readErr == nil || v.readErr == io.EOF {
		v.readErr = err
	}
	v.readable.Broadcast()
	return n
}

// Header is never called: it was the request's, and Begin had it.
func (v *serving) Header(*Batch, []Field, bool) {}

func (v *serving) Data(b *Batch, p []byte, end bool) {
	v.mu.Lock()
	unwanted := v.unread || v.readErr != nil
	if !unwanted {
		_, _ = v.in.Write(p)
	}
	v.ended(end)
	v.mu.Unlock()
	if unwanted {
		v.s.drop(b, len(p))
	}
}

func (v *serving) Trailer(_ *Batch, fields []Field) {
	v.mu.Lock()
	v.came = append([]Field(nil), fields...)
	v.ended(true)
	v.mu.Unlock()
}

// ended needs the lock.
func (v *serving) ended(end bool) {
	if end {
		v.gotAll = true
		if v.readErr == nil {
			v.readErr = io.EOF
		}
		v.writable.Broadcast()
	}
	v.readable.Broadcast()
}

func (v *serving) Sent(_ *Batch, n int) {
	v.mu.Lock()
	v.kept -= n
	if v.kept <= keepMost/2 {
		v.writable.Broadcast()
	}
	v.mu.Unlock()
}

func (v *serving) Closed(_ *Batch, err error) { v.fail(err) }

// fail says that the stream has ended, and why.
func (v *serving) fail(err error) {
	v.mu.Lock()
	if v.err == nil {
		v.err = err
	}
	if v.readErr == nil {
		v.readErr = err
	}
	v.readable.Broadcast()
	v.writable.Broadcast()
	v.mu.Unlock()
	v.cancel()
}

// drop gives n bytes back to the connection, and none to the stream: no more are wanted.
func (s *Stream) drop(b *Batch, n int) {
	c := s.c
	c.mu.Lock()
	n = int(min(int64(n), s.held))
	s.held -= int64(n)
	if n <= 0 || !c.giveBack(int64(n)) {
		c.mu.Unlock()
		return
	}
	c.release(b)
}
