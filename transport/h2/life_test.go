package h2

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// pair is a connection that nobody runs yet, and its other end, of which nothing is read
// and on which nothing is said.
func pair(t testing.TB, o Options) (c *Conn, other *tls.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	server := &tls.Config{Certificates: []tls.Certificate{testCertificate(t)}, NextProtos: []string{"h2"}}
	client := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}
	var ours *tls.Conn
	if o.Begin != nil {
		ours, other = tls.Server(NewWire(near), server), tls.Client(far, client)
	} else {
		ours, other = tls.Client(NewWire(near), client), tls.Server(far, server)
	}
	shaken := make(chan error, 1)
	go func() { shaken <- other.Handshake() }()
	if err := errors.Join(ours.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	return New(ours, o), other
}

// within waits for the end of Run, which a silent peer does not bring about.
func within(t testing.TB, c *Conn, what string) error {
	t.Helper()
	over := make(chan error, 1)
	go func() { over <- c.Run() }()
	select {
	case err := <-over:
		return err
	case <-time.After(10 * time.Second):
		_ = c.tls.NetConn().Close()
		t.Errorf("%s: the connection does not end", what)
		return <-over
	}
}

// What ends a connection before its reader has begun is not lost on the way to the poller.
func TestEndsBeforeRun(t *testing.T) {
	for name, end := range map[string]func(c *Conn){
		"closed": (*Conn).Close,
		"write failed": func(c *Conn) {
			c.mu.Lock()
			c.failWriteLocked(errors.New("pin-2718"))
			c.mu.Unlock()
		},
		"aborted": (*Conn).Abort,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := pair(t, Options{HeaderTime: time.Hour})
			end(c)
			_ = within(t, c, name)
		})
	}
}

// between does something before a RawConn writes, or after its descriptor was asked for.
type between struct {
	syscall.RawConn
	first func()
	then  func()
}

func (r between) Control(f func(uintptr)) error {
	err := r.RawConn.Control(f)
	if r.then != nil {
		r.then()
	}
	return err
}

func (r between) Write(f func(uintptr) bool) error {
	r.first()
	return r.RawConn.Write(f)
}

// A write that had begun when the poller took the socket goes out all the same.
func TestWriteWhileAdopted(t *testing.T) {
	if !canPoll {
		t.Skip("nothing is polled here")
	}
	for name, write := range map[string]func(w *Wire) error{"flush": (*Wire).flush, "drain": (*Wire).drain} {
		c, _ := pair(t, Options{})
		w := c.wire
		w.taken.Store(true)
		_, _ = w.Write([]byte("hello"))
		adopted := false
		w.raw = between{RawConn: w.raw, first: func() {
			if !adopted {
				adopted = c.adopt()
			}
		}}
		if err := write(w); err != nil || w.pending() != 0 {
			t.Errorf("%s: %v, %d bytes are left", name, err, w.pending())
		}
		if adopted {
			c.Close()
			<-c.polledOut
			_ = c.finish(nil)
		}
	}
}

// A connection that is closed while the poller takes its socket is closed.
func TestClosedWhileAdopted(t *testing.T) {
	c, _ := pair(t, Options{HeaderTime: time.Hour})
	if c.wire == nil {
		t.Skip("nothing is polled here")
	}
	c.wire.raw = between{RawConn: c.wire.raw, first: func() {}, then: func() { _ = c.wire.Close() }}
	_ = within(t, c, "closed")
}

// tireless says more whenever something has gone out, and counts what one batch has let go.
type tireless struct {
	s    *Stream
	mine *Batch
	gone int
	p    []byte
}

func (*tireless) Header(*Batch, []Field, bool) {}
func (*tireless) Trailer(*Batch, []Field)      {}
func (*tireless) Data(*Batch, []byte, bool)    {}
func (*tireless) Closed(*Batch, error)         {}

func (r *tireless) Sent(b *Batch, n int) {
	if b == r.mine {
		r.gone += n
	}
	_, _ = r.s.Write(b, r.p[:n], false)
}

// A peer that takes what it gets as fast as it is made does not keep a poller, which has
// others to read, with writing.
func TestFlushEnds(t *testing.T) {
	begun := make(chan *tireless)
	c, other := pair(t, Options{Begin: func(_ *Batch, s *Stream, _ []Field, _ bool) {
		r := &tireless{s: s, mine: new(Batch), p: make([]byte, 1<<20)}
		s.Attach(r)
		begun <- r
	}})
	if c.wire == nil {
		t.Skip("nothing is polled here")
	}
	var all sync.WaitGroup
	all.Go(func() { _ = c.Run() })
	all.Go(func() { _, _ = io.Copy(io.Discard, other.NetConn()) })
	fr := http2.NewFramer(other, other)
	_, _ = other.Write([]byte(http2.ClientPreface))
	_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	_ = fr.WriteWindowUpdate(0, maxWindow-defaultWindow)
	_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82, 0x84, 0x87}, EndHeaders: true, EndStream: true})
	r := <-begun
	r.s.Header(r.mine, []Field{{Name: ":status", Value: "200"}}, false)
	_, _ = r.s.Write(r.mine, r.p, false)
	r.mine.Flush()
	if r.gone > 2*maxRounds*highWater {
		t.Errorf("%d KiB were written before others had their turn", r.gone>>10)
	}
	c.Close()
	_ = other.NetConn().Close()
	all.Wait()
}
