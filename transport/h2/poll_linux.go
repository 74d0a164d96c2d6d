package h2

import (
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	shutWrite = unix.SHUT_WR
	shutBoth  = unix.SHUT_RDWR
)

// A poller reads many connections on one goroutine, and writes what they have made at
// once, when all that could be read has been: what many clients ask for in the same
// moment goes to their server in one write. Go's own poller wakes a goroutine for each,
// and a thread to run it.
type poller struct {
	mu      sync.Mutex
	epoll   int // 0: not made yet
	wake    int // an eventfd: somebody wants a connection to end
	conns   map[int32]*Conn
	kicked  []*Conn
	running bool
}

var (
	pollers    = make([]poller, max(1, min(runtime.NumCPU()/4, 8)))
	nextPoller atomic.Uint32
)

// adopt has a poller read the connection. False: there is no descriptor for it, and
// nothing was changed.
func (c *Conn) adopt() bool {
	c.mu.Lock()
	for c.flushing { // nobody may be writing to what is taken away
		c.flushed.Wait()
	}
	c.flushing = true
	c.mu.Unlock()
	adopted := c.adoptIdle()
	c.mu.Lock()
	if adopted { // what should have ended the reading has told the connection below, which is gone
		switch {
		case c.err != nil:
			c.stopReading(0)
		case c.writeErr != nil:
			c.stopReading(lastRead)
		}
	}
	c.flushLocked(&c.batch)
	c.batch.Flush()
	return adopted
}

func (c *Conn) adoptIdle() bool {
	w := c.wire
	fd := 0
	err := w.raw.Control(func(old uintptr) {
		if n, err := unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3); err == nil {
			fd = n
		}
	})
	if err != nil || fd == 0 {
		return false
	}
	w.mu.Lock()
	if w.closed { // meanwhile, and nobody would close the new descriptor
		w.mu.Unlock()
		_ = unix.Close(fd)
		return false
	}
	w.fd = fd
	w.mu.Unlock()
	p := &pollers[nextPoller.Add(1)%uint32(len(pollers))]
	c.mu.Lock()
	c.poller, c.polledOut = p, make(chan struct{})
	c.mu.Unlock()
	_ = w.inner.Close() // takes it out of Go's poller; the socket lives on
	if err := p.add(c, fd); err != nil {
		c.readErr = os.NewSyscallError("epoll_ctl", err)
		close(c.polledOut)
	}
	return true
}

func (p *poller) add(c *Conn, fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epoll == 0 {
		n, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return err
		}
		if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
			err = unix.EpollCtl(n, unix.EPOLL_CTL_ADD, p.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.wake)})
		}
		if err != nil {
			_ = unix.Close(n)
			return err
		}
		p.epoll, p.conns = n, make(map[int32]*Conn)
	}
	if err := unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return err
	}
	p.conns[int32(fd)] = c
	if !p.running {
		p.running = true
		go p.run()
	}
	return nil
}

// kick has the poller let go of a connection that shall end. A shutdown of reading would
// do as much, but the peer of a Unix socket notices, and stops reading our last words.
func (p *poller) kick(c *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kicked = append(p.kicked, c)
	if p.epoll == 0 {
		return
	}
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // full: it wakes up all the same
}

// woken is who was kicked and is still here.
func (p *poller) woken() (gone []*Conn) {
	var count [8]byte
	_, _ = unix.Read(p.wake, count[:])
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.kicked {
		if p.conns[int32(c.wire.descriptor())] == c {
			gone = append(gone, c)
		}
	}
	p.kicked = nil
	return gone
}

// want asks to be told when the socket takes bytes again, or no more.
func (p *poller) want(c *Conn, out bool) bool {
	fd := c.wire.descriptor()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns[int32(fd)] != c {
		return false
	}
	events := uint32(unix.EPOLLIN)
	if out {
		events |= unix.EPOLLOUT
	}
	return unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)}) == nil
}

func (p *poller) remove(c *Conn) (last bool) {
	fd := c.wire.descriptor()
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	delete(p.conns, int32(fd))
	if last = len(p.conns) == 0; last {
		p.running = false
	}
	return last
}

func (p *poller) get(fd int32) *Conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[fd]
}

// readSize is how much is read of one connection before the others have their turn: a
// large answer in few pieces.
const readSize = 256 << 10

// run ends with the last connection.
func (p *poller) run() {
	events := make([]unix.EpollEvent, 128)
	buf := make([]byte, readSize)
	var b Batch
	var gone []*Conn
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			panic("h2: epoll_wait: " + err.Error()) // of a descriptor that is ours
		}
		kicked := false
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == p.wake {
				kicked = true
				continue
			}
			c := p.get(e.Fd)
			if c == nil {
				continue
			}
			if e.Events&unix.EPOLLOUT != 0 {
				c.writable(&b)
			}
			if e.Events&^unix.EPOLLOUT != 0 && !c.readOnce(&b, buf) {
				gone = append(gone, c)
			}
		}
		b.Flush()
		if kicked {
			for _, c := range p.woken() {
				if !slices.Contains(gone, c) {
					c.readErr = os.ErrDeadlineExceeded // what it ends for is said elsewhere
					gone = append(gone, c)
				}
			}
		}
		last := false
		for _, c := range gone {
			last = p.remove(c)
			close(c.polledOut)
		}
		gone = gone[:0]
		if last {
			return
		}
	}
}

// readOnce reads what there is, or a part of it: others may be waiting. False: it is the
// end.
func (c *Conn) readOnce(b *Batch, buf []byte) bool {
	err := c.wire.fill(uintptr(c.wire.descriptor()), buf)
	if errors.Is(err, errAgain) {
		return true
	}
	if err == nil {
		err = c.consume(b)
	}
	if err == nil {
		err = c.failed()
	}
	c.readErr = err
	return err == nil
}

// writable goes on with what the socket did not take.
func (c *Conn) writable(b *Batch) {
	c.mu.Lock()
	waits := c.waitsOut
	c.mu.Unlock()
	if !waits {
		return
	}
	err := c.wire.flush()
	if err == nil && c.wire.pending() > 0 {
		return
	}
	_ = c.poller.want(c, false)
	c.mu.Lock()
	c.waitsOut = false
	c.drained(b, err)
}

// descriptor is the poller's; 0: there is none.
func (w *Wire) descriptor() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.fd, 0)
}

// shutdown ends one way, or both. own: there is a descriptor of a poller.
func (w *Wire) shutdown(how int) (own bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd > 0 {
		return true, unix.Shutdown(w.fd, how)
	}
	return w.fd != 0, nil
}

// letGo closes the descriptor. Nobody polls it any more.
func (w *Wire) letGo() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd > 0 {
		_ = unix.Close(w.fd)
		w.fd = -1
	}
}

// drainPolled waits until everything is written, outside of a poller.
func (w *Wire) drainPolled() error {
	for {
		all, err := w.writeTo(0)
		if all || err != nil {
			return err
		}
		if err := w.await(unix.POLLOUT); err != nil {
			return err
		}
	}
}

// await waits for the socket, for a while at most.
func (w *Wire) await(what int16) error {
	w.mu.Lock()
	by, fd := w.writeBy, w.fd
	w.mu.Unlock()
	if fd <= 0 {
		return net.ErrClosed
	}
	wait := 100 * time.Millisecond // a deadline may be set meanwhile
	if !by.IsZero() {
		left := time.Until(by)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		wait = min(wait, left)
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: what}}, int(wait.Milliseconds())+1)
	if errors.Is(err, syscall.EINTR) {
		return nil
	}
	return err
}

// stay reads and throws away until the peer hangs up, for d at most.
func (w *Wire) stay(d time.Duration) {
	_ = w.SetWriteDeadline(time.Now().Add(d))
	buf := wireBuffers.Get().(*[wireSize]byte)
	defer wireBuffers.Put(buf)
	for range 64 {
		n, err := readFD(uintptr(w.descriptor()), buf[:])
		switch {
		case errors.Is(err, errAgain):
			if w.await(unix.POLLIN) != nil {
				return
			}
		case err != nil || n == 0:
			return
		}
	}
}
