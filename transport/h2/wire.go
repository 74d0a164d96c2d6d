package h2

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Wire is a net.Conn for tls.Server and tls.Client to stand on. Until a [Conn]
// takes it over it is the connection below and nothing more. From then on it
// never blocks: what TLS reads has been read from the socket before, what TLS
// writes is collected.
type Wire struct {
	net.Conn
	raw   syscall.RawConn // nil: the connection below has no descriptor, or none that can be read without blocking
	taken atomic.Bool

	inner net.Conn // what raw belongs to

	in []byte // read from the socket, not yet by TLS; the reader's alone

	mu   sync.Mutex // guards out: the flusher writes, and the reader where TLS answers by itself
	out  []*[wireSize]byte
	used int // of the last
	head int // of the first, written to the socket already
	size int

	// Of a connection that a poller reads: a descriptor that Go's own poller does not
	// know, or it would wake up for every byte, too.
	fd      int // 0: none
	closed  bool
	writeBy time.Time

	// Closures for RawConn, made once: one for each call would be garbage.
	push       func(fd uintptr) bool
	pushErr    error
	pushAll    func(fd uintptr) bool
	pushAllErr error
}

// NewWire returns a Wire on c. Where c is a wrapper, NetConn() net.Conn leads to
// what is below.
func NewWire(c net.Conn) *Wire {
	w := &Wire{Conn: c}
	if canPoll {
		for below := c; below != nil; {
			if s, ok := below.(syscall.Conn); ok {
				w.raw, _ = s.SyscallConn()
				w.inner = below
				break
			}
			n, ok := below.(interface{ NetConn() net.Conn })
			if !ok {
				break
			}
			if _, ok := below.(*tls.Conn); ok {
				break // its bytes are not the socket's
			}
			below = n.NetConn()
		}
	}
	w.push, w.pushAll = w.pushOnce, w.pushWaiting
	return w
}

// NetConn is the connection below.
func (w *Wire) NetConn() net.Conn { return w.Conn }

// CloseWrite closes one way of the connection below, where it can.
func (w *Wire) CloseWrite() error {
	if own, err := w.shutdown(shutWrite); own {
		return err
	}
	if c, ok := w.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

// errAgain is what TLS gets when there is nothing more to read. It is temporary,
// so that crypto/tls goes on from where it was.
var errAgain error = again{}

type again struct{}

func (again) Error() string   { return "h2: nothing to read yet" }
func (again) Timeout() bool   { return true }
func (again) Temporary() bool { return true }

func (w *Wire) Read(p []byte) (int, error) {
	if !w.taken.Load() {
		return w.Conn.Read(p)
	}
	if len(w.in) == 0 {
		return 0, errAgain
	}
	n := copy(p, w.in)
	w.in = w.in[n:]
	return n, nil
}

func (w *Wire) Write(p []byte) (int, error) {
	if !w.taken.Load() {
		return w.Conn.Write(p)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(p)
	w.size += n
	for len(p) > 0 {
		if len(w.out) == 0 || w.used == wireSize {
			w.out = append(w.out, wireBuffers.Get().(*[wireSize]byte))
			w.used = 0
		}
		k := copy(w.out[len(w.out)-1][w.used:], p)
		w.used += k
		p = p[k:]
	}
	return n, nil
}

// Close ends the connection. The descriptor that a poller reads stays until the Conn has
// let go of it.
func (w *Wire) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	_, _ = w.shutdown(shutBoth)
	err := w.Conn.Close()
	if w.polled() {
		return nil // the connection below was closed when the poller took its place
	}
	return err
}

// SetReadDeadline does nothing to a connection that is polled: its reader never waits.
func (w *Wire) SetReadDeadline(t time.Time) error {
	if !w.polled() {
		return w.Conn.SetReadDeadline(t)
	}
	return nil
}

// SetWriteDeadline bounds drain.
func (w *Wire) SetWriteDeadline(t time.Time) error {
	if !w.polled() {
		return w.Conn.SetWriteDeadline(t)
	}
	w.mu.Lock()
	w.writeBy = t
	w.mu.Unlock()
	return nil
}

// SetDeadline is both.
func (w *Wire) SetDeadline(t time.Time) error {
	if !w.polled() {
		return w.Conn.SetDeadline(t)
	}
	_ = w.SetWriteDeadline(t)
	return w.SetReadDeadline(t)
}

// polled reports whether a poller reads the socket, or did.
func (w *Wire) polled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.fd != 0
}

// pending is how many encrypted bytes have not been written to the socket.
func (w *Wire) pending() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.size
}

// flush writes what the socket takes without waiting.
func (w *Wire) flush() error {
	w.mu.Lock()
	size, fd := w.size, w.fd
	w.mu.Unlock()
	switch {
	case size == 0:
		return nil
	case fd != 0:
		_, err := w.writeTo(0)
		return err
	}
	w.pushErr = nil
	if err := w.raw.Write(w.push); err != nil {
		if w.polled() { // since a moment, and raw is closed
			_, err = w.writeTo(0)
		}
		return err
	}
	return w.pushErr
}

// drain waits until everything is written.
func (w *Wire) drain() error {
	if w.polled() {
		return w.drainPolled()
	}
	w.pushAllErr = nil
	if err := w.raw.Write(w.pushAll); err != nil {
		if w.polled() {
			return w.drainPolled()
		}
		return err
	}
	return w.pushAllErr
}

func (w *Wire) pushOnce(fd uintptr) bool {
	_, w.pushErr = w.writeTo(fd)
	return true
}

func (w *Wire) pushWaiting(fd uintptr) bool {
	var all bool
	all, w.pushAllErr = w.writeTo(fd)
	return all || w.pushAllErr != nil
}

// writeTo writes until there is no more, or the socket is full. The descriptor of a poller
// goes before fd.
func (w *Wire) writeTo(fd uintptr) (all bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.fd < 0:
		return false, net.ErrClosed
	case w.fd > 0:
		fd = uintptr(w.fd)
	}
	for w.size > 0 {
		p := w.out[0][w.head:]
		if len(w.out) == 1 {
			p = w.out[0][w.head:w.used]
		}
		n, err := writeFD(fd, p)
		if errors.Is(err, errAgain) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		w.head += n
		w.size -= n
		if n == len(p) {
			wireBuffers.Put(w.out[0])
			w.out[0] = nil
			w.out = w.out[1:]
			w.head = 0
			if len(w.out) == 0 {
				w.out, w.used = nil, 0
			}
		}
	}
	return true, nil
}

// fill reads what the socket has into buf, and hands it to TLS. It is called from
// within RawConn.Read.
func (w *Wire) fill(fd uintptr, buf []byte) error {
	n, err := readFD(fd, buf)
	if err != nil {
		return err
	}
	if n == 0 {
		return io.EOF
	}
	w.in = buf[:n]
	return nil
}

// Listener makes the connections that it accepts Wires.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return NewWire(c), nil
}
