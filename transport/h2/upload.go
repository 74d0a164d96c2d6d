package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"

	"golang.org/x/net/http/httpguts"
)

const (
	// uploadSize is what is read of a body at once, uploadAhead how much of it may wait
	// for the server's windows before more is read.
	uploadSize  = 32 << 10
	uploadAhead = 64 << 10
)

var uploadBuffers = sync.Pool{New: func() any { return new([uploadSize]byte) }}

var (
	errBodyLong  = errors.New("http2: request body is longer than its Content-Length")
	errBodyShort = errors.New("http2: request body is shorter than its Content-Length")
)

// An upload is the body of a request on its way. It has a goroutine, as bodies block.
type upload struct {
	x        *call
	s        *Stream
	body     io.ReadCloser
	left     int64 // -1: nobody knows
	trailers bool
	over     chan struct{} // closed when the body is closed, and read no more

	mu      sync.Mutex
	room    sync.Cond
	kept    int  // given to the stream, and not gone out
	stopped bool // no more of it
	closing bool // somebody closes the body
	ended   bool // the goroutine is, but for the closing
}

func (u *upload) run(r *http.Request) {
	defer close(u.over)
	err := u.send(r)
	u.mu.Lock()
	u.ended = true
	stopped := u.stopped
	u.mu.Unlock()
	if err != nil && !stopped {
		u.x.giveUp(err)
	}
	u.close()
}

// send reads the body and sends it.
func (u *upload) send(r *http.Request) error {
	buf := uploadBuffers.Get().(*[uploadSize]byte)
	defer uploadBuffers.Put(buf)
	for {
		n, err := u.body.Read(buf[:])
		if u.left >= 0 {
			u.left -= int64(n)
			if u.left == 0 && err == nil {
				// So that the last of it says that it is the last.
				var more [1]byte
				var k int
				for range 100 {
					if k, err = u.body.Read(more[:]); k > 0 || err != nil {
						break
					}
				}
				u.left -= int64(k)
			}
			if u.left < 0 {
				return errBodyLong
			}
		}
		end := err == io.EOF
		switch {
		case err != nil && !end:
			return err
		case end && u.left > 0:
			return errBodyShort
		case u.isStopped():
			return nil // what was read is nobody's, and END_STREAM would be a lie
		}
		if n > 0 || end && !u.trailers {
			if err := u.write(buf[:n], end && !u.trailers); err != nil {
				return err
			}
		}
		switch {
		case end && u.trailers:
			return sendTrailer(u.s, r.Trailer)
		case end, !u.waitForRoom():
			return nil
		}
	}
}

func (u *upload) write(p []byte, end bool) error {
	sent, err := u.s.Write(nil, p, end)
	if err != nil {
		return err
	}
	u.mu.Lock()
	u.kept += len(p) - sent
	u.mu.Unlock()
	return nil
}

// sent is told what has gone out of what was kept.
func (u *upload) sent(n int) {
	u.mu.Lock()
	u.kept -= n // below zero until write has counted it
	u.room.Signal()
	u.mu.Unlock()
}

// waitForRoom waits until more may be sent, and reports false if no more shall be.
func (u *upload) waitForRoom() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.kept > uploadAhead && !u.stopped {
		u.room.Wait()
	}
	return !u.stopped
}

// stop has the body be read no more, and closes it, which is what ends a Read that waits
// for its sender.
func (u *upload) stop() {
	u.mu.Lock()
	u.stopped = true
	u.room.Signal()
	u.mu.Unlock()
	u.close()
}

// interrupt is stop for those who must not block.
func (u *upload) interrupt() {
	u.mu.Lock()
	idle := u.ended || u.stopped
	u.stopped = true
	u.room.Signal()
	u.mu.Unlock()
	if !idle {
		go u.close()
	}
}

func (u *upload) close() {
	u.mu.Lock()
	first := !u.closing
	u.closing = true
	u.mu.Unlock()
	if first {
		_ = u.body.Close()
	}
}

func (u *upload) isStopped() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.stopped
}

func (u *upload) finished() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.ended
}

// wait waits until the body is read no more, or ctx has ended.
func (u *upload) wait(ctx context.Context) {
	if u == nil {
		return
	}
	select {
	case <-u.over:
	case <-ctx.Done():
	}
}

// sendTrailer ends a request's body with the fields of its trailer, as far as they have a
// value by now.
func sendTrailer(s *Stream, trailer http.Header) error {
	fields := make([]Field, 0, len(trailer))
	for name, values := range trailer {
		lower, ok := lowerName(name)
		if !ok {
			return errTrailer
		}
		for _, v := range values {
			if !httpguts.ValidHeaderFieldValue(v) {
				return errTrailer
			}
			fields = append(fields, Field{Name: lower, Value: v})
		}
	}
	if len(fields) == 0 {
		_, err := s.Write(nil, nil, true)
		return err
	}
	s.Trailer(nil, fields)
	return nil
}
