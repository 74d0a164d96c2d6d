package transport

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// requestBody stands before the body of a request while it may have to be sent
// on another connection: a Close before the first Read is held back, so that a
// body nobody has touched can be offered again.
type requestBody struct {
	mu      sync.Mutex
	rc      io.ReadCloser
	read    bool // a byte may be gone
	closed  bool
	settled bool  // no further attempt: Close goes through
	done    bool  // rc was closed
	err     error // what reading it ended with, io.EOF aside
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.read = true
	rc := b.rc
	b.mu.Unlock()
	n, err := rc.Read(p)
	if err != nil && err != io.EOF {
		b.mu.Lock()
		b.err = err
		b.mu.Unlock()
	}
	return n, err
}

// failed returns the error of reading the body: that one is the sender's, not
// the server's.
func (b *requestBody) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

func (b *requestBody) Close() error {
	b.mu.Lock()
	b.closed = true
	hold := b.done || !b.read && !b.settled
	rc := b.rc
	if !hold {
		b.done = true
	}
	b.mu.Unlock()
	if hold {
		return nil
	}
	return rc.Close()
}

// rewind makes the body ready for another attempt, and reports whether it can.
func (b *requestBody) rewind(get func() (io.ReadCloser, error)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.read {
		if get == nil {
			return false
		}
		rc, err := get()
		if err != nil {
			return false
		}
		if !b.done {
			_ = b.rc.Close()
		}
		b.rc = rc
	}
	b.read, b.closed, b.done = false, false, false
	return true
}

// settle ends the attempts. After a failed one the body is closed, as the
// contract of http.RoundTripper asks; after a good one the connection does it.
func (b *requestBody) settle(failed bool) {
	b.mu.Lock()
	b.settled = true
	close := !b.done && (b.closed || failed)
	if close {
		b.closed, b.done = true, true
	}
	rc := b.rc
	b.mu.Unlock()
	if close {
		_ = rc.Close()
	}
}

// responseBody names the server in the error of an answer that breaks off, and tells
// when it has ended.
type responseBody struct {
	io.ReadCloser
	server string
	done   atomic.Bool
	ended  func() // nil: nobody wants to know
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.end()
		if err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
			err = bodyError(b.server, err)
		}
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

func (b *responseBody) end() {
	if b.ended != nil && !b.done.Swap(true) {
		b.ended()
	}
}
