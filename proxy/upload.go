package proxy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// upload is the client's body while it is streamed. Transports read it in a
// goroutine of their own, which may outlive RoundTrip; they close it to make
// that goroutine stop, also in the middle of a Read.
type upload struct {
	src     io.ReadCloser
	control *http.ResponseController
	http1   bool
	trailer http.Header  // what goes out; filled at the end of src
	from    http.Header  // the client's, filled by the server
	cut     *atomic.Bool // a Read was interrupted by us: its error is not the client's

	mu      sync.Mutex
	reading bool
	closed  bool // by the transport, or by the end of the request
	eof     bool
	count   int64
	err     error  // what the client's connection said, other than io.EOF
	replay  []byte // all that was read so far, while keeping
	keeping bool
	replayd int // bytes of replay that the second attempt has taken; -1: first attempt
	attempt int // to send it; what an earlier one still does no longer matters
}

// A sending is the upload for one attempt to send it. A server may answer, and refuse, before
// it has taken the body; then the transport goes on to read and to close what it was given
// while the next attempt is on its way.
type sending struct {
	u       *upload
	attempt int
}

func (u *upload) sending() *sending {
	u.mu.Lock()
	defer u.mu.Unlock()
	return &sending{u, u.attempt}
}

func (s *sending) Read(p []byte) (int, error) { return s.u.read(p, s.attempt) }

// Close is the transport's: it wants no more, and a Read that waits for the
// client has to return.
func (s *sending) Close() error { return s.u.close(s.attempt) }

var errUploadClosed = errors.New("request body closed")

func newUpload(w http.ResponseWriter, r *http.Request, rules *rules, cut *atomic.Bool) *upload {
	u := &upload{cut: cut, src: r.Body, control: http.NewResponseController(w), http1: r.ProtoMajor == 1, replayd: -1}
	if len(r.Trailer) > 0 {
		u.trailer, u.from = rules.requestTrailer(r.Trailer), r.Trailer
	}
	return u
}

// keep makes a small body replayable.
func (u *upload) keep(length int64) {
	if length > 0 && length <= replayLimit {
		u.keeping = true
		u.replay = make([]byte, 0, length)
	}
}

// Read is for those who hold the body before anything is sent.
func (u *upload) Read(p []byte) (int, error) { return u.read(p, 0) }

func (u *upload) read(p []byte, attempt int) (int, error) {
	u.mu.Lock()
	if u.closed || attempt != u.attempt {
		u.mu.Unlock()
		return 0, errUploadClosed
	}
	if u.replayd >= 0 && (u.eof || u.replayd < len(u.replay)) {
		defer u.mu.Unlock()
		n := copy(p, u.replay[u.replayd:])
		u.replayd += n
		if u.eof && u.replayd == len(u.replay) {
			return n, io.EOF
		}
		return n, nil
	}
	u.reading = true
	u.mu.Unlock()

	n, err := u.src.Read(p)

	u.mu.Lock()
	defer u.mu.Unlock()
	u.reading = false
	u.count += int64(n)
	if u.keeping {
		u.replay = append(u.replay, p[:n]...)
		if u.replayd >= 0 {
			u.replayd += n
		}
	}
	switch {
	case err == nil:
	case err == io.EOF:
		u.eof = true
		for name := range u.trailer {
			u.trailer[name] = u.from[name]
		}
	case !u.cut.Load() && u.err == nil:
		u.err = err
	}
	return n, err
}

func (u *upload) close(attempt int) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if attempt != u.attempt {
		return nil
	}
	return u.closeLocked()
}

func (u *upload) closeLocked() error {
	if u.closed {
		return nil
	}
	u.closed = true
	if !u.reading {
		return nil
	}
	u.cut.Store(true)
	if u.http1 {
		// Its Close waits for the Read. The server takes the interruption for the
		// end of the client: see exchange.watch.
		return u.control.SetReadDeadline(time.Unix(1, 0))
	}
	return u.src.Close()
}

// end is the request's end: nobody reads from the client after it.
func (u *upload) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.closeLocked()
}

// rewind makes a closed upload readable again, if nothing of it is lost.
func (u *upload) rewind() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.reading || u.cut.Load() || u.err != nil:
		return false
	case u.count == 0 && !u.eof:
		u.closed = false
		u.attempt++
		return true
	case u.keeping: // what was read, and then the rest
		u.closed, u.replayd = false, 0
		u.attempt++
		return true
	}
	return false
}

// failed gives the error that the client's own connection made, if any.
func (u *upload) failed() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

// finished reports whether the client's body was read to its end.
func (u *upload) finished() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.eof
}
